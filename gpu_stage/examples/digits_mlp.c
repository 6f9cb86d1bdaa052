/* The reference trainer in C: digits_mlp [--backend=cpu|cuda] [--order=MODE] [--epochs=N] [--batch=N] [--seed=N]
 * [--rate=F] DATASET
 *
 * A perceptron learns digits from a packed dataset of 65-byte samples (make_digits.py) below train/; rank 0 tells how it does on
 * those below val/.  Start it alone, or under torchrun --no-python, mpirun or srun: each rank takes its part of the epoch from
 * libddpfs_stage.
 *
 *   a GPU's step:   copy stream    | batch k+1 ....... |
 *                   main stream    | hidden, output, gradient2 | d_hidden, gradient1 |  wait | update |
 *                   second stream                              | sum layer 2         | sum layer 1 |
 *
 * The host waits for nothing of this until the epoch's end: it only queues, and asks for the next batch. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_stage/examples/compute.h"
#include "gpu_stage/stage.h"

struct settings {
	const char *dataset, *backend, *order;
	uint32_t epochs, batch;
	uint64_t seed;
	float rate;
};

struct trainer {
	struct settings set;
	struct peers peers;
	struct compute *compute;
	struct mlp m;    /* all in the compute's memory */
	uint8_t *gather; /* where the processor's batches become neighbours; NULL on a GPU */
	struct ddpfs_stage *train, *val;
};

static int usage(void)
{
	fputs("usage: digits_mlp [--backend=cpu|cuda] [--order=MODE] [--epochs=N] [--batch=N]\n"
	      "                  [--seed=N] [--rate=F] DATASET\n",
	        stderr);
	return 2;
}

static bool parse(int argc, char **argv, struct settings *set)
{
	static const struct option options[] = { { "backend", required_argument, NULL, 'd' },
		{ "order", required_argument, NULL, 'o' }, { "epochs", required_argument, NULL, 'e' },
		{ "batch", required_argument, NULL, 'b' }, { "seed", required_argument, NULL, 's' },
		{ "rate", required_argument, NULL, 'r' }, { 0 } };
	int c;
	*set = (struct settings){ .backend = "cpu", .epochs = 20, .batch = 32, .rate = 0.2F };
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'd')
			set->backend = optarg;
		else if (c == 'o')
			set->order = optarg;
		else if (c == 'e')
			set->epochs = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'b')
			set->batch = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 's')
			set->seed = strtoull(optarg, NULL, 10);
		else if (c == 'r')
			set->rate = strtof(optarg, NULL);
		else
			return false;
	}
	if (optind + 1 != argc || !set->batch || set->batch > 65536 ||
	        (strcmp(set->backend, "cpu") != 0 && strcmp(set->backend, "cuda") != 0))
		return false;
	set->dataset = argv[optind];
	return true;
}

static bool complain(const struct ddpfs_stage_error *error)
{
	fprintf(stderr, "digits_mlp: %s\n", error->text);
	return false;
}

static bool open_stage(struct trainer *t, const char *subdir, bool shared, struct ddpfs_stage **ret_stage)
{
	struct ddpfs_stage_error error;
	struct ddpfs_stage_options o = { .size = sizeof(o),
		.subdir = subdir,
		.backend = t->compute->backend,
		.order = t->set.order,
		.seed = t->set.seed,
		.memory_bytes = 64 << 20 };
	if (shared) {
		o.rank = t->peers.rank;
		o.world = t->peers.world;
	}
	return ddpfs_stage_open(t->set.dataset, &o, &error, ret_stage) == 0 || complain(&error);
}

/* The same on every rank: a small generator, not the library's. */
static bool set_weights(struct trainer *t)
{
	float *weights = aligned_alloc(4096, (MLP_WEIGHTS * sizeof(float) + 4095) / 4096 * 4096);
	uint64_t x = t->set.seed * 2 + 1;
	if (!weights)
		return false;
	for (uint32_t i = 0; i < MLP_WEIGHTS; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		float unit = (float)(x >> 40) / (float)(1 << 24) - 0.5F;
		weights[i] = unit * 2.0F * sqrtf(3.0F / (i < MLP_LAYER1 ? MLP_IN : MLP_HIDDEN));
	}
	bool good = t->compute->ops->put(t->compute, t->m.weights, weights, MLP_WEIGHTS * sizeof(float));
	free(weights);
	return good;
}

static float *floats(struct trainer *t, size_t n)
{
	return t->compute->ops->memory(t->compute, n * sizeof(float));
}

static bool open_all(struct trainer *t)
{
	if (!peers_open(&t->peers))
		return false;
	t->compute = strcmp(t->set.backend, "cuda") == 0 ? compute_cuda(&t->peers) : compute_cpu(&t->peers);
	if (!t->compute || !open_stage(t, "train", true, &t->train))
		return false;
	if (t->peers.rank == 0 && !open_stage(t, "val", false, &t->val))
		return false;
	t->m.weights = floats(t, MLP_WEIGHTS);
	t->m.gradient = floats(t, MLP_WEIGHTS);
	t->m.hidden = floats(t, (size_t)t->set.batch * MLP_HIDDEN);
	t->m.d_hidden = floats(t, (size_t)t->set.batch * MLP_HIDDEN);
	t->m.d_out = floats(t, (size_t)t->set.batch * MLP_OUT);
	t->m.score = floats(t, (size_t)t->set.batch * 2);
	t->m.totals = floats(t, 2);
	t->gather = t->compute->on_gpu ? NULL : malloc((size_t)t->set.batch * MLP_ROW);
	return t->m.weights && t->m.gradient && t->m.hidden && t->m.d_hidden && t->m.d_out && t->m.score &&
	       t->m.totals && (t->gather || t->compute->on_gpu) && set_weights(t);
}

