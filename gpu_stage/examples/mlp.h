/* SPDX-License-Identifier: Apache-2.0 */
/* The model of the reference trainer: a perceptron with one hidden layer that recognises digits.  The processor and the
 * GPU compile the same text.  A sample is MLP_ROW bytes: the label, then the pixels.
 *
 * Each MLP_... function computes one element i of a step.  mlp.cu makes kernels of them; compute_cpu.c loops over i.
 * The order of a step: hidden, output, tally, gradient2, d_hidden, gradient1, update.
 *
 * Threads: pure functions on what struct mlp points to. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_MLP_H
#define DDPFS_GPU_STAGE_EXAMPLES_MLP_H

#include <math.h>
#include <stdint.h>

enum {
	MLP_IN = 64, /* pixels, 8 x 8 */
	MLP_ROW = 1 + MLP_IN,
	MLP_HIDDEN = 64,
	MLP_OUT = 10,
	MLP_LAYER1 = (MLP_IN + 1) * MLP_HIDDEN, /* weights; the last row of a layer is its bias */
	MLP_LAYER2 = (MLP_HIDDEN + 1) * MLP_OUT,
	MLP_WEIGHTS = MLP_LAYER1 + MLP_LAYER2,
};

struct mlp {
	const uint8_t *rows; /* n of MLP_ROW bytes */
	float *weights;      /* layer 1, layer 2 */
	float *gradient;     /* of the weights, in the same order */
	float *hidden;       /* n rows of MLP_HIDDEN */
	float *d_hidden;
	float *d_out;  /* n rows of MLP_OUT */
	float *score;  /* n pairs: the loss, and 1 if the answer was right */
	float *totals; /* one pair: the sums of `score` */
	uint32_t n;
	float rate;  /* the learning rate */
	float share; /* weight of one sample in the gradient: 1 / samples of the step on all ranks */
};

#ifdef __CUDACC__
#define MLP_FUNCTION static __device__ inline
#define MLP_ROLLED _Pragma("unroll 1") /* mlp.ptx stays readable */
#else
#define MLP_FUNCTION static inline
#define MLP_ROLLED
#endif

MLP_FUNCTION float mlp_pixel(const struct mlp *m, uint32_t row, uint32_t in)
{
	return in < MLP_IN ? (float)m->rows[(uint64_t)row * MLP_ROW + 1 + in] / 255.0F : 1.0F;
}

MLP_FUNCTION void mlp_hidden(const struct mlp *m, uint32_t i)
{
	uint32_t row = i / MLP_HIDDEN, unit = i % MLP_HIDDEN;
	float sum = 0;
	MLP_ROLLED
	for (uint32_t in = 0; in <= MLP_IN; in++)
		sum += mlp_pixel(m, row, in) * m->weights[in * MLP_HIDDEN + unit];
	m->hidden[i] = sum > 0 ? sum : 0;
}

MLP_FUNCTION void mlp_output(const struct mlp *m, uint32_t row)
{
	const float *w = m->weights + MLP_LAYER1, *hidden = m->hidden + (uint64_t)row * MLP_HIDDEN;
	uint32_t label = m->rows[(uint64_t)row * MLP_ROW] % MLP_OUT, best = 0;
	float out[MLP_OUT], sum = 0;
	MLP_ROLLED
	for (uint32_t k = 0; k < MLP_OUT; k++) {
		out[k] = w[MLP_HIDDEN * MLP_OUT + k];
		MLP_ROLLED
		for (uint32_t j = 0; j < MLP_HIDDEN; j++)
			out[k] += hidden[j] * w[j * MLP_OUT + k];
		best = out[k] > out[best] ? k : best;
	}
	float largest = out[best];
	MLP_ROLLED
	for (uint32_t k = 0; k < MLP_OUT; k++) {
		out[k] = expf(out[k] - largest);
		sum += out[k];
	}
	MLP_ROLLED
	for (uint32_t k = 0; k < MLP_OUT; k++)
		m->d_out[row * MLP_OUT + k] = (out[k] / sum - (k == label ? 1.0F : 0.0F)) * m->share;
	m->score[2 * row] = -logf(out[label] / sum + 1e-20F);
	m->score[2 * row + 1] = best == label ? 1.0F : 0.0F;
}

MLP_FUNCTION void mlp_tally(const struct mlp *m, uint32_t which)
{
	MLP_ROLLED
	for (uint32_t row = 0; row < m->n; row++)
		m->totals[which] += m->score[2 * row + which];
}

MLP_FUNCTION void mlp_gradient2(const struct mlp *m, uint32_t i)
{
	uint32_t unit = i / MLP_OUT, k = i % MLP_OUT;
	float sum = 0;
	MLP_ROLLED
	for (uint32_t row = 0; row < m->n; row++)
		sum += (unit < MLP_HIDDEN ? m->hidden[row * MLP_HIDDEN + unit] : 1.0F) * m->d_out[row * MLP_OUT + k];
	m->gradient[MLP_LAYER1 + i] = sum;
}

MLP_FUNCTION void mlp_d_hidden(const struct mlp *m, uint32_t i)
{
	uint32_t row = i / MLP_HIDDEN, unit = i % MLP_HIDDEN;
	const float *w = m->weights + MLP_LAYER1 + unit * MLP_OUT;
	float sum = 0;
	MLP_ROLLED
	for (uint32_t k = 0; k < MLP_OUT; k++)
		sum += w[k] * m->d_out[row * MLP_OUT + k];
	m->d_hidden[i] = m->hidden[i] > 0 ? sum : 0;
}

MLP_FUNCTION void mlp_gradient1(const struct mlp *m, uint32_t i)
{
	uint32_t in = i / MLP_HIDDEN, unit = i % MLP_HIDDEN;
	float sum = 0;
	MLP_ROLLED
	for (uint32_t row = 0; row < m->n; row++)
		sum += mlp_pixel(m, row, in) * m->d_hidden[row * MLP_HIDDEN + unit];
	m->gradient[i] = sum;
}

MLP_FUNCTION void mlp_update(const struct mlp *m, uint32_t i)
{
	m->weights[i] -= m->rate * m->gradient[i];
}

/* X(name): every kernel of a step. */
#define MLP_KERNELS(X) X(hidden) X(output) X(tally) X(gradient2) X(d_hidden) X(gradient1) X(update)

#endif
