/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how random an order is: statistics of a sequence of samples, to compare with the same statistics of a true
 * random permutation (shard_quality_shuffle).
 *
 * One object takes any number of epochs.  Memory: 4 bytes a class, and the tables below; with groups 5 bytes a sample
 * and 4 bytes for each class of each group.  The sequences are the
 * caller's.  Threads: any; an object belongs to its caller. */
#ifndef DDPFS_SHARD_QUALITY_H
#define DDPFS_SHARD_QUALITY_H

#include <stdint.h>

enum {
	SHARD_QUALITY_BINS = 64,        /* parts of the epoch, and of the stored order */
	SHARD_QUALITY_LAGS = 16,        /* distances at which correlation is measured */
	SHARD_QUALITY_BATCH_MAX = 8192, /* samples of a batch */
	SHARD_QUALITY_GROUPS = 8,       /* groups whose samples are counted over all epochs: the first ones */
};
extern const uint32_t shard_quality_lags[SHARD_QUALITY_LAGS]; /* 1 .. 256, about equal steps on a logarithmic scale */

struct shard_quality; /* opaque */

struct shard_quality_options {
	uint32_t n_slots;   /* storage slots are 0 .. n_slots - 1; at least 1 */
	uint32_t n_classes; /* classes are 0 .. n_classes - 1; at least 1 */
	uint32_t batch;     /* samples of a batch, 1 .. SHARD_QUALITY_BATCH_MAX */
	uint32_t n_groups;  /* of shard_quality_add_groups, at most n_slots; 0 or 1: it is not called */
};

/* Makes an object.  Returns 0; -EINVAL: an option is out of range; -ENOMEM. */
int shard_quality_new(const struct shard_quality_options *options, struct shard_quality **ret_quality);
void shard_quality_free(struct shard_quality *quality); /* NULL is allowed */

/* Adds one epoch of n samples: the storage slot and the class of each, in the sequence that the trainer sees. */
void shard_quality_add(struct shard_quality *quality, const uint32_t *slots, const uint32_t *classes, uint64_t n);

/* Adds how one epoch deals samples to groups.  groups[i] is the group of sample i, or n_groups: none.  classes[i] is
 * its class.  Both have n_slots entries, in the same sequence in every epoch. */
void shard_quality_add_groups(struct shard_quality *quality, const uint32_t *groups, const uint32_t *classes);

struct shard_quality_result {
	uint64_t epochs;
	uint64_t batches; /* whole batches of all epochs */
	/* Distinct classes in a batch. */
	double distinct_mean; /* NAN without a batch */
	double distinct_sd;   /* standard deviation; NAN with fewer than 2 batches */
	uint32_t distinct_min;
	uint32_t distinct_max;
	double distinct_by_part[SHARD_QUALITY_BINS]; /* mean over the batches of this part of the epoch; NAN: none */
	uint64_t distinct_counts[SHARD_QUALITY_BATCH_MAX + 1]; /* [k]: batches with k distinct classes */
	/* Serial correlation (Pearson) of class numbers and of slots at each lag, mean over epochs.  NAN if it is not
	 * defined: one class, or an epoch that is not longer than the lag. */
	double class_lag[SHARD_QUALITY_LAGS];
	double slot_lag[SHARD_QUALITY_LAGS];
	/* Position uniformity: chi-square of (part of the epoch) x (part of the stored order), divided by its degrees
	 * of freedom, mean over epochs.  It is 1 for a random permutation, and more if stored neighbours come close
	 * together.  NAN if a cell has fewer than 5 expected samples. */
	double position_chi;
	/* What groups keep; NAN without groups.  If all samples were dealt anew in each epoch at random, a group would
	 * have the samples of the epoch before again with probability 1 / n_groups. */
	double group_kept; /* part of a group's samples that it had in the epoch before; NAN with one epoch */
	double group_seen; /* part of all samples that a group had in at least one epoch */
	/* Chi-square of (group) x (class), divided by its degrees of freedom, mean over epochs.  1 if classes are
	 * dealt to groups at random, more if some groups have more of a class than others.  NAN if no class has 5
	 * expected samples in a group. */
	double group_chi;
	double slot_by_part[SHARD_QUALITY_BINS]; /* mean of slot / n_slots in this part of the epoch: 0.5 if even */
};

/* Computes the statistics of what was added.  *ret_result is large (64 KiB), too large for small stacks. */
void shard_quality_get(const struct shard_quality *quality, struct shard_quality_result *ret_result);

/* Writes a true random permutation of [0, n) into ret_perm: Fisher-Yates with xoshiro256++, unbiased. */
void shard_quality_shuffle(uint64_t seed, uint32_t n, uint32_t *ret_perm);

#endif
