/* SPDX-License-Identifier: Apache-2.0 */
/* flips DATASET SCRATCH STRIDE INDEX_STRIDE: flips single bits of a small dataset, one after the other, and reads it.
 *
 * Shards are read through the engine, the flip made on its way from the device (prefetch_hook).  Every bit inside
 * a file's
 * content must make that file fail with -EBADMSG; every STRIDE-th bit of the shards elsewhere must change nothing.
 * Every INDEX_STRIDE-th bit of the index, in a copy of it in SCRATCH: whatever can still be found under a path,
 * and passes its
 * checksum, has that path's own bytes; a flip that no reader meets is found by shard_index_verify.
 * Prints one line of counts as JSON; exits with 1 and a sentence at the first wrong byte. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "prefetch/prefetch.h"
#include "shard/base/io.h"

enum { FILES_MAX = 64, SHARDS_MAX = 16, SHARD_BYTES_MAX = 1 << 24 };

struct content {
	char path[SHARD_PATH_MAX + 1];
	uint8_t *data;
	struct shard_place place;
};

struct shard {
	char *bytes;
	size_t len;
};

static struct shard_index *source;
static struct content contents[FILES_MAX];
static uint32_t n_files;
static struct shard shards[SHARDS_MAX];
static uint32_t n_shards;

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fprintf(stderr, "flips: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	exit(1);
}

/* ---- the dataset, as it is ---- */

static void read_shards(void)
{
	n_shards = shard_index_info(source)->n_shards;
	if (n_shards > SHARDS_MAX)
		die("too many shards");
	for (uint32_t s = 0; s < n_shards; s++) {
		struct shard_shard rec;
		char path[2 * SHARD_PATH_MAX];
		if (shard_index_shard(source, s, &rec) < 0)
			die("shard %u", s);
		snprintf(path, sizeof(path), "%s/%.*s", shard_index_dataset(source), (int)rec.path_len, rec.path);
		if (base_read_file(path, SHARD_BYTES_MAX, &shards[s].bytes, &shards[s].len) < 0)
			die("cannot read %s", path);
	}
}

static void read_contents(void)
{
	n_files = shard_index_info(source)->n_files;
	if (n_files > FILES_MAX)
		die("too many files");
	for (uint32_t f = 0; f < n_files; f++) {
		struct content *c = &contents[f];
		if (shard_index_place(source, f, &c->place) < 0 ||
		        shard_index_file_path(source, f, c->path, sizeof(c->path)) < 0)
			die("file %u", f);
		c->data = malloc(c->place.length + 1);
		if (!c->data || c->place.length > SHARD_BLOCK)
			die("%s: files of one block only", c->path);
		memcpy(c->data, shards[c->place.shard].bytes + c->place.offset, c->place.length);
		if (XXH3_64bits(c->data, c->place.length) != c->place.xxh3)
			die("%s is damaged before anything was flipped", c->path);
	}
}

/* ---- reading through the engine ---- */

static struct { /* set while no read is in flight */
	uint32_t shard;
	uint64_t byte;
	uint8_t mask; /* 0: none */
} flip;

static int flip_bit(void *arg, uint32_t shard, uint64_t offset, uint8_t *data, int res)
{
	(void)arg;
	if (res > 0 && flip.mask && shard == flip.shard && flip.byte >= offset && flip.byte - offset < (uint64_t)res)
		data[flip.byte - offset] ^= flip.mask;
	return res;
}

struct asked {
	struct prefetch_demand demand;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done, right;
	int rc;
};

static void answered(struct prefetch_demand *demand, int rc, const uint8_t *data, uint32_t len)
{
	struct asked *a = (struct asked *)demand;
	const struct content *c = &contents[demand->file];
	pthread_mutex_lock(&a->lock);
	a->rc = rc;
	a->right = rc == 0 && len == c->place.length && memcmp(data, c->data, len) == 0;
	a->done = true;
	pthread_cond_signal(&a->cond);
	pthread_mutex_unlock(&a->lock);
}

