/* SPDX-License-Identifier: Apache-2.0 */
/* The orders: position to item and back, and the keys they are made from; shard/order.h first. */
#include "shard/order.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shard/torch_rng.h"
#include "shard/base/units.h"

/* What a derived word is used for; it is part of what is hashed. */
enum purpose { PURPOSE_OUTER = 1, PURPOSE_POOL = 2, PURPOSE_ROTATION = 3 };

enum { FULL_SAMPLE_BYTES = 64 << 10 }; /* random reads of this size reach the bandwidth of a device */

static const char *const mode_names[] = {
	[SHARD_ORDER_AUTO] = "auto",
	[SHARD_ORDER_FULL] = "full",
	[SHARD_ORDER_CHUNK] = "chunk",
	[SHARD_ORDER_TORCH] = "torch",
	[SHARD_ORDER_NONE] = "none",
};

int shard_order_mode_parse(const char *text, enum shard_order_mode *ret_mode)
{
	int i = base_find_name(mode_names, sizeof(mode_names) / sizeof(mode_names[0]), text);
	if (i >= 0)
		*ret_mode = (enum shard_order_mode)i;
	return i < 0 ? i : 0;
}

const char *shard_order_mode_name(enum shard_order_mode mode)
{
	return mode_names[mode];
}

bool shard_order_by_slot(enum shard_order_mode mode)
{
	return mode == SHARD_ORDER_CHUNK || mode == SHARD_ORDER_NONE;
}

enum shard_order_mode shard_order_resolve(enum shard_order_mode mode, uint64_t n, uint64_t content_bytes)
{
	if (mode != SHARD_ORDER_AUTO)
		return mode;
	return n > 0 && content_bytes / n < FULL_SAMPLE_BYTES ? SHARD_ORDER_CHUNK : SHARD_ORDER_FULL;
}

void shard_order_chunk_defaults(uint64_t n, uint64_t content_bytes, bool shuffled, uint64_t chunk_bytes,
        uint64_t pool_bytes, uint64_t *ret_chunk_items, uint64_t *ret_pool_chunks)
{
	uint64_t mean = n > 0 ? content_bytes / n : 0;
	uint64_t chunk_items;
	uint64_t pool_chunks;

	if (mean == 0)
		mean = 1;
	if (chunk_bytes == 0)
		chunk_bytes = shuffled ? SHARD_CHUNK_BYTES_SHUFFLED : SHARD_CHUNK_BYTES_SORTED;
	if (pool_bytes == 0)
		pool_bytes = SHARD_POOL_BYTES;
	chunk_items = chunk_bytes / mean;
	if (chunk_items > n)
		chunk_items = n;
	if (chunk_items == 0)
		chunk_items = 1;
	/* No overflow: chunk_items * mean is at most chunk_bytes, or one sample. */
	pool_chunks = pool_bytes / (chunk_items * mean);
	*ret_chunk_items = chunk_items;
	*ret_pool_chunks = pool_chunks > 0 ? pool_chunks : 1;
}

/* Writes 8 bytes, little-endian on every machine, so that ranks on different machines agree. */
static uint8_t *put64(uint8_t *at, uint64_t value)
{
	for (unsigned i = 0; i < 8; i++)
		*at++ = (uint8_t)(value >> 8 * i);
	return at;
}

static void derive(const struct shard_order_params *p, enum purpose purpose, unsigned count, uint64_t *ret_words)
{
	static const char label[16] = "ddpfs order v1";
	uint8_t buf[sizeof(label) + sizeof(p->key) + 8 * 8];
	uint8_t *at = buf;

	memcpy(at, label, sizeof(label));
	at += sizeof(label);
	memcpy(at, p->key, sizeof(p->key));
	at += sizeof(p->key);
	at = put64(at, (uint64_t)p->mode);
	at = put64(at, p->n);
	at = put64(at, p->seed);
	at = put64(at, p->epoch);
	at = put64(at, p->mode == SHARD_ORDER_CHUNK ? p->chunk_items : 0);
	at = put64(at, p->mode == SHARD_ORDER_CHUNK ? p->pool_chunks : 0);
	at = put64(at, (uint64_t)purpose);
	for (unsigned i = 0; i < count; i++) {
		put64(at, i);
		ret_words[i] = XXH3_64bits(buf, sizeof(buf));
	}
}

static int init_torch(struct shard_order *order)
{
	const struct shard_order_params *p = &order->params;

	if (p->n > UINT32_MAX)
		return -E2BIG;
	if (p->n == 0)
		return 0;
	order->perm = malloc(p->n * sizeof(*order->perm));
	order->inverse = malloc(p->n * sizeof(*order->inverse));
	if (!order->perm || !order->inverse) {
		shard_order_done(order);
		return -ENOMEM;
	}
	shard_torch_randperm((uint32_t)p->n, p->seed + p->epoch, order->perm);
	for (uint32_t i = 0; i < p->n; i++)
		order->inverse[order->perm[i]] = i;
	return 0;
}

