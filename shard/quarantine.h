/* SPDX-License-Identifier: Apache-2.0 */
/* The quarantine list of a dataset: samples that are known to be bad, and what an order does about them (on_bad).
 *
 * `mkshard verify --quarantine` writes it beside the index as SHARD_QUARANTINE_NAME; it is read when a view is made and its hash
 * is part of the view's identity, so ranks with different lists can never believe they agree.  A text:
 *
 *     ddpfs quarantine 1
 *     dataset 0123456789abcdef0123456789abcdef     the identity of the dataset: ids of another one mean nothing here
 *     17 train/n01440764/x.JPEG                    a sample's id; what follows it is for people
 *     # a comment
 *     end                                          without it the list is torn, and refused
 *
 * in any order, repetitions are fine: a person may add what no checksum finds, such as a picture that was packed broken.
 *
 * on_bad, one meaning everywhere:
 *   eio         the list is not used: a bad sample is dealt like any other and reading it fails
 *   skip        the listed samples do not exist: n - q samples are ordered and dealt
 *   substitute  n stays; in the place of a listed sample comes its stand-in: the next sample (by id, round to the front
 *               of its directory) that is not listed, with as many files, each in the directory of its counterpart and with the
 *               same suffix: labels that follow from directories stay true
 * In all three a bad sample that is not in the list fails when it is read.
 *
 * Threads: a list is immutable once made. */
#ifndef DDPFS_SHARD_QUARANTINE_H
#define DDPFS_SHARD_QUARANTINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/index.h"

#define SHARD_QUARANTINE_NAME "quarantine.ddpfs"

enum {
	SHARD_QUARANTINE_MAX = 1 << 20,       /* samples: a dataset that has lost more wants a new copy */
	SHARD_QUARANTINE_BYTES_MAX = 1 << 29, /* of the text */
};

enum shard_on_bad { SHARD_ON_BAD_EIO, SHARD_ON_BAD_SKIP, SHARD_ON_BAD_SUBSTITUTE };

int shard_on_bad_parse(const char *text, enum shard_on_bad *ret_on_bad); /* "eio" "skip" "substitute"; -EINVAL */
const char *shard_on_bad_name(enum shard_on_bad on_bad);

struct shard_quarantine {
	uint32_t n;
	uint64_t hash;      /* XXH3-64 over the ids, little-endian */
	uint32_t samples[]; /* ascending, each once */
};

/* A list of sample ids, in any order, repetitions are fine.  `samples` is sorted in place.  -ENOMEM, -E2BIG. */
int shard_quarantine_new(uint32_t *samples, size_t n, struct shard_quarantine **ret_list);
void shard_quarantine_free(struct shard_quarantine *list); /* NULL is fine */

/* The text above.  -EUCLEAN (err: the line), -ESTALE (a list of another dataset), -E2BIG, -ENOMEM. */
int shard_quarantine_parse(const char *text, size_t len, const struct shard_info *info, struct base_err *err,
        struct shard_quarantine **ret_list);

/* The list of a dataset; path NULL: the one beside the index.  Errors of reading (-ENOENT says how to write one), and of
 * parsing with the path in front. */
int shard_quarantine_read(
        const struct shard_index *index, const char *path, struct base_err *err, struct shard_quarantine **ret_list);

/* Writes a list, atomically.  The path as above.  -E2BIG, errors of writing. */
int shard_quarantine_write(
        const struct shard_index *index, const struct shard_quarantine *list, const char *path, struct base_err *err);

bool shard_quarantine_has(const struct shard_quarantine *list, uint32_t sample);

/* The stand-ins of the listed samples that are in [first, end), in the order of the list; ret_stand_ins has room for them.
 * -ENOENT: one has none (err names it), index errors. */
int shard_quarantine_stand_ins(const struct shard_quarantine *list, const struct shard_index *index, uint32_t first,
        uint32_t end, struct base_err *err, uint32_t *ret_stand_ins);

/* How many of n ascending numbers are below x. */
uint32_t shard_quarantine_below(const uint32_t *numbers, uint32_t n, uint32_t x);

#endif