static void close_all(struct trainer *t)
{
	ddpfs_stage_close(t->train);
	ddpfs_stage_close(t->val);
	if (t->compute)
		t->compute->ops->free(t->compute);
	free(t->gather);
	peers_close(&t->peers);
}

/* Files of one length lie one behind the other on a GPU; the processor's are put so. */
static bool take(struct trainer *t, struct ddpfs_batch *batch)
{
	struct ddpfs_stage_error error;
	for (uint32_t i = 0; i < batch->n_items; i++) {
		if (batch->items[i].len != MLP_ROW) {
			fprintf(stderr,
			        "digits_mlp: a sample has %llu bytes, not %d: make the dataset by make_digits.py\n",
			        (unsigned long long)batch->items[i].len, MLP_ROW);
			return false;
		}
		if (t->gather)
			memcpy(t->gather + (size_t)i * MLP_ROW, batch->items[i].data, MLP_ROW);
	}
	if (ddpfs_batch_wait(batch, t->compute->stream, &error) < 0)
		return complain(&error);
	t->m.rows = t->gather ? t->gather : batch->items[0].device;
	t->m.n = batch->n_items;
	t->m.share = 1.0F / (float)(batch->n_items * t->peers.world); /* ranks have batches of one size */
	return true;
}

static bool run(struct trainer *t, enum kernel kernel, uint32_t count)
{
	return t->compute->ops->run(t->compute, kernel, &t->m, count);
}

static bool forward(struct trainer *t)
{
	return run(t, KERNEL_hidden, t->m.n * MLP_HIDDEN) && run(t, KERNEL_output, t->m.n) && run(t, KERNEL_tally, 2);
}

static bool learn(struct trainer *t)
{
	const struct compute_ops *ops = t->compute->ops;
	float *gradient2 = t->m.gradient + MLP_LAYER1;
	return forward(t) && run(t, KERNEL_gradient2, MLP_LAYER2) && ops->reduce(t->compute, gradient2, MLP_LAYER2) &&
	       run(t, KERNEL_d_hidden, t->m.n * MLP_HIDDEN) && run(t, KERNEL_gradient1, MLP_LAYER1) &&
	       ops->reduce(t->compute, t->m.gradient, MLP_LAYER1) && ops->reduced(t->compute) &&
	       run(t, KERNEL_update, MLP_WEIGHTS);
}

/* One pass over what is left of a stage's epoch: mean loss and share of right answers. */
static bool pass(struct trainer *t, struct ddpfs_stage *stage, bool (*step)(struct trainer *t), float ret_means[2])
{
	struct ddpfs_stage_error error;
	struct ddpfs_batch *batch;
	uint64_t n = 0;
	int rc;
	if (!t->compute->ops->clear(t->compute, t->m.totals, 2 * sizeof(float)))
		return false;
	while ((rc = ddpfs_stage_next(stage, t->set.batch, 0, &error, &batch)) == 1) {
		bool good = take(t, batch) && step(t);
		n += batch->n_items;
		ddpfs_batch_release(batch); /* the GPU may still be reading it */
		if (!good)
			return false;
	}
	if (rc < 0)
		return complain(&error);
	if (!t->compute->ops->fetch(t->compute, ret_means, t->m.totals, 2 * sizeof(float)))
		return false;
	for (unsigned i = 0; i < 2; i++)
		ret_means[i] /= n ? (float)n : 1.0F;
	return true;
}

static bool start(struct ddpfs_stage *stage, uint64_t epoch)
{
	struct ddpfs_stage_error error;
	return ddpfs_stage_set_epoch(stage, epoch, &error) == 0 || complain(&error);
}

static bool train(struct trainer *t)
{
	float means[2], val[2] = { 0 };
	for (uint64_t epoch = 0; epoch < t->set.epochs; epoch++) {
		t->m.rate = t->set.rate * (1.0F - (float)epoch / (float)t->set.epochs);
		if (!start(t->train, epoch) || !pass(t, t->train, learn, means))
			return false;
		if (t->peers.rank)
			continue;
		if (!start(t->val, epoch) || !pass(t, t->val, forward, val))
			return false;
		printf("epoch %llu: mean loss %.4f, accuracy %.4f\n", (unsigned long long)epoch, (double)means[0],
		        (double)val[1]);
		fflush(stdout);
	}
	return true;
}

int main(int argc, char **argv)
{
	struct trainer t = { 0 };
	if (!parse(argc, argv, &t.set))
		return usage();
	bool good = open_all(&t) && train(&t);
	close_all(&t);
	return good ? 0 : 1;
}
