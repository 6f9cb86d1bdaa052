/* SPDX-License-Identifier: Apache-2.0 */
/* Line plots as SVG: panels in a grid, labelled axes, a legend.  Values that are not numbers leave a gap.
 *
 * Threads: pure functions on a FILE. */
#ifndef DDPFS_TOOLS_MKSHARD_SVG_H
#define DDPFS_TOOLS_MKSHARD_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { SVG_CURVES_MAX = 4, SVG_PANELS_MAX = 8 };

struct svg_curve {
	const double *x;
	const double *y;
	unsigned n;
};

struct svg_panel {
	const char *title;
	const char *x_label;
	const char *y_label;
	bool log_x;           /* x > 0; ticks at powers of two */
	double x_low, x_high; /* at least this range is shown; NAN: what the curves need */
	double y_low, y_high;
	struct svg_curve curves[SVG_CURVES_MAX]; /* the same ones, in the same order, in every panel */
};

struct svg_plot {
	const char *title;
	const char *subtitles[2];          /* lines below it; NULL: none */
	const char *names[SVG_CURVES_MAX]; /* of the curves, for the legend; the first is drawn last, on top */
	unsigned n_curves;
	struct svg_panel panels[SVG_PANELS_MAX]; /* two in a row */
	unsigned n_panels;
};

/* Errors of writing stay in `out` (ferror). */
void svg_write(FILE *out, const struct svg_plot *plot);

#endif
