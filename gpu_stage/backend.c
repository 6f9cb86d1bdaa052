/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a backend by name, and gives advice on its memory; backend.h first. */
#include "gpu_stage/backend.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu_stage/numa.h"
#include "shard/base/units.h"

int stage_backend_new(
        const struct ddpfs_stage_options *options, struct base_err *err, struct stage_backend **ret_backend)
{
	const char *name = options->backend;
	uint64_t ordinal;
	if (!name || strcmp(name, "cpu") == 0)
		return stage_backend_cpu(err, ret_backend);
	if (strcmp(name, "cuda") == 0)
		return stage_backend_cuda(options, -1, err, ret_backend);
	if (strncmp(name, "cuda:", 5) == 0 && base_parse_u64(name + 5, 1024, &ordinal) == 0)
		return stage_backend_cuda(options, (int)ordinal, err, ret_backend);
	return base_err_set(err, -EINVAL, "there is no backend '%s': use cpu, cuda or cuda:N", base_quoted(name));
}

void stage_backend_advise(struct stage_backend *backend, uint8_t *base, uint64_t bytes, int node)
{
	madvise(base, bytes, MADV_HUGEPAGE); /* fewer page faults; without huge pages, small ones work */
	madvise(base, bytes, MADV_DONTDUMP);
	if (node >= 0 && stage_numa_prefer(base, bytes, node) == 0)
		backend->numa_node = (uint32_t)node + 1;
}
