/* SPDX-License-Identifier: Apache-2.0 */
/* The reference trainer in C; compute.h first.
 *
 * usage: digits_mlp [--backend=cpu|cuda] [--order=MODE] [--epochs=N] [--batch=N] [--seed=N] [--rate=F]
 *                   [--timeline=FILE] DATASET
 *
 * A perceptron learns digits from a packed dataset of 65-byte samples (make_digits.py) below train/.  Rank 0 prints how
 * well it knows the samples below val/.  Start it alone, or with torchrun --no-python, mpirun or srun: each rank takes
 * its part of the epoch from libddpfs_stage.
 *
 *   a GPU's step:   copy stream    | batch k+1 ....... |
 *                   main stream    | hidden, output, gradient2 | d_hidden, gradient1 |  wait | update |
 *                   second stream                              | sum layer 2         | sum layer 1 |
 *
 * The host waits for none of this until the epoch's end: it only queues, and asks for the next batch.
 *
 * --timeline: rank 0 draws the beginning of the last epoch, as its streams ran (timeline.h).  The stage times a GPU's
 * copies with events that it uses again when a batch is released.  So the trainer releases the latest HELD batches
 * later. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_stage/examples/compute.h"
#include "gpu_stage/examples/timeline.h"
#include "gpu_stage/stage.h"

enum { HELD = 4 }; /* batches that are released later, for their times */

/* The marks of a batch, in this order; their numbers begin at 1 + batch * MARKS. */
enum mark {
	MARK_COPY,
	MARK_COPIED,
	MARK_BEGIN,
	MARK_END,
	MARK_SUM2,
	MARK_SUM2_END,
	MARK_SUM1,
	MARK_SUM1_END,
	MARK_UPDATE,
	MARK_UPDATED,
	MARKS
};
_Static_assert(1 + TIMELINE_BATCHES_MAX * MARKS <= COMPUTE_MARKS, "a mark has a number");

struct settings {
	const char *dataset, *backend, *order, *timeline;
	uint32_t epochs, batch;
	uint64_t seed;
	float rate;
};

struct trainer {
	struct settings set;
	struct peers peers;
	struct compute *compute;
	struct mlp m;    /* its arrays lie in memory of `compute` */
	uint8_t *gather; /* on a processor, a batch is copied here, one sample behind the other; NULL on a GPU */
	struct ddpfs_stage *train, *val;
	/* Of the timeline: */
	FILE *picture;                  /* NULL: this rank draws nothing */
	bool drawing;                   /* the present batch is in the timeline */
	uint32_t drawn;                 /* batches in the timeline so far */
	struct ddpfs_batch *held[HELD]; /* batches in the timeline that a GPU copied, by drawn % HELD */
	double copied_s[TIMELINE_BATCHES_MAX][2];
	struct timeline timeline;
};

static int usage(void)
{
	fputs("usage: digits_mlp [--backend=cpu|cuda] [--order=MODE] [--epochs=N] [--batch=N]\n"
	      "                  [--seed=N] [--rate=F] [--timeline=FILE] DATASET\n",
	        stderr);
	return 2;
}

static bool parse(int argc, char **argv, struct settings *set)
{
	static const struct option options[] = { { "backend", required_argument, NULL, 'd' },
		{ "order", required_argument, NULL, 'o' }, { "epochs", required_argument, NULL, 'e' },
		{ "batch", required_argument, NULL, 'b' }, { "seed", required_argument, NULL, 's' },
		{ "rate", required_argument, NULL, 'r' }, { "timeline", required_argument, NULL, 't' }, { 0 } };
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
		else if (c == 't')
			set->timeline = optarg;
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

static bool complain_of_picture(const struct trainer *t)
{
	fprintf(stderr, "digits_mlp: cannot write '%s': %s\n", t->set.timeline, strerror(errno));
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
		.timed = t->picture != NULL,
		.memory_bytes = 64 << 20 };
	if (shared) {
		o.rank = t->peers.rank;
		o.world = t->peers.world;
	}
	if (ddpfs_stage_open(t->set.dataset, &o, &error, ret_stage) < 0)
		return complain(&error);
	char route[DDPFS_STAGE_TEXT_MAX];
	if (shared && t->peers.rank == 0 && t->compute->on_gpu &&
	        ddpfs_stage_route(*ret_stage, route, sizeof(route)) > 0)
		fprintf(stderr, "digits_mlp: samples: %s\n", route);
	return true;
}

