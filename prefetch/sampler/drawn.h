/* SPDX-License-Identifier: Apache-2.0 */
/* Drawn indices: by which list a trainer numbers its files, found from what its sampler draws and what it then opens.
 *
 * The sampler is the trainer's own, so its draws are known.  What an index means is not: the dataset keeps its list
 * where nobody sees it.  Here each list (prefetch/sampler/file_list.h) that has as many files as the dataset is held
 * against the opens.  If there is none, the dataset may be a part of a longer list: its first or last files, or one
 * rank's part of it, every W-th file or one of W equal parts.  The right list makes nearly all draws opened files,
 * except those that are not read yet, and those that were read before the first of these opens.
 *
 * The score of a list.  q is files opened / files of the list, so a wrong list makes a draw an opened file with about
 * this probability.  A draw counts ln(HIT / q) nats if its file was opened, and ln((1 - HIT) / (1 - q)) if it was not.
 * The score is the largest sum over consecutive draws (Kadane's algorithm).  By chance it exceeds s for one of L lists
 * and some of n^2 / 2 stretches with a probability below L n^2 / 2 exp(-s).  With 512 lists (the most that are tried)
 * and 4,096 draws, PREFETCH_DRAWN_SURE leaves 1e-13; with 34 parts of each and 512 draws, 6e-14.
 * Besides, nine in ten draws of the best stretch must be hits: if a dataset leaves out one file of a list, the list is
 * right for all files before that one, or for all behind it.
 *
 * Threads: any; the function is pure. */
#ifndef DDPFS_PREFETCH_SAMPLER_DRAWN_H
#define DDPFS_PREFETCH_SAMPLER_DRAWN_H

#include <stddef.h>
#include <stdint.h>

#include "prefetch/sampler/file_list.h"

enum {
	PREFETCH_DRAWN_MAX = 4096,        /* draws that are looked at, and opens */
	PREFETCH_DRAWN_HITS_MIN = 24,     /* fewer are no evidence, whatever their score */
	PREFETCH_DRAWN_BY_NAME = 1 << 20, /* of more files no list by name is made: it takes a second */
	PREFETCH_DRAWN_PARTS = 1 << 20,   /* of lists of more files no parts are tried */
	PREFETCH_DRAWN_WORLD = 16,        /* with more ranks, their parts are not tried */
};
#define PREFETCH_DRAWN_SURE 52.0 /* nats */

struct prefetch_drawn {
	const struct shard_index *index;
	const struct shard_view *shown; /* NULL, or the view whose on_bad leaves samples out of lists */
	const uint32_t *opened;         /* files, in the order of the opens; the latest PREFETCH_DRAWN_MAX count */
	size_t n_opened;
	const uint64_t *indices; /* below `size`, in the order of the draws; the latest PREFETCH_DRAWN_MAX count */
	size_t n_indices;
	uint32_t size;            /* files of the dataset, at least 1 */
	void (*beat)(void *user); /* NULL, or called all few milliseconds; a single list may take longer */
	void *user;
};

/* Finds the list, or the part of one.  The caller has its reference.
 * Returns 0; -EAGAIN: there are lists of this size, or longer ones, but none fits, or there are too few opens yet;
 * -ENOENT: no directory above the opened files has such a list, or the dataset has fewer than 96 files; -ENOMEM; index
 * errors. */
int prefetch_drawn_list(const struct prefetch_drawn *drawn, struct prefetch_list **ret_list);

#endif
