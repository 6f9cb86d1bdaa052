/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as a name that somebody looks up in a flat view, and as a path that is made into one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "fs/ino.h"
#include "fs/name.h"
#include "tests/fuzz/fuzz.h"

static void look_up(const char *name, size_t len)
{
	char path[SHARD_NAME_MAX + 1], again[SHARD_NAME_MAX + 1];
	uint64_t epoch, step, number;
	if (fs_name_parse(name, &epoch, &step) == 0)
		assert(epoch <= FS_EPOCH_MAX);
	if (fs_name_number(name, len, FS_EPOCH_MAX, &number) == 0)
		assert(number <= FS_EPOCH_MAX && (len == 1 || name[0] != '0'));
	if (len <= SHARD_NAME_MAX && fs_name_decode(name, len, path) == 0) {
		/* one spelling a path: what is decoded is written the same way again */
		assert(strlen(path) <= len);
		assert(fs_name_encode(path, strlen(path), SHARD_NAME_MAX, again) == len &&
		        memcmp(again, name, len) == 0);
	}
}

static void make_name(const char *path, size_t len)
{
	char name[SHARD_NAME_MAX + 1];
	uint64_t epoch, step;
	for (size_t max = 32; max <= SHARD_NAME_MAX; max += 37) {
		size_t n = fs_name_encode(path, len, max, name);
		assert(n <= max && strlen(name) == n && !strchr(name, '/'));
	}
	size_t n = fs_name_flat(len % 20000, len * UINT64_C(7919), path, len, name);
	assert(n <= SHARD_NAME_MAX && strlen(name) == n && !strchr(name, '/'));
	assert(fs_name_parse(name, &epoch, &step) == 0 && epoch == len % 20000 && step == len * UINT64_C(7919));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	if (!text)
		abort();
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	size_t len = strlen(text); /* neither names nor paths hold NULs */
	if (!strchr(text, '/'))    /* the kernel hands on no other names */
		look_up(text, len);
	if (len > 0 && len <= SHARD_PATH_MAX)
		make_name(text, len);
	free(text);
	return 0;
}
