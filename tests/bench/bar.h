/* SPDX-License-Identifier: Apache-2.0 */
/* A figure beside its bar, one line each: what, the figure, the bar, met or not.  A bench's exit status does not
 * depend on
 * it: figures are read by people, and a loaded machine misses bars. */
#ifndef DDPFS_TESTS_BENCH_BAR_H
#define DDPFS_TESTS_BENCH_BAR_H

#include <stdio.h>

static inline void bar_below(const char *what, double figure, double limit, const char *unit)
{
	printf("bar    %-44s %9.2f %-6s  at most %g: %s\n", what, figure, unit, limit,
	        figure <= limit ? "met" : "NOT MET");
}

#endif
