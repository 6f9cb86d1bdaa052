/* SPDX-License-Identifier: Apache-2.0 */
/* Fits: whether a permutation explains the opens, and which part of it: world, ranks, pace.
 *
 * The input is the positions of the opened files in the permutation.  A *part* is the positions p with p % world in
 * [first, first + ranks), where ranks divides first and world.  It is one rank, or the neighbouring ranks of a host, or
 * all of them (world 1).  If whole batches are dealt, as Accelerate does, world = batch x ranks and ranks = batch.
 *
 * The score of a part.  Suppose the opens had nothing to do with the permutation.  Let q be files opened / files of
 * the list.  Each of the s positions of a part in a window would be among the opens with probability q, almost
 * independently.  (The draw is without replacement, so they are negatively correlated, which only helps.)  By
 * Chernoff, the probability that at least a of the s are among the opens is
 *
 *      P <= exp(-score),  score = s * KL(a/s || q),  KL(d || q) = d ln(d/q) + (1-d) ln((1-d)/(1-q)).
 *
 * For lists of at most 512 files the exact (hypergeometric) probability is used.  For 48 of a rank's 50 files of 100,
 * Chernoff gives a score of 28, and the exact probability gives 59.
 *
 * The search takes the best of many parts and windows over many permutations, so a union bound has to hold:
 *
 *      permutations   2.2e6 seeds and offsets x 44 lists     ln < 18.4
 *      parts          sum of divisor sums, worlds to 1024    ln < 13.7  (half of it is charged by world, see the .c)
 *      windows        6 by quantile, of any start (n < 2^32) ln < 24.0  (a start is charged only where it is free)
 *      looks          8 a ring                               ln <  2.1
 *
 * PREFETCH_FIT_SURE is 58 nats.  Less 18.4 + 13.7 + 1.8 + 2.1 it leaves exp(-22) = 3e-10: the probability that one
 * ring is taken for something else.  If the window may start anywhere, ln n is first subtracted from the score.
 * 96 opens of one rank score 96 ln(n / 96) at best: 440 at 10,000 files, 690 at 128,000.
 *
 * Threads: any; the functions are pure. */
#ifndef DDPFS_PREFETCH_SAMPLER_FIT_H
#define DDPFS_PREFETCH_SAMPLER_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum {
	PREFETCH_FIT_MAX = 512,        /* positions of an input */
	PREFETCH_FIT_WORLD_MAX = 4096, /* larger worlds look like smaller ones */
	PREFETCH_FIT_HITS_MIN = 24,    /* fewer opens are no evidence, whatever their score */
};
#define PREFETCH_FIT_SURE 58.0 /* nats: a fit with this score or more counts */

struct prefetch_fit {
	uint32_t world, first, ranks; /* the part */
	uint64_t low, high;           /* the window: positions [low, high) */
	uint32_t hits, cells;         /* in the window: opened positions of the part, all positions of the part */
	double score;                 /* nats, after the charges above */
};

struct prefetch_fit_input {
	const uint64_t *positions; /* in the order of the opens, distinct */
	uint32_t n;                /* at most PREFETCH_FIT_MAX */
	uint64_t size;             /* positions of the permutation */
	uint32_t seen;             /* files of the list that were opened, at least n */
	bool anywhere;             /* the window may start anywhere, not only at position 0 */
	uint32_t world_max;        /* 1 .. PREFETCH_FIT_WORLD_MAX */
	uint32_t only;             /* if not 0: of these worlds only 1 and this one are tried */
	double least;              /* fits count from this score on: to see that there is none takes less time */
};

/* Returns s * KL(a/s || q): the nats against a or more of s by chance.  0 if a/s <= q. */
double prefetch_fit_surprise(double a, double s, double q);

/* Finds the part with the best score.  Returns false if no part has PREFETCH_FIT_HITS_MIN hits and a score above 0, of
 * `least` or more. */
bool prefetch_fit(const struct prefetch_fit_input *input, struct prefetch_fit *ret_fit);

/* Which positions are read, found from the order in which they come.
 *
 * The set of positions does not say it.  Workers side by side, each equally far into its batch, open the same set as
 * the first few ranks of a world of that size.  But each reader goes on by its own *stride*: by 1 if the order is
 * read whole or dealt in batches, by the world if positions are dealt one by one.  The stride is the distance at
 * which most opens have an earlier open.  The part is the sparsest one that holds all residues seen. */
struct prefetch_part {
	uint32_t world, first, ranks; /* as above; 1, 0, 1 = all */
	uint32_t stride;
	uint32_t joined; /* opens whose position less the stride was opened before them */
};

/* Finds the part.  positions: distinct, in the order of the opens; n <= PREFETCH_FIT_MAX.  Returns false, and all
 * positions with stride 1, if fewer than half of them follow another one at any stride. */
bool prefetch_part(const uint64_t *positions, uint32_t n, struct prefetch_part *ret_part);

/* Computes how well this part explains the positions.  Returns false as prefetch_fit. */
bool prefetch_fit_part(
        const struct prefetch_fit_input *input, const struct prefetch_part *part, struct prefetch_fit *ret_fit);

/* The pace: in what pattern the turns of a part come.  `stride` ranks have `workers` workers each, and each worker
 * reads `batch` turns one after the other. */
struct prefetch_pace {
	uint32_t stride;  /* ranks that are mixed; 1 also if unknown */
	uint32_t workers; /* of each rank; 1 also without workers, and if unknown */
	uint32_t batch;   /* turns; 0 = unknown: a single reader shows no borders between its batches */
	uint32_t starts;  /* batches of this size that were seen to begin; 0 also if a larger size may be right */
};

/* Finds the pace of n turns of `part`, given in the order of the opens. */
void prefetch_pace(const struct prefetch_part *part, const uint64_t *turns, uint32_t n, struct prefetch_pace *ret_pace);

#endif
