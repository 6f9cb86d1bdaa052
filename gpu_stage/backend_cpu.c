/* Host memory: a batch is where its reads put it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpu_stage/backend.h"

static int cpu_memory_new(struct stage_backend *backend, uint64_t bytes, struct base_err *err, uint8_t **ret_base)
{
	(void)backend;
	/* NORESERVE: pages that are never needed are never touched, so memory_bytes may be more than there is. */
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return base_err_set(err, -ENOMEM, "cannot map an arena of %llu MiB: give less memory",
		        (unsigned long long)(bytes >> 20));
	madvise(base, bytes, MADV_HUGEPAGE); /* fewer faults; where the kernel has none, small pages do */
	madvise(base, bytes, MADV_DONTDUMP);
	*ret_base = base;
	return 0;
}

static void cpu_memory_free(struct stage_backend *backend, uint8_t *base, uint64_t bytes)
{
	(void)backend;
	munmap(base, bytes);
}

static int cpu_hand_out(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, struct base_err *err)
{
	(void)backend;
	(void)err;
	for (uint32_t i = 0; i < n; i++)
		items[i].device = items[i].data;
	return 0;
}

static void cpu_take_back(struct stage_backend *backend, const struct ddpfs_item *items, uint32_t n)
{
	(void)backend;
	(void)items;
	(void)n;
}

static void cpu_free(struct stage_backend *backend)
{
	free(backend);
}

static const struct stage_backend_ops cpu_ops = {
	.name = "cpu",
	.memory_new = cpu_memory_new,
	.memory_free = cpu_memory_free,
	.hand_out = cpu_hand_out,
	.take_back = cpu_take_back,
	.free = cpu_free,
};

int stage_backend_cpu(struct base_err *err, struct stage_backend **ret_backend)
{
	struct stage_backend *backend = calloc(1, sizeof(*backend));
	if (!backend)
		return base_err_set(err, -ENOMEM, "out of memory");
	backend->ops = &cpu_ops;
	*ret_backend = backend;
	return 0;
}
