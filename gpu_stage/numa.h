/* SPDX-License-Identifier: Apache-2.0 */
/* Which memory is near: on a machine with several NUMA nodes, an arena on the wrong one costs every copy the way between
 * sockets.  It is only about speed: whoever cannot tell or is not allowed to choose leaves the memory where it comes.
 *
 * Threads: pure functions of sysfs and of the calling thread. */
#ifndef DDPFS_GPU_STAGE_NUMA_H
#define DDPFS_GPU_STAGE_NUMA_H

#include <stdint.h>

enum { STAGE_NUMA_MAX = 1024 }; /* the kernel's own limit */

/* sysfs: "/sys", or a copy of it for tests.  The node a PCI device hangs on, by its address in any case ("0000:3B:00.0");
 * -1: there is none, or the machine does not say. */
int stage_numa_of_pci(const char *sysfs, const char *address);

/* The node of the processor this thread runs on; -1: the machine has one node only, or this process was told where to take its
 * memory from (numactl, set_mempolicy), which counts more. */
int stage_numa_here(const char *sysfs);

/* Pages of [base, base + bytes) that are not there yet come from this node while it has some.  0, -EINVAL, -EPERM, -ENOSYS. */
int stage_numa_prefer(void *base, uint64_t bytes, int node);

#endif
