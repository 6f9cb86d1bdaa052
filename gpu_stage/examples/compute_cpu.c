/* SPDX-License-Identifier: Apache-2.0 */
/* The reference trainer on a processor; compute.h first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_stage/examples/compute.h"

enum { PIECES = 32 }; /* pieces of memory, at most */

struct cpu {
	struct compute base; /* first */
	struct peers *peers;
	void *pieces[PIECES];
	unsigned n_pieces;
	struct timespec marks[COMPUTE_MARKS];
};

static void *cpu_memory(struct compute *c, size_t bytes)
{
	struct cpu *cpu = (struct cpu *)c;
	void *piece = cpu->n_pieces < PIECES ? calloc(1, bytes) : NULL;
	if (!piece)
		fputs("digits_mlp: out of memory\n", stderr);
	else
		cpu->pieces[cpu->n_pieces++] = piece;
	return piece;
}

static bool cpu_copy(struct compute *c, void *to, const void *from, size_t bytes)
{
	(void)c;
	memcpy(to, from, bytes);
	return true;
}

static bool cpu_clear(struct compute *c, void *to, size_t bytes)
{
	(void)c;
	memset(to, 0, bytes);
	return true;
}

static bool cpu_run(struct compute *c, enum kernel kernel, const struct mlp *m, uint32_t count)
{
	(void)c;
#define LOOP(name)                                                                                                     \
	if (kernel == KERNEL_##name) {                                                                                 \
		for (uint32_t i = 0; i < count; i++)                                                                   \
			mlp_##name(m, i);                                                                              \
	}
	MLP_KERNELS(LOOP)
#undef LOOP
	return true;
}

static bool cpu_mark(struct compute *c, uint32_t mark)
{
	clock_gettime(CLOCK_MONOTONIC, &((struct cpu *)c)->marks[mark]);
	return true;
}

static bool cpu_when(struct compute *c, uint32_t mark, double *ret_s)
{
	const struct timespec *marks = ((struct cpu *)c)->marks;
	*ret_s = (double)(marks[mark].tv_sec - marks[0].tv_sec) +
	         (double)(marks[mark].tv_nsec - marks[0].tv_nsec) * 1e-9;
	return true;
}

static bool cpu_reduce(struct compute *c, float *data, size_t n, uint32_t mark)
{
	if (mark == COMPUTE_NO_MARK)
		return peers_sum(((struct cpu *)c)->peers, data, n);
	return cpu_mark(c, mark) && peers_sum(((struct cpu *)c)->peers, data, n) && cpu_mark(c, mark + 1);
}

static bool cpu_reduced(struct compute *c)
{
	(void)c;
	return true;
}

static void cpu_free(struct compute *c)
{
	struct cpu *cpu = (struct cpu *)c;
	while (cpu->n_pieces)
		free(cpu->pieces[--cpu->n_pieces]);
	free(cpu);
}

static const struct compute_ops cpu_ops = {
	.memory = cpu_memory,
	.put = cpu_copy,
	.fetch = cpu_copy,
	.clear = cpu_clear,
	.run = cpu_run,
	.reduce = cpu_reduce,
	.reduced = cpu_reduced,
	.mark = cpu_mark,
	.when = cpu_when,
	.free = cpu_free,
};

struct compute *compute_cpu(struct peers *peers)
{
	struct cpu *cpu = calloc(1, sizeof(*cpu));
	if (!cpu) {
		fputs("digits_mlp: out of memory\n", stderr);
		return NULL;
	}
	cpu->base = (struct compute){ .ops = &cpu_ops, .backend = "cpu", .name = "processor" };
	cpu->peers = peers;
	return &cpu->base;
}
