/* SPDX-License-Identifier: Apache-2.0 */
/* Axes, curves and marks of a plot over time; report_plot.h first. */
#include "tools/ddpfs/report_plot.h"

#include <math.h>
#include <string.h>

#include "tools/common/axis.h"

/* All in units of the SVG, which the page scales.
 *
 *      |------------- WIDTH --------------|
 *      LEFT          area             RIGHT                                                                         */
enum {
	WIDTH = 560,
	HEIGHT = 236,
	LEFT = 56,
	RIGHT = 12,
	TOP = 20,
	BOTTOM = 26,
	TICKS_Y = 4,
	TICKS_X = 6,
	LABELS_MAX = 12, /* marks with a label; more would touch each other */
};

void report_put_text(FILE *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '<')
			fputs("&lt;", out);
		else if (*text == '>')
			fputs("&gt;", out);
		else if (*text == '&')
			fputs("&amp;", out);
		else if (*text == '"')
			fputs("&quot;", out);
		else
			putc(*text, out);
	}
}

const char *report_format_time(double s, char *text, size_t size)
{
	long long whole = llround(s);
	if (s < 10)
		snprintf(text, size, s < 0.01 ? "%.1f ms" : "%.2f s", s < 0.01 ? s * 1e3 : s);
	else if (whole < 60)
		snprintf(text, size, "%.1f s", s);
	else if (whole < 3600)
		snprintf(text, size, "%lld min %lld s", whole / 60, whole % 60);
	else if (whole < 86400)
		snprintf(text, size, "%lld h %lld min", whole / 3600, whole / 60 % 60);
	else
		snprintf(text, size, "%lld d %lld h", whole / 86400, whole / 3600 % 24);
	return text;
}

static double x_of(const struct report_plot *plot, double s)
{
	return LEFT + (s - plot->from_s) / (plot->to_s - plot->from_s) * (WIDTH - LEFT - RIGHT);
}

static double bin_x(const struct report_plot *plot, unsigned bin)
{
	return LEFT + (bin + 0.5) / plot->n_bins * (WIDTH - LEFT - RIGHT);
}

/* The axis of values. */
struct scale {
	double low, high, step;
};

static double y_of(double value, const struct scale *y)
{
	return HEIGHT - BOTTOM - (value - y->low) / (y->high - y->low) * (HEIGHT - TOP - BOTTOM);
}

/* The height of a bin's areas up to curve `c`, or of its curve. */
static double level(const struct report_plot *plot, unsigned c, unsigned bin)
{
	double sum = plot->curves[c].y[bin];
	for (unsigned k = 0; plot->curves[c].area && k < c; k++)
		if (plot->curves[k].area && !isnan(plot->curves[k].y[bin]))
			sum += plot->curves[k].y[bin];
	return sum;
}

/* From y_low to a whole number of steps. */
static struct scale y_axis(const struct report_plot *plot)
{
	double high = plot->y_high, low = plot->y_low;
	for (unsigned c = 0; c < plot->n_curves; c++)
		for (unsigned b = 0; b < plot->n_bins; b++)
			high = fmax(high, level(plot, c, b)); /* fmax passes over NAN */
	if (!(high > low))
		high = low + 1;
	double step = axis_step(high - low, TICKS_Y);
	if (plot->whole_y && step < 1)
		step = 1;
	return (struct scale){ .low = low, .high = low + ceil((high - low) / step - 1e-9) * step, .step = step };
}

static double time_step(double range)
{
	static const double steps[] = { 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600,
		43200, 86400 };
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		if (range / steps[i] <= TICKS_X + 1 && range >= steps[0])
			return steps[i];
	return range < steps[0] ? axis_step(range, TICKS_X) : axis_step(range / 86400, TICKS_X) * 86400;
}

static const char *time_unit(double range, double step)
{
	return step < 1 ? "s" : range < 3600 ? "min:s" : step < 86400 ? "h:min" : "days";
}

static void time_label(double s, double range, double step, char *text, size_t size)
{
	long long whole = llround(s);
	if (step < 1)
		axis_format(text, size, s, step);
	else if (step >= 86400)
		snprintf(text, size, "%lld", whole / 86400);
	else if (range < 3600)
		snprintf(text, size, "%lld:%02lld", whole / 60, whole % 60);
	else
		snprintf(text, size, "%lld:%02lld", whole / 3600, whole / 60 % 60);
}

/* 1234567 as 1,234,567. */
static void with_commas(char *text, size_t size)
{
	size_t digits = strspn(text, "0123456789");
	for (size_t at = digits; at > 3; at -= 3) {
		if (strlen(text) + 2 > size)
			return;
		memmove(text + at - 2, text + at - 3, strlen(text + at - 3) + 1);
		text[at - 3] = ',';
	}
}

