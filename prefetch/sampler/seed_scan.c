/* SPDX-License-Identifier: Apache-2.0 */
/* Tries all 2^32 seeds in its own threads; prefetch/sampler/seed_scan.h first. */
#include "prefetch/sampler/seed_scan.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "prefetch/sampler/torch.h"
#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"

enum {
	SIDE = 256,        /* seeds side by side: more than the registers hold, so that multiplications overlap */
	SLICE = SIDE << 8, /* seeds that a thread takes at a time: some milliseconds */
	FOUND_MAX = 256,   /* seeds that passed and were not returned yet; a thread waits for room */
	MT_SHIFT = 397,
	OUTPUTS = PREFETCH_SEED_SCAN_OUTPUTS,
};

struct list {
	uint32_t n;
	uint64_t magic[OUTPUTS];
	uint64_t bits[PREFETCH_SEEN_BITS / 64];
};

struct prefetch_seed_scan {
	struct list *lists;
	uint32_t n_lists, first;
	unsigned n_threads;
	pthread_t threads[PREFETCH_SEED_SCAN_THREADS_MAX];
	_Atomic uint64_t taken, done, cpu_ns; /* seeds; done <= taken, both in whole slices */
	_Atomic bool stop;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t room;
	struct {
		uint32_t list, seed;
	} found[FOUND_MAX];
	uint32_t n_found;
};

struct block {
	uint32_t seeds[SIDE];
	uint32_t words[OUTPUTS][SIDE];
};

/* Plain loops over the seeds: the compiler makes vector instructions of them, for the caller's target. */
static inline __attribute__((always_inline)) void make_words(struct block *b)
{
	uint32_t low[OUTPUTS + 1][SIDE], far[SIDE];
	for (unsigned l = 0; l < SIDE; l++)
		far[l] = low[0][l] = b->seeds[l];
	for (uint32_t i = 1; i <= OUTPUTS; i++) {
		for (unsigned l = 0; l < SIDE; l++)
			low[i][l] = far[l] = UINT32_C(1812433253) * (far[l] ^ far[l] >> 30) + i;
	}
	for (uint32_t i = OUTPUTS + 1; i < MT_SHIFT; i++) {
		for (unsigned l = 0; l < SIDE; l++)
			far[l] = UINT32_C(1812433253) * (far[l] ^ far[l] >> 30) + i;
	}
	for (uint32_t i = 0; i < OUTPUTS; i++) {
		for (unsigned l = 0; l < SIDE; l++) {
			far[l] = UINT32_C(1812433253) * (far[l] ^ far[l] >> 30) + MT_SHIFT + i;
			uint32_t y = (low[i][l] & UINT32_C(0x80000000)) | (low[i + 1][l] & UINT32_C(0x7fffffff));
			y = far[l] ^ y >> 1 ^ (-(low[i + 1][l] & 1) & UINT32_C(0x9908b0df));
			y ^= y >> 11;
			y ^= y << 7 & UINT32_C(0x9d2c5680);
			y ^= y << 15 & UINT32_C(0xefc60000);
			b->words[i][l] = y ^ y >> 18;
		}
	}
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void make_words_avx512(struct block *b)
{
	make_words(b);
}

__attribute__((target("avx2"))) static void make_words_avx2(struct block *b)
{
	make_words(b);
}
#endif

static void make_words_any(struct block *b)
{
	make_words(b);
}

static void (*words_maker(void))(struct block *)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		return make_words_avx512;
	if (__builtin_cpu_supports("avx2"))
		return make_words_avx2;
#endif
	return make_words_any;
}

/* Adds a seed to `found`.  True: the thread shall end. */
static bool hand_out(struct prefetch_seed_scan *u, uint32_t list, uint32_t seed)
{
	lock_for_scope(&u->lock);
	while (u->n_found == FOUND_MAX && !atomic_load(&u->stop))
		pthread_cond_wait(&u->room, &u->lock);
	if (u->n_found < FOUND_MAX) {
		u->found[u->n_found].list = list;
		u->found[u->n_found++].seed = seed;
	}
	return atomic_load(&u->stop);
}

/* Output i is cell i + word % (n - i), unless an earlier step has swapped it away (prefetch/sampler/torch.h). */
static bool begins_with(const struct list *list, const struct block *b, unsigned l)
{
	unsigned misses = 0;
	for (uint32_t i = 0; i < OUTPUTS && misses <= PREFETCH_SEED_SCAN_MISSES; i++) {
		uint32_t d = list->n - i;
		uint32_t at = i + (uint32_t)((unsigned __int128)(list->magic[i] * b->words[i][l]) * d >> 64);
		uint32_t bit = at % PREFETCH_SEEN_BITS;
		misses += !(list->bits[bit / 64] >> (bit % 64) & 1);
	}
	return misses <= PREFETCH_SEED_SCAN_MISSES;
}

