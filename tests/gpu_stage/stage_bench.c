/* SPDX-License-Identifier: Apache-2.0 */
/* What a stage gives beside what memory and disk can: stage_bench DATASET [BATCH [MEMORY]]   (default 64, 1G)
 *
 *   direct    the shards in sequence by O_DIRECT, 4 x 1 MiB in flight: what the disk can
 *   cold      first epoch, opening included, nothing in the page cache (O_DIRECT reads leave nothing there either);
 * bytes are
 *             not touched.  Several rounds between two of `direct` each, because disks change their mind; the first
 * round's
 *             arena is memory that nobody may have used for long, which a virtual machine pays for
 *   kept      a later epoch from the arena, handed out only
 *   copied    the same, each sample copied out into one buffer, as a collate function does
 *   lent      kept and copied to a consumer that may write to the samples: each is verified again
 *   memcpy    the same copies from the same places without a stage: what `copied` can reach at most
 *
 * Figures only: compare them with others of the same run. */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu_stage/stage.h"
#include "shard/base/units.h"
#include "shard/index.h"

enum { ROUNDS = 5, COLD_ROUNDS = 6, IN_FLIGHT = 4, READ_BYTES = 1 << 20 };

struct figure {
	double seconds, cpu_seconds;
	uint64_t samples, bytes;
};

struct slice {
	const uint8_t *data;
	size_t len;
};