static int read_file(struct prefetch *engine, uint32_t file)
{
	struct asked a = { .demand = { .file = file, .take = (uint32_t)contents[file].place.length, .done = answered },
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.cond = PTHREAD_COND_INITIALIZER };
	if (contents[file].place.length == 0)
		return 0; /* has no block to read */
	prefetch_demand(engine, &a.demand);
	pthread_mutex_lock(&a.lock);
	while (!a.done)
		pthread_cond_wait(&a.cond, &a.lock);
	pthread_mutex_unlock(&a.lock);
	if (a.rc == 0 && !a.right)
		die("%s: wrong bytes with bit mask %u of byte %" PRIu64 " of shard %u flipped", contents[file].path,
		        flip.mask, flip.byte, flip.shard);
	return a.rc;
}

static struct prefetch *open_engine(void)
{
	const struct prefetch_hook hook = { .result = flip_bit };
	struct prefetch_options options = { .index = source,
		.memory_bytes = PREFETCH_MEMORY_MIN,
		.io = PREFETCH_IO_BUFFERED,
		.depth = 4,
		.hook = &hook };
	struct prefetch *engine;
	struct base_err err = { 0 };
	if (prefetch_new(&options, &err, &engine) < 0)
		die("%s", err.text);
	return engine;
}

/* The file whose content holds a byte of a shard, or SHARD_NONE. */
static uint32_t file_at(uint32_t shard, uint64_t byte)
{
	for (uint32_t f = 0; f < n_files; f++) {
		const struct shard_place *p = &contents[f].place;
		if (p->shard == shard && byte >= p->offset && byte - p->offset < p->length)
			return f;
	}
	return SHARD_NONE;
}

static void expect(struct prefetch *engine, uint32_t file, int wanted)
{
	int rc = read_file(engine, file);
	if (rc != wanted)
		die("%s: %d and not %d with byte %" PRIu64 " of shard %u flipped", contents[file].path, rc, wanted,
		        flip.byte, flip.shard);
}

/* All bits of all contents, through one engine: what is bad is not kept, so that each read goes to the device. */
static uint64_t flip_contents(void)
{
	struct prefetch *engine = open_engine();
	uint64_t flips = 0;
	for (uint32_t f = 0; f < n_files; f++) {
		flip.shard = contents[f].place.shard;
		for (uint64_t bit = 0; bit < contents[f].place.length * 8; bit++, flips++) {
			flip.byte = contents[f].place.offset + bit / 8;
			flip.mask = (uint8_t)(1U << bit % 8);
			expect(engine, f, -EBADMSG);
		}
	}
	prefetch_free(engine);
	return flips;
}

/* Bits of headers and padding: every file is read, each time by a new engine, for one that has read a file keeps it. */
static uint64_t flip_others(uint64_t stride)
{
	uint64_t flips = 0;
	for (uint32_t s = 0; s < n_shards; s++) {
		for (uint64_t bit = 0; bit < shards[s].len * 8; bit += stride) {
			if (file_at(s, bit / 8) != SHARD_NONE)
				continue;
			flip.shard = s;
			flip.byte = bit / 8;
			flip.mask = (uint8_t)(1U << bit % 8);
			struct prefetch *engine = open_engine();
			for (uint32_t f = 0; f < n_files; f++)
				expect(engine, f, 0);
			prefetch_free(engine);
			flips++;
		}
	}
	return flips;
}

/* ---- the index ---- */

/* What a reader gets by a path from this index, checked as the engine checks it: 0 the file's own bytes, else
 * -errno. */
