/* SPDX-License-Identifier: Apache-2.0 */
/* The backend for host memory: a batch stays where its reads put it; backend.h first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu_stage/backend.h"
#include "gpu_stage/numa.h"

static int cpu_memory_new(struct stage_backend *backend, uint8_t *base, uint64_t bytes, struct base_err *err)
{
	(void)err;
	stage_backend_advise(backend, base, bytes, stage_numa_here("/sys"));
	return 0;
}

static int cpu_hand_out(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, unsigned flags,
        struct base_err *err, struct stage_upload **ret_upload)
{
	(void)backend;
	(void)flags;
	(void)err;
	for (uint32_t i = 0; i < n; i++)
		items[i].device = items[i].data;
	*ret_upload = NULL;
	return 0;
}

static void cpu_route(const struct stage_backend *backend, char *buf, size_t size)
{
	(void)backend;
	snprintf(buf, size, "host memory, where batches stay");
}

static void cpu_free(struct stage_backend *backend)
{
	free(backend);
}

static const struct stage_backend_ops cpu_ops = {
	.name = "cpu",
	.memory_new = cpu_memory_new,
	.hand_out = cpu_hand_out,
	.route = cpu_route,
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
