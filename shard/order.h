/* SPDX-License-Identifier: Apache-2.0 */
/* The order of an epoch: a pure function position -> item and its inverse.
 *
 * Items are sample ids (full, torch) or storage slots (chunk, none): shard_order_by_slot() says which.  Everything is
 * derived from (key, n, mode and its geometry, seed, epoch); it does not depend on the number of ranks.  O(1) time and
 * memory for every mode but torch, whose permutation and its inverse (4 bytes an item each) are inherent to
 * Fisher-Yates.
 *
 * full   a keyed permutation of [0, n) (shard/permute.h).
 * chunk  chunks of neighbouring slots, permuted; groups of permuted chunks form a pool; the items of a pool are permuted
 *        again (DIESEL's chunk-wise shuffle, ICPP 2020, without its arrays).  Where chunks begin is rotated by a
 *        random number of slots each epoch, so that no two samples are chunk-mates for ever.
 *
 *        slots      |--0--|--1--|--2--|--3--|--4--|--5--|-6|    chunks; the last may be shorter
 *        permuted   |--4--|--0--|--5--|--2--|--1--|--3--|-6|    the shorter one stays last
 *        pools      [ pool 0   ][ pool 1         ][ pool 2 ]    all of pool_chunks, but the last two share evenly
 *                                                               what remains: none is smaller than half a pool
 * torch  torch.randperm(n, generator=Generator().manual_seed(seed + epoch)) on the CPU, bit for bit (shard/torch_rng.h);
 *        the key does not enter.
 * none   stored order.
 *
 * Threads: a struct shard_order is immutable after init; any number of readers. */
#ifndef DDPFS_SHARD_ORDER_H
#define DDPFS_SHARD_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/permute.h"

enum shard_order_mode { SHARD_ORDER_AUTO, SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH, SHARD_ORDER_NONE };

/* Name <-> mode: "auto", "full", "chunk", "torch", "none".  -EINVAL for other text. */
int shard_order_mode_parse(const char *text, enum shard_order_mode *ret_mode);
const char *shard_order_mode_name(enum shard_order_mode mode);

struct shard_order_params {
	enum shard_order_mode mode; /* not AUTO: resolve it first (shard_order_resolve) */
	uint64_t n;                 /* items; 0 is allowed (an empty order) */
	uint64_t seed;
	uint64_t epoch;
	uint8_t key[16];      /* the dataset's identity */
	uint64_t chunk_items; /* chunk: items of a chunk, >= 1 */
	uint64_t pool_chunks; /* chunk: chunks of a pool, >= 1 */
};

/* All but params is private to order.c. */
struct shard_order {
	struct shard_order_params params;
	uint64_t keys[SHARD_PERMUTE_ROUNDS]; /* of `outer` */
	uint64_t
	        pool_keys[SHARD_PERMUTE_ROUNDS]; /* chunk: of the permutation inside each pool, tweaked by its number */
	struct shard_permute outer;              /* full: items; chunk: whole chunks */
	struct shard_permute pool[3];            /* chunk: items of a regular pool, of the last but one, of the last */
	uint64_t pools_start[3];                 /* chunk: first position of each of these kinds */
	uint64_t rotation;                       /* chunk: slot at which chunk 0 begins */
	uint32_t *perm;                          /* torch: position -> item, else NULL; owned */
	uint32_t *inverse;                       /* torch: item -> position, owned */
};

/* -EINVAL (bad mode, zero chunk or pool), -E2BIG (n over SHARD_PERMUTE_MAX; torch with n >= 2^32), -ENOMEM. */
int shard_order_init(struct shard_order *order, const struct shard_order_params *params);
void shard_order_done(struct shard_order *order); /* an order that is all zero is fine */

/* position < n -> item < n, and back. */
uint64_t shard_order_at(const struct shard_order *order, uint64_t position);
uint64_t shard_order_position(const struct shard_order *order, uint64_t item);

/* True when items are storage slots (chunk, none), false when they are sample ids (full, torch). */
bool shard_order_by_slot(enum shard_order_mode mode);

/* auto: full where the mean sample has at least 64 KiB, else chunk.  Other modes are returned as they are. */
enum shard_order_mode shard_order_resolve(enum shard_order_mode mode, uint64_t n, uint64_t content_bytes);

enum {
	SHARD_CHUNK_BYTES_SHUFFLED = 1 << 20, /* neighbours are unrelated: long chunks cost no randomness */
	SHARD_CHUNK_BYTES_SORTED = 1 << 17, /* 2,048 chunks a pool: 0.94 of random's classes in 256 samples of 1,000 */
	SHARD_POOL_BYTES = 1 << 28,
};

/* Chunk geometry for a dataset, from sizes in bytes (0 = the defaults above) and the mean sample. */
void shard_order_chunk_defaults(uint64_t n, uint64_t content_bytes, bool shuffled, uint64_t chunk_bytes,
        uint64_t pool_bytes, uint64_t *ret_chunk_items, uint64_t *ret_pool_chunks);

#endif
