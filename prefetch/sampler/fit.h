/* SPDX-License-Identifier: Apache-2.0 */
/* Does a permutation explain the opens, and which part of it: world, ranks, pace.
 *
 * Given the positions in the permutation of the files that were opened.  A *part* is the positions p with p % world in
 * [first, first + ranks), where ranks divides first and world: one rank, the neighbouring ranks of a host, all of them
 * (world 1), or, with batches dealt whole as Accelerate does, world = batch x ranks and ranks = batch.
 *
 * What a part is worth.  If the opens had nothing to do with the permutation, each of the s positions of a part in a
 * window would be among them with probability q (files opened / files of the list), almost independently (without
 * replacement: negatively correlated, which only helps).  By Chernoff, the probability that at least a of the s are is
 *
 *      P <= exp(-score),  score = s * KL(a/s || q),  KL(d || q) = d ln(d/q) + (1-d) ln((1-d)/(1-q)).
 *
 * Of few files (512) the exact probability, hypergeometric, is taken: 48 of a rank's 50 files, of 100, score 28 by Chernoff, 59
 * exactly.
 *
 * The best of many parts and windows over many permutations is looked at, so what has to hold is a union bound:
 *
 *      permutations   2.2e6 seeds and offsets x 32 lists     ln < 18.1
 *      parts          sum of divisor sums, worlds to 1024    ln < 13.7  (half of it is charged by world, see the .c)
 *      windows        6 by quantile, of any start (n < 2^32) ln < 24.0  (a start is charged only where it is free)
 *      looks          8 a ring                               ln <  2.1
 *
 * PREFETCH_FIT_SURE = 58 nats leaves, after 18.1 + 13.7 + 1.8 + 2.1, exp(-22) = 2e-10 for one ring of opens to be taken
 * for something it is not; where the window starts anywhere, ln n is taken off the score first.  96 opens of one rank
 * score 96 ln(n / 96) at best: 440 at 10,000 files, 690 at 128,000.
 *
 * Threads: pure. */
#ifndef DDPFS_PREFETCH_SAMPLER_FIT_H
#define DDPFS_PREFETCH_SAMPLER_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum {
	PREFETCH_FIT_MAX = 512,        /* positions looked at */
	PREFETCH_FIT_WORLD_MAX = 4096, /* larger worlds are not told apart from smaller ones */
	PREFETCH_FIT_HITS_MIN = 24,    /* fewer opens are no evidence, whatever the arithmetic says */
};
#define PREFETCH_FIT_SURE 58.0

struct prefetch_fit {
	uint32_t world, first, ranks;
	uint64_t low, high;   /* window of positions that counts */
	uint32_t hits, cells; /* opened ones of the part's positions in it */
	double score;         /* nats; what is charged is taken off */
};

struct prefetch_fit_input {
	const uint64_t *positions; /* in the order of the opens, distinct */
	uint32_t n;                /* at most PREFETCH_FIT_MAX */
	uint64_t size;             /* positions there are */
	uint32_t seen;             /* files of the list that were opened, n at least */
	bool anywhere;             /* the window may start anywhere, not only at position 0 */
	uint32_t world_max;        /* 1 .. PREFETCH_FIT_WORLD_MAX */
};

/* s * KL(a/s || q): nats against a or more of s by chance.  0 where a/s <= q. */
double prefetch_fit_surprise(double a, double s, double q);

/* The best part.  False when none has PREFETCH_FIT_HITS_MIN hits. */
bool prefetch_fit(const struct prefetch_fit_input *input, struct prefetch_fit *ret_fit);

/* Which positions are read here, told from the order in which they come.
 *
 * A set of positions does not say it: workers side by side, each equally far into its batch, leave the same picture as the
 * first few ranks of a world of that size.  But each reader goes on by its own *stride*: by 1 in an order that is read
 * whole or dealt by batches, by the world where positions are dealt one by one.  The stride is the distance at which most
 * opens have one before them; the part is the sparsest one that holds all residues seen of it. */
struct prefetch_part {
	uint32_t world, first, ranks; /* as above; 1, 0, 1 = all */
	uint32_t stride;
	uint32_t joined; /* opens that came after the one at that distance before them */
};

/* Positions in the order of the opens, distinct, n <= PREFETCH_FIT_MAX.  False, and all with stride 1, where less than half
 * of them follow on one another at any stride. */
bool prefetch_part(const uint64_t *positions, uint32_t n, struct prefetch_part *ret_part);

/* How well that one part explains the positions.  False when it has less than PREFETCH_FIT_HITS_MIN hits. */
bool prefetch_fit_part(
        const struct prefetch_fit_input *input, const struct prefetch_part *part, struct prefetch_fit *ret_fit);

/* How the turns of a part come in: as `stride` ranks with `workers` each, who read `batch` turns one after the other. */
struct prefetch_pace {
	uint32_t stride;  /* ranks that are mixed; 1 when it cannot be told */
	uint32_t workers; /* of each rank; 1 also without workers, and when it cannot be told */
	uint32_t batch;   /* 0 = unknown: one reader has no borders between its batches */
};

/* Turns of `part` in the order of the opens. */
void prefetch_pace(const struct prefetch_part *part, const uint64_t *turns, uint32_t n, struct prefetch_pace *ret_pace);

#endif
