/* SPDX-License-Identifier: Apache-2.0 */
/* NUMA nodes by sysfs, getcpu(2), get_mempolicy(2) and mbind(2); numa.h first. */
#include "gpu_stage/numa.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WORD_BITS = 8 * sizeof(unsigned long), LINE_MAX_BYTES = 256 };

static int read_line(const char *sysfs, const char *name, char line[LINE_MAX_BYTES])
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/%s", sysfs, name);
	FILE *f = n < (int)sizeof(path) ? fopen(path, "re") : NULL;
	if (!f)
		return -ENOENT;
	char *got = fgets(line, LINE_MAX_BYTES, f);
	fclose(f);
	return got ? 0 : -ENODATA;
}

int stage_numa_of_pci(const char *sysfs, const char *address)
{
	char name[128], line[LINE_MAX_BYTES];
	int node;
	int n = snprintf(name, sizeof(name), "bus/pci/devices/%s/numa_node", address);
	if (n >= (int)sizeof(name))
		return -1;
	for (char *c = name; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	if (read_line(sysfs, name, line) < 0 || sscanf(line, "%d", &node) != 1)
		return -1;
	return node >= 0 && node < STAGE_NUMA_MAX ? node : -1;
}

int stage_numa_here(const char *sysfs)
{
	char line[LINE_MAX_BYTES];
	unsigned cpu, node;
	int mode = MPOL_DEFAULT;
	/* the file holds a list such as "0" or "0-3,5": a single number means one node */
	if (read_line(sysfs, "devices/system/node/has_memory", line) < 0 || !strpbrk(line, "-,"))
		return -1;
	if (syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL) < 0 || mode != MPOL_DEFAULT)
		return -1;
	return getcpu(&cpu, &node) == 0 && node < STAGE_NUMA_MAX ? (int)node : -1;
}

int stage_numa_prefer(void *base, uint64_t bytes, int node)
{
	unsigned long mask[STAGE_NUMA_MAX / WORD_BITS] = { 0 };
	if (node < 0 || node >= STAGE_NUMA_MAX)
		return -EINVAL;
	mask[(unsigned)node / WORD_BITS] = 1UL << ((unsigned)node % WORD_BITS);
	/* maxnode counts one bit more than the mask has (mbind(2), "Bugs") */
	if (syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, mask, STAGE_NUMA_MAX + 1UL, 0U) < 0)
		return -errno;
	return 0;
}
