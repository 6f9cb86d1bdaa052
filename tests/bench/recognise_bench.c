/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition: CPU time from the first opens to a track, by sampler, number of files and seed; and a feed's cost.
 *
 *   tests/bench/run recognise_bench [FILES...]      (default 100000 1280000)
 *   tests/bench/run recognise_bench unknown         what a shuffle that nobody can know costs, as fast as it goes
 * and at 1,000 files/s
 *   tests/bench/run recognise_bench shuffles        shuffles of numpy, Python and DALI, [rank::world] of 2 ranks
 *   tests/bench/run recognise_bench seeds           trying all 2^32 seeds of an unseeded RandomSampler: a minute or
 * two */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "prefetch/sampler/recognise.h"
#include "prefetch/sampler/seed_scan.h"
#include "shard/torch_rng.h"
#include "tests/bench/bar.h"
#include "tests/prefetch/loader.h"
#include "tests/prefetch/orders.h"
#include "tests/shard/synth.h"

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double wall_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static double work(struct prefetch_recognise *r)
{
	double start = now_ms();
	while (prefetch_recognise_step(r, 1000000) > 0)
		;
	return now_ms() - start;
}

/* The longest that one slice takes. */
static double longest_slice(struct prefetch_recognise *r, double *ret_sum)
{
	double longest = 0;
	for (int more = 1; more > 0;) {
		double start = now_ms();
		more = prefetch_recognise_step(r, 0);
		double took = now_ms() - start;
		longest = took > longest ? took : longest;
		*ret_sum += took;
	}
	return longest;
}

/* The largest figures of what was recognised of LIKELY_FILES files. */
enum { LIKELY_FILES = 100000, LIKELY_SEEDS = 10000 };
static struct {
	double cpu_ms; /* seeds below LIKELY_SEEDS */
	uint64_t opens;
} most;

static void note(uint32_t n, uint64_t seed, double cpu_ms, uint64_t opens)
{
	if (n != LIKELY_FILES)
		return;
	if (seed < LIKELY_SEEDS && cpu_ms > most.cpu_ms)
		most.cpu_ms = cpu_ms;
	if (opens > most.opens)
		most.opens = opens;
}

static void show_most(void)
{
	bar_below("10^5 files, seeds below 10^4: CPU", most.cpu_ms, 200, "ms");
	bar_below("10^5 files: recognised after", (double)most.opens, 96, "opens");
}

static void bench(const struct shard_index *dataset, const char *name, uint32_t seed, uint32_t world, uint32_t ranks,
        uint32_t workers)
{
	uint32_t n = shard_index_info(dataset)->n_files, file = 0;
	uint32_t *order = malloc(n * sizeof(*order));
	struct prefetch_recognise *r;
	struct prefetch_recognised track = { 0 };
	char text[512] = "not recognised";
	double lists, cpu = 0, slice = 0;
	uint32_t opens = 0;
	if (!order || prefetch_recognise_new(&(struct prefetch_recognise_options){ .index = dataset }, &r) < 0)
		exit(1);
	/* A mount makes the lists once: opens that fit nothing make them, and are forgotten then. */
	for (uint32_t i = 0; i < 48; i++) {
		file = (uint32_t)((uint64_t)i * i * 7919 % n);
		prefetch_recognise_opened(r, &file, 1);
	}
	double start = now_ms();
	while (prefetch_recognise_step(r, 0) > 0 && prefetch_recognise_bytes(r) > 0 && now_ms() - start < 5000)
		;
	lists = now_ms() - start;
	prefetch_recognise_pause(r);

	shard_torch_randperm(n, seed, order);
	struct loader loader = {
		.n = n, .world = world, .ranks = ranks, .workers = workers, .batch = 32, .random = seed
	};
	loader.first = ranks < world ? world - ranks : 0;
	loader_rewind(&loader, order);
	while (!track.ready && opens < 512) {
		file = loader_next(&loader);
		prefetch_recognise_opened(r, &file, 1);
		if (++opens % 16 != 0)
			continue;
		double longest = longest_slice(r, &cpu);
		slice = longest > slice ? longest : slice;
		prefetch_recognise_get(r, 0, &track);
	}
	if (track.ready)
		prefetch_recognise_describe(&track, text, sizeof(text));
	start = now_ms();
	uint32_t fed = 0;
	for (; fed < 20000 && (file = loader_next(&loader)) != UINT32_MAX; fed++)
		prefetch_recognise_opened(r, &file, 1);
	double feed = (now_ms() - start) * 1e6 / fed;
	work(r);
	printf("%-24s %9" PRIu32 " %6.0f %6" PRIu32 " %9.1f %9.2f %8.0f %7.1f   %s\n", name, n, lists, opens, cpu,
	        slice, feed, (double)prefetch_recognise_bytes(r) / 1e6, text);
	if (seed <= PREFETCH_SEED_MAX_DEFAULT)
		note(n, seed, cpu, opens);
	prefetch_recognise_free(r);
	free(order);
}

