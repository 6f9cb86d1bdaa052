/* SPDX-License-Identifier: Apache-2.0 */
/* Scales, ticks and SVG elements of a plot; svg.h first. */
#include "tools/mkshard/svg.h"

#include <math.h>

#include "tools/common/axis.h"

/* All in pixels.
 *
 *      |--------- PANEL_WIDTH ---------|
 *      MARGIN_LEFT  area   MARGIN_RIGHT                                                                        */
enum {
	PANEL_WIDTH = 480,
	PANEL_HEIGHT = 300,
	HEADER = 100,
	MARGIN_LEFT = 66,
	MARGIN_RIGHT = 20,
	MARGIN_TOP = 34,
	MARGIN_BOTTOM = 50,
	TICKS = 5, /* approximate number of ticks on an axis */
};

static const char *const colours[SVG_CURVES_MAX] = { "#1f5fbf", "#d9822b", "#3a8a4d", "#8a4db8" };

struct scale {
	double low;
	double high;
	bool log;
	double from; /* pixel of `low` */
	double to;   /* pixel of `high` */
};

static double place(const struct scale *s, double value)
{
	double low = s->log ? log2(s->low) : s->low;
	double high = s->log ? log2(s->high) : s->high;

	return s->from + ((s->log ? log2(value) : value) - low) / (high - low) * (s->to - s->from);
}

/* The texts are the program's own: none has a character that XML reserves. */
static void label(FILE *out, double x, double y, const char *class, const char *anchor, const char *text)
{
	fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", class, x, y, anchor,
	        text);
}

static void line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2);
}

static void range_of(const struct svg_plot *plot, const struct svg_panel *panel, struct scale *x, struct scale *y)
{
	x->low = y->low = INFINITY;
	x->high = y->high = -INFINITY;
	for (unsigned c = 0; c < plot->n_curves; c++) {
		const struct svg_curve *curve = &panel->curves[c];

		for (unsigned i = 0; i < curve->n; i++) {
			if (isnan(curve->y[i]))
				continue;
			x->low = fmin(x->low, curve->x[i]);
			x->high = fmax(x->high, curve->x[i]);
			y->low = fmin(y->low, curve->y[i]);
			y->high = fmax(y->high, curve->y[i]);
		}
	}
	x->low = isnan(panel->x_low) ? x->low : fmin(x->low, panel->x_low);
	x->high = isnan(panel->x_high) ? x->high : fmax(x->high, panel->x_high);
	y->low = isnan(panel->y_low) ? y->low : fmin(y->low, panel->y_low);
	y->high = isnan(panel->y_high) ? y->high : fmax(y->high, panel->y_high);
	if (!(x->low < x->high)) {
		x->low = isfinite(x->low) ? x->low : 1;
		x->high = x->low + 1;
	}
	if (!(y->low < y->high)) {
		y->low = isfinite(y->low) ? y->low - 0.5 : 0;
		y->high = y->low + 1;
	}
}

/* Widens y to whole ticks and draws the grid. */
static void draw_y_axis(FILE *out, struct scale *y, double left, double right)
{
	double step = axis_step(y->high - y->low, TICKS);

	y->low = floor(y->low / step + 1e-9) * step;
	y->high = ceil(y->high / step - 1e-9) * step;
	for (unsigned i = 0; i <= (unsigned)lround((y->high - y->low) / step); i++) {
		double v = y->low + i * step;
		char text[32];

		axis_format(text, sizeof(text), v, step);
		line(out, "grid", left, place(y, v), right, place(y, v));
		label(out, left - 6, place(y, v) + 4, "tick", "end", text);
	}
}

static void draw_x_axis(FILE *out, const struct scale *x, double bottom)
{
	double low = x->log ? log2(x->low) : x->low;
	double high = x->log ? log2(x->high) : x->high;
	double step = x->log ? 1 : axis_step(high - low, TICKS);
	double first = ceil(low / step - 1e-9) * step;
	double ticks = floor((high - first) / step + 1e-9);

	for (unsigned i = 0; i <= (unsigned)fmax(ticks, 0); i++) {
		double v = x->log ? exp2(first + i * step) : first + i * step;
		char text[32];

		axis_format(text, sizeof(text), v, step);
		line(out, "axis", place(x, v), bottom, place(x, v), bottom + 4);
		label(out, place(x, v), bottom + 17, "tick", "middle", text);
	}
	line(out, "axis", x->from, bottom, x->to, bottom);
}