static int read_by_path(const struct shard_index *index, const struct content *c)
{
	enum shard_kind kind;
	uint32_t id, length;
	uint64_t offset, sum;
	struct shard_place place;
	int rc = shard_index_find_path(index, c->path, &kind, &id);
	if (rc == 0 && kind != SHARD_KIND_FILE)
		rc = -EISDIR;
	if (rc == 0)
		rc = shard_index_place(index, id, &place);
	if (rc < 0)
		return rc;
	if (place.length == 0)
		return c->place.length == 0 ? 0 : 1;
	rc = shard_index_block(index, id, 0, &offset, &length, &sum);
	if (rc < 0)
		return rc;
	if (place.shard >= n_shards || offset > shards[place.shard].len || length > shards[place.shard].len - offset)
		return -ESTALE;
	const char *data = shards[place.shard].bytes + offset;
	if (XXH3_64bits(data, length) != sum)
		return -EBADMSG;
	return place.length == c->place.length && memcmp(data, c->data, length) == 0 ? 0 : 1;
}

static uint64_t flip_index(const char *scratch, uint64_t stride, uint64_t *ret_found)
{
	char from[2 * SHARD_PATH_MAX], path[2 * SHARD_PATH_MAX];
	char *bytes;
	size_t len;
	uint64_t flips = 0;
	snprintf(from, sizeof(from), "%s/%s", shard_index_dataset(source), SHARD_INDEX_NAME);
	snprintf(path, sizeof(path), "%s/%s", scratch, SHARD_INDEX_NAME);
	if (base_read_file(from, SHARD_BYTES_MAX, &bytes, &len) < 0 ||
	        base_write_file_atomic(path, bytes, len, 0644) < 0)
		die("cannot copy the index");
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		die("%s: %s", path, strerror(errno));
	*ret_found = 0;
	for (uint64_t bit = 0; bit < len * 8; bit += stride, flips++) {
		char byte = (char)(bytes[bit / 8] ^ (1 << bit % 8));
		struct shard_index *index = NULL;
		bool found = false;
		if (pwrite(fd, &byte, 1, (off_t)(bit / 8)) != 1)
			die("%s: %s", path, strerror(errno));
		found = shard_index_open(scratch, NULL, &index) < 0;
		for (uint32_t f = 0; !found && f < n_files; f++) {
			int rc = read_by_path(index, &contents[f]);
			if (rc > 0)
				die("%s: other bytes with bit %" PRIu64 " of the index flipped", contents[f].path, bit);
			found = rc < 0;
		}
		if (!found && shard_index_verify(index, NULL) == 0)
			die("bit %" PRIu64 " of the index: flipped unseen", bit);
		shard_index_close(index);
		*ret_found += found;
		if (pwrite(fd, &bytes[bit / 8], 1, (off_t)(bit / 8)) != 1)
			die("%s: %s", path, strerror(errno));
	}
	close(fd);
	free(bytes);
	return flips;
}

int main(int argc, char **argv)
{
	struct base_err err = { 0 };
	uint64_t stride = argc == 5 ? strtoull(argv[3], NULL, 10) : 0, met;
	uint64_t index_stride = argc == 5 ? strtoull(argv[4], NULL, 10) : 0;
	if (stride == 0 || index_stride == 0)
		die("usage: flips DATASET SCRATCH STRIDE INDEX_STRIDE");
	if (shard_index_open(argv[1], &err, &source) < 0)
		die("%s", err.text);
	read_shards();
	read_contents();
	uint64_t in_contents = flip_contents();
	uint64_t elsewhere = flip_others(stride);
	uint64_t index_flips = flip_index(argv[2], index_stride, &met);
	printf("{\"in_contents\": %" PRIu64 ", \"elsewhere\": %" PRIu64 ", \"index_flips\": %" PRIu64
	       ", \"index_met_by_readers\": %" PRIu64 "}\n",
	        in_contents, elsewhere, index_flips, met);
	shard_index_close(source);
	for (uint32_t f = 0; f < n_files; f++)
		free(contents[f].data);
	for (uint32_t s = 0; s < n_shards; s++)
		free(shards[s].bytes);
	return 0;
}
