/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs report`: one HTML page about what mounts did; mount_histories.h and report_plot.h first. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "tools/common/cli.h"
#include "tools/common/output_file.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/mount_histories.h"
#include "tools/ddpfs/report_plot.h"

enum {
	MARKS_MAX = 400,  /* epochs that are marked; more would be a grey area */
	EPOCHS_MAX = 200, /* lines of the table of epochs */
	NAME_MAX_BYTES = 96,
	RANKS_MAX_BYTES = 32,
};

struct arguments {
	struct cli_rest targets;
	const char *output;
};

/* What the page shows. Its times are seconds from `zero`. */
struct page {
	struct mount_histories *runs;
	double *offset;                /* of each run: its beginning */
	char (*names)[NAME_MAX_BYTES]; /* of each run; no two are equal */
	bool together; /* the runs overlap: `zero` is the beginning of the first one; else each has its own */
	bool active;   /* a file was opened */
	double from, to;
	unsigned n_bins;
	struct report_mark *marks;
	size_t n_marks;
	struct report_plot plot; /* the one that is being drawn */
};

/* ---- numbers ---- */

static double last_of(const struct mount_history *run, enum mount_history_field field)
{
	return run->n ? run->readings[run->n - 1][field] : 0;
}

static double grown(const struct mount_history *run, enum mount_history_field field)
{
	return run->n ? fmax(0, last_of(run, field) - run->readings[0][field]) : 0;
}

/* Returns the number of the last reading at or before `at`; 0: there is none before. */
static size_t reading_at(const struct mount_history *run, double at)
{
	size_t low = 0, high = run->n;
	while (low + 1 < high) {
		size_t middle = low + (high - low) / 2;
		if (run->readings[middle][RUN_AT] <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* The value of a counter between two readings lies on the line between them. */
static double counter_at(const struct mount_history *run, enum mount_history_field field, double at)
{
	size_t i = reading_at(run, at);
	const double *a = run->readings[i];
	if (at <= a[RUN_AT] || i + 1 == run->n)
		return a[field];
	const double *b = run->readings[i + 1];
	return a[field] + (b[field] - a[field]) * (at - a[RUN_AT]) / (b[RUN_AT] - a[RUN_AT]);
}

static double bin_edge(const struct page *page, unsigned bin)
{
	return page->from + (page->to - page->from) * bin / page->n_bins;
}

/* What a counter of run `r` grew by in a bin; NAN: the run was not there. */
static double bin_growth(const struct page *page, size_t r, enum mount_history_field field, unsigned bin)
{
	const struct mount_history *run = &page->runs->runs[r];
	double from = bin_edge(page, bin) - page->offset[r], to = bin_edge(page, bin + 1) - page->offset[r];
	if (run->n < 2 || from >= last_of(run, RUN_AT) || to <= run->readings[0][RUN_AT])
		return NAN;
	return fmax(0, counter_at(run, field, to) - counter_at(run, field, from));
}

static double bin_rate(const struct page *page, size_t r, enum mount_history_field field, unsigned bin)
{
	return bin_growth(page, r, field, bin) / (bin_edge(page, bin + 1) - bin_edge(page, bin));
}

/* The highest value of a gauge in a bin, or the last one before it. */
static double bin_high(const struct page *page, size_t r, enum mount_history_field field, unsigned bin)
{
	const struct mount_history *run = &page->runs->runs[r];
	double from = bin_edge(page, bin) - page->offset[r], to = bin_edge(page, bin + 1) - page->offset[r];
	if (run->n == 0 || from > last_of(run, RUN_AT) || to <= run->readings[0][RUN_AT])
		return NAN;
	size_t i = reading_at(run, from);
	double high = run->readings[i][field];
	while (i + 1 < run->n && run->readings[i + 1][RUN_AT] < to)
		high = fmax(high, run->readings[++i][field]);
	return high;
}

static double mean_file(const struct mount_history *run)
{
	return run->files ? (double)run->content_bytes / (double)run->files : 0;
}

/* ---- the page's times ---- */

static int by_rank(const void *a_, const void *b_)
{
	const struct mount_history *a = a_, *b = b_;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	int order = strcmp(a->mountpoint, b->mountpoint);
	if (order == 0)
		order = (a->began_s > b->began_s) - (a->began_s < b->began_s);
	return order ? order : (a->pid > b->pid) - (a->pid < b->pid);
}

static void place_runs(struct page *page)
{
	const struct mount_histories *runs = page->runs;
	double zero = INFINITY, last_begin = -INFINITY, first_end = INFINITY;
	for (size_t r = 0; r < runs->n; r++) {
		double begin = runs->runs[r].began_s;
		zero = fmin(zero, begin);
		last_begin = fmax(last_begin, begin);
		first_end = fmin(first_end, begin + last_of(&runs->runs[r], RUN_AT));
	}
	page->together = last_begin <= first_end;
	for (size_t r = 0; r < runs->n; r++)
		page->offset[r] = page->together ? runs->runs[r].began_s - zero : 0;
}

/* The page shows the time in which files were opened, of all runs. */
static void find_range(struct page *page)
{
	page->from = INFINITY;
	page->to = -INFINITY;
	for (size_t r = 0; r < page->runs->n; r++) {
		const struct mount_history *run = &page->runs->runs[r];
		for (size_t i = 1; i < run->n; i++) {
			if (run->readings[i][RUN_OPENS] <= run->readings[i - 1][RUN_OPENS])
				continue;
			page->from = fmin(page->from, page->offset[r] + run->readings[i - 1][RUN_AT]);
			page->to = fmax(page->to, page->offset[r] + run->readings[i][RUN_AT]);
		}
	}
	page->active = page->from < page->to;
	double bins = ceil(page->to - page->from);
	page->n_bins = !page->active || bins < 2 ? 2 : bins > REPORT_BINS_MAX ? REPORT_BINS_MAX : (unsigned)bins;
}

/* With view=all nobody may know the epoch: then all readings have 0. */
static bool knows_epochs(const struct mount_history *run)
{
	return !run->view_all || last_of(run, RUN_EPOCH) > 0;
}

/* Marks where an epoch of the first run begins. */
static int mark_epochs(struct page *page)
{
	const struct mount_history *run = &page->runs->runs[0];
	page->marks = calloc(MARKS_MAX, sizeof(*page->marks));
	if (!page->marks)
		return -ENOMEM;
	for (size_t i = 0; i < run->n && knows_epochs(run); i++) {
		double at = page->offset[0] + run->readings[i][RUN_AT], epoch = run->readings[i][RUN_EPOCH];
		/* An epoch goes on until the next reading, if there is one. */
		bool begins = i == 0 || epoch != run->readings[i - 1][RUN_EPOCH];
		if (!begins || at >= page->to)
			continue;
		if (at <= page->from)
			page->n_marks = 0;
		if (page->n_marks == MARKS_MAX) {
			page->n_marks = 0;
			return 0;
		}
		struct report_mark *mark = &page->marks[page->n_marks++];
		mark->at = fmax(at, page->from);
		snprintf(mark->label, sizeof(mark->label), "epoch %.0f", epoch);
	}
	return 0;
}

/* ---- text ---- */

static void put_size(FILE *out, double bytes)
{
	char text[16];
	fputs(base_format_size(bytes > 0 ? (uint64_t)bytes : 0, text), out);
}

static void put_time(FILE *out, double s)
{
	char text[48];
	fputs(report_format_time(s, text, sizeof(text)), out);
}

/* A whole number with commas. */
static void put_count(FILE *out, double value)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%.0f", value);
	for (int i = 0; i < n; i++)
		fprintf(out, "%s%c", i > 0 && (n - i) % 3 == 0 ? "," : "", text[i]);
}

/* Three digits or more. */
static void put_rate(FILE *out, double value)
{
	if (value >= 100)
		put_count(out, value);
	else
		fprintf(out, "%.3g", value);
}

static void put_share(FILE *out, double part, double whole)
{
	if (!(whole > 0))
		fputs("&ndash;", out);
	else /* not 100 % if there is a miss */
		fprintf(out, "%.*f %%", part < whole && part > 0.9 * whole ? 2 : 1,
		        part < whole ? fmin(100 * part / whole, 99.99) : 100);
}

static bool is_store(const char *dataset)
{
	return strstr(dataset, "://") != NULL;
}

static bool all_ranks_differ(const struct mount_histories *runs)
{
	for (size_t r = 1; r < runs->n; r++)
		if (runs->runs[r].rank == runs->runs[r - 1].rank)
			return false;
	return true;
}

static bool shares_mountpoint(const struct mount_histories *runs, size_t r)
{
	for (size_t i = 0; i < runs->n; i++)
		if (i != r && strcmp(runs->runs[i].mountpoint, runs->runs[r].mountpoint) == 0)
			return true;
	return false;
}

static const char *ranks_of(const struct mount_history *run, char text[RANKS_MAX_BYTES])
{
	if (run->ranks > 1)
		snprintf(text, RANKS_MAX_BYTES, "ranks %" PRIu32 "-%" PRIu32, run->rank, run->rank + run->ranks - 1);
	else
		snprintf(text, RANKS_MAX_BYTES, "rank %" PRIu32, run->rank);
	return text;
}

/* Writes how the page calls a run if that is enough to tell it from the others. */
static void name_run(const struct mount_histories *runs, size_t r, bool by_mountpoint, char name[NAME_MAX_BYTES])
{
	const struct mount_history *run = &runs->runs[r];
	size_t len = strlen(run->mountpoint), cut = len > 40 ? len - 40 : 0;
	char ranks[RANKS_MAX_BYTES];
	if (!by_mountpoint && run->view_all)
		snprintf(name, NAME_MAX_BYTES, "all files");
	else if (!by_mountpoint)
		snprintf(name, NAME_MAX_BYTES, "%s", ranks_of(run, ranks));
	else if (!run->view_all && shares_mountpoint(runs, r))
		snprintf(name, NAME_MAX_BYTES, "%s%s, %s", cut ? "..." : "", run->mountpoint + cut,
		        ranks_of(run, ranks));
	else
		snprintf(name, NAME_MAX_BYTES, "%s%s", cut ? "..." : "", run->mountpoint + cut);
}

/* Returns how many of the first `n` runs have the name of run `r`, itself among them. */
static unsigned with_name_of(const struct page *page, size_t r, size_t n)
{
	unsigned found = 0;
	for (size_t i = 0; i < n; i++)
		found += strcmp(page->names[i], page->names[r]) == 0;
	return found;
}

/* Under `ddpfs exec` all ranks have one mountpoint, and with view=all no rank: then the PID tells them apart. Those of
 * several hosts may have one PID, too. */
static int name_runs(struct page *page)
{
	const struct mount_histories *runs = page->runs;
	bool by_mountpoint = runs->n > 1 && !all_ranks_differ(runs);
	cleanup_free unsigned *twins = calloc(runs->n, sizeof(*twins));
	page->names = calloc(runs->n, sizeof(*page->names));
	if (!page->names || !twins)
		return -ENOMEM;
	for (size_t r = 0; r < runs->n; r++)
		name_run(runs, r, by_mountpoint, page->names[r]);
	for (size_t r = 0; r < runs->n; r++)
		twins[r] = with_name_of(page, r, runs->n);
	for (size_t r = 0; r < runs->n; r++) {
		size_t len = strlen(page->names[r]);
		if (twins[r] > 1)
			snprintf(page->names[r] + len, NAME_MAX_BYTES - len, ", PID %" PRIu64, runs->runs[r].pid);
	}
	for (size_t r = 0; r < runs->n; r++)
		twins[r] = with_name_of(page, r, r + 1);
	for (size_t r = 0; r < runs->n; r++) {
		size_t len = strlen(page->names[r]);
		if (twins[r] > 1)
			snprintf(page->names[r] + len, NAME_MAX_BYTES - len, " (%u)", twins[r]);
	}
	return 0;
}

/* ---- plots ---- */

static struct report_plot *begin_plot(struct page *page, const char *title, const char *unit, const char *note)
{
	page->plot = (struct report_plot){
		.title = title,
		.unit = unit,
		.note = note,
		.from_s = page->from,
		.to_s = page->to,
		.n_bins = page->n_bins,
		.marks = page->marks,
		.n_marks = page->n_marks,
	};
	return &page->plot;
}

/* Adds a curve for run `r`. Returns NULL if the plot is full. */
static struct report_curve *add_curve(struct page *page, size_t r, const char *what, char names[][NAME_MAX_BYTES * 2])
{
	struct report_plot *plot = &page->plot;
	if (plot->n_curves == REPORT_CURVES_MAX) {
		plot->n_left_out++;
		return NULL;
	}
	struct report_curve *curve = &plot->curves[plot->n_curves];
	snprintf(names[plot->n_curves++], NAME_MAX_BYTES * 2, "%s%s%s", page->names[r], what ? ", " : "",
	        what ? what : "");
	*curve = (struct report_curve){ .name = names[plot->n_curves - 1], .colour = (unsigned)r };
	return curve;
}

typedef double report_value(const struct page *page, size_t r, unsigned bin);

static double files_per_s(const struct page *page, size_t r, unsigned bin)
{
	return bin_rate(page, r, RUN_OPENS, bin);
}

static double waiting(const struct page *page, size_t r, unsigned bin)
{
	return bin_rate(page, r, RUN_WAITED, bin);
}

static double hit_rate(const struct page *page, size_t r, unsigned bin)
{
	double opens = bin_growth(page, r, RUN_OPENS, bin), misses = bin_growth(page, r, RUN_MISSES, bin);
	return opens >= 0.5 ? 100 * fmax(0, 1 - misses / opens) : NAN;
}

static double depth(const struct page *page, size_t r, unsigned bin)
{
	return bin_high(page, r, RUN_DEPTH, bin);
}

static double inflight(const struct page *page, size_t r, unsigned bin)
{
	return bin_high(page, r, RUN_INFLIGHT, bin);
}

static double resident(const struct page *page, size_t r, unsigned bin)
{
	return bin_high(page, r, RUN_RESIDENT, bin);
}

static double budget(const struct page *page, size_t r, unsigned bin)
{
	return bin_high(page, r, RUN_MEMORY, bin);
}

static void add_curves(
        struct page *page, report_value *value, const char *what, bool dashed, char names[][NAME_MAX_BYTES * 2])
{
	for (size_t r = 0; r < page->runs->n; r++) {
		struct report_curve *curve = add_curve(page, r, what, names);
		for (unsigned b = 0; curve && b < page->n_bins; b++)
			curve->y[b] = value(page, r, b);
		if (curve)
			curve->dashed = dashed;
	}
}

struct sums {
	double opens, misses, waited, read, tier, opened_bytes;
};

static struct sums sums_of(const struct mount_histories *runs)
{
	struct sums sums = { 0 };
	for (size_t r = 0; r < runs->n; r++) {
		double opens = grown(&runs->runs[r], RUN_OPENS);
		sums.opens += opens;
		sums.misses += grown(&runs->runs[r], RUN_MISSES);
		sums.waited += grown(&runs->runs[r], RUN_WAITED);
		sums.read += grown(&runs->runs[r], RUN_READ);
		sums.tier += grown(&runs->runs[r], RUN_TIER);
		sums.opened_bytes += opens * mean_file(&runs->runs[r]);
	}
	return sums;
}

/* Where the bytes came from that trainers read, from far to near. */
enum source { SOURCE_ORIGIN, SOURCE_TIER, SOURCE_MEMORY, SOURCES };

static void source_rates(const struct page *page, unsigned bin, double rates[SOURCES])
{
	double origin = 0, tier = 0, opened = 0;
	bool any = false;
	for (size_t r = 0; r < page->runs->n; r++) {
		double opens = bin_rate(page, r, RUN_OPENS, bin), read = bin_rate(page, r, RUN_READ, bin);
		if (isnan(opens))
			continue;
		any = true;
		origin += read;
		tier += bin_rate(page, r, RUN_TIER, bin);
		opened += opens * mean_file(&page->runs->runs[r]);
	}
	rates[SOURCE_ORIGIN] = any ? origin : NAN;
	rates[SOURCE_TIER] = any ? tier : NAN;
	rates[SOURCE_MEMORY] = any ? fmax(0, opened - origin - tier) : NAN;
}

/* Divides all curves by the unit in which their highest value has few digits. Returns its name. */
static const char *scale_bytes(struct report_plot *plot, bool rate)
{
	static const char *const units[][2] = { { "KiB", "KiB/s" }, { "MiB", "MiB/s" }, { "GiB", "GiB/s" },
		{ "TiB", "TiB/s" } };
	double high = plot->y_high, by = 1024;
	int unit = 0;
	for (unsigned c = 0; c < plot->n_curves; c++)
		for (unsigned b = 0; b < plot->n_bins; b++)
			high = fmax(high, plot->curves[c].y[b]);
	for (; high / by >= 1024 && unit < 3; unit++)
		by *= 1024;
	for (unsigned c = 0; c < plot->n_curves; c++)
		for (unsigned b = 0; b < plot->n_bins; b++)
			plot->curves[c].y[b] /= by;
	plot->y_high /= by;
	return units[unit][rate];
}

static void write_sources(FILE *out, struct page *page)
{
	bool store = is_store(page->runs->runs[0].dataset);
	struct report_plot *plot = begin_plot(page, "Where the bytes came from", "",
	        page->together
	                ? "All ranks together. Files count with the mean size of the dataset&rsquo;s files. What is "
	                  "read ahead counts when it is read."
	                : "The sum of all mounts, as if they had begun at the same moment. Files count with the mean "
	                  "size of the dataset&rsquo;s files. What is read ahead counts when it is read.");
	const struct {
		enum source source;
		const char *name;
		bool shown;
	} areas[SOURCES] = {
		{ SOURCE_ORIGIN, store ? "store" : "disk", true },
		{ SOURCE_TIER, "tier", sums_of(page->runs).tier > 0 },
		{ SOURCE_MEMORY, "memory", true },
	};
	static const unsigned colours[SOURCES] = { [SOURCE_ORIGIN] = 1, [SOURCE_TIER] = 2, [SOURCE_MEMORY] = 0 };
	for (size_t i = 0; i < SOURCES; i++) {
		if (!areas[i].shown)
			continue;
		struct report_curve *curve = &plot->curves[plot->n_curves++];
		*curve = (struct report_curve){
			.name = areas[i].name, .colour = colours[areas[i].source], .area = true
		};
		for (unsigned b = 0; b < page->n_bins; b++) {
			double rates[SOURCES];
			source_rates(page, b, rates);
			curve->y[b] = rates[areas[i].source];
		}
	}
	plot->unit = scale_bytes(plot, true);
	report_plot_write(out, plot);
}

/* 99 % and 99.9 % are far apart for a trainer. */
static void show_small_misses(struct report_plot *plot)
{
	static const double lows[] = { 99, 90, 50, 0 };
	double lowest = 100;
	for (unsigned c = 0; c < plot->n_curves; c++)
		for (unsigned b = 0; b < plot->n_bins; b++)
			lowest = fmin(lowest, plot->curves[c].y[b]);
	for (size_t i = 0; i < sizeof(lows) / sizeof(lows[0]) && plot->y_high == 0; i++)
		if (lowest >= lows[i]) {
			plot->y_low = lows[i];
			plot->y_high = 100;
		}
}

static void write_plots(FILE *out, struct page *page)
{
	static char names[REPORT_CURVES_MAX][NAME_MAX_BYTES * 2];
	bool few = page->runs->n <= 4;
	fputs("<main>\n", out);
	begin_plot(page, "Throughput", "files/s", NULL);
	add_curves(page, files_per_s, NULL, false, names);
	report_plot_write(out, &page->plot);

	begin_plot(page, "Waits", "readers that wait, on average",
	        "0: no reader waited for ddpfs. 1: one reader waited all the time.");
	add_curves(page, waiting, NULL, false, names);
	report_plot_write(out, &page->plot);

	begin_plot(page, "Hit rate", "% of opened files", "Files that were in memory when they were opened.");
	add_curves(page, hit_rate, NULL, false, names);
	show_small_misses(&page->plot);
	report_plot_write(out, &page->plot);

	write_sources(out, page);

	begin_plot(page, "Device depth", "reads",
	        few ? "How many reads may be in flight, and how many were at the time of a reading."
	            : "How many reads may be in flight.");
	page->plot.whole_y = true;
	add_curves(page, depth, few ? "allowed" : NULL, few, names);
	if (few)
		add_curves(page, inflight, "in flight", false, names);
	report_plot_write(out, &page->plot);

	begin_plot(page, "Memory", "", few ? "What the mount holds, and its budget." : "What each mount holds.");
	add_curves(page, resident, few ? "held" : NULL, false, names);
	if (few)
		add_curves(page, budget, "budget", true, names);
	page->plot.unit = scale_bytes(&page->plot, false);
	report_plot_write(out, &page->plot);
	fputs("</main>\n", out);
}

/* ---- figures and tables ---- */

/* Finds the readings between which files of a run were opened; both stay as they are if none was. */
static void busy(const struct mount_history *run, size_t *ret_a, size_t *ret_b)
{
	bool any = false;
	for (size_t i = 1; i < run->n; i++) {
		if (run->readings[i][RUN_OPENS] <= run->readings[i - 1][RUN_OPENS])
			continue;
		*ret_a = any ? *ret_a : i - 1;
		*ret_b = i;
		any = true;
	}
}

/* Returns how long files were opened by any of the runs: with times between runs left out, and times that several runs
 * share counted once. */
static double busy_seconds(const struct page *page)
{
	double seconds = 0, done = -INFINITY;
	if (page->together)
		return page->to - page->from;
	for (;;) { /* each turn counts the interval that begins next */
		double from = INFINITY, to = 0;
		for (size_t r = 0; r < page->runs->n; r++) {
			const struct mount_history *run = &page->runs->runs[r];
			size_t a = 0, b = 0;
			busy(run, &a, &b);
			double end = run->began_s + run->readings[b][RUN_AT];
			double begin = fmax(done, run->began_s + run->readings[a][RUN_AT]);
			if (a == b || end <= begin || begin >= from)
				continue;
			from = begin;
			to = end;
		}
		if (isinf(from))
			return seconds;
		seconds += to - from;
		done = to;
	}
}

static void write_figures(FILE *out, const struct page *page)
{
	struct sums sums = sums_of(page->runs);
	double seconds = busy_seconds(page);
	fputs("<section class=\"figures\">\n<div><b>", out);
	put_rate(out, sums.opens / seconds);
	fputs("</b> files/s<p>", out);
	put_count(out, sums.opens);
	fputs(" files in ", out);
	put_time(out, seconds);
	fputs(page->together ? ", about " : " (times between the mounts do not count), about ", out);
	put_size(out, sums.opened_bytes / seconds);
	fputs("/s</p></div>\n<div><b>", out);
	put_share(out, sums.opens - fmin(sums.misses, sums.opens), sums.opens);
	fputs("</b> hits<p>", out);
	put_count(out, sums.misses);
	fprintf(out, " files were not in memory when they were opened</p></div>\n<div><b>");
	put_time(out, sums.waited);
	fputs("</b> waited<p>readers side by side, each for itself; ", out);
	put_size(out, sums.read);
	fprintf(out, " read from the %s", is_store(page->runs->runs[0].dataset) ? "store" : "disk");
	if (sums.tier > 0) {
		fputs(", ", out);
		put_size(out, sums.tier);
		fputs(" from the tier", out);
	}
	fputs("</p></div>\n</section>\n", out);
}

/* The cells of one line: what grew from reading `a` to reading `b` in so many seconds. */
static void put_cells(FILE *out, const struct mount_history *run, size_t a, size_t b)
{
	const double *from = run->readings[a], *to = run->readings[b];
	double seconds = to[RUN_AT] - from[RUN_AT], opens = fmax(0, to[RUN_OPENS] - from[RUN_OPENS]);
	double misses = fmin(opens, fmax(0, to[RUN_MISSES] - from[RUN_MISSES]));
	fputs("<td>", out);
	put_count(out, opens);
	fputs("<td>", out);
	put_time(out, seconds);
	fputs("<td>", out);
	put_rate(out, seconds > 0 ? opens / seconds : 0);
	fputs("<td>", out);
	put_share(out, opens - misses, opens);
	fputs("<td>", out);
	put_time(out, fmax(0, to[RUN_WAITED] - from[RUN_WAITED]));
	fputs("<td>", out);
	put_size(out, fmax(0, to[RUN_READ] - from[RUN_READ]));
}
#define CELL_HEADS "<th>files<th>time<th>files/s<th>hits<th>waited<th>read"

static void put_run_name(FILE *out, const struct page *page, size_t r)
{
	fprintf(out, "<td><i class=\"c%zu\"></i>", r % REPORT_COLOURS);
	report_put_text(out, page->names[r]);
}

static void write_ranks(FILE *out, const struct page *page)
{
	fputs("<h2>Rank beside rank</h2>\n<div class=\"wide\"><table>\n<tr><th>mount" CELL_HEADS
	      "<th>taken back<th>errors<th>restarts<th class=\"text\">mountpoint\n",
	        out);
	for (size_t r = 0; r < page->runs->n; r++) {
		const struct mount_history *run = &page->runs->runs[r];
		size_t a = 0, b = 0;
		fputs("<tr>", out);
		put_run_name(out, page, r);
		busy(run, &a, &b);
		put_cells(out, run, a, b);
		fprintf(out, "<td>%.0f<td>%.0f<td>%.0f<td class=\"text\">", last_of(run, RUN_LOST),
		        last_of(run, RUN_ERRORS), last_of(run, RUN_RESTARTS));
		report_put_text(out, run->mountpoint);
		putc('\n', out);
	}
	fputs("</table></div>\n", out);
}

/* Writes the epochs of a run in which files were opened, at most *left of them. */
static void write_epochs_of(FILE *out, const struct page *page, size_t r, size_t *left)
{
	const struct mount_history *run = &page->runs->runs[r];
	for (size_t a = 0, b; a + 1 < run->n && knows_epochs(run); a = b) {
		double epoch = run->readings[a][RUN_EPOCH];
		for (b = a + 1; b + 1 < run->n && run->readings[b][RUN_EPOCH] == epoch; b++) {
		}
		if (run->readings[b][RUN_OPENS] <= run->readings[a][RUN_OPENS])
			continue;
		if (*left == 0)
			return;
		(*left)--;
		fputs("<tr>", out);
		put_run_name(out, page, r);
		fprintf(out, "<td>%.0f", epoch);
		put_cells(out, run, a, b);
		putc('\n', out);
	}
}

static void write_epochs(FILE *out, const struct page *page)
{
	size_t left = EPOCHS_MAX;
	fputs("<h2>Epochs</h2>\n<p>An epoch ends at the first reading of the next one: the figures are as fine as the "
	      "readings.</p>\n<div class=\"wide\"><table>\n<tr><th>mount<th>epoch" CELL_HEADS "\n",
	        out);
	for (size_t r = 0; r < page->runs->n; r++)
		write_epochs_of(out, page, r, &left);
	fputs("</table></div>\n", out);
	if (left == 0)
		fprintf(out, "<p>These are the first %d epochs.</p>\n", EPOCHS_MAX);
}

/* ---- the page ---- */

static const char style[] =
        ":root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2330;--soft:#667085;--line:#e4e7ec;"
        "--c0:#2563eb;--c1:#ea7317;--c2:#16935b;--c3:#9333ea;--c4:#dc2652;--c5:#0891b2;--c6:#a16207;--c7:#64748b}\n"
        "@media(prefers-color-scheme:dark){:root{--page:#0f1318;--card:#181d25;--text:#e7eaf0;--soft:#98a2b3;"
        "--line:#2b323d;--c0:#6ea8fe;--c1:#f6a45b;--c2:#4cc38a;--c3:#c08bf5;--c4:#f7768e;--c5:#4fc3dc;--c6:#d6b25e;"
        "--c7:#94a3b8}}\n"
        "*{box-sizing:border-box}\n"
        "body{margin:0 auto;max-width:1240px;padding:28px 20px 40px;background:var(--page);color:var(--text);"
        "font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\n"
        "h1{font-size:26px;margin:0 0 4px}h2{font-size:16px;margin:28px 0 8px}\n"
        "p{margin:0;color:var(--soft)}small{font-weight:400;color:var(--soft);font-size:13px}\n"
        "header p{overflow-wrap:anywhere}\n"
        ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,1fr));gap:16px;margin:22px 0 16px}\n"
        ".figures div,figure,.wide{background:var(--card);border:1px solid var(--line);border-radius:10px;"
        "padding:14px 18px}\n"
        ".figures b{font-size:32px;font-weight:650;letter-spacing:-.02em}.figures p{font-size:13px}\n"
        "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(480px,100%),1fr));gap:16px}\n"
        "figure{margin:0;display:flex;flex-direction:column}figcaption h2{margin:0}figcaption p{font-size:13px}\n"
        "svg{width:100%;height:auto;margin-top:auto;touch-action:pan-y}\n"
        ".legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin:6px 0 8px;color:var(--soft)}\n"
        ".legend b{color:var(--text);font-variant-numeric:tabular-nums}\n"
        "i{display:inline-block;width:12px;height:4px;border-radius:2px;margin-right:6px;vertical-align:middle;"
        "background:var(--c)}i.dashed{width:16px;background:repeating-linear-gradient(90deg,var(--c) 0 4px,"
        "transparent 4px 6px)}\n"
        "svg text{font-size:11px;fill:var(--soft)}text.y{text-anchor:end}text.x{text-anchor:middle}\n"
        ".grid,.axis{stroke:var(--line);fill:none}.axis{stroke:var(--soft);stroke-opacity:.6}\n"
        ".curve{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}\n"
        ".area{fill:var(--c);fill-opacity:.55}.dashed{stroke-dasharray:5 4;stroke-width:1.4}\n"
        "path.mark{stroke:var(--soft);stroke-dasharray:2 3;stroke-opacity:.8}text.mark{font-size:10.5px}\n"
        ".pointer{stroke:var(--text);stroke-opacity:.5;visibility:hidden}\n"
        ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}"
        ".c6{--c:var(--c6)}.c7{--c:var(--c7)}\n"
        ".wide{overflow-x:auto;padding:6px 18px}table{border-collapse:collapse;width:100%;font-size:13.5px;"
        "font-variant-numeric:tabular-nums}\n"
        "th,td{padding:6px 14px 6px 0;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}\n"
        "tr:first-child>*{border-top:0}th{font-weight:500;color:var(--soft)}\n"
        "th:first-child,td:first-child,.text{text-align:left}td.text{color:var(--soft)}\n"
        ".empty{margin:22px 0;padding:32px;text-align:center;background:var(--card);border:1px dashed var(--line);"
        "border-radius:10px}\n"
        "footer{margin-top:28px;font-size:13px}\n"
        "@media print{body{background:none}figure{break-inside:avoid}}\n";

/* Shows the values below the pointer in all legends, and a line in all plots. Without a script the page lacks only
 * that. */
static const char script[] =
        "const plots=[...document.querySelectorAll('figure')].map(f=>{const svg=f.querySelector('svg');return{svg,"
        "left:+svg.dataset.left,right:+svg.dataset.right,line:svg.querySelector('.pointer'),"
        "rows:[...f.querySelectorAll('[data-v]')].map(s=>[s.dataset.v.split(' '),s.querySelector('b')])}});\n"
        "const show=part=>plots.forEach(p=>{const on=part>=0&&part<1;p.line.style.visibility=on?'visible':'hidden';\n"
        " p.line.setAttribute('transform','translate('+(p.left+part*(p.right-p.left))+' 0)');\n"
        " p.rows.forEach(([v,b])=>{const x=on?v[Math.floor(part*v.length)]:'-';\n"
        "  b.textContent=x==='-'?'':Number(x).toLocaleString('en',{maximumSignificantDigits:4})})});\n"
        "plots.forEach(p=>{p.svg.addEventListener('pointermove',e=>{const r=p.svg.getBoundingClientRect();\n"
        "  const x=(e.clientX-r.left)/r.width*p.svg.viewBox.baseVal.width;show((x-p.left)/(p.right-p.left))});\n"
        " p.svg.addEventListener('pointerleave',()=>show(-1))});\n";

static void write_head(FILE *out, const struct page *page)
{
	const struct mount_history *first = &page->runs->runs[0];
	const char *slash = strrchr(first->dataset, '/');
	const char *name = slash && slash[1] ? slash + 1 : first->dataset;
	char when[32] = "", ranks[RANKS_MAX_BYTES];
	time_t began = (time_t)first->began_s;
	struct tm utc;
	if (gmtime_r(&began, &utc))
		strftime(when, sizeof(when), "%F %H:%M", &utc);
	fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
	      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
	      "script-src 'unsafe-inline'\">\n<title>",
	        out);
	report_put_text(out, name);
	fputs(" - ddpfs report</title>\n<style>\n", out);
	fputs(style, out);
	fputs("</style>\n</head>\n<body>\n<header>\n<h1>", out);
	report_put_text(out, name);
	fputs(" <small>ddpfs report</small></h1>\n<p>", out);
	report_put_text(out, first->dataset);
	fprintf(out, " &middot; ");
	put_count(out, (double)first->files);
	fputs(" files, ", out);
	put_size(out, (double)first->content_bytes);
	if (page->runs->n > 1)
		fprintf(out, " &middot; %zu mounts", page->runs->n);
	else if (first->view_all)
		fputs(" &middot; all files", out);
	else
		fprintf(out, " &middot; %s of %" PRIu32, ranks_of(first, ranks), first->world);
	fprintf(out, " &middot; mounted %s UTC</p>\n</header>\n", when);
}

static void write_page(FILE *out, struct page *page)
{
	write_head(out, page);
	if (page->active) {
		write_figures(out, page);
		write_plots(out, page);
	} else {
		fputs("<div class=\"empty\">No file has been opened yet.<p>The plots appear when a trainer has read "
		      "some.</p></div>\n",
		        out);
	}
	write_ranks(out, page);
	if (page->active)
		write_epochs(out, page);
	fprintf(out,
	        "<footer><p>Times are %s. Values are means between readings of the servers&rsquo; counters. Move the "
	        "pointer over a plot to see them. "
	        "Written by ddpfs " DDPFS_VERSION ".</p></footer>\n<script>\n%s</script>\n</body>\n</html>\n",
	        page->together ? "from the moment at which the first of the mounts was made"
	                       : "from the beginning of each mount: the mounts were not there at the same time",
	        script);
}

/* ---- the command ---- */

static int read_target(struct mount_histories *runs, const char *target, struct base_err *err)
{
	struct stat st;
	size_t bad = 0;
	if (stat(target, &st) < 0 || !S_ISREG(st.st_mode))
		return mount_histories_ask(runs, target, err);
	int rc = mount_histories_read(runs, target, &bad, err);
	if (rc == 0 && bad > 0)
		cli_warn("'%s': %zu lines of its history are damaged: they are left out", base_quoted(target), bad);
	return rc;
}

static int make_page(struct mount_histories *runs, char **ret_text, size_t *ret_len)
{
	static struct page page;
	page = (struct page){ .runs = runs };
	qsort(runs->runs, runs->n, sizeof(*runs->runs), by_rank);
	page.offset = calloc(runs->n, sizeof(*page.offset));
	FILE *out = open_memstream(ret_text, ret_len);
	int rc = page.offset && out ? 0 : -ENOMEM;
	if (rc == 0) {
		place_runs(&page);
		find_range(&page);
		rc = mark_epochs(&page);
	}
	if (rc == 0)
		rc = name_runs(&page);
	if (rc == 0)
		write_page(out, &page);
	if (out && fclose(out) != 0)
		rc = -ENOMEM;
	free(page.offset);
	free(page.names);
	free(page.marks);
	return rc;
}

static int write_output(const char *output, struct mount_histories *runs, struct base_err *err)
{
	cleanup_free char *text = NULL;
	size_t len = 0;
	int rc = make_page(runs, &text, &len);
	if (rc < 0)
		return base_err_set(err, rc, "%s", base_err_str(rc));
	if (strcmp(output, "-") == 0) {
		fwrite(text, 1, len, stdout);
		return 0;
	}
	rc = output_file_write(output, text, len, err);
	if (rc < 0)
		return rc;
	cli_note("wrote '%s': open it in a browser", base_quoted(output));
	return 0;
}

int ddpfs_report(int argc, char **argv)
{
	static const struct cli_line line = { "MNT|LOG|@PID...",
		"Writes a page about what mounts did: throughput, waits, hit rate, where bytes came from, device depth "
		"and memory over time, with epochs and ranks side by side.\v"
		"MNT is a live mount. LOG is the file of a mount with -o log=LOG, also when the mount is gone. Give "
		"those of all ranks to see rank beside rank. The page is one file that loads nothing.",
		.options = { { "output", "FILE", "Write the page to FILE (default: report.html; -: stdout)", 'o',
		        CLI_TEXT(struct arguments, output) } },
		.more = true, .rest = offsetof(struct arguments, targets) };
	struct arguments a = { .output = "report.html" };
	struct base_err err = { 0 };
	struct mount_histories runs = { 0 };
	int rc = 0;
	cli_parse(&line, argc, argv, &a);
	if (a.targets.n == 0)
		cli_usage("MNT or LOG is missing: a mountpoint, or the file of a mount with -o log=FILE");
	progress_wait_start("reading the history");
	for (int i = 0; i < a.targets.n && rc == 0; i++)
		rc = read_target(&runs, a.targets.words[i], &err);
	progress_wait_done();
	if (rc == 0)
		rc = write_output(a.output, &runs, &err);
	mount_histories_done(&runs);
	return rc < 0 ? cli_fail(&err) : CLI_DONE;
}