static void draw_grid(FILE *out, const struct report_plot *plot, const struct scale *scale)
{
	char text[32];
	for (unsigned i = 0; i <= (unsigned)lround((scale->high - scale->low) / scale->step); i++) {
		double value = scale->low + i * scale->step, y = y_of(value, scale);
		axis_format(text, sizeof(text), value, scale->step);
		with_commas(text, sizeof(text));
		fprintf(out, "<path class=\"%s\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"y\">%s</text>\n",
		        i ? "grid" : "axis", LEFT, y, WIDTH - RIGHT, LEFT - 6, y + 4, text);
	}
	double range = plot->to_s - plot->from_s, by = time_step(range);
	fprintf(out, "<text x=\"%d\" y=\"%d\" class=\"y\">%s</text>\n", LEFT - 6, HEIGHT - BOTTOM + 17,
	        time_unit(range, by));
	double first = ceil(plot->from_s / by - 1e-9);
	double ticks = floor(plot->to_s / by + 1e-9) - first;
	for (int i = 0; i <= (int)ticks; i++) {
		double s = (first + i) * by;
		time_label(s, range, by, text, sizeof(text));
		fprintf(out, "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" class=\"x\">%s</text>\n",
		        x_of(plot, s), HEIGHT - BOTTOM, x_of(plot, s), HEIGHT - BOTTOM + 17, text);
	}
}

static void draw_marks(FILE *out, const struct report_plot *plot)
{
	for (size_t i = 0; i < plot->n_marks; i++) {
		double x = x_of(plot, plot->marks[i].at);
		fprintf(out, "<path class=\"mark\" d=\"M%.1f %dV%d\"/>\n", x, TOP, HEIGHT - BOTTOM);
		if (plot->n_marks > LABELS_MAX || x > WIDTH - RIGHT - 30)
			continue;
		fprintf(out, "<text class=\"mark\" x=\"%.1f\" y=\"%d\">", x + 3, TOP - 6);
		report_put_text(out, plot->marks[i].label);
		fputs("</text>\n", out);
	}
}

/* Draws from `first` on, up to the next gap. Returns the bin behind it. */
static unsigned draw_piece(FILE *out, const struct report_plot *plot, unsigned c, unsigned first, const struct scale *y)
{
	const struct report_curve *curve = &plot->curves[c];
	unsigned end = first;
	while (end < plot->n_bins && !isnan(curve->y[end]))
		end++;
	fprintf(out, "<path class=\"%s c%u%s\" d=\"", curve->area ? "area" : "curve", curve->colour % REPORT_COLOURS,
	        curve->dashed ? " dashed" : "");
	for (unsigned b = first; b < end; b++)
		fprintf(out, "%s%.1f %.1f", b == first ? "M" : "L", bin_x(plot, b), y_of(level(plot, c, b), y));
	if (curve->area) {
		for (unsigned b = end; b-- > first;)
			fprintf(out, "L%.1f %.1f", bin_x(plot, b), y_of(level(plot, c, b) - curve->y[b], y));
		fputs("Z", out);
	} else if (end == first + 1) {
		fputs("h0", out); /* a dot */
	}
	fputs("\"/>\n", out);
	return end;
}

static void draw_curve(FILE *out, const struct report_plot *plot, unsigned c, const struct scale *y)
{
	for (unsigned b = 0; b < plot->n_bins; b++)
		if (!isnan(plot->curves[c].y[b]))
			b = draw_piece(out, plot, c, b, y);
}

/* The legend carries the values, so that the page's script can show those below the pointer. */
static void write_legend(FILE *out, const struct report_plot *plot)
{
	fputs("<div class=\"legend\">", out);
	for (unsigned c = 0; c < plot->n_curves; c++) {
		const struct report_curve *curve = &plot->curves[c];
		fprintf(out, "<span data-v=\"");
		for (unsigned b = 0; b < plot->n_bins; b++) {
			if (isnan(curve->y[b]))
				fputs(b ? " -" : "-", out);
			else
				fprintf(out, b ? " %.4g" : "%.4g", curve->y[b]);
		}
		fprintf(out, "\"><i class=\"c%u%s\"></i>", curve->colour % REPORT_COLOURS,
		        curve->dashed ? " dashed" : "");
		report_put_text(out, curve->name);
		fputs(" <b></b></span>", out);
	}
	fputs("</div>\n", out);
}

void report_plot_write(FILE *out, const struct report_plot *plot)
{
	const struct scale y = y_axis(plot);
	fprintf(out, "<figure data-from=\"%.3f\" data-to=\"%.3f\">\n<figcaption><h2>%s <small>%s</small></h2>",
	        plot->from_s, plot->to_s, plot->title, plot->unit);
	if (plot->note)
		fprintf(out, "<p>%s</p>", plot->note);
	if (plot->n_left_out > 0)
		fprintf(out, "<p>Only the first %u curves are drawn, %u more are left out.</p>", plot->n_curves,
		        plot->n_left_out);
	fputs("</figcaption>\n", out);
	write_legend(out, plot);
	fprintf(out,
	        "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over time\" data-left=\"%d\" "
	        "data-right=\"%d\">\n",
	        WIDTH, HEIGHT, plot->title, LEFT, WIDTH - RIGHT);
	draw_grid(out, plot, &y);
	for (unsigned c = 0; c < plot->n_curves; c++)
		if (plot->curves[c].area)
			draw_curve(out, plot, c, &y);
	draw_marks(out, plot);
	for (unsigned c = plot->n_curves; c-- > 0;)
		if (!plot->curves[c].area)
			draw_curve(out, plot, c, &y);
	fprintf(out, "<path class=\"pointer\" d=\"M0 %dV%d\"/>\n</svg>\n</figure>\n", TOP, HEIGHT - BOTTOM);
}
