/* Where a stage's arena lies and how a batch gets to its consumer: what differs between host memory and a GPU.
 *
 *     memory_new    the arena, once; a device backend registers (pins) it here
 *     hand_out      all samples of the batch are in the arena and verified: fill items[i].device; a device backend
 *                   queues its copies here, on a stream of its own
 *     take_back     the consumer is done: a device backend waits for its copies before the samples may be overwritten
 *
 * Threads: memory_* when the stage is opened and closed; the others from any thread, for different batches at once.  hand_out
 * is called in the order of the batches. */
#ifndef DDPFS_GPU_STAGE_BACKEND_H
#define DDPFS_GPU_STAGE_BACKEND_H

#include <stdint.h>

#include "gpu_stage/stage.h"
#include "shard/base/err.h"

struct stage_backend;

struct stage_backend_ops {
	const char *name;
	int (*memory_new)(struct stage_backend *backend, uint64_t bytes, struct base_err *err, uint8_t **ret_base);
	void (*memory_free)(struct stage_backend *backend, uint8_t *base, uint64_t bytes);
	int (*hand_out)(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, struct base_err *err);
	void (*take_back)(struct stage_backend *backend, const struct ddpfs_item *items, uint32_t n);
	void (*free)(struct stage_backend *backend);
};

struct stage_backend {
	const struct stage_backend_ops *ops;
	uint32_t device; /* 0: host memory */
};

/* By name; NULL is "cpu".  -EINVAL for a name there is no backend of. */
int stage_backend_new(const char *name, struct base_err *err, struct stage_backend **ret_backend);

/* Batches in host memory. */
int stage_backend_cpu(struct base_err *err, struct stage_backend **ret_backend);

#endif
