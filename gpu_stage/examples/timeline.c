/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the SVG of a timeline; timeline.h first. */
#include "gpu_stage/examples/timeline.h"

#include <assert.h>

enum { LEFT = 100, TOP = 50, BAR = 28, ROW = 40, WIDTH_MIN = 900, WIDTH_BATCH = 24, TICK = 6 }; /* pixels */
enum { TICKS_MAX = 12 }; /* of the time axis, besides the one at 0 */

static const char *const row_names[TIMELINE_ROWS] = { "copy", "compute", "all-reduce" };
static const char *const row_colours[TIMELINE_ROWS][2] = { { "#1f77b4", "#6baed6" }, { "#2ca02c", "#74c476" },
	{ "#d62728", "#fb6a4a" } };

void timeline_add(struct timeline *t, enum timeline_row row, uint32_t batch, double begin_s, double end_s)
{
	assert(t->n < sizeof(t->bars) / sizeof(t->bars[0]));
	t->bars[t->n++] = (struct timeline_bar){ row, batch, begin_s, end_s };
}

static uint32_t batches(const struct timeline *t)
{
	return t->n ? t->bars[t->n - 1].batch + 1 : 0;
}

static double longer(double a, double b)
{
	return a > b ? a : b;
}

static double until(const struct timeline *t)
{
	double end = 0;
	for (uint32_t i = 0; i < t->n; i++)
		end = longer(t->bars[i].end_s, end);
	return end;
}

/* Adds up the gaps between the last bar of a batch's computing and the first of the next. */
void timeline_idle(const struct timeline *t, struct timeline_idle *ret_idle)
{
	struct timeline_idle idle = { .total_s = until(t) };
	double computed = 0, arrived = 0;
	uint32_t begun = 0; /* batches whose computing has begun */
	for (uint32_t i = 0; i < t->n; i++) {
		const struct timeline_bar *bar = &t->bars[i];
		if (bar->row == TIMELINE_COPY)
			arrived = bar->end_s;
		if (bar->row != TIMELINE_COMPUTE)
			continue;
		if (bar->batch == begun) {
			double gap = longer(bar->begin_s - computed, 0), data = longer(arrived - computed, 0);
			idle.data_s += data < gap ? data : gap;
			idle.other_s += data < gap ? gap - data : 0;
			begun++;
		}
		computed = longer(bar->end_s, computed);
	}
	*ret_idle = idle;
}

static double scale(const struct timeline *t)
{
	double end = until(t);
	return end > 0 ? longer(WIDTH_BATCH * (double)batches(t), WIDTH_MIN) / end : 1;
}

/* Returns the distance between ticks in nanoseconds: 1, 2 or 5 times a power of ten.  *ret_digits: its decimals in
 * milliseconds. */
static uint64_t tick_step(double end_s, int *ret_digits)
{
	static const unsigned times[] = { 1, 2, 5 };
	uint64_t power = 1;
	for (int digits = 6;; digits--, power *= 10)
		for (unsigned i = 0; i < sizeof(times) / sizeof(times[0]); i++)
			if ((double)(times[i] * power) * TICKS_MAX >= end_s * 1e9 || power > UINT64_MAX / 100) {
				*ret_digits = digits > 0 ? digits : 0;
				return times[i] * power;
			}
}

static void write_axis(const struct timeline *t, double pixels_s, FILE *f)
{
	double y = TOP + ROW * TIMELINE_ROWS, end = until(t);
	int digits;
	uint64_t step = tick_step(end, &digits);
	fprintf(f, "<path d='M%d %.0fH%.1f' stroke='black'/>\n", LEFT, y, LEFT + end * pixels_s);
	for (uint64_t at_ns = 0; (double)at_ns <= end * 1e9 + 0.5; at_ns += step)
		fprintf(f,
		        "<path d='M%.1f %.0fv%d' stroke='black'/>"
		        "<text class='tick' x='%.1f' y='%.0f' text-anchor='middle'>%.*f ms</text>\n",
		        LEFT + (double)at_ns / 1e9 * pixels_s, y, TICK, LEFT + (double)at_ns / 1e9 * pixels_s, y + 20,
		        digits, (double)at_ns / 1e6);
}

bool timeline_write(const struct timeline *t, const char *title, FILE *f)
{
	double pixels_s = scale(t);
	fprintf(f,
	        "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%d' font-family='sans-serif' "
	        "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n<text x='%d' y='25' "
	        "font-size='14'>%s</text>\n",
	        LEFT + until(t) * pixels_s + LEFT, TOP + ROW * TIMELINE_ROWS + 40, LEFT, title);
	for (unsigned row = 0; row < TIMELINE_ROWS; row++)
		fprintf(f, "<text x='10' y='%u'>%s</text>\n", TOP + ROW * row + BAR / 3 * 2, row_names[row]);
	for (uint32_t i = 0; i < t->n; i++) {
		const struct timeline_bar *bar = &t->bars[i];
		fprintf(f,
		        "<rect class='%s' x='%.2f' y='%u' width='%.2f' height='%d' fill='%s'>"
		        "<title>batch %u, %s: %.6f to %.6f ms</title></rect>\n",
		        row_names[bar->row], LEFT + bar->begin_s * pixels_s, TOP + ROW * (unsigned)bar->row,
		        (bar->end_s - bar->begin_s) * pixels_s, BAR, row_colours[bar->row][bar->batch % 2], bar->batch,
		        row_names[bar->row], bar->begin_s * 1e3, bar->end_s * 1e3);
	}
	write_axis(t, pixels_s, f);
	fputs("</svg>\n", f);
	return fflush(f) == 0 && !ferror(f);
}