static struct slice *slices; /* of an epoch, in its order */
static uint8_t *out;
static size_t out_bytes;

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of all threads, in the kernel too. */
static double cpu_s(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Calls each(path) for every shard. */
static void for_each_shard(const char *dataset, void (*each)(const char *path))
{
	struct shard_index *index;
	struct shard_shard shard;
	char path[8192];
	if (shard_index_open(dataset, NULL, &index) < 0)
		return;
	for (uint32_t i = 0; i < shard_index_info(index)->n_shards; i++) {
		if (shard_index_shard(index, i, &shard) < 0)
			continue;
		snprintf(path, sizeof(path), "%s%s%.*s", shard.path[0] == '/' ? "" : dataset,
		        shard.path[0] == '/' ? "" : "/", (int)shard.path_len, shard.path);
		each(path);
	}
	shard_index_close(index);
}

static void forget_pages(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static struct {
	int fd;
	uint64_t size;
	_Atomic uint64_t next;
} sequence;
static uint64_t sequence_bytes;

static void *read_some(void *arg)
{
	uint8_t *buffer = aligned_alloc(4096, READ_BYTES);
	uint64_t at;
	(void)arg;
	while (buffer && (at = atomic_fetch_add(&sequence.next, READ_BYTES)) < sequence.size) {
		if (pread(sequence.fd, buffer, READ_BYTES, (off_t)at) < 0)
			break;
	}
	free(buffer);
	return NULL;
}

static void read_shard(const char *path)
{
	pthread_t threads[IN_FLIGHT];
	struct stat st;
	sequence.fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	if (sequence.fd < 0 || fstat(sequence.fd, &st) < 0)
		return;
	sequence.size = (uint64_t)st.st_size;
	sequence_bytes += sequence.size;
	atomic_store(&sequence.next, 0);
	for (unsigned i = 0; i < IN_FLIGHT; i++) {
		if (pthread_create(&threads[i], NULL, read_some, NULL) != 0)
			exit(1);
	}
	for (unsigned i = 0; i < IN_FLIGHT; i++)
		pthread_join(threads[i], NULL);
	close(sequence.fd);
}

/* samples: of an epoch, so that the rows compare. */
static struct figure direct(const char *dataset, uint64_t samples)
{
	double began = now_s(), cpu_began = cpu_s();
	sequence_bytes = 0;
	for_each_shard(dataset, read_shard);
	return (struct figure){ .seconds = now_s() - began,
		.cpu_seconds = cpu_s() - cpu_began,
		.samples = samples,
		.bytes = sequence_bytes };
}

static void print(const char *name, struct figure f)
{
	printf("%-8s %10.0f samples/s %8.3f GB/s %8.3f s %8.3f s of processor\n", name, (double)f.samples / f.seconds,
	        (double)f.bytes / f.seconds * 1e-9, f.seconds, f.cpu_seconds);
}

static struct figure epoch(struct ddpfs_stage *stage, uint64_t number, uint32_t n, unsigned flags, bool copy)
{
	struct ddpfs_stage_error error;
	struct ddpfs_batch *batch;
	struct figure f = { 0 };
	if (number && ddpfs_stage_set_epoch(stage, number, &error) < 0) {
		fprintf(stderr, "stage_bench: %s\n", error.text);
		exit(1);
	}
	double began = now_s(), cpu_began = cpu_s();
	int rc;
	while ((rc = ddpfs_stage_next(stage, n, flags, &error, &batch)) == 1) {
		size_t at = 0;
		for (uint32_t i = 0; i < batch->n_items; i++) {
			const struct ddpfs_item *item = &batch->items[i];
			if (copy && at + item->len > out_bytes)
				at = 0;
			if (copy && item->len <= out_bytes)
				memcpy(out + at, item->data, item->len);
			at += item->len;
			slices[f.samples++] = (struct slice){ item->data, item->len };
			f.bytes += item->len;
		}
		ddpfs_batch_release(batch);
	}
	f.seconds = now_s() - began;
	f.cpu_seconds = cpu_s() - cpu_began;
	if (rc < 0) {
		fprintf(stderr, "stage_bench: %s\n", error.text);
		exit(1);
	}
	return f;
}

/* The latest epoch's copies again; the arena has kept them when it is large enough. */
static struct figure copies(uint64_t n, uint32_t batch)
{
	struct figure f = { .samples = n };
	double began = now_s(), cpu_began = cpu_s();
	size_t at = 0;
	for (uint64_t i = 0; i < n; i++) {
		if (i % batch == 0 || at + slices[i].len > out_bytes)
			at = 0;
		if (slices[i].len <= out_bytes)
			memcpy(out + at, slices[i].data, slices[i].len);
		at += slices[i].len;
		f.bytes += slices[i].len;
	}
	f.seconds = now_s() - began;
	f.cpu_seconds = cpu_s() - cpu_began;
	return f;
}

static void open_stage(const char *dataset, const struct ddpfs_stage_options *options, struct ddpfs_stage **ret_stage)
{
	struct ddpfs_stage_error error;
	if (ddpfs_stage_open(dataset, options, &error, ret_stage) < 0) {
		fprintf(stderr, "stage_bench: %s\n", error.text);
		exit(1);
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The stage of the last round. */
static struct ddpfs_stage *cold_rounds(
        const char *dataset, const struct ddpfs_stage_options *options, uint32_t batch, uint64_t samples)
{
	double ratios[COLD_ROUNDS];
	struct ddpfs_stage_stats stats;
	struct ddpfs_stage *stage = NULL;
	struct figure before = direct(dataset, samples);
	print("direct", before);
	for (unsigned i = 0; i < COLD_ROUNDS; i++) {
		ddpfs_stage_close(stage);
		double opened = now_s(), cpu_opened = cpu_s();
		open_stage(dataset, options, &stage);
		double ready = now_s(), cpu_ready = cpu_s();
		struct figure cold = epoch(stage, 0, batch, 0, false);
		cold.seconds += ready - opened; /* it reads from then on */
		cold.cpu_seconds += cpu_ready - cpu_opened;
		ddpfs_stage_stats_get(stage, &stats);
		struct figure after = direct(dataset, samples);
		print("cold", cold);
		printf("         %" PRIu64 " reads of %" PRIu64 " bytes in the mean, %" PRIu64
		       " samples asked for, depth %u\n",
		        stats.reads, stats.reads ? stats.read_bytes / stats.reads : 0, stats.asked, stats.depth);
		print("direct", after);
		ratios[i] = (before.seconds + after.seconds) / 2 / cold.seconds;
		before = after;
	}
	printf("cold / direct = %.2f in the first round", ratios[0]);
	qsort(ratios + 1, COLD_ROUNDS - 1, sizeof(ratios[0]), by_size);
	printf(", %.2f to %.2f then, median %.2f\n", ratios[1], ratios[COLD_ROUNDS - 1], ratios[COLD_ROUNDS / 2]);
	return stage;
}

int main(int argc, char **argv)
{
	uint64_t batch = 64, memory = BASE_GIB, turns;
	struct ddpfs_stage_stats stats;
	struct ddpfs_stage *stage = NULL;
	if (argc < 2 || argc > 4 || (argc > 2 && base_parse_u64(argv[2], DDPFS_STAGE_BATCH_MAX, &batch) < 0) ||
	        !batch || (argc > 3 && base_parse_size(argv[3], &memory) < 0)) {
		fputs("usage: stage_bench DATASET [BATCH [MEMORY]]\n", stderr);
		return 2;
	}
	struct ddpfs_stage_options options = { .size = sizeof(options), .memory_bytes = memory };
	for_each_shard(argv[1], forget_pages);
	open_stage(argv[1], &options, &stage);
	if (ddpfs_stage_turns(stage, 0, &turns) < 0)
		return 1;
	ddpfs_stage_close(stage);
	out_bytes = 64 << 20;
	out = malloc(out_bytes);
	slices = calloc(turns + 1, sizeof(*slices));
	if (!out || !slices)
		return 1;
	memset(out, 1, out_bytes);
	memset(slices, 1, turns * sizeof(*slices));
	stage = cold_rounds(argv[1], &options, (uint32_t)batch, turns);
	struct figure kept = { 0 }, copied = { 0 }, plain = { 0 };
	for (uint64_t round = 0; round < ROUNDS; round++) {
		struct figure k = epoch(stage, 2 * round + 1, (uint32_t)batch, 0, false);
		struct figure c = epoch(stage, 2 * round + 2, (uint32_t)batch, 0, true);
		struct figure p = copies(c.samples, (uint32_t)batch);
		kept = !round || k.seconds < kept.seconds ? k : kept;
		copied = !round || c.seconds < copied.seconds ? c : copied;
		plain = !round || p.seconds < plain.seconds ? p : plain;
	}
	struct figure lent = { 0 }, lent_copied = { 0 };
	epoch(stage, 2 * ROUNDS + 1, (uint32_t)batch, DDPFS_STAGE_LEND, false); /* from here on they are verified */
	for (uint64_t round = 0; round < ROUNDS; round++) {
		uint64_t number = 2 * ROUNDS + 2 + 2 * round;
		struct figure k = epoch(stage, number, (uint32_t)batch, DDPFS_STAGE_LEND, false);
		struct figure c = epoch(stage, number + 1, (uint32_t)batch, DDPFS_STAGE_LEND, true);
		lent = !round || k.seconds < lent.seconds ? k : lent;
		lent_copied = !round || c.seconds < lent_copied.seconds ? c : lent_copied;
	}
	print("kept", kept);
	print("copied", copied);
	print("lent", lent);
	print("..copied", lent_copied);
	print("memcpy", plain);
	printf("copied / memcpy = %.2f, lent and copied / memcpy = %.2f (best of %d rounds each)\n",
	        plain.seconds / copied.seconds, plain.seconds / lent_copied.seconds, ROUNDS);
	ddpfs_stage_stats_get(stage, &stats);
	printf("reads %" PRIu64 ", ready %" PRIu64 ", waited %" PRIu64 ", asked %" PRIu64 ", refused %" PRIu64
	       ", evicted %" PRIu64 ", depth %u, %s, %s\n",
	        stats.reads, stats.ready, stats.waited, stats.asked, stats.refused, stats.evicted, stats.depth,
	        stats.uring ? "io_uring" : "threads", stats.direct ? "O_DIRECT" : "buffered");
	free(slices);
	free(out);
	return ddpfs_stage_close(stage) < 0;
}
