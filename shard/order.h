/* SPDX-License-Identifier: Apache-2.0 */
/* The order of an epoch: a pure function position -> item, and its inverse.
 *
 * Items are sample ids (full, torch) or storage slots (chunk, none); shard_order_by_slot() says which.  The order
 * follows from (key, n, mode with its geometry, groups, seed, epoch).  It does not depend on the number of ranks.  Time
 * and memory are O(1), except for torch.  torch needs the permutation and its inverse in memory, 4 bytes an item each,
 * because each step of Fisher-Yates depends on the steps before.
 *
 * full   A keyed permutation of [0, n) (shard/permute.h).
 * chunk  Chunks of neighbouring slots are permuted.  Groups of permuted chunks form pools.  The items of a pool are
 *        permuted again (the chunk-wise shuffle of DIESEL, ICPP 2020, without its arrays).  In each epoch chunk
 *        0 begins at a random slot, so the same samples do not share a chunk in every epoch.
 *
 *        slots      |--0--|--1--|--2--|--3--|--4--|--5--|-6|    chunks; the last may be shorter
 *        permuted   |--4--|--0--|--5--|--2--|--1--|--3--|-6|    the shorter one stays last
 *        pools      [ pool 0   ][ pool 1         ][ pool 2 ]    each has pool_chunks chunks, but the last two
 *                                                               share the rest: none is under half a pool
 * torch  torch.randperm(n, generator=Generator().manual_seed(seed + epoch)) on the CPU, bit for bit
 *        (shard/torch_rng.h).  The key is not used.
 * none   The stored order.
 *
 * Groups (full and chunk): the items are dealt to `groups` groups, which keep them for `redeal` epochs.  In each epoch
 * every group shuffles its own items anew.  The groups take turns: position p belongs to group p % groups.  So the
 * sizes of two groups differ by one item at most, and the order does not depend on the number of ranks (shard/deal.h).
 *
 *        dealt      |-----group 0-----|-----group 1-----|-----group 2----|    all items, permuted by redeal epochs
 *        shuffled   |  a0  a1  a2 ... |  b0  b1  b2 ... |  c0  c1  c2 ...|    each group by itself, by epoch
 *        positions  a0 b0 c0 a1 b1 c1 a2 b2 c2 ...
 *
 * chunk deals whole chunks; only the chunks at the borders between groups are cut.  The chunks of a group stay the same
 * until the groups are dealt anew.
 *
 * Threads: a struct shard_order does not change after init; any number of threads may read it. */
#ifndef DDPFS_SHARD_ORDER_H
#define DDPFS_SHARD_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/permute.h"

enum shard_order_mode { SHARD_ORDER_AUTO, SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH, SHARD_ORDER_NONE };

/* Parses "auto", "full", "chunk", "torch" or "none".  Returns 0; -EINVAL: other text. */
int shard_order_mode_parse(const char *text, enum shard_order_mode *ret_mode);
const char *shard_order_mode_name(enum shard_order_mode mode);

struct shard_order_params {
	enum shard_order_mode mode; /* not AUTO: shard_order_resolve replaces it */
	uint64_t n;                 /* number of items, at most SHARD_PERMUTE_MAX; 0 is an empty order */
	uint64_t seed;
	uint64_t epoch;
	uint8_t key[16];      /* the identity of the dataset; of a subtree: see ORDER.md */
	uint64_t chunk_items; /* chunk: items of a chunk, >= 1 */
	uint64_t pool_chunks; /* chunk: chunks of a pool, >= 1 */
	uint64_t groups;      /* full, chunk: 2 .. n; 0 or 1: no groups */
	uint64_t redeal;      /* epochs for which groups keep their items; 0: all epochs */
};

/* The geometry of a shuffle of n items. */
struct shard_order_shuffle {
	uint64_t n;
	struct shard_permute outer; /* full: permutes items; chunk: permutes whole chunks */
	/* chunk: permutes the items of a regular pool, of the last but one, of the last */
	struct shard_permute pool[3];
	uint64_t pools_start[3]; /* chunk: the first position of each of these three kinds */
};

/* An order.  Only order.c uses the fields after params. */
struct shard_order {
	struct shard_order_params params;
	uint64_t keys[SHARD_PERMUTE_ROUNDS]; /* of `outer`; the tweak is mixed from the group's number */
	/* chunk: keys of the permutation inside each pool; the tweak is mixed from the pool's number */
	uint64_t pool_keys[SHARD_PERMUTE_ROUNDS];
	/* [0]: of all items, or of a group of n / groups items; [1]: of a group that has one item more */
	struct shard_order_shuffle shuffle[2];
	uint64_t rotation;                        /* chunk: the slot at which chunk 0 begins */
	struct shard_permute deal;                /* groups: deals items (full) or whole chunks (chunk) */
	uint64_t deal_keys[SHARD_PERMUTE_ROUNDS]; /* of `deal` */
	uint32_t *perm;                           /* torch: position -> item, else NULL; owned */
	uint32_t *inverse;                        /* torch: item -> position, owned */
};

/* Makes an order.  Copies params.  O(1), torch O(n).
 * Returns 0; -EINVAL: mode is AUTO, chunk_items or pool_chunks is 0, groups are more than items, or the mode has no
 * groups; -E2BIG: n is over SHARD_PERMUTE_MAX, for torch
 * over 2^32 - 1; -ENOMEM.  On failure *order is unchanged. */
int shard_order_init(struct shard_order *order, const struct shard_order_params *params);
/* Frees what the order owns.  An order of zeros is allowed. */
void shard_order_done(struct shard_order *order);

/* Return the item (< n) at a position (< n), and the position of an item. */
uint64_t shard_order_at(const struct shard_order *order, uint64_t position);
uint64_t shard_order_position(const struct shard_order *order, uint64_t item);

/* chunk: finds the pool of a position (< n).  Its items are at positions [*ret_first, *ret_end).  With groups, items of
 * other groups lie between them. */
void shard_order_pool(const struct shard_order *order, uint64_t position, uint64_t *ret_first, uint64_t *ret_end);

/* Returns true if items are storage slots (chunk, none), false if they are sample ids (full, torch). */
bool shard_order_by_slot(enum shard_order_mode mode);
/* Returns true if the items of this order can be dealt to groups (full, chunk). */
bool shard_order_has_groups(enum shard_order_mode mode);

/* Resolves AUTO for n samples: full if the mean sample has at least 64 KiB, else chunk.  Returns other modes
 * unchanged. */
enum shard_order_mode shard_order_resolve(enum shard_order_mode mode, uint64_t n, uint64_t content_bytes);

enum {
	/* Slots were shuffled at pack time: neighbours are unrelated, so long chunks cost no randomness. */
	SHARD_CHUNK_BYTES_SHUFFLED = 1 << 20,
	/* Not shuffled: 2,048 chunks a pool.  256 samples then have 0.94 of the distinct classes (of 1,000) that 256
	 * random samples have. */
	SHARD_CHUNK_BYTES_SORTED = 1 << 17,
	SHARD_POOL_BYTES = 1 << 28,
};

/* Computes the geometry of order=chunk for n samples with content_bytes in total.  chunk_bytes and pool_bytes: 0 = the
 * defaults above.  Both results are at least 1. */
void shard_order_chunk_defaults(uint64_t n, uint64_t content_bytes, bool shuffled, uint64_t chunk_bytes,
        uint64_t pool_bytes, uint64_t *ret_chunk_items, uint64_t *ret_pool_chunks);

#endif
