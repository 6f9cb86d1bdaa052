/* SPDX-License-Identifier: Apache-2.0 */
/* Round values for ticks; axis.h first. */
#include "tools/common/axis.h"

#include <math.h>
#include <stdio.h>

double axis_step(double range, unsigned ticks)
{
	double step = pow(10, floor(log10(range / ticks)));
	double times = range / ticks / step;

	return step * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

void axis_format(char *text, size_t size, double value, double step)
{
	int digits = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;

	snprintf(text, size, "%.*f", digits, fabs(value) < step / 1e6 ? 0 : value);
}