static void bench_size(uint32_t n)
{
	struct shard_index *dataset = synth_open(
	        &(struct synth){ .classes = n >= 1000 ? 1000 : 1, .per_class = n >= 1000 ? n / 1000 : n, .bytes = 1 });
	bench(dataset, "seed 17, 1 of 2", 17, 2, 1, 2);
	bench(dataset, "seed 9999, 1 of 8", 9999, 8, 1, 2);
	bench(dataset, "seed 9999, 1 of 64", 9999, 64, 1, 2);
	bench(dataset, "seed 9999, 8 of 8", 9999, 8, 8, 2);
	bench(dataset, "seed 1000000, 1 of 2", 1000000, 2, 1, 2);
	bench(dataset, "seed 1000000, 1 of 32", 1000000, 32, 1, 2);
	bench(dataset, "seed 999, 1 of 256", 999, 256, 1, 2);
	bench(dataset, "unknown (seed 3e9)", 3000000000, 1, 1, 2);
	synth_close(dataset);
}

/* An order that nobody here can know, such as numpy's: what it costs to look for it, a whole epoch long. */
static void bench_unknown(uint32_t n, unsigned us)
{
	struct shard_index *dataset = synth_open(
	        &(struct synth){ .classes = n >= 1000 ? 100 : 1, .per_class = n >= 1000 ? n / 100 : n, .bytes = 1 });
	uint32_t *order = malloc(n * sizeof(*order));
	uint64_t random = n;
	struct prefetch_recognise *r;
	struct prefetch_recognise_options options = {
		.index = dataset,
		.search_burst_ns = PREFETCH_SEARCH_BURST_NS,
		.search_permille = PREFETCH_SEARCH_PERMILLE,
		.search_thread = true,
	};
	if (!order || prefetch_recognise_new(&options, &r) < 0)
		exit(1);
	order_of_nobody(&random, n, order);
	struct prefetch_searched searched;
	double start = now_ms(), at = wall_ms();
	for (uint32_t i = 0; i < n; i += 16) {
		prefetch_recognise_opened(r, order + i, n - i < 16 ? n - i : 16);
		for (int rc = 1; rc == 1;)
			rc = prefetch_recognise_step(r, 1000000);
		usleep(us);
	}
	double cpu = now_ms() - start;
	prefetch_recognise_searched(r, &searched);
	printf("%9" PRIu32 " %8.1f %9.1f %9.1f %12" PRIu64 " %7u\n", n, (wall_ms() - at) / 1e3, cpu,
	        (double)searched.cpu_ns / 1e6, searched.seeds, recognised_tracks(r));
	prefetch_recognise_free(r);
	free(order);
	synth_close(dataset);
}

static void bench_seeds(void)
{
	static const uint32_t sizes[] = { 1000, 100000, 1280000 };
	printf("%9s %8s %12s %10s\n", "files", "threads", "CPU seconds", "left over");
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t *opens = calloc(sizes[i], sizeof(*opens)), list, seed, left = 0;
		struct prefetch_seed_scan *scan;
		int rc;
		if (!opens)
			exit(1);
		shard_torch_randperm(sizes[i], UINT64_C(4294967295), opens);
		struct prefetch_seed_scan_list of = { .n = sizes[i], .indices = opens, .n_indices = 96 };
		if (prefetch_seed_scan_new(&of, 1, 0, 1, &scan) < 0)
			exit(1);
		while ((rc = prefetch_seed_scan_next(scan, &list, &seed)) >= 0) {
			left += rc > 0;
			if (rc == 0)
				usleep(1000);
		}
		printf("%9" PRIu32 " %8d %12.1f %10" PRIu32 "\n", sizes[i], 1,
		        (double)prefetch_seed_scan_cpu_ns(scan) / 1e9, left);
		prefetch_seed_scan_free(scan);
		free(opens);
	}
}

