/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks of axes in plots, at round values.
 *
 * Threads: any. */
#ifndef DDPFS_TOOLS_COMMON_AXIS_H
#define DDPFS_TOOLS_COMMON_AXIS_H

#include <stddef.h>

/* Returns the distance between about `ticks` ticks that span `range` > 0: 1, 2 or 5 times a power of ten. */
double axis_step(double range, unsigned ticks);

/* Writes the value of a tick into text[size], with as many decimal places as a distance of `step` needs. */
void axis_format(char *text, size_t size, double value, double step);

#endif
