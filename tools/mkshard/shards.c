/* SPDX-License-Identifier: Apache-2.0 */
/* Groups files by shard with a counting sort, and runs the threads; shards.h first. */
#include "tools/mkshard/shards.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "shard/base/bits.h"

int shard_files_init(struct shard_files *by_shard, const struct shard_index *index, const uint64_t *chosen,
        void (*bad)(void *arg, uint32_t file, int rc), void *arg)
{
	const struct shard_info *info = shard_index_info(index);
	*by_shard = (struct shard_files){ .n_shards = info->n_shards };
	by_shard->first = calloc((size_t)info->n_shards + 2, sizeof(*by_shard->first));
	by_shard->files = malloc(((size_t)info->n_files + 1) * sizeof(*by_shard->files));
	if (!by_shard->first || !by_shard->files) {
		shard_files_done(by_shard);
		return -ENOMEM;
	}
	/* A counting sort: count, sum up, distribute. */
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t f = 0; f < info->n_files; f++) {
			struct shard_file file;
			if (chosen && !bit_get(chosen, f))
				continue;
			int rc = shard_index_file(index, f, &file);
			if (rc == 0 && file.shard >= info->n_shards)
				rc = -EUCLEAN;
			if (rc && pass == 0 && bad)
				bad(arg, f, rc);
			if (rc)
				continue;
			if (pass == 0) {
				by_shard->first[file.shard + 2]++;
				by_shard->bytes += file.length;
				by_shard->n++;
			} else {
				by_shard->files[by_shard->first[file.shard + 1]++] = f;
			}
		}
		for (uint32_t s = 2; pass == 0 && s < info->n_shards + 2; s++)
			by_shard->first[s] += by_shard->first[s - 1];
	}
	return 0;
}

void shard_files_done(struct shard_files *by_shard)
{
	free(by_shard->first);
	free(by_shard->files);
	*by_shard = (struct shard_files){ 0 };
}

static int compare_extents(const void *pa, const void *pb)
{
	const struct shard_extent *a = pa, *b = pb;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->file < b->file ? -1 : a->file > b->file;
}

int shard_files_extents(const struct shard_files *by_shard, const struct shard_index *index, uint32_t shard,
        struct shard_extent **ret_extents, uint64_t *ret_n)
{
	uint64_t n = by_shard->first[shard + 1] - by_shard->first[shard];
	struct shard_extent *extents = malloc((n + 1) * sizeof(*extents));
	if (!extents)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		struct shard_file file = { 0 };
		extents[i].file = by_shard->files[by_shard->first[shard] + i];
		int rc = shard_index_file(index, extents[i].file, &file); /* shard_files_init could read it */
		if (rc) {
			free(extents);
			return rc;
		}
		extents[i].offset = file.offset;
		extents[i].length = file.length;
	}
	qsort(extents, n, sizeof(*extents), compare_extents);
	*ret_extents = extents;
	*ret_n = n;
	return 0;
}

struct shard_run {
	uint32_t n_shards;
	_Atomic uint32_t next;
	_Atomic int rc;
	int (*work)(void *arg, uint32_t shard);
	void *arg;
};

uint32_t mkshard_jobs(uint64_t given)
{
	cpu_set_t set;
	if (given)
		return (uint32_t)given;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 2;
	return n < 1 ? 1 : n > 16 ? 16 : (uint32_t)n;
}

static void *run_thread(void *p)
{
	struct shard_run *run = p;
	while (atomic_load(&run->rc) == 0) {
		uint32_t shard = atomic_fetch_add(&run->next, 1);
		if (shard >= run->n_shards)
			break;
		int rc = run->work(run->arg, shard), none = 0;
		if (rc)
			atomic_compare_exchange_strong(&run->rc, &none, rc);
	}
	return NULL;
}

int shard_run(
        uint32_t n_shards, uint32_t jobs, const char *thread_name, int (*work)(void *arg, uint32_t shard), void *arg)
{
	struct shard_run run = { .n_shards = n_shards, .work = work, .arg = arg };
	pthread_t threads[256];
	uint32_t n = 0;
	jobs = jobs < n_shards ? jobs : n_shards;
	while (n + 1 < jobs && n < 256 && pthread_create(&threads[n], NULL, run_thread, &run) == 0)
		pthread_setname_np(threads[n++], thread_name);
	run_thread(&run);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	return run.rc;
}