/* What the shuffle numbers: the files directory by directory, or sorted by base name over all of them (DLIO). */
enum { SHUFFLED_CLASSES = 1000 };
enum listed { BY_DIRECTORY, BY_NAME };

static void bench_shuffle(const struct shard_index *dataset, const char *name, enum prefetch_shuffle_kind kind,
        uint64_t seed, enum listed listed)
{
	uint32_t n = shard_index_info(dataset)->n_files, opens = 0;
	uint32_t *order = malloc(n * sizeof(*order));
	struct prefetch_recognise *r;
	struct prefetch_recognised track = { 0 };
	char text[512] = "not recognised";
	double cpu = 0, slice = 0;
	if (!order || prefetch_recognise_new(&(struct prefetch_recognise_options){ .index = dataset }, &r) < 0)
		exit(1);
	order_of_seed(kind, seed, n, order);
	for (uint32_t i = 0; i < n && listed == BY_NAME; i++)
		order[i] = order[i] % SHUFFLED_CLASSES * (n / SHUFFLED_CLASSES) + order[i] / SHUFFLED_CLASSES;
	struct loader loader = {
		.n = n, .world = 2, .first = 1, .ranks = 1, .workers = 2, .batch = 32, .random = seed
	};
	loader_rewind(&loader, order);
	while (!track.ready && opens < 512) {
		uint32_t file = loader_next(&loader);
		prefetch_recognise_opened(r, &file, 1);
		if (++opens % 16 != 0)
			continue;
		double longest = longest_slice(r, &cpu);
		slice = longest > slice ? longest : slice;
		prefetch_recognise_get(r, 0, &track);
	}
	if (track.ready)
		prefetch_recognise_describe(&track, text, sizeof(text));
	printf("%-16s %9" PRIu32 " %6" PRIu32 " %9.1f %9.2f   %s\n", name, n, opens, cpu, slice, text);
	note(n, seed, listed == BY_NAME ? 0 : cpu, opens); /* a list by name comes after all others */
	prefetch_recognise_free(r);
	free(order);
}

static void bench_shuffles(uint32_t n)
{
	static const char *const names[] = { "", "numpy", "numpy rng", "Python shuffle", "Python sample" };
	static const uint64_t seeds[] = { 42, 999, 9999 };
	struct shard_index *dataset = synth_open(
	        &(struct synth){ .classes = SHUFFLED_CLASSES, .per_class = n / SHUFFLED_CLASSES, .bytes = 1 });
	for (unsigned i = 0; i < 4 * 3; i++)
		bench_shuffle(dataset, names[1 + i % 4], PREFETCH_SHUFFLE_NUMPY + i % 4, seeds[i / 4], BY_DIRECTORY);
	bench_shuffle(dataset, "DALI", PREFETCH_SHUFFLE_STD64, 524287 + (UINT64_C(1) << 32), BY_DIRECTORY);
	for (unsigned i = 0; i < 3 && n <= LIKELY_FILES; i++)
		bench_shuffle(dataset, "numpy, by name", PREFETCH_SHUFFLE_NUMPY, seeds[i], BY_NAME);
	synth_close(dataset);
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "shuffles") == 0) {
		printf("%-16s %9s %6s %9s %9s\n", "shuffle", "files", "opens", "CPU ms", "slice ms");
		bench_shuffles(100000);
		bench_shuffles(1280000);
		show_most();
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "seeds") == 0) {
		bench_seeds();
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "unknown") == 0) {
		printf("an order of nobody, within the budget: all of it, and its search alone\n%9s %8s %9s %9s %12s "
		       "%7s\n",
		        "files", "wall s", "CPU ms", "search ms", "seeds", "tracks");
		bench_unknown(3000, 0);
		bench_unknown(20000, 0);
		bench_unknown(20000, 16000);
		bench_unknown(100000, 0);
		return 0;
	}
	printf("%-24s %9s %6s %6s %9s %9s %8s %7s\n", "sampler", "files", "1st ms", "opens", "CPU ms", "slice ms",
	        "ns/open", "MB");
	if (argc == 1) {
		bench_size(100000);
		bench_size(1280000);
		show_most();
	}
	for (int i = 1; i < argc; i++)
		bench_size((uint32_t)strtoul(argv[i], NULL, 10));
	return 0;
}
