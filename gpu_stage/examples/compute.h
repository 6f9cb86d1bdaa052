/* SPDX-License-Identifier: Apache-2.0 */
/* Where the reference trainer computes: the processor, or a GPU by way of libddpfs_stage's driver table.
 *
 *     main stream:    kernels in the order of `run`
 *     second stream:  reductions, each after the kernels queued before it; `reduced` makes the main stream wait for them
 *
 * A mark is an instant of one of the streams, by number: 0 is the one that times are counted from.  `mark` only queues it.
 *
 * With the processor everything is done when its call returns.  A function that returns false has printed why.
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
	void *(*memory)(struct compute *c, size_t bytes); /* zeroed, the compute's; NULL: printed why */
	bool (*put)(struct compute *c, void *to, const void *from, size_t bytes);   /* waits */
	bool (*fetch)(struct compute *c, void *to, const void *from, size_t bytes); /* waits for all kernels queued */
	bool (*clear)(struct compute *c, void *to, size_t bytes);
	bool (*run)(struct compute *c, enum kernel kernel, const struct mlp *m, uint32_t count);
	/* Sums over the ranks; marks number `mark` and the next before and after it, unless it is COMPUTE_NO_MARK. */
	bool (*reduce)(struct compute *c, float *data, size_t n, uint32_t mark);
	bool (*reduced)(struct compute *c);
	bool (*mark)(struct compute *c, uint32_t mark);                /* of the main stream */
	bool (*when)(struct compute *c, uint32_t mark, double *ret_s); /* after a fetch; seconds since mark 0 */
	void (*free)(struct compute *c);
};

struct compute {
	const struct compute_ops *ops;
	void *stream;        /* for ddpfs_batch_wait */
	const char *backend; /* for struct ddpfs_stage_options */
	bool on_gpu;         /* batches are read where they lie: items[0].device */
	void *origin;        /* mark 0, for ddpfs_batch_copied; NULL: it was not made, or not on a GPU */
	char name[128];      /* of what computes */
};

/* peers: not owned, outlives the compute.  NULL: printed why. */
struct compute *compute_cpu(struct peers *peers);
struct compute *compute_cuda(struct peers *peers);

#endif