/* Draws one curve.  It passes over points that are no numbers: the line goes on from the point before.  A single
 * point is a dot. */
static void draw_curve(
        FILE *out, const struct svg_curve *curve, unsigned number, const struct scale *x, const struct scale *y)
{
	unsigned points = 0;

	fprintf(out, "<path class=\"curve\" stroke=\"%s\"%s d=\"", colours[number],
	        number > 0 ? " stroke-dasharray=\"5 3\"" : "");
	for (unsigned i = 0; i < curve->n; i++) {
		if (isnan(curve->y[i]))
			continue;
		fprintf(out, "%s%.1f %.1f", points ? "L" : "M", place(x, curve->x[i]), place(y, curve->y[i]));
		points++;
	}
	fputs(points == 1 ? "h0\"/>\n" : "\"/>\n", out);
}

static void draw_panel(FILE *out, const struct svg_plot *plot, const struct svg_panel *panel, double at_x, double at_y)
{
	double left = at_x + MARGIN_LEFT;
	double right = at_x + PANEL_WIDTH - MARGIN_RIGHT;
	double top = at_y + MARGIN_TOP;
	double bottom = at_y + PANEL_HEIGHT - MARGIN_BOTTOM;
	struct scale x = { .log = panel->log_x, .from = left, .to = right };
	struct scale y = { .from = bottom, .to = top };

	range_of(plot, panel, &x, &y);
	label(out, left, at_y + 20, "panel", "start", panel->title);
	draw_y_axis(out, &y, left, right);
	draw_x_axis(out, &x, bottom);
	label(out, (left + right) / 2, bottom + 38, "label", "middle", panel->x_label);
	fprintf(out, "<g transform=\"translate(%.1f %.1f) rotate(-90)\">", at_x + 16, (top + bottom) / 2);
	label(out, 0, 0, "label", "middle", panel->y_label);
	fputs("</g>\n", out);
	for (unsigned c = plot->n_curves; c > 0; c--)
		draw_curve(out, &panel->curves[c - 1], c - 1, &x, &y);
}

static void draw_legend(FILE *out, const struct svg_plot *plot)
{
	double x = MARGIN_LEFT;

	for (unsigned c = 0; c < plot->n_curves; c++) {
		fprintf(out, "<path class=\"curve\" stroke=\"%s\"%s d=\"M%.1f 82L%.1f 82\"/>\n", colours[c],
		        c > 0 ? " stroke-dasharray=\"5 3\"" : "", x, x + 28);
		label(out, x + 34, 86, "label", "start", plot->names[c]);
		x += 220;
	}
}

void svg_write(FILE *out, const struct svg_plot *plot)
{
	int width = 2 * PANEL_WIDTH;
	int height = HEADER + (int)(plot->n_panels + 1) / 2 * PANEL_HEIGHT;

	fprintf(out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n"
	        "<style>\n"
	        "text { font-family: sans-serif; fill: #222; }\n"
	        ".title { font-size: 18px; font-weight: bold; }\n"
	        ".panel { font-size: 14px; font-weight: bold; }\n"
	        ".label { font-size: 12px; }\n"
	        ".tick { font-size: 11px; fill: #555; }\n"
	        ".grid { stroke: #e3e3e3; }\n"
	        ".axis { stroke: #777; }\n"
	        ".curve { fill: none; stroke-width: 1.8; stroke-linecap: round; }\n"
	        "</style>\n"
	        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
	        width, height, width, height);
	label(out, MARGIN_LEFT, 26, "title", "start", plot->title);
	for (unsigned i = 0; i < 2 && plot->subtitles[i]; i++)
		label(out, MARGIN_LEFT, 46 + 16 * i, "label", "start", plot->subtitles[i]);
	draw_legend(out, plot);
	for (unsigned p = 0; p < plot->n_panels; p++) {
		unsigned row = p / 2;
		unsigned column = p % 2;

		draw_panel(out, plot, &plot->panels[p], column * PANEL_WIDTH, HEADER + row * PANEL_HEIGHT);
	}
	fputs("</svg>\n", out);
}
