/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds bytes to the sum of the file and to the sum of each block; sum.h first. */
#include "tools/mkshard/sum.h"

#include "shard/format.h"

void file_sum_start(struct file_sum *sum, uint64_t length, uint64_t *blocks)
{
	sum->length = length;
	sum->fed = 0;
	sum->ret_block = blocks;
	XXH3_INITSTATE(&sum->whole);
	XXH3_INITSTATE(&sum->block);
	XXH3_64bits_reset(&sum->whole);
	XXH3_64bits_reset(&sum->block);
}

void file_sum_feed(struct file_sum *sum, const uint8_t *data, size_t len)
{
	if (sum->length <= SHARD_BLOCK) {
		XXH3_64bits_update(&sum->whole, data, len);
		sum->fed += len;
		return;
	}
	while (len > 0) {
		size_t room = SHARD_BLOCK - sum->fed % SHARD_BLOCK, take = len < room ? len : room;
		XXH3_64bits_update(&sum->block, data, take);
		XXH3_64bits_update(&sum->whole, data, take); /* these bytes are in the CPU cache now */
		sum->fed += take;
		data += take;
		len -= take;
		if (sum->fed % SHARD_BLOCK == 0 || sum->fed == sum->length) {
			*sum->ret_block++ = XXH3_64bits_digest(&sum->block);
			XXH3_64bits_reset(&sum->block);
		}
	}
}

uint64_t file_sum_end(struct file_sum *sum)
{
	return XXH3_64bits_digest(&sum->whole);
}
