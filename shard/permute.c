/* SPDX-License-Identifier: Apache-2.0 */
/* The keyed permutation of [0, n) and its inverse; shard/permute.h first. */
#include "shard/permute.h"

#include <assert.h>

/* Maps a random word to [0, range): the high half of the product.  The bias is range / 2^64. */
static inline uint64_t scale(uint64_t word, uint64_t range)
{
	return (uint64_t)((unsigned __int128)word * range >> 64);
}

static uint64_t sqrt_ceil(uint64_t n)
{
	uint64_t low = 0;
	uint64_t high = UINT64_C(1) << 31; /* 2^31 squared = SHARD_PERMUTE_MAX */

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (middle * middle >= n)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Shuffles n items by Fisher-Yates; n <= SHARD_PERMUTE_SHUFFLED. */
static void shuffle(uint64_t n, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak,
        uint8_t ret_items[SHARD_PERMUTE_SHUFFLED])
{
	for (unsigned i = 0; i < n; i++)
		ret_items[i] = (uint8_t)i;
	for (unsigned i = (unsigned)n; i > 1; i--) {
		uint64_t word =
		        shard_mix64((keys[i % SHARD_PERMUTE_ROUNDS] ^ tweak) + i * UINT64_C(0x9e3779b97f4a7c15));
		unsigned j = (unsigned)scale(word, i);
		uint8_t kept = ret_items[i - 1];

		ret_items[i - 1] = ret_items[j];
		ret_items[j] = kept;
	}
}

struct shard_permute shard_permute_make(uint64_t n)
{
	struct shard_permute p = { .n = n };

	assert(n <= SHARD_PERMUTE_MAX);
	if (n > 0) {
		p.rows = sqrt_ceil(n);
		p.cols = (n + p.rows - 1) / p.rows;
	}
	return p;
}

uint64_t shard_permute_at(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t i)
{
	assert(i < p->n);
	if (p->n <= SHARD_PERMUTE_SHUFFLED) {
		uint8_t items[SHARD_PERMUTE_SHUFFLED];

		shuffle(p->n, keys, tweak, items);
		return items[i];
	}
	do {
		uint64_t x = i / p->cols;
		uint64_t y = i - x * p->cols;

		for (unsigned r = 0; r < SHARD_PERMUTE_ROUNDS; r += 2) {
			x += scale(shard_mix64(y ^ keys[r] ^ tweak), p->rows);
			if (x >= p->rows)
				x -= p->rows;
			y += scale(shard_mix64(x ^ keys[r + 1] ^ tweak), p->cols);
			if (y >= p->cols)
				y -= p->cols;
		}
		i = x * p->cols + y;
	} while (i >= p->n);
	return i;
}

uint64_t shard_permute_inverse(
        const struct shard_permute *p, const uint64_t keys[SHARD_PERMUTE_ROUNDS], uint64_t tweak, uint64_t value)
{
	assert(value < p->n);
	if (p->n <= SHARD_PERMUTE_SHUFFLED) {
		uint8_t items[SHARD_PERMUTE_SHUFFLED];
		uint64_t i = 0;

		shuffle(p->n, keys, tweak, items);
		while (items[i] != value)
			i++;
		return i;
	}
	do {
		uint64_t x = value / p->cols;
		uint64_t y = value - x * p->cols;

		for (unsigned r = SHARD_PERMUTE_ROUNDS; r > 0; r -= 2) {
			uint64_t f = scale(shard_mix64(x ^ keys[r - 1] ^ tweak), p->cols);

			y = y >= f ? y - f : y + p->cols - f;
			f = scale(shard_mix64(y ^ keys[r - 2] ^ tweak), p->rows);
			x = x >= f ? x - f : x + p->rows - f;
		}
		value = x * p->cols + y;
	} while (value >= p->n);
	return value;
}
