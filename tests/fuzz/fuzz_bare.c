/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as the end of a bare shard, as they are and with their sums computed anew. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "shard/bare.h"
#include "tests/fuzz/fuzz.h"

static void try_bare(const uint8_t *data, size_t size)
{
	struct shard_bare_info info;
	struct base_err err;
	if (size < SHARD_BARE_TRAILER || shard_bare_trailer(data + size - SHARD_BARE_TRAILER, size, &err, &info) < 0)
		return;
	uint64_t *footer = malloc(info.footer_bytes ? info.footer_bytes : 1);
	struct shard_bare_reader reader;
	if (!footer)
		abort();
	memcpy(footer, data + info.footer_offset, info.footer_bytes);
	if (shard_bare_reader_init(&reader, &info, (const uint8_t *)footer, info.footer_bytes, &err) == 0) {
		struct shard_bare_entry e;
		uint64_t at = 0;
		while (shard_bare_reader_next(&reader, &err, &e) == 1) {
			assert(strlen(e.path) <= SHARD_PATH_MAX &&
			        (!e.group || strlen(e.group) <= SHARD_BARE_GROUP_MAX));
			assert(e.directory || (e.offset >= at && e.offset + e.length <= info.footer_offset));
			if (!e.directory)
				at = e.offset + e.length;
			for (uint64_t i = 0; e.block_sums && i < shard_units(e.length, SHARD_BLOCK); i++)
				at += e.block_sums[i] & 0; /* every sum is readable */
		}
	}
	free(footer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_bare(data, size);
	if (size < SHARD_BARE_TRAILER)
		return 0;

	uint8_t *copy = malloc(size);
	if (!copy)
		abort();
	memcpy(copy, data, size);
	struct shard_bare_trailer_rec t;
	memcpy(&t, copy + size - sizeof t, sizeof t);
	uint64_t trailer_at = size - sizeof t;
	if (t.footer_offset <= trailer_at && t.footer_bytes <= trailer_at - t.footer_offset)
		t.footer_sum = XXH3_64bits(copy + t.footer_offset, t.footer_bytes);
	t.trailer_sum = XXH3_64bits(&t, offsetof(struct shard_bare_trailer_rec, trailer_sum));
	memcpy(copy + size - sizeof t, &t, sizeof t);
	try_bare(copy, size);
	free(copy);
	return 0;
}
