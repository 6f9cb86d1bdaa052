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
enum purpose { PURPOSE_OUTER = 1, PURPOSE_POOL = 2, PURPOSE_ROTATION = 3, PURPOSE_DEAL = 4 };

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

bool shard_order_has_groups(enum shard_order_mode mode)
{
	return mode == SHARD_ORDER_FULL || mode == SHARD_ORDER_CHUNK;
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
	uint8_t buf[sizeof(label) + sizeof(p->key) + 8 * 10];
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
	if (p->groups > 1) {
		at = put64(at, p->groups);
		at = put64(at, p->redeal);
	}
	at = put64(at, (uint64_t)purpose);
	for (unsigned i = 0; i < count; i++) {
		const uint8_t *end = put64(at, i);
		ret_words[i] = XXH3_64bits(buf, (size_t)(end - buf));
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

/* Makes the geometry of a shuffle of n items by chunks. */
static struct shard_order_shuffle chunk_shuffle(const struct shard_order_params *p, uint64_t n)
{
	struct shard_order_shuffle s = { .n = n };
	uint64_t whole = n / p->chunk_items;
	uint64_t chunks = whole + (n % p->chunk_items > 0);
	uint64_t pools = chunks / p->pool_chunks + (chunks % p->pool_chunks > 0);
	uint64_t regular = pools > 2 ? pools - 2 : 0;
	uint64_t rest = chunks - regular * p->pool_chunks; /* chunks of the last two pools, or of the only pool */
	uint64_t first = pools > 1 ? rest - rest / 2 : 0;  /* chunks of the last but one */

	s.outer = shard_permute_make(whole);
	/* No product below exceeds n, except the size of a regular pool, which is used only if there is a regular
	 * pool. */
	s.pool[0] = shard_permute_make(regular > 0 ? p->pool_chunks * p->chunk_items : 0);
	s.pools_start[0] = 0;
	s.pools_start[1] = regular * s.pool[0].n;
	s.pool[1] = shard_permute_make(first * p->chunk_items);
	s.pools_start[2] = s.pools_start[1] + s.pool[1].n;
	s.pool[2] = shard_permute_make(n - s.pools_start[2]);
	return s;
}

static struct shard_order_shuffle make_shuffle(const struct shard_order_params *p, uint64_t n)
{
	return p->mode == SHARD_ORDER_CHUNK ? chunk_shuffle(p, n)
	                                    : (struct shard_order_shuffle){ .n = n, .outer = shard_permute_make(n) };
}

/* Sets up full or chunk. */
static void init_shuffled(struct shard_order *order)
{
	const struct shard_order_params *p = &order->params;
	bool grouped = p->groups > 1;
	struct shard_order_params dealt = *p; /* what holds until groups are dealt anew; without groups: this epoch */
	uint64_t word;

	if (grouped)
		dealt.epoch = p->redeal > 0 ? p->epoch / p->redeal : 0;
	derive(p, PURPOSE_OUTER, SHARD_PERMUTE_ROUNDS, order->keys);
	if (p->mode == SHARD_ORDER_CHUNK) {
		derive(p, PURPOSE_POOL, SHARD_PERMUTE_ROUNDS, order->pool_keys);
		derive(&dealt, PURPOSE_ROTATION, 1, &word);
		order->rotation = p->n > 0 ? (uint64_t)((unsigned __int128)word * p->n >> 64) : 0;
	}
	order->shuffle[0] = make_shuffle(p, grouped ? p->n / p->groups : p->n);
	if (!grouped)
		return;
	order->shuffle[1] = make_shuffle(p, p->n / p->groups + 1);
	order->deal = shard_permute_make(p->mode == SHARD_ORDER_CHUNK ? p->n / p->chunk_items : p->n);
	derive(&dealt, PURPOSE_DEAL, SHARD_PERMUTE_ROUNDS, order->deal_keys);
}

int shard_order_init(struct shard_order *order, const struct shard_order_params *params)
{
	struct shard_order made = { .params = *params };
	int rc = 0;

	if (params->n > SHARD_PERMUTE_MAX)
		return -E2BIG;
	if (params->groups > 1 && (params->groups > params->n || !shard_order_has_groups(params->mode)))
		return -EINVAL;
	switch (params->mode) {
	case SHARD_ORDER_FULL:
		init_shuffled(&made);
		break;
	case SHARD_ORDER_CHUNK:
		if (params->chunk_items == 0 || params->pool_chunks == 0)
			return -EINVAL;
		init_shuffled(&made);
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
 * Returns its kind (index in shuffle->pool), its first place and its number. */
static unsigned find_pool(
        const struct shard_order_shuffle *s, uint64_t place, uint64_t *ret_start, uint64_t *ret_number)
{
	uint64_t regular = s->pool[0].n > 0 ? s->pools_start[1] / s->pool[0].n : 0;
	unsigned kind = place >= s->pools_start[2] ? 2 : place >= s->pools_start[1] ? 1 : 0;

	if (kind > 0) {
		*ret_start = s->pools_start[kind];
		*ret_number = regular + (kind == 2 && s->pool[1].n > 0);
	} else {
		*ret_number = place / s->pool[0].n;
		*ret_start = *ret_number * s->pool[0].n;
	}
	return kind;
}

/* The shuffle of one group.  Without groups, all items are those of group 0. */
struct part {
	const struct shard_order_shuffle *shuffle;
	uint64_t group;
	uint64_t start;    /* the first place of the group among the dealt items */
	uint64_t rotation; /* chunk: where its chunk 0 begins */
};

static struct part find_part(const struct shard_order *order, uint64_t group)
{
	const struct shard_order_params *p = &order->params;
	uint64_t longer;
	struct part part = { .group = group };

	if (p->groups <= 1) {
		part.shuffle = &order->shuffle[0];
		part.rotation = order->rotation;
		return part;
	}
	longer = p->n % p->groups; /* this many groups have one item more */
	part.shuffle = &order->shuffle[group < longer];
	part.start = group * (p->n / p->groups) + (group < longer ? group : longer);
	/* Behind the rest of the chunk that this group shares with the one before. */
	if (p->mode == SHARD_ORDER_CHUNK)
		part.rotation = (p->chunk_items - part.start % p->chunk_items) % p->chunk_items % part.shuffle->n;
	return part;
}

/* Returns a tweak that no other pool of the order has. */
static uint64_t pool_tweak(const struct shard_order *order, const struct part *part, uint64_t number)
{
	return shard_mix64(order->params.groups > 1 ? number * order->params.groups + part->group : number);
}

static uint64_t chunk_at(const struct shard_order *order, const struct part *part, uint64_t position)
{
	const struct shard_order_shuffle *s = part->shuffle;
	uint64_t chunk_items = order->params.chunk_items;
	uint64_t start;
	uint64_t number;
	unsigned kind = find_pool(s, position, &start, &number);
	uint64_t place = start + shard_permute_at(&s->pool[kind], order->pool_keys, pool_tweak(order, part, number),
	                                 position - start);
	uint64_t chunk = place / chunk_items;
	uint64_t offset = place - chunk * chunk_items;
	uint64_t item;

	if (chunk < s->outer.n) /* else it is the shorter chunk, which stays last */
		chunk = shard_permute_at(&s->outer, order->keys, shard_mix64(part->group), chunk);
	item = chunk * chunk_items + offset + part->rotation;
	return item < s->n ? item : item - s->n;
}

static uint64_t chunk_position(const struct shard_order *order, const struct part *part, uint64_t item)
{
	const struct shard_order_shuffle *s = part->shuffle;
	uint64_t chunk_items = order->params.chunk_items;
	uint64_t unrotated = item >= part->rotation ? item - part->rotation : item + s->n - part->rotation;
	uint64_t chunk = unrotated / chunk_items;
	uint64_t offset = unrotated - chunk * chunk_items;
	uint64_t place;
	uint64_t start;
	uint64_t number;
	unsigned kind;

	if (chunk < s->outer.n)
		chunk = shard_permute_inverse(&s->outer, order->keys, shard_mix64(part->group), chunk);
	place = chunk * chunk_items + offset;
	kind = find_pool(s, place, &start, &number);
	return start +
	       shard_permute_inverse(&s->pool[kind], order->pool_keys, pool_tweak(order, part, number), place - start);
}

static uint64_t part_at(const struct shard_order *order, const struct part *part, uint64_t position)
{
	return order->params.mode == SHARD_ORDER_CHUNK
	               ? chunk_at(order, part, position)
	               : shard_permute_at(&part->shuffle->outer, order->keys, shard_mix64(part->group), position);
}

static uint64_t part_position(const struct shard_order *order, const struct part *part, uint64_t item)
{
	return order->params.mode == SHARD_ORDER_CHUNK
	               ? chunk_position(order, part, item)
	               : shard_permute_inverse(&part->shuffle->outer, order->keys, shard_mix64(part->group), item);
}

/* Returns the item at a place of the dealt items: of all groups, one behind the other. */
static uint64_t dealt_at(const struct shard_order *order, uint64_t place)
{
	const struct shard_order_params *p = &order->params;
	uint64_t chunk;
	uint64_t offset;
	uint64_t slot;

	if (p->mode != SHARD_ORDER_CHUNK)
		return shard_permute_at(&order->deal, order->deal_keys, 0, place);
	chunk = place / p->chunk_items;
	offset = place - chunk * p->chunk_items;
	if (chunk < order->deal.n)
		chunk = shard_permute_at(&order->deal, order->deal_keys, 0, chunk);
	slot = chunk * p->chunk_items + offset + order->rotation;
	return slot < p->n ? slot : slot - p->n;
}

static uint64_t dealt_place(const struct shard_order *order, uint64_t item)
{
	const struct shard_order_params *p = &order->params;
	uint64_t unrotated;
	uint64_t chunk;
	uint64_t offset;

	if (p->mode != SHARD_ORDER_CHUNK)
		return shard_permute_inverse(&order->deal, order->deal_keys, 0, item);
	unrotated = item >= order->rotation ? item - order->rotation : item + p->n - order->rotation;
	chunk = unrotated / p->chunk_items;
	offset = unrotated - chunk * p->chunk_items;
	if (chunk < order->deal.n)
		chunk = shard_permute_inverse(&order->deal, order->deal_keys, 0, chunk);
	return chunk * p->chunk_items + offset;
}

static uint64_t group_of_place(const struct shard_order_params *p, uint64_t place)
{
	uint64_t items = p->n / p->groups;
	uint64_t longer = p->n % p->groups;
	uint64_t border = longer * (items + 1); /* the first place behind the groups that have one item more */

	return place < border ? place / (items + 1) : longer + (place - border) / items;
}

static uint64_t shuffled_at(const struct shard_order *order, uint64_t position)
{
	uint64_t groups = order->params.groups;
	struct part part;

	if (groups <= 1) {
		part = find_part(order, 0);
		return part_at(order, &part, position);
	}
	part = find_part(order, position % groups);
	return dealt_at(order, part.start + part_at(order, &part, position / groups));
}

static uint64_t shuffled_position(const struct shard_order *order, uint64_t item)
{
	uint64_t groups = order->params.groups;
	struct part part;
	uint64_t place;

	if (groups <= 1) {
		part = find_part(order, 0);
		return part_position(order, &part, item);
	}
	place = dealt_place(order, item);
	part = find_part(order, group_of_place(&order->params, place));
	return part_position(order, &part, place - part.start) * groups + part.group;
}

uint64_t shard_order_at(const struct shard_order *order, uint64_t position)
{
	assert(position < order->params.n);
	switch (order->params.mode) {
	case SHARD_ORDER_FULL:
	case SHARD_ORDER_CHUNK:
		return shuffled_at(order, position);
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
	case SHARD_ORDER_CHUNK:
		return shuffled_position(order, item);
	case SHARD_ORDER_TORCH:
		return order->inverse[item];
	case SHARD_ORDER_NONE:
	case SHARD_ORDER_AUTO:
		break;
	}
	return item;
}

void shard_order_pool(const struct shard_order *order, uint64_t position, uint64_t *ret_first, uint64_t *ret_end)
{
	uint64_t groups = order->params.groups > 1 ? order->params.groups : 1;
	struct part part = find_part(order, position % groups);
	uint64_t start;
	uint64_t number;
	unsigned kind;

	assert(order->params.mode == SHARD_ORDER_CHUNK && position < order->params.n);
	kind = find_pool(part.shuffle, position / groups, &start, &number);
	*ret_first = start * groups + part.group;
	*ret_end = (start + part.shuffle->pool[kind].n - 1) * groups + part.group + 1;
}
