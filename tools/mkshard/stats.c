/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard stats`: measures how random an order is, beside a random permutation; shard/quality.h first. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/quality.h"
#include "shard/view.h"
#include "tools/common/cli.h"
#include "tools/common/output_file.h"
#include "tools/common/progress.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/svg.h"
#include "tools/common/view_options.h"

enum { EPOCHS_DEFAULT = 5, EPOCHS_MAX = 1000, BATCH_DEFAULT = 256 };

struct args {
	const char *dataset;
	const char *index_file; /* the index, if it does not lie there; else NULL */
	struct view_options view;
	const char *svg;
	bool json;
	uint64_t component; /* which directory of the path is the class, from 1; 0: the one that holds the file */
	uint64_t epochs;
	uint64_t batch;
};

static int take_view(void *at, char *arg, struct base_err *err)
{
	return view_options_parse(at, arg, err);
}

/* What is measured: a view, the class of each of its samples, and memory for one epoch. */
struct stats {
	const struct args *args;
	struct shard_index *index;
	struct shard_view *view;
	uint32_t first;     /* sample id of item 0 */
	uint32_t n;         /* samples of the view */
	uint32_t n_classes; /* classes that have samples */
	uint32_t *classes;  /* item -> class, numbered in the order of names */
	uint32_t *places;   /* item -> its rank in stored order among the view's samples */
	uint32_t *sequence_slots;
	uint32_t *sequence_classes;
	uint32_t *shuffled;
	uint32_t *groups; /* item -> its group in an epoch; NULL: the order has no groups */
	struct shard_quality_result ours;
	struct shard_quality_result random;
};

static void stats_done(struct stats *s)
{
	free(s->classes);
	free(s->places);
	free(s->sequence_slots);
	free(s->sequence_classes);
	free(s->shuffled);
	free(s->groups);
	shard_view_free(s->view);
	shard_index_close(s->index);
}

/* Finds the directory of a sample's class: its own directory, or the ancestor at the depth of --classes-from. */
static int class_dir(const struct stats *s, uint32_t dir, uint32_t *ret_dir)
{
	uint32_t chain[SHARD_DEPTH_MAX + 1];
	uint32_t depth = 0;

	*ret_dir = dir;
	if (s->args->component == 0)
		return 0;
	while (dir != 0) { /* ends, because parents have smaller ids */
		struct shard_dir rec;
		int rc = shard_index_dir(s->index, dir, &rec);

		if (rc < 0)
			return rc;
		if (depth > SHARD_DEPTH_MAX || rec.parent >= dir)
			return -EUCLEAN;
		chain[depth++] = dir;
		dir = rec.parent;
	}
	*ret_dir = depth >= s->args->component ? chain[depth - s->args->component] : 0;
	return 0;
}

/* Numbers the directories that are the class of a sample.  Directory ids are already in the order of names. */
static int number_classes(struct stats *s, struct base_err *err)
{
	uint32_t n_dirs = shard_index_info(s->index)->n_dirs;
	cleanup_free uint32_t *number = calloc(n_dirs, sizeof(*number));
	uint32_t last_dir = SHARD_NONE;
	uint32_t last_class = 0;

	if (!number)
		return base_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < s->n; i++) {
		struct shard_file file;
		uint32_t id;
		int rc = shard_index_sample_first(s->index, s->first + i, &id);

		if (rc == 0)
			rc = shard_index_file(s->index, id, &file);
		if (rc == 0 && file.dir != last_dir) {
			last_dir = file.dir;
			rc = class_dir(s, file.dir, &last_class);
		}
		if (rc < 0)
			return cli_damaged(err, s->args->dataset, rc);
		s->classes[i] = last_class;
		number[last_class] = 1;
	}
	for (uint32_t d = 0; d < n_dirs; d++) {
		if (number[d])
			number[d] = s->n_classes++;
	}
	for (uint32_t i = 0; i < s->n; i++)
		s->classes[i] = number[s->classes[i]];
	return 0;
}

/* A storage slot and the item in it, to rank the storage slots of a subtree. */
struct stored {
	uint32_t slot;
	uint32_t item;
};

static int compare_stored(const void *a, const void *b)
{
	uint32_t x = ((const struct stored *)a)->slot;
	uint32_t y = ((const struct stored *)b)->slot;

	return (x > y) - (x < y);
}

static int rank_places(struct stats *s, struct base_err *err)
{
	cleanup_free struct stored *stored = malloc(s->n * sizeof(*stored));

	if (!stored)
		return base_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < s->n; i++) {
		int rc = shard_index_sample_slot(s->index, s->first + i, &stored[i].slot);

		if (rc < 0)
			return cli_damaged(err, s->args->dataset, rc);
		stored[i].item = i;
	}
	qsort(stored, s->n, sizeof(*stored), compare_stored);
	for (uint32_t i = 0; i < s->n; i++)
		s->places[stored[i].item] = i;
	return 0;
}

static int stats_open(struct stats *s, struct view_options *view, struct base_err *err)
{
	uint32_t end;
	size_t bytes;
	int rc = cli_index_open(s->args->dataset, s->args->index_file, err, &s->index);

	if (rc == 0)
		rc = view_options_finish(view, s->index, err);
	if (rc == 0)
		rc = shard_view_new(s->index, &view->view, err, &s->view);
	if (rc < 0)
		return rc;
	rc = shard_index_dir_samples(s->index, shard_view_subdir(s->view), &s->first, &end);
	if (rc < 0)
		return cli_damaged(err, s->args->dataset, rc);
	s->n = end - s->first;
	if (s->n == 0)
		return base_err_set(err, -EINVAL, "'%s' holds no samples", s->args->dataset);
	/* A rank has at most n turns, and one more if its part is padded. */
	bytes = ((size_t)s->n + 1) * sizeof(uint32_t);
	s->classes = malloc(bytes);
	s->places = malloc(bytes);
	s->sequence_slots = malloc(bytes);
	s->sequence_classes = malloc(bytes);
	s->shuffled = malloc(bytes);
	if (!s->classes || !s->places || !s->sequence_slots || !s->sequence_classes || !s->shuffled)
		return base_err_set(err, -ENOMEM, "out of memory for %" PRIu32 " samples", s->n);
	if (shard_view_options_get(s->view)->groups > 1) {
		s->groups = malloc(bytes);
		if (!s->groups)
			return base_err_set(err, -ENOMEM, "out of memory for %" PRIu32 " samples", s->n);
	}
	rc = number_classes(s, err);
	return rc < 0 ? rc : rank_places(s, err);
}

/* Stores one epoch of the view's rank in the sequences, and its length in *ret_n. */
static int load_epoch(struct stats *s, uint64_t number, uint64_t *ret_n)
{
	uint32_t rank = shard_view_options_get(s->view)->rank;
	struct shard_epoch *epoch;
	int rc = shard_view_epoch(s->view, number, &epoch);

	if (rc < 0)
		return rc;
	*ret_n = shard_epoch_turns(epoch, rank);
	for (uint64_t k = 0; k < *ret_n && rc == 0; k++) {
		uint32_t sample;

		rc = shard_epoch_turn(epoch, rank, k, &sample, NULL);
		if (rc == 0 && (sample < s->first || sample - s->first >= s->n))
			rc = -EUCLEAN;
		if (rc < 0)
			break;
		s->sequence_slots[k] = s->places[sample - s->first];
		s->sequence_classes[k] = s->classes[sample - s->first];
	}
	shard_epoch_put(epoch);
	return rc;
}

/* Stores n samples of a random permutation in the sequences. */
static void load_random(struct stats *s, uint64_t seed, uint64_t n)
{
	shard_quality_shuffle(seed, s->n, s->shuffled);
	for (uint64_t k = 0; k < n; k++) {
		uint32_t item = s->shuffled[k % s->n];

		s->sequence_slots[k] = s->places[item];
		s->sequence_classes[k] = s->classes[item];
	}
}

/* Adds the groups of one epoch; without groups does nothing. */
static int add_groups(struct stats *s, uint64_t number, struct shard_quality *quality)
{
	uint32_t n_groups = (uint32_t)shard_view_options_get(s->view)->groups;
	struct shard_epoch *epoch;
	int rc = 0;

	if (!s->groups)
		return 0;
	for (uint32_t i = 0; i < s->n; i++)
		s->groups[i] = n_groups;
	rc = shard_view_epoch(s->view, number, &epoch);
	if (rc < 0)
		return rc;
	/* Groups take turns, and a step is a position, because the deal is stride. */
	for (uint64_t step = shard_epoch_deal(epoch)->start; step < shard_view_samples(s->view) && rc == 0; step++) {
		uint32_t sample;

		if (step >= shard_deal_end(shard_epoch_deal(epoch)))
			break; /* tail=drop */
		rc = shard_epoch_step_sample(epoch, step, &sample);
		if (rc == 0 && (sample < s->first || sample - s->first >= s->n))
			rc = -EUCLEAN;
		if (rc == 0)
			s->groups[sample - s->first] = (uint32_t)(step % n_groups);
	}
	shard_epoch_put(epoch);
	if (rc == 0)
		shard_quality_add_groups(quality, s->groups, s->classes);
	return rc;
}

/* Adds the groups that the permutation of load_random deals. */
static void add_random_groups(struct stats *s, struct shard_quality *quality)
{
	uint32_t n_groups = (uint32_t)shard_view_options_get(s->view)->groups;

	if (!s->groups)
		return;
	for (uint32_t i = 0; i < s->n; i++)
		s->groups[s->shuffled[i]] = i % n_groups;
	shard_quality_add_groups(quality, s->groups, s->classes);
}

static int measure(struct stats *s, struct base_err *err)
{
	const struct shard_quality_options quality = { .n_slots = s->n,
		.n_classes = s->n_classes,
		.batch = (uint32_t)s->args->batch,
		.n_groups = (uint32_t)shard_view_options_get(s->view)->groups };
	uint64_t first = shard_view_options_get(s->view)->epoch;
	struct shard_quality *ours = NULL;
	struct shard_quality *random = NULL;
	int rc = shard_quality_new(&quality, &ours);

	if (rc == 0)
		rc = shard_quality_new(&quality, &random);
	if (rc < 0)
		base_err_set(err, rc, "out of memory");
	for (uint64_t e = 0; e < s->args->epochs && rc == 0; e++) {
		uint64_t n;
		char what[64];

		snprintf(what, sizeof(what), "measuring epoch %" PRIu64 " of %" PRIu64, e + 1, s->args->epochs);
		progress_wait_start(what);
		rc = load_epoch(s, first + e, &n);
		if (rc == 0)
			rc = add_groups(s, first + e, ours);
		if (rc < 0) {
			cli_damaged(err, s->args->dataset, rc);
			break;
		}
		shard_quality_add(ours, s->sequence_slots, s->sequence_classes, n);
		load_random(s, first + e, n);
		shard_quality_add(random, s->sequence_slots, s->sequence_classes, n);
		add_random_groups(s, random);
	}
	progress_wait_done();
	if (rc == 0) {
		shard_quality_get(ours, &s->ours);
		shard_quality_get(random, &s->random);
	}
	shard_quality_free(ours);
	shard_quality_free(random);
	return rc;
}

/* Writes a text such as "order=chunk (chunks of 32 samples, pools of 2048 chunks), seed 0". */
static void describe(const struct stats *s, char *buf, size_t size)
{
	const struct shard_view_options *o = shard_view_options_get(s->view);
	size_t at = (size_t)snprintf(buf, size, "order=%s", shard_order_mode_name(o->order));

	if (o->order == SHARD_ORDER_CHUNK)
		at += (size_t)snprintf(buf + at, size - at,
		        " (chunks of %" PRIu64 " samples, pools of %" PRIu64 " chunks)", o->chunk_items,
		        o->pool_chunks);
	at += (size_t)snprintf(buf + at, size - at, ", seed %" PRIu64, o->seed);
	if (o->groups > 1)
		at += (size_t)snprintf(buf + at, size - at, ", groups=%" PRIu64, o->groups);
	if (o->redeal > 0)
		at += (size_t)snprintf(buf + at, size - at, ", redeal=%" PRIu64, o->redeal);
	if (o->world > 1)
		snprintf(buf + at, size - at, ", rank %" PRIu32 " of %" PRIu32 ", deal=%s", o->rank, o->world,
		        shard_deal_mode_name(o->deal));
}

static void print_row(const char *name, double ours, double random, int digits)
{
	char text[2][32];
	const double values[2] = { ours, random };

	for (unsigned i = 0; i < 2; i++) {
		if (isnan(values[i]))
			snprintf(text[i], sizeof(text[i]), "-");
		else
			snprintf(text[i], sizeof(text[i]), "%.*f", digits, values[i]);
	}
	printf("%-44s %12s %12s\n", name, text[0], text[1]);
}

static void print_text(const struct stats *s)
{
	const struct shard_info *info = shard_index_info(s->index);
	char what[256];
	char name[64];

	describe(s, what, sizeof(what));
	printf("%s, %" PRIu64 " epochs\n", what, s->args->epochs);
	printf("%" PRIu32 " samples in %" PRIu32 " classes, %s when packed\n\n", s->n, s->n_classes,
	        info->shuffled ? "shuffled" : "not shuffled");
	printf("%-44s %12s %12s\n", "", "this order", "random");
	snprintf(name, sizeof(name), "distinct classes in %" PRIu64 " samples, mean", s->args->batch);
	print_row(name, s->ours.distinct_mean, s->random.distinct_mean, 1);
	print_row("  lowest", s->ours.batches > 0 ? s->ours.distinct_min : NAN,
	        s->random.batches > 0 ? s->random.distinct_min : NAN, 0);
	print_row("  as a part of random's mean", s->ours.distinct_mean / s->random.distinct_mean, 1, 3);
	print_row("serial correlation of classes, lag 1", s->ours.class_lag[0], s->random.class_lag[0], 4);
	print_row("serial correlation of stored places, lag 1", s->ours.slot_lag[0], s->random.slot_lag[0], 4);
	print_row("position uniformity (chi-square / freedom)", s->ours.position_chi, s->random.position_chi, 2);
	if (s->groups) {
		print_row("samples a group had an epoch ago", s->ours.group_kept, s->random.group_kept, 3);
		print_row("samples a group had in one of the epochs", s->ours.group_seen, s->random.group_seen, 3);
		print_row("classes of groups (chi-square / freedom)", s->ours.group_chi, s->random.group_chi, 2);
	}
	if (s->n_classes == 1)
		printf("\nAll samples are of one class: nothing can be said about classes%s.\n",
		        s->args->component ? "" : "; see --classes-from");
	if (s->ours.batches == 0)
		printf("\nAn epoch is shorter than a batch of %" PRIu64 ": see --batch.\n", s->args->batch);
}

static void json_number(const char *key, double value, const char *end)
{
	if (isnan(value))
		printf("\"%s\": null%s", key, end);
	else
		printf("\"%s\": %.9g%s", key, value, end);
}

static void json_list(const char *key, const double *values, unsigned n, const char *end)
{
	printf("\"%s\": [", key);
	for (unsigned i = 0; i < n; i++) {
		if (isnan(values[i]))
			printf("%snull", i ? ", " : "");
		else
			printf("%s%.6g", i ? ", " : "", values[i]);
	}
	printf("]%s", end);
}

static void json_result(const char *key, const struct shard_quality_result *r)
{
	printf("\"%s\": {\"batches\": %" PRIu64 ", ", key, r->batches);
	json_number("distinct_mean", r->distinct_mean, ", ");
	json_number("distinct_sd", r->distinct_sd, ", ");
	printf("\"distinct_min\": %" PRIu32 ", \"distinct_max\": %" PRIu32 ", ", r->distinct_min, r->distinct_max);
	json_number("position_chi", r->position_chi, ", ");
	json_number("group_kept", r->group_kept, ", ");
	json_number("group_seen", r->group_seen, ", ");
	json_number("group_chi", r->group_chi, ", ");
	json_list("class_correlation", r->class_lag, SHARD_QUALITY_LAGS, ", ");
	json_list("place_correlation", r->slot_lag, SHARD_QUALITY_LAGS, ", ");
	json_list("distinct_by_part", r->distinct_by_part, SHARD_QUALITY_BINS, ", ");
	json_list("place_by_part", r->slot_by_part, SHARD_QUALITY_BINS, "}");
}

static void print_json(const struct stats *s)
{
	const struct shard_view_options *o = shard_view_options_get(s->view);

	printf("{\"order\": \"%s\", \"deal\": \"%s\", \"seed\": %" PRIu64 ", \"epoch\": %" PRIu64
	       ", \"epochs\": %" PRIu64 ", \"rank\": %" PRIu32 ", \"world\": %" PRIu32 ", \"chunk_samples\": %" PRIu64
	       ", \"pool_chunks\": %" PRIu64 ", \"groups\": %" PRIu64 ", \"redeal\": %" PRIu64 ", \"samples\": %" PRIu32
	       ", \"classes\": %" PRIu32 ", \"batch\": %" PRIu64 ", \"shuffled\": %s, ",
	        shard_order_mode_name(o->order), shard_deal_mode_name(o->deal), o->seed, o->epoch, s->args->epochs,
	        o->rank, o->world, o->chunk_items, o->pool_chunks, o->groups > 1 ? o->groups : 1, o->redeal, s->n,
	        s->n_classes, s->args->batch, shard_index_info(s->index)->shuffled ? "true" : "false");
	json_number("distinct_ratio", s->ours.distinct_mean / s->random.distinct_mean, ", ");
	printf("\"lags\": [");
	for (unsigned l = 0; l < SHARD_QUALITY_LAGS; l++)
		printf("%s%" PRIu32, l ? ", " : "", shard_quality_lags[l]);
	printf("], ");
	json_result("ours", &s->ours);
	printf(", ");
	json_result("random", &s->random);
	printf("}\n");
}

/* Values of the four panels, for this order and for random. */
struct curves {
	double part[SHARD_QUALITY_BINS]; /* x: per cent of the epoch */
	double lag[SHARD_QUALITY_LAGS];
	double count[SHARD_QUALITY_BATCH_MAX + 1]; /* x: distinct classes */
	double share[2][SHARD_QUALITY_BATCH_MAX + 1];
	double place[2][SHARD_QUALITY_BINS]; /* per cent of the stored order */
	unsigned n_counts;
	unsigned first_count;
};

static void fill_curves(const struct stats *s, struct curves *c)
{
	const struct shard_quality_result *results[2] = { &s->ours, &s->random };
	uint32_t low = s->ours.distinct_min < s->random.distinct_min ? s->ours.distinct_min : s->random.distinct_min;
	uint32_t high = s->ours.distinct_max > s->random.distinct_max ? s->ours.distinct_max : s->random.distinct_max;

	c->first_count = low > 0 ? low - 1 : 0;
	c->n_counts = high + 2 > SHARD_QUALITY_BATCH_MAX + 1 ? SHARD_QUALITY_BATCH_MAX + 1 : high + 2;
	c->n_counts -= c->first_count;
	for (unsigned b = 0; b < SHARD_QUALITY_BINS; b++)
		c->part[b] = (b + 0.5) * 100 / SHARD_QUALITY_BINS;
	for (unsigned l = 0; l < SHARD_QUALITY_LAGS; l++)
		c->lag[l] = shard_quality_lags[l];
	for (unsigned i = 0; i <= SHARD_QUALITY_BATCH_MAX; i++)
		c->count[i] = i;
	for (unsigned r = 0; r < 2; r++) {
		double batches = results[r]->batches > 0 ? (double)results[r]->batches : NAN;

		for (unsigned i = 0; i <= SHARD_QUALITY_BATCH_MAX; i++)
			c->share[r][i] = (double)results[r]->distinct_counts[i] * 100 / batches;
		for (unsigned b = 0; b < SHARD_QUALITY_BINS; b++)
			c->place[r][b] = results[r]->slot_by_part[b] * 100;
	}
}

static void draw(const struct stats *s, const struct curves *c, FILE *out)
{
	char title[128];
	char order[256];
	char dataset[256];
	char distinct[64];
	struct svg_plot plot = { .title = title, .subtitles = { order, dataset }, .n_curves = 2, .n_panels = 4 };
	const struct shard_quality_result *results[2] = { &s->ours, &s->random };

	snprintf(title, sizeof(title), "How random is order=%s?",
	        shard_order_mode_name(shard_view_options_get(s->view)->order));
	describe(s, order, sizeof(order));
	snprintf(dataset, sizeof(dataset),
	        "%" PRIu32 " samples in %" PRIu32 " classes, %s when packed; mean of %" PRIu64 " epoch%s", s->n,
	        s->n_classes, shard_index_info(s->index)->shuffled ? "shuffled" : "not shuffled", s->args->epochs,
	        s->args->epochs > 1 ? "s" : "");
	snprintf(distinct, sizeof(distinct), "classes in %" PRIu64 " samples", s->args->batch);
	plot.names[0] = "this order";
	plot.names[1] = "true random permutation";
	plot.panels[0] = (struct svg_panel){ .title = "Distinct classes in a batch, through the epoch",
		.x_label = "position in the epoch, %",
		.y_label = distinct,
		.x_low = 0,
		.x_high = 100,
		.y_low = 0,
		.y_high = NAN };
	plot.panels[1] = (struct svg_panel){ .title = "Distinct classes in a batch, how often",
		.x_label = distinct,
		.x_low = NAN,
		.x_high = NAN,
		.y_label = "batches, %",
		.y_low = 0,
		.y_high = NAN };
	plot.panels[2] = (struct svg_panel){ .title = "Serial correlation of classes",
		.x_label = "lag, samples",
		.x_low = NAN,
		.x_high = NAN,
		.y_label = "correlation",
		.log_x = true,
		.y_low = -0.05,
		.y_high = 0.05 };
	plot.panels[3] = (struct svg_panel){ .title = "Where samples come from, through the epoch",
		.x_label = "position in the epoch, %",
		.x_low = 0,
		.x_high = 100,
		.y_label = "mean place in stored order, %",
		.y_low = 0,
		.y_high = 100 };
	for (unsigned r = 0; r < 2; r++) {
		plot.panels[0].curves[r] =
		        (struct svg_curve){ c->part, results[r]->distinct_by_part, SHARD_QUALITY_BINS };
		plot.panels[1].curves[r] =
		        (struct svg_curve){ c->count + c->first_count, c->share[r] + c->first_count, c->n_counts };
		plot.panels[2].curves[r] = (struct svg_curve){ c->lag, results[r]->class_lag, SHARD_QUALITY_LAGS };
		plot.panels[3].curves[r] = (struct svg_curve){ c->part, c->place[r], SHARD_QUALITY_BINS };
	}
	svg_write(out, &plot);
}

static int write_svg(const struct stats *s, struct base_err *err)
{
	cleanup_free struct curves *curves = malloc(sizeof(*curves));
	cleanup_free char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	if (!curves || !out) {
		if (out)
			fclose(out);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	fill_curves(s, curves);
	draw(s, curves, out);
	if (fclose(out) != 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return output_file_write(s->args->svg, text, len, err);
}

int mkshard_stats(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET",
		"Measure how random an order is, beside a true random permutation of the same samples: distinct "
		"classes in a batch, serial correlation, position uniformity.",
		.options = { { "options", "KEY=VALUE,...",
		                     "The view: order, deal, seed, epoch, rank, world, groups, redeal, subdir, chunk, "
		                     "pool",
		                     'o', CLI_CALL(struct args, view, take_view) },
		        { "epochs", "N", "Epochs to measure (5)", CLI_NUMBER(struct args, epochs, 1, EPOCHS_MAX) },
		        { "batch", "N", "Samples of a batch (256)",
		                CLI_NUMBER(struct args, batch, 1, SHARD_QUALITY_BATCH_MAX) },
		        { "classes-from", "N",
		                "A sample's class is the Nth directory of its path (default: the one that holds it)",
		                CLI_NUMBER(struct args, component, 1, SHARD_DEPTH_MAX) },
		        { "json", NULL, "Print one JSON object", CLI_FLAG(struct args, json) },
		        { "svg", "FILE", "Write a plot", CLI_TEXT(struct args, svg) },
		        MKSHARD_INDEX_OPTION(struct args) },
		.words = { { "DATASET", .at = offsetof(struct args, dataset) } } };
	struct args args = { .view = VIEW_OPTIONS_DEFAULT, .epochs = EPOCHS_DEFAULT, .batch = BATCH_DEFAULT };
	cleanup_free struct stats *s = calloc(1, sizeof(*s));
	struct base_err err = { 0 };
	int rc;

	cli_parse(&line, argc, argv, &args);
	if (!s)
		return cli_failf("out of memory");
	s->args = &args;
	rc = stats_open(s, &args.view, &err);
	if (rc == 0)
		rc = measure(s, &err);
	if (s->index && shard_index_check_err(s->index, &err) < 0)
		rc = err.code;
	if (rc == 0 && args.svg)
		rc = write_svg(s, &err);
	if (rc == 0 && args.json)
		print_json(s);
	else if (rc == 0)
		print_text(s);
	stats_done(s);
	view_options_done(&args.view);
	return rc < 0 ? cli_fail(&err) : CLI_DONE;
}
