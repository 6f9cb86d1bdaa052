/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the plots of `ddpfs report`: values over time, as inline SVG. Colours come from the page's style sheet, so
 * that one picture serves light and dark pages.
 *
 * Threads: any; one thread a FILE. */
#ifndef DDPFS_TOOLS_DDPFS_REPORT_PLOT_H
#define DDPFS_TOOLS_DDPFS_REPORT_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum {
	REPORT_BINS_MAX = 240,  /* points of a curve: one for every two pixels or so */
	REPORT_CURVES_MAX = 32, /* of a plot */
	REPORT_COLOURS = 8,     /* c0 to c7 in the style sheet; more curves use them again */
};

struct report_curve {
	const char *name;
	unsigned colour;
	bool dashed;
	bool area;                 /* filled; areas are drawn on top of each other */
	double y[REPORT_BINS_MAX]; /* of each bin; NAN: no value */
};

/* A vertical line. */
struct report_mark {
	double at; /* seconds */
	char label[32];
};

struct report_plot {
	const char *title;
	const char *unit;
	const char *note;     /* below the title; NULL: none */
	double from_s, to_s;  /* the axis of time */
	unsigned n_bins;      /* from_s to to_s in equal parts */
	double y_low, y_high; /* the axis goes from the one to at least the other */
	bool whole_y;         /* no ticks between whole numbers */
	unsigned n_curves;
	unsigned n_left_out; /* curves beyond REPORT_CURVES_MAX: the figure says so */
	const struct report_mark *marks;
	size_t n_marks;
	struct report_curve curves[REPORT_CURVES_MAX];
};

/* Writes a figure with title, legend and SVG. Errors stay in `out` (ferror). */
void report_plot_write(FILE *out, const struct report_plot *plot);

/* Writes text with the characters escaped that HTML reserves. */
void report_put_text(FILE *out, const char *text);

/* Writes seconds for people into text[size]: "42.0 s", "3 min 20 s", "5 h 12 min", "3 d 4 h". Returns text. */
const char *report_format_time(double s, char *text, size_t size);

#endif
