/* SPDX-License-Identifier: Apache-2.0 */
/* Writes line plots as SVG: panels in a grid, labelled axes, a legend.  A curve passes over values that are no
 * numbers.
 *
 * Threads: any; one thread a FILE. */
#ifndef DDPFS_TOOLS_MKSHARD_SVG_H
#define DDPFS_TOOLS_MKSHARD_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { SVG_CURVES_MAX = 4, SVG_PANELS_MAX = 8 };

struct svg_curve {
	const double *x;
	const double *y;
	unsigned n; /* points */
};

struct svg_panel {
	const char *title;
	const char *x_label;
	const char *y_label;
	bool log_x;                              /* logarithmic x axis: all x > 0; ticks at powers of two */
	double x_low, x_high;                    /* the axis shows at least this range; NAN: the range of the curves */
	double y_low, y_high;                    /* as for x */
	struct svg_curve curves[SVG_CURVES_MAX]; /* in the same order in every panel */
};

struct svg_plot {
	const char *title;
	const char *subtitles[2];          /* lines below the title; NULL: none */
	const char *names[SVG_CURVES_MAX]; /* of the curves, for the legend; the first curve is drawn last, on top */
	unsigned n_curves;
	struct svg_panel panels[SVG_PANELS_MAX]; /* two in a row */
	unsigned n_panels;
};

/* Writes the plot to `out`; its texts must be free of <, > and &.  Errors stay in `out` (ferror). */
void svg_write(FILE *out, const struct svg_plot *plot);

#endif