static void init_chunk(struct shard_order *order)
{
	const struct shard_order_params *p = &order->params;
	uint64_t whole = p->n / p->chunk_items;
	uint64_t chunks = whole + (p->n % p->chunk_items > 0);
	uint64_t pools = chunks / p->pool_chunks + (chunks % p->pool_chunks > 0);
	uint64_t regular = pools > 2 ? pools - 2 : 0;
	uint64_t rest = chunks - regular * p->pool_chunks; /* chunks of the last two pools, or of the only pool */
	uint64_t first = pools > 1 ? rest - rest / 2 : 0;  /* chunks of the last but one */
	uint64_t word;

	derive(p, PURPOSE_OUTER, SHARD_PERMUTE_ROUNDS, order->keys);
	derive(p, PURPOSE_POOL, SHARD_PERMUTE_ROUNDS, order->pool_keys);
	derive(p, PURPOSE_ROTATION, 1, &word);
	order->rotation = p->n > 0 ? (uint64_t)((unsigned __int128)word * p->n >> 64) : 0;
	order->outer = shard_permute_make(whole);
	/* No product below exceeds n, except the size of a regular pool, which is used only if there is a regular
	 * pool. */
	order->pool[0] = shard_permute_make(regular > 0 ? p->pool_chunks * p->chunk_items : 0);
	order->pools_start[0] = 0;
	order->pools_start[1] = regular * order->pool[0].n;
	order->pool[1] = shard_permute_make(first * p->chunk_items);
	order->pools_start[2] = order->pools_start[1] + order->pool[1].n;
	order->pool[2] = shard_permute_make(p->n - order->pools_start[2]);
}

int shard_order_init(struct shard_order *order, const struct shard_order_params *params)
{
	struct shard_order made = { .params = *params };
	int rc = 0;

	if (params->n > SHARD_PERMUTE_MAX)
		return -E2BIG;
	switch (params->mode) {
	case SHARD_ORDER_FULL:
		derive(params, PURPOSE_OUTER, SHARD_PERMUTE_ROUNDS, made.keys);
		made.outer = shard_permute_make(params->n);
		break;
	case SHARD_ORDER_CHUNK:
		if (params->chunk_items == 0 || params->pool_chunks == 0)
			return -EINVAL;
		init_chunk(&made);
		break;
	case SHARD_ORDER_TORCH:
		rc = init_torch(&made);
		break;
	case SHARD_ORDER_NONE:
		break;
	case SHARD_ORDER_AUTO:
	default:
		return -EINVAL;
	}
	if (rc == 0)
		*order = made;
	return rc;
}

void shard_order_done(struct shard_order *order)
{
	free(order->perm);
	free(order->inverse);
	*order = (struct shard_order){ 0 };
}

/* Finds the pool of a place: a position, or a place in the permuted chunks, for both count items from the front.
 * Returns its kind (index in order->pool), its first place and its number. */
static unsigned find_pool(const struct shard_order *order, uint64_t place, uint64_t *ret_start, uint64_t *ret_number)
{
	uint64_t regular = order->pool[0].n > 0 ? order->pools_start[1] / order->pool[0].n : 0;
	unsigned kind = place >= order->pools_start[2] ? 2 : place >= order->pools_start[1] ? 1 : 0;

	if (kind > 0) {
		*ret_start = order->pools_start[kind];
		*ret_number = regular + (kind == 2 && order->pool[1].n > 0);
	} else {
		*ret_number = place / order->pool[0].n;
		*ret_start = *ret_number * order->pool[0].n;
	}
	return kind;
}

static uint64_t chunk_at(const struct shard_order *order, uint64_t position)
{
	const struct shard_order_params *p = &order->params;
	uint64_t start;
	uint64_t number;
	unsigned kind = find_pool(order, position, &start, &number);
	uint64_t place =
	        start + shard_permute_at(&order->pool[kind], order->pool_keys, shard_mix64(number), position - start);
	uint64_t chunk = place / p->chunk_items;
	uint64_t offset = place - chunk * p->chunk_items;
	uint64_t slot;

	if (chunk < order->outer.n) /* else it is the shorter chunk, which stays last */
		chunk = shard_permute_at(&order->outer, order->keys, 0, chunk);
	slot = chunk * p->chunk_items + offset + order->rotation;
	return slot < p->n ? slot : slot - p->n;
}

static uint64_t chunk_position(const struct shard_order *order, uint64_t slot)
{
	const struct shard_order_params *p = &order->params;
	uint64_t item = slot >= order->rotation ? slot - order->rotation : slot + p->n - order->rotation;
	uint64_t chunk = item / p->chunk_items;
	uint64_t offset = item - chunk * p->chunk_items;
	uint64_t place;
	uint64_t start;
	uint64_t number;
	unsigned kind;

	if (chunk < order->outer.n)
		chunk = shard_permute_inverse(&order->outer, order->keys, 0, chunk);
	place = chunk * p->chunk_items + offset;
	kind = find_pool(order, place, &start, &number);
	return start + shard_permute_inverse(&order->pool[kind], order->pool_keys, shard_mix64(number), place - start);
}

uint64_t shard_order_at(const struct shard_order *order, uint64_t position)
{
	assert(position < order->params.n);
	switch (order->params.mode) {
	case SHARD_ORDER_FULL:
		return shard_permute_at(&order->outer, order->keys, 0, position);
	case SHARD_ORDER_CHUNK:
		return chunk_at(order, position);
	case SHARD_ORDER_TORCH:
		return order->perm[position];
	case SHARD_ORDER_NONE:
	case SHARD_ORDER_AUTO:
		break;
	}
	return position;
}

uint64_t shard_order_position(const struct shard_order *order, uint64_t item)
{
	assert(item < order->params.n);
	switch (order->params.mode) {
	case SHARD_ORDER_FULL:
		return shard_permute_inverse(&order->outer, order->keys, 0, item);
	case SHARD_ORDER_CHUNK:
		return chunk_position(order, item);
	case SHARD_ORDER_TORCH:
		return order->inverse[item];
	case SHARD_ORDER_NONE:
	case SHARD_ORDER_AUTO:
		break;
	}
	return item;
}