/* Sets the same first weights on every rank, by a small generator of its own. */
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
	if (t->set.timeline && t->peers.rank == 0) {
		t->picture = fopen(t->set.timeline, "we");
		if (!t->picture)
			return complain_of_picture(t);
	}
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
	for (unsigned i = 0; i < HELD; i++)
		ddpfs_batch_release(t->held[i]);
	ddpfs_stage_close(t->train);
	ddpfs_stage_close(t->val);
	if (t->compute)
		t->compute->ops->free(t->compute);
	free(t->gather);
	if (t->picture)
		fclose(t->picture);
	peers_close(&t->peers);
}

/* ---- the timeline ---- */

static uint32_t mark_number(const struct trainer *t, enum mark which)
{
	return t->drawing ? 1 + t->drawn * MARKS + which : (uint32_t)COMPUTE_NO_MARK;
}

static bool mark(struct trainer *t, enum mark which)
{
	return !t->drawing || t->compute->ops->mark(t->compute, mark_number(t, which));
}

/* Starts the timeline.  The fetch makes sure that mark 0 has passed before the first copy's time is asked for, because
 * copies run on another stream. */
static bool begin_drawing(struct trainer *t)
{
	float totals[2];
	t->drawing = true;
	return t->compute->ops->mark(t->compute, 0) &&
	       t->compute->ops->fetch(t->compute, totals, t->m.totals, sizeof(totals));
}

/* Asks for the times of a held batch's copies, and releases the batch. */
static bool let_go(struct trainer *t, uint32_t drawn)
{
	struct ddpfs_stage_error error;
	struct ddpfs_batch **batch = &t->held[drawn % HELD];
	double *copied = t->copied_s[drawn];
	int rc = *batch ? ddpfs_batch_copied(*batch, t->compute->origin, &copied[0], &copied[1], &error) : 0;
	ddpfs_batch_release(*batch);
	*batch = NULL;
	return rc == 0 || complain(&error);
}

/* Ends the trainer's use of a batch; the GPU may still read it. */
static bool leave(struct trainer *t, struct ddpfs_batch *batch)
{
	if (!t->drawing || !t->compute->on_gpu) {
		ddpfs_batch_release(batch);
		t->drawn += t->drawing;
		return true;
	}
	bool good = t->drawn < HELD || let_go(t, t->drawn - HELD);
	t->held[t->drawn++ % HELD] = batch;
	return good;
}

static bool add_bar(struct trainer *t, enum timeline_row row, uint32_t batch, enum mark which)
{
	double begin = 0, end = 0;
	uint32_t number = 1 + batch * MARKS + which;
	if (!t->compute->ops->when(t->compute, number, &begin) || !t->compute->ops->when(t->compute, number + 1, &end))
		return false;
	timeline_add(&t->timeline, row, batch, begin, end);
	return true;
}

static bool add_batch(struct trainer *t, uint32_t batch)
{
	if (!t->compute->on_gpu) {
		if (!add_bar(t, TIMELINE_COPY, batch, MARK_COPY))
			return false;
	} else {
		timeline_add(&t->timeline, TIMELINE_COPY, batch, t->copied_s[batch][0], t->copied_s[batch][1]);
	}
	return add_bar(t, TIMELINE_COMPUTE, batch, MARK_BEGIN) &&
	       (t->peers.world == 1 ||
	               (add_bar(t, TIMELINE_SUM, batch, MARK_SUM2) && add_bar(t, TIMELINE_SUM, batch, MARK_SUM1))) &&
	       add_bar(t, TIMELINE_COMPUTE, batch, MARK_UPDATE);
}

