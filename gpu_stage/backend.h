/* SPDX-License-Identifier: Apache-2.0 */
/* Where a stage's arena lies and how a batch gets to its consumer: what differs between host memory and a GPU.
 *
 *     memory_new    readies the arena's memory, once; a device backend registers (pins) it here
 *     hand_out      all samples of the batch are in the arena and verified: fill items[i].device; a device backend
 *                   takes device memory and queues its copies, on a stream of its own
 *     wait          a consumer's stream waits for the copies, the host does not
 *     take_back     the consumer is done with the batch; what it has queued on its streams may still run
 *
 * Threads: memory_*, stop and free when the stage is opened and closed; the others from any thread, for different batches at
 * once.  `done` of take_back is called from within it or from a thread of the backend. */
#ifndef DDPFS_GPU_STAGE_BACKEND_H
#define DDPFS_GPU_STAGE_BACKEND_H

#include <stdint.h>

#include "gpu_stage/stage.h"
#include "shard/base/err.h"

struct stage_backend;
struct stage_upload; /* the backend's part of a batch; opaque */

struct stage_upload_stats {
	uint64_t uploads, copies, bytes; /* batches, copies queued for them, their bytes */
	uint64_t gathered_bytes;         /* of these, copied by this processor first */
	uint64_t wait_ns;                /* for device memory */
	uint64_t device_bytes, device_used_bytes;
};

struct stage_backend_ops {
	const char *name;
	/* base: the caller's mapping.  A host backend touches no page of it; a device backend pins them all.
	 * -ENOMEM, -EIO. */
	int (*memory_new)(struct stage_backend *backend, uint8_t *base, uint64_t bytes, struct base_err *err);
	void (*memory_free)(struct stage_backend *backend, uint8_t *base); /* before it is unmapped */
	/* flags of ddpfs_stage_next.  *ret_upload may become NULL: nothing to wait for.
	 * -ENOBUFS: more than all device memory, -EAGAIN: none now, -ENOMEM, -EIO, -ENODEV. */
	int (*hand_out)(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, unsigned flags,
	        struct base_err *err, struct stage_upload **ret_upload);
	/* stream: the consumer's, in whose order the batch is used; it must live until take_back. */
	int (*wait)(struct stage_backend *backend, struct stage_upload *upload, void *stream, struct base_err *err);
	int (*sync)(
	        struct stage_backend *backend, struct stage_upload *upload, struct base_err *err); /* the host waits */
	/* ddpfs_batch_copied */
	int (*copied)(struct stage_backend *backend, struct stage_upload *upload, void *since, struct base_err *err,
	        double *ret_begin_s, double *ret_end_s);
	/* done(arg): nothing reads the batch any more, in host memory or on the device. */
	void (*take_back)(
	        struct stage_backend *backend, struct stage_upload *upload, void (*done)(void *arg), void *arg);
	void (*stop)(struct stage_backend *backend); /* waits until done was called for every take_back */
	void (*stats)(struct stage_backend *backend, struct stage_upload_stats *ret_stats);
	/* Of ddpfs_stage_route, what comes after the read; cut to size. */
	void (*route)(const struct stage_backend *backend, char *buf, size_t size);
	void (*free)(struct stage_backend *backend);
};

struct stage_backend {
	const struct stage_backend_ops *ops;
	uint32_t device;    /* 0: host memory; else the GPU's ordinal + 1 */
	uint32_t numa_node; /* that the arena's memory is taken from, + 1; 0: wherever it comes from */
};

/* By options->backend: NULL or "cpu", "cuda", "cuda:N".  -EINVAL for a name there is no backend of, -ENODEV. */
int stage_backend_new(
        const struct ddpfs_stage_options *options, struct base_err *err, struct stage_backend **ret_backend);

/* Batches in host memory. */
int stage_backend_cpu(struct base_err *err, struct stage_backend **ret_backend);

/* Batches in the memory of GPU `ordinal`; -1: the one that is current in this thread, else the first. */
int stage_backend_cuda(const struct ddpfs_stage_options *options, int ordinal, struct base_err *err,
        struct stage_backend **ret_backend);

/* Memory of a mapping is to be huge pages where the kernel has them, of this NUMA node if it can be (-1: of any). */
void stage_backend_advise(struct stage_backend *backend, uint8_t *base, uint64_t bytes, int node);

#endif
