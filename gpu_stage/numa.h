/* SPDX-License-Identifier: Apache-2.0 */
/* Which NUMA node is near, for memory that copies go to or from.  If an arena is on the wrong node, every copy crosses
 * the sockets.  This affects speed only: without an answer, or without permission, memory stays where it comes from.
 *
 * Threads: pure functions of sysfs and of the calling thread. */
#ifndef DDPFS_GPU_STAGE_NUMA_H
#define DDPFS_GPU_STAGE_NUMA_H

#include <stdint.h>

enum { STAGE_NUMA_MAX = 1024 }; /* the kernel's own limit */

/* Tells the node of a PCI device, by its address in upper or lower case ("0000:3B:00.0").
 * sysfs: "/sys", or a copy of it for tests.  Returns the node, or -1: none, or unknown. */
int stage_numa_of_pci(const char *sysfs, const char *address);

/* Tells the node of the processor that runs this thread.  Returns the node, or -1: the machine has one node only, or
 * this process has a memory policy of its own (numactl, set_mempolicy), which decides. */
int stage_numa_here(const char *sysfs);

/* Makes pages of [base, base + bytes) that are not there yet come from `node`, as long as it has some.  base:
 * page-aligned.
 * Returns 0, or -EINVAL (node), -EPERM, -ENOSYS (mbind(2)). */
int stage_numa_prefer(void *base, uint64_t bytes, int node);

#endif