/* Writes the timeline, after the last epoch. */
static bool draw(struct trainer *t)
{
	struct timeline_idle idle;
	char title[512];
	for (uint32_t i = t->drawn < HELD ? 0 : t->drawn - HELD; i < t->drawn; i++) {
		if (!let_go(t, i))
			return false;
	}
	for (uint32_t i = 0; i < t->drawn; i++) {
		if (!add_batch(t, i))
			return false;
	}
	timeline_idle(&t->timeline, &idle);
	double percent = idle.total_s > 0 ? 100 / idle.total_s : 0;
	snprintf(title, sizeof(title),
	        "%s, rank 0 of %u: %u batches in %.3f ms, idle on data %.2f%%, between batches otherwise %.2f%%",
	        t->compute->name, t->peers.world, t->drawn, idle.total_s * 1e3, idle.data_s * percent,
	        idle.other_s * percent);
	printf("timeline: %s\n", title);
	return timeline_write(&t->timeline, title, t->picture) || complain_of_picture(t);
}

/* ---- a step ---- */

/* Makes the samples of a batch the rows of the model.  On a GPU, files of one length lie one behind the other; on a
 * processor, they are copied so. */
static bool take(struct trainer *t, struct ddpfs_batch *batch)
{
	struct ddpfs_stage_error error;
	if (t->gather && !mark(t, MARK_COPY))
		return false;
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
	if (t->gather && !mark(t, MARK_COPIED))
		return false;
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
	return mark(t, MARK_BEGIN) && forward(t) && run(t, KERNEL_gradient2, MLP_LAYER2) &&
	       ops->reduce(t->compute, gradient2, MLP_LAYER2, mark_number(t, MARK_SUM2)) &&
	       run(t, KERNEL_d_hidden, t->m.n * MLP_HIDDEN) && run(t, KERNEL_gradient1, MLP_LAYER1) &&
	       mark(t, MARK_END) && ops->reduce(t->compute, t->m.gradient, MLP_LAYER1, mark_number(t, MARK_SUM1)) &&
	       ops->reduced(t->compute) && mark(t, MARK_UPDATE) && run(t, KERNEL_update, MLP_WEIGHTS) &&
	       mark(t, MARK_UPDATED);
}

/* Runs `step` on every batch that is left of a stage's epoch; gives mean loss and share of right answers. */
static bool pass(struct trainer *t, struct ddpfs_stage *stage, bool (*step)(struct trainer *t), float ret_means[2])
{
	struct ddpfs_stage_error error;
	struct ddpfs_batch *batch;
	uint64_t n = 0;
	int rc;
	if (!t->compute->ops->clear(t->compute, t->m.totals, 2 * sizeof(float)))
		return false;
	while ((rc = ddpfs_stage_next(stage, t->set.batch, 0, &error, &batch)) == 1) {
		t->drawing &= t->drawn < TIMELINE_BATCHES_MAX;
		bool good = take(t, batch) && step(t);
		n += batch->n_items;
		if (!leave(t, batch) || !good)
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
		if (!start(t->train, epoch) || (t->picture && epoch + 1 == t->set.epochs && !begin_drawing(t)) ||
		        !pass(t, t->train, learn, means))
			return false;
		t->drawing = false;
		if (t->peers.rank)
			continue;
		if (!start(t->val, epoch) || !pass(t, t->val, forward, val))
			return false;
		printf("epoch %llu: mean loss %.4f, accuracy %.4f\n", (unsigned long long)epoch, (double)means[0],
		        (double)val[1]);
		fflush(stdout);
	}
	return !t->picture || draw(t);
}

int main(int argc, char **argv)
{
	static struct trainer t; /* static, because it is large */
	if (!parse(argc, argv, &t.set))
		return usage();
	bool good = open_all(&t) && train(&t);
	close_all(&t);
	return good ? 0 : 1;
}
