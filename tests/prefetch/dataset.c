/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the shards and the index of a small dataset; tests/prefetch/dataset.h first. */
#include "tests/prefetch/dataset.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shard/base/io.h"
#include "shard/build.h"

#define must(x)                                                                                                        \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "dataset: %s:%d: %s\n", __FILE__, __LINE__, #x);                               \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* Sanitizers do not look at each word that it makes or compares: tests look at gigabytes. */
#define UNSEEN __attribute__((no_sanitize("address", "thread", "undefined")))

UNSEEN static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

UNSEEN static bool words_equal(uint32_t file, uint64_t first, const uint64_t *words, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		if (words[i] != mix((uint64_t)file << 40 ^ (first + i)))
			return false;
	}
	return true;
}

/* Compares a copy, so that sanitizers see where it comes from.  Beside the range, it has the bytes of the file. */
bool dataset_equal(uint32_t file, uint64_t offset, const uint8_t *data, uint64_t len)
{
	enum { WORDS = 512 };
	uint64_t words[WORDS];
	for (uint64_t i = 0, n; i < len; i += n) {
		uint64_t first = (offset + i) / 8, skip = (offset + i) % 8;
		n = sizeof(words) - skip < len - i ? sizeof(words) - skip : len - i;
		words[0] = mix((uint64_t)file << 40 ^ first);
		words[(skip + n - 1) / 8] = mix((uint64_t)file << 40 ^ (first + (skip + n - 1) / 8));
		memcpy((uint8_t *)words + skip, data + i, n);
		if (!words_equal(file, first, words, (skip + n + 7) / 8))
			return false;
	}
	return true;
}

void dataset_shard_path(const struct dataset *d, uint32_t shard, char path[128])
{
	snprintf(path, 128, "%s/shard-%06u.bare", d->dir, shard);
}

static void add_file(struct dataset *d, struct shard_builder *b, FILE **out, uint32_t file, uint64_t len)
{
	uint32_t shard = (uint32_t)(mix(file) % d->n_shards);
	char path[64];
	uint8_t *data = malloc(len + 8);
	uint64_t n_blocks = (len + SHARD_BLOCK - 1) / SHARD_BLOCK;
	uint64_t *sums = malloc((n_blocks + 1) * sizeof(uint64_t));
	must(data && sums);
	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t v = mix((uint64_t)file << 40 ^ i / 8);
		memcpy(data + i, &v, 8);
	}
	for (uint64_t i = 0; i < n_blocks; i++) {
		uint64_t n = len - i * SHARD_BLOCK;
		sums[i] = XXH3_64bits(data + i * SHARD_BLOCK, n < SHARD_BLOCK ? n : SHARD_BLOCK);
	}
	snprintf(path, sizeof(path), "d%03u/f%07u", file / 1000, file);
	must(shard_builder_add_file(b,
	             &(struct shard_build_file){ .path = path,
	                     .shard = shard,
	                     .offset = (uint64_t)ftell(out[shard]),
	                     .length = len,
	                     .xxh3 = XXH3_64bits(data, len),
	                     .block_sums = len > SHARD_BLOCK ? sums : NULL,
	                     .mtime_s = 1,
	                     .mode = 0644 },
	             NULL) == 0);
	must(fwrite(data, 1, len, out[shard]) == len);
	free(data);
	free(sums);
}

/* The k-th of n numbers in a scattered order: k -> k * step mod n with a step that shares no factor with n. */
static uint32_t scattered(uint32_t k, uint32_t n)
{
	uint64_t step = 7919;
	while (n % step == 0)
		step += 2;
	return (uint32_t)(k * step % n);
}

void dataset_new(struct dataset *d, uint32_t n_files, uint32_t n_shards, const uint64_t *sizes, uint32_t n_sizes)
{
	struct shard_builder *b;
	struct base_err err = { 0 };
	char path[128];
	const char *tmp = getenv("TMPDIR");
	FILE **out = calloc(n_shards, sizeof(FILE *));
	*d = (struct dataset){ .n_files = n_files, .n_shards = n_shards };
	snprintf(d->dir, sizeof(d->dir), "%s/ddpfs-test-XXXXXX", tmp && strlen(tmp) < 40 ? tmp : "/var/tmp");
	must(out && mkdtemp(d->dir) && shard_builder_new(&b) == 0);
	for (uint32_t s = 0; s < n_shards; s++) {
		dataset_shard_path(d, s, path);
		must((out[s] = fopen(path, "wb")));
	}
	for (uint32_t k = 0; k < n_files; k++) {
		uint32_t file = scattered(k, n_files);
		add_file(d, b, out, file, sizes[file % n_sizes]);
	}
	for (uint32_t s = 0; s < n_shards; s++) {
		dataset_shard_path(d, s, path);
		uint64_t size = (uint64_t)ftell(out[s]);
		must(fclose(out[s]) == 0);
		must(shard_builder_add_shard(b, strrchr(path, '/') + 1, SHARD_BARE, size, 0, NULL) == 0);
	}
	snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, d->dir);
	if (shard_builder_finish(b, path, true, 1, &err) < 0 || shard_index_open(d->dir, &err, &d->index) < 0) {
		fprintf(stderr, "dataset: %s\n", err.text);
		abort();
	}
	shard_builder_free(b);
	free(out);
}

uint64_t dataset_length(const struct dataset *d, uint32_t file)
{
	struct shard_file f;
	must(shard_index_file(d->index, file, &f) == 0);
	return f.length;
}

void dataset_free(struct dataset *d)
{
	char path[128];
	shard_index_close(d->index);
	for (uint32_t s = 0; s < d->n_shards; s++) {
		dataset_shard_path(d, s, path);
		unlink(path);
	}
	snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, d->dir);
	unlink(path);
	rmdir(d->dir);
}
