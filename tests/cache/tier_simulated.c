/* SPDX-License-Identifier: Apache-2.0 */
/* A tier in memory; tests/cache/tier_simulated.h first. */
#include "tests/cache/tier_simulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "shard/base/io.h"
#include "shard/block_sum.h"
#include "tests/cache/tier_dir.h"
#include "tests/shard/synth.h"

enum { PAGE = 4096 };

static uint64_t *data; /* for each page of the file: the number of the block that begins there, + 1 */

/* The bytes of block i are its number, then zeros.  A simulation writes and reads only the number, in memory: `bytes`
 * is a buffer that has only ever had such blocks. */
static void fill(uint8_t *bytes, uint64_t number)
{
	memcpy(bytes, &number, sizeof(number));
}

static ssize_t read_number(int fd, void *buf, size_t len, off_t offset)
{
	if (len != LEN)
		return pread(fd, buf, len, offset);
	fill(buf, data[offset / PAGE]);
	return (ssize_t)len;
}

static ssize_t write_number(int fd, const void *buf, size_t len, off_t offset)
{
	if (len % LEN)
		return pwrite(fd, buf, len, offset);
	for (size_t at = 0; at < len; at += LEN)
		memcpy(&data[(offset + (off_t)at) / PAGE], (const uint8_t *)buf + at, sizeof(data[0]));
	return (ssize_t)len;
}

static struct base_io io_without_data;

int tier_simulated_set_up(void **state)
{
	io_without_data = base_io_libc;
	io_without_data.pread = read_number;
	io_without_data.pwrite = write_number;
	base_io = &io_without_data;
	data = calloc(LARGE / PAGE, sizeof(*data));
	if (!data)
		return -1;
	return tier_dir_set_up(state);
}

int tier_simulated_tear_down(void **state)
{
	free(data);
	return tier_dir_tear_down(state);
}

struct cache_tier *tier_simulated_opened(const uint8_t *identity, uint64_t size)
{
	struct cache_tier *tier;
	struct base_err err = { 0 };
	if (cache_tier_open(tier_dir, size, identity, &err, &tier) < 0)
		fail_msg("%s", err.text);
	return tier;
}

struct cache_tier_block tier_simulated_block(uint32_t number, uint32_t now, uint32_t next, uint8_t *bytes)
{
	static uint64_t sums[N];
	fill(bytes, number);
	if (!sums[number])
		sums[number] = shard_block_sum(bytes, LEN);
	return (struct cache_tier_block){
		.key = cache_block_key(number, 0), .xxh3 = sums[number], .len = LEN, .now = now, .next = next
	};
}

struct shard_index *tier_simulated_dataset(uint32_t n)
{
	const struct synth synth = { .classes = 16, .per_class = n / 16, .bytes = LEN };
	base_io = &base_io_libc;
	struct shard_index *index = synth_open(&synth);
	base_io = &io_without_data;
	return index;
}
