/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that have a sentence.
 *
 * A function that can fail returns 0 or -errno, or a count >= 0 or -errno.  If a person must understand the failure, it
 * also takes `struct base_err *err`, which may be NULL.  That is the last parameter before the outputs.  On failure the
 * function writes one sentence into it: the file, the reason, the next step.  A function fills err or logs, never both.
 *
 * These codes have one meaning everywhere:
 *   -EBADMSG          a checksum does not match
 *   -EUCLEAN          an impossible structure (bounds, magic, order)
 *   -EPROTONOSUPPORT  a format version or feature bit this build does not know
 *   -ESTALE           a shard or the index changed under a live mount
 *   -EKEYREJECTED     the certificate of a server is not trusted
 *
 * Threads: any; an err object belongs to its caller. */
#ifndef DDPFS_SHARD_BASE_ERR_H
#define DDPFS_SHARD_BASE_ERR_H

enum { BASE_ERR_TEXT_MAX = 1024 };

struct base_err {
	int code;                     /* negative errno; 0 = nothing recorded */
	char text[BASE_ERR_TEXT_MAX]; /* one line, no newline, no program name; file names escaped by base_err_quote */
};

/* Records code and text, and replaces what was there.  err may be NULL.  Text longer than the buffer is cut.
 * Returns `code`, so callers write `return base_err_set(err, -EUCLEAN, "...")`. */
int base_err_set(struct base_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of the recorded text.  err must not be NULL.  Returns err->code. */
int base_err_prefix(struct base_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Copies `name` (any bytes) into buf of `size` bytes as printable text: control bytes and invalid UTF-8 become \xNN,
 * and backslashes are doubled.  The text is always terminated; if it does not fit it is cut and ends in "...".  Returns
 * buf. */
const char *base_err_quote(const char *name, char *buf, unsigned size);

/* Gives the same text of a name, in a buffer that lives as long as the block around it. */
enum { BASE_QUOTED_MAX = 512 };
#define base_quoted(name) base_err_quote((name), (char[BASE_QUOTED_MAX]){ 0 }, BASE_QUOTED_MAX)

/* Does the same for a whole sentence.  Backslashes stay as they are, because the names in it are already quoted. */
const char *base_err_printable(const char *text, char *buf, unsigned size);

/* Returns the meaning of a code: of the list above, else that of errno.  A static string. */
const char *base_err_str(int code);

#endif
