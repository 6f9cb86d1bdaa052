/* SPDX-License-Identifier: Apache-2.0 */
/* The quarantine list of a dataset: the samples that are known to be bad, and what an order does with them (on_bad).
 *
 * `mkshard verify --quarantine` writes the list into the dataset as SHARD_QUARANTINE_NAME.  It is read before a view is
 * made.  Its hash is part of the view's identity, so ranks with different lists never agree by mistake.  The list is a
 * text:
 *
 *     ddpfs quarantine 1
 *     dataset 0123456789abcdef0123456789abcdef     the identity of the dataset, because ids of another one mean nothing
 *     17 train/n01440764/x.JPEG                    the id of a sample; the rest of the line is for people
 *     # a comment
 *     end                                          a list without it is incomplete and is refused
 *
 * Samples come in any order and may repeat.  A person may add samples whose checksum is right, such as a picture that
 * was packed broken.
 *
 * on_bad says what an order of n samples does with the q that are listed:
 *   eio         The list is not used.  A bad sample is dealt like any other, and reading it fails.
 *   skip        The listed samples are left out: n - q samples are ordered and dealt.
 *   substitute  n stays.  Another sample comes in the place of a listed one: its stand-in.  That is the next sample by
 *               id, wrapping to the front of the directory, that is not listed and has as many files.  Each of its
 *               files has the directory and the suffix of its counterpart, so labels that follow from directories
 *               stay right.
 * In all three, reading a bad sample that is not in the list fails.
 *
 * Threads: a list does not change after it is made; any thread may read it. */
#ifndef DDPFS_SHARD_QUARANTINE_H
#define DDPFS_SHARD_QUARANTINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/index.h"

#define SHARD_QUARANTINE_NAME "quarantine.ddpfs"

enum {
	SHARD_QUARANTINE_MAX = 1 << 20,        /* samples; a dataset with more bad samples needs a new copy */
	SHARD_QUARANTINE_BYTES_MAX = 1 << 29,  /* of the text in a file */
	SHARD_QUARANTINE_OBJECT_MAX = 8 << 20, /* bytes of the text in a store: some 100,000 samples */
};

enum shard_on_bad { SHARD_ON_BAD_EIO, SHARD_ON_BAD_SKIP, SHARD_ON_BAD_SUBSTITUTE };

/* Parses "eio", "skip" or "substitute".  Returns 0; -EINVAL: other text. */
int shard_on_bad_parse(const char *text, enum shard_on_bad *ret_on_bad);
const char *shard_on_bad_name(enum shard_on_bad on_bad);

struct shard_quarantine {
	uint32_t n;         /* entries of samples */
	uint64_t hash;      /* XXH3-64 over the ids, little-endian */
	uint32_t samples[]; /* sample ids, ascending, each once */
};

/* Makes a list from n sample ids, in any order, repeated or not.  Sorts `samples` in place.
 * Returns 0; -E2BIG: over SHARD_QUARANTINE_MAX; -ENOMEM. */
int shard_quarantine_new(uint32_t *samples, size_t n, struct shard_quarantine **ret_list);
void shard_quarantine_free(struct shard_quarantine *list); /* NULL is allowed */

/* Parses the text of a list, len bytes.
 * Returns 0; -EUCLEAN: a line is wrong (err names it), or `end` is missing or not last; -ESTALE: it is the list of
 * another dataset; -E2BIG: over SHARD_QUARANTINE_MAX; -ENOMEM. */
int shard_quarantine_parse(const char *text, size_t len, const struct shard_info *info, struct base_err *err,
        struct shard_quarantine **ret_list);

/* Reads the list of a dataset.  path: NULL = the list in the dataset, also in a store.
 * Returns 0; -ENOENT: no such file (err says how to write one); -EFBIG: over SHARD_QUARANTINE_BYTES_MAX, in a store
 * over SHARD_QUARANTINE_OBJECT_MAX; errors of reading; errors of parsing, with the path in front of the sentence. */
int shard_quarantine_read(
        const struct shard_index *index, const char *path, struct base_err *err, struct shard_quarantine **ret_list);

/* Writes a list to `path` (NULL as above), atomically.
 * Returns 0; -ENOMEM; -EFBIG: over SHARD_QUARANTINE_OBJECT_MAX for a store; errors of the index, which has the paths;
 * errors of writing. */
int shard_quarantine_write(
        const struct shard_index *index, const struct shard_quarantine *list, const char *path, struct base_err *err);

/* Says whether a sample is in the list. */
bool shard_quarantine_has(const struct shard_quarantine *list, uint32_t sample);

/* Finds the stand-ins of the listed samples in [first, end), in the order of the list.  ret_stand_ins has an entry for
 * each.  Returns 0; -ENOENT: a sample has no stand-in (err names it); errors of the index. */
int shard_quarantine_stand_ins(const struct shard_quarantine *list, const struct shard_index *index, uint32_t first,
        uint32_t end, struct base_err *err, uint32_t *ret_stand_ins);

/* Returns how many of n ascending numbers are below x. */
uint32_t shard_quarantine_below(const uint32_t *numbers, uint32_t n, uint32_t x);

#endif
