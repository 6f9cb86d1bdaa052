/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between host memory and a GPU: where a stage's arena lies, and how a batch reaches its consumer.
 *
 *     memory_new    readies the arena's memory, once; a device backend registers (pins) it here
 *     hand_out      all samples of the batch are in the arena and verified: fills items[i].device; a device backend
 *                   takes device memory and queues its copies, on a stream of its own
 *     wait          makes a consumer's stream wait for the copies; the host does not wait
 *     take_back     the consumer is done with the batch; work that it has queued on its streams may still run
 *
 * Threads: memory_*, stop and free are called when the stage is opened and closed.  Any thread calls the others, for
 * different batches at once.  `done` of take_back is called from within take_back, or from a thread of the backend. */
#ifndef DDPFS_GPU_STAGE_BACKEND_H
#define DDPFS_GPU_STAGE_BACKEND_H

#include <stdint.h>

#include "gpu_stage/stage.h"
#include "shard/base/err.h"

struct stage_backend;
struct stage_upload; /* the backend's part of a batch; opaque */

struct stage_upload_stats {
	uint64_t uploads, copies, bytes;          /* batches, copies queued for them, their bytes */
	uint64_t gathered_bytes;                  /* of these, bytes that this processor copied first */
	uint64_t wait_ns;                         /* waited for device memory */
	uint64_t device_bytes, device_used_bytes; /* device memory for batches; in use */
};

struct stage_backend_ops {
	const char *name;
	/* Readies the arena.  base: the caller's mapping.  A host backend uses no page of it; a device backend pins
	 * all.
	 * Returns 0, or -ENOMEM, -EIO, -ENODEV. */
	int (*memory_new)(struct stage_backend *backend, uint8_t *base, uint64_t bytes, struct base_err *err);
	/* Takes over n items; flags: of ddpfs_stage_next.  *ret_upload becomes NULL if there is nothing to wait for.
	 * Returns 0, or -ENOBUFS (more than all device memory), -EAGAIN (none now), -ENOMEM, -EIO, -ENODEV. */
	int (*hand_out)(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, unsigned flags,
	        struct base_err *err, struct stage_upload **ret_upload);
	/* The rest, up to stats, is NULL if batches stay in host memory. */
	/* Undoes memory_new, before the arena is unmapped. */
	void (*memory_free)(struct stage_backend *backend, uint8_t *base);
	/* Makes a stream wait for the copies.  stream: of the consumer, who uses the batch in its order; it must live
	 * until take_back.  Returns as ddpfs_batch_wait. */
	int (*wait)(struct stage_backend *backend, struct stage_upload *upload, void *stream, struct base_err *err);
	/* The host waits for the copies.  Returns 0, or -EIO, -ENODEV. */
	int (*sync)(struct stage_backend *backend, struct stage_upload *upload, struct base_err *err);
	/* As ddpfs_batch_copied. */
	int (*copied)(struct stage_backend *backend, struct stage_upload *upload, void *since, struct base_err *err,
	        double *ret_begin_s, double *ret_end_s);
	/* Calls done(arg) when nothing reads the batch, in host memory or on the device. */
	void (*take_back)(
	        struct stage_backend *backend, struct stage_upload *upload, void (*done)(void *arg), void *arg);
	/* Waits until done was called for every take_back. */
	void (*stop)(struct stage_backend *backend);
	void (*stats)(struct stage_backend *backend, struct stage_upload_stats *ret_stats);
	/* Writes the part of ddpfs_stage_route after the read, cut to size. */
	void (*route)(const struct stage_backend *backend, char *buf, size_t size);
	void (*free)(struct stage_backend *backend);
};

struct stage_backend {
	const struct stage_backend_ops *ops;
	uint32_t device;    /* 0: host memory; else the GPU's ordinal + 1 */
	uint32_t numa_node; /* of the arena's memory, + 1; 0: any node */
};

/* Makes the backend that options->backend names: NULL or "cpu", "cuda", "cuda:N".
 * Returns 0, or -EINVAL (no such backend, or options->copy is unknown), -ENODEV, -EIO, -ENOMEM. */
int stage_backend_new(
        const struct ddpfs_stage_options *options, struct base_err *err, struct stage_backend **ret_backend);

/* Makes the backend for batches in host memory.  Returns 0, or -ENOMEM. */
int stage_backend_cpu(struct base_err *err, struct stage_backend **ret_backend);

/* Makes the backend for batches in the memory of GPU `ordinal`; -1: the one that is current in this thread, otherwise
 * the first.  Returns 0, or -EINVAL (options->copy), -ENODEV, -EIO, -ENOMEM. */
int stage_backend_cuda(const struct ddpfs_stage_options *options, int ordinal, struct base_err *err,
        struct stage_backend **ret_backend);

/* Asks the kernel for huge pages in a mapping, and to take its memory from NUMA node `node` if it can (-1: any). */
void stage_backend_advise(struct stage_backend *backend, uint8_t *base, uint64_t bytes, int node);

#endif
