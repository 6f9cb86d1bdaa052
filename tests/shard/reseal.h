/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the sums of an index anew over whatever stands in it: how tests and fuzzers get hostile contents past the
 * checksums, as somebody who writes an index on purpose would. */
#ifndef DDPFS_TESTS_SHARD_RESEAL_H
#define DDPFS_TESTS_SHARD_RESEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <xxhash.h>

#include "shard/format.h"

static inline void reseal_region(uint8_t *bytes, uint64_t begin, uint64_t end, uint64_t sums_at, uint64_t sums_bytes)
{
	for (uint64_t i = 0; begin + i * SHARD_SUM_BLOCK < end && i < sums_bytes / 8; i++) {
		uint64_t at = begin + i * SHARD_SUM_BLOCK, n = end - at < SHARD_SUM_BLOCK ? end - at : SHARD_SUM_BLOCK;
		uint64_t sum = XXH3_64bits(bytes + at, n);
		memcpy(bytes + sums_at + i * 8, &sum, 8);
	}
}

/* False when the sections of the sums do not lie in the file (then only the header is sealed). */
static inline bool reseal_index(uint8_t *bytes, size_t len)
{
	struct shard_header h;
	if (len < sizeof h)
		return false;
	memcpy(&h, bytes, sizeof h);
	const struct shard_section_rec *l0 = &h.sections[SHARD_SEC_L0], *l1 = &h.sections[SHARD_SEC_L1];
	bool ok = l0->offset >= SHARD_PAGE && l0->offset <= l1->offset && l1->offset <= len &&
	          l0->length_bytes <= l1->offset - l0->offset && l1->length_bytes <= len - l1->offset;
	if (ok) {
		reseal_region(bytes, SHARD_PAGE, l0->offset, l0->offset, l0->length_bytes);
		reseal_region(bytes, l0->offset, l1->offset, l1->offset, l1->length_bytes);
		h.l1_sum = XXH3_64bits(bytes + l1->offset, l1->length_bytes);
	}
	h.header_sum = XXH3_64bits(&h, offsetof(struct shard_header, header_sum));
	memcpy(bytes, &h, sizeof h);
	return ok;
}

#endif
