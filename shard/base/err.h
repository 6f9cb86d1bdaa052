/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that carry their own sentence.
 *
 * Every fallible function returns 0 or -errno (or a count >= 0 or -errno).  Functions whose failure a person must
 * understand also take `struct base_err *err` (may be NULL) as their last parameter but the outputs and fill it with
 * one sentence: the file, the reason, the next step.  A function either fills err and returns, or logs; never both.
 *
 * Own codes, used the same way everywhere:
 *   -EBADMSG          a checksum does not match
 *   -EUCLEAN          an impossible structure (bounds, magic, order)
 *   -EPROTONOSUPPORT  a format version or feature bit this build does not know
 *   -ESTALE           a shard or the index changed under a live mount
 *
 * Threads: an err object belongs to its caller; no shared state. */
#ifndef DDPFS_SHARD_BASE_ERR_H
#define DDPFS_SHARD_BASE_ERR_H

enum { BASE_ERR_TEXT_MAX = 1024 };

struct base_err {
	int code;                     /* negative errno; 0 = nothing recorded */
	char text[BASE_ERR_TEXT_MAX]; /* one line, no newline, no program name; file names escaped by base_err_quote */
};

/* Records code and text (overwrites what was there) and returns `code`, so that callers write
 * `return base_err_set(err, -EUCLEAN, "...")`.  err may be NULL.  Text longer than the buffer is cut. */
int base_err_set(struct base_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the text already recorded; returns err->code.  err must not be NULL. */
int base_err_prefix(struct base_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Copies `name` (any bytes) into buf as printable text: control bytes and invalid UTF-8 become \xNN.  Returns buf;
 * always terminated, cut with "..." when size is too small. */
const char *base_err_quote(const char *name, char *buf, unsigned size);

/* The same for a whole sentence: backslashes stay as they are, for names in it have been quoted. */
const char *base_err_printable(const char *text, char *buf, unsigned size);

/* The meaning of a code in the sense of the list above, else strerror(-code).  Static string. */
const char *base_err_str(int code);

#endif