/* Tries one slice.  False: it was stopped. */
static bool try_slice(struct prefetch_seed_scan *u, uint64_t from, void (*make)(struct block *), struct block *b)
{
	for (uint64_t at = from; at < from + SLICE; at += SIDE) {
		if (atomic_load_explicit(&u->stop, memory_order_relaxed))
			return false;
		for (unsigned l = 0; l < SIDE; l++)
			b->seeds[l] = u->first + (uint32_t)at + l;
		make(b);
		for (uint32_t k = 0; k < u->n_lists; k++) {
			for (unsigned l = 0; l < SIDE; l++) {
				if (begins_with(&u->lists[k], b, l) && hand_out(u, k, b->seeds[l]))
					return false;
			}
		}
	}
	return true;
}

static void *search(void *arg)
{
	struct prefetch_seed_scan *u = arg;
	void (*make)(struct block *) = words_maker();
	struct block block;
	uint64_t from, before = base_thread_cpu_ns();
	pthread_setname_np(pthread_self(), "seed-scan");
	setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
	while ((from = atomic_fetch_add(&u->taken, SLICE)) < UINT64_C(1) << 32) {
		bool whole = try_slice(u, from, make, &block);
		uint64_t now = base_thread_cpu_ns();
		atomic_fetch_add(&u->cpu_ns, now - before);
		before = now;
		if (!whole)
			break;
		atomic_fetch_add(&u->done, SLICE);
	}
	return NULL;
}

static bool list_init(struct list *list, const struct prefetch_seed_scan_list *given)
{
	if (given->n < 2 * OUTPUTS || given->n_indices > given->n / PREFETCH_SEED_SCAN_SHARE)
		return false;
	list->n = given->n;
	for (uint32_t i = 0; i < OUTPUTS; i++)
		list->magic[i] = UINT64_MAX / (given->n - i) + 1;
	for (uint32_t i = 0; i < given->n_indices; i++)
		bit_set(list->bits, given->indices[i] % PREFETCH_SEEN_BITS);
	return true;
}

int prefetch_seed_scan_new(const struct prefetch_seed_scan_list *lists, uint32_t n_lists, uint32_t first,
        unsigned threads, struct prefetch_seed_scan **ret_scan)
{
	if (n_lists == 0 || n_lists > PREFETCH_SEED_SCAN_LISTS_MAX || threads == 0 ||
	        threads > PREFETCH_SEED_SCAN_THREADS_MAX)
		return -EINVAL;
	struct prefetch_seed_scan *u = calloc(1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	pthread_mutex_init(&u->lock, NULL);
	pthread_cond_init(&u->room, NULL);
	u->first = first;
	u->n_lists = n_lists;
	u->lists = calloc(n_lists, sizeof(*u->lists));
	int rc = u->lists ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < n_lists && rc == 0; i++)
		rc = list_init(&u->lists[i], &lists[i]) ? 0 : -EINVAL;
	while (rc == 0 && u->n_threads < threads) {
		rc = -pthread_create(&u->threads[u->n_threads], NULL, search, u);
		u->n_threads += rc == 0;
	}
	if (u->n_threads == 0) {
		prefetch_seed_scan_free(u);
		return rc;
	}
	*ret_scan = u;
	return 0;
}

void prefetch_seed_scan_free(struct prefetch_seed_scan *u)
{
	if (!u)
		return;
	{
		lock_for_scope(&u->lock);
		atomic_store(&u->stop, true);
		pthread_cond_broadcast(&u->room);
	}
	for (unsigned i = 0; i < u->n_threads; i++)
		pthread_join(u->threads[i], NULL);
	pthread_cond_destroy(&u->room);
	pthread_mutex_destroy(&u->lock);
	free(u->lists);
	free(u);
}

int prefetch_seed_scan_next(struct prefetch_seed_scan *u, uint32_t *ret_list, uint32_t *ret_seed)
{
	/* Read `done` before `found`: a slice's seeds are in `found` before the slice is done. */
	bool over = atomic_load(&u->done) == UINT64_C(1) << 32;
	int rc = over ? -ENOENT : 0;
	lock_for_scope(&u->lock);
	if (u->n_found > 0) {
		*ret_list = u->found[--u->n_found].list;
		*ret_seed = u->found[u->n_found].seed;
		pthread_cond_signal(&u->room);
		rc = 1;
	}
	return rc;
}

uint64_t prefetch_seed_scan_tried(const struct prefetch_seed_scan *u)
{
	return atomic_load(&u->done);
}

uint64_t prefetch_seed_scan_cpu_ns(const struct prefetch_seed_scan *u)
{
	return atomic_load(&u->cpu_ns);
}
