/* SPDX-License-Identifier: Apache-2.0 */
/* What the reference trainer asks of a device: a processor, or a GPU by the driver table of libddpfs_stage.
 *
 *     main stream:    kernels in the order of `run`
 *     second stream:  reductions, each after the kernels queued before it; `reduced` makes the main stream wait
 *
 * A mark is an instant of one of the streams, by number.  Times are counted from mark 0.  `mark` only queues it.
 *
 * On a processor everything is done when its call returns.  A function that returns false has printed the reason.
 *
 * Threads: one. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_COMPUTE_H
#define DDPFS_GPU_STAGE_EXAMPLES_COMPUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_stage/examples/mlp.h"
#include "gpu_stage/examples/peers.h"

enum kernel {
#define COMPUTE_KERNEL(name) KERNEL_##name,
	MLP_KERNELS(COMPUTE_KERNEL)
#undef COMPUTE_KERNEL
	        N_KERNELS
};

enum { COMPUTE_MARKS = 4096, COMPUTE_NO_MARK = COMPUTE_MARKS };

struct compute;

struct compute_ops {
	void *(*memory)(struct compute *c, size_t bytes); /* zeroed; the compute owns it; NULL: printed why */
	bool (*put)(struct compute *c, void *to, const void *from, size_t bytes);   /* waits until it is there */
	bool (*fetch)(struct compute *c, void *to, const void *from, size_t bytes); /* waits for all kernels queued */
	bool (*clear)(struct compute *c, void *to, size_t bytes);
	bool (*run)(struct compute *c, enum kernel kernel, const struct mlp *m, uint32_t count);
	/* Sums n numbers over the ranks.  Marks before it with number `mark` and after it with the next, unless
	 * `mark` is COMPUTE_NO_MARK. */
	bool (*reduce)(struct compute *c, float *data, size_t n, uint32_t mark);
	bool (*reduced)(struct compute *c);
	bool (*mark)(struct compute *c, uint32_t mark);                /* on the main stream */
	bool (*when)(struct compute *c, uint32_t mark, double *ret_s); /* seconds since mark 0; call it after a fetch */
	void (*free)(struct compute *c);
};

struct compute {
	const struct compute_ops *ops;
	void *stream;        /* for ddpfs_batch_wait */
	const char *backend; /* for struct ddpfs_stage_options */
	bool on_gpu;         /* kernels read batches where they lie: items[0].device */
	void *origin;        /* mark 0, for ddpfs_batch_copied; NULL: not made yet, or no GPU */
	char name[128];      /* of the device */
};

/* Make a compute for a processor, or for a GPU.  peers: not owned, outlives it.  Return NULL if that failed, and print
 * the reason. */
struct compute *compute_cpu(struct peers *peers);
struct compute *compute_cuda(struct peers *peers);

#endif
