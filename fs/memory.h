/* The default of `memory=`: a quarter of what host and cgroup leave free, shared among the ddpfs mounts of the host; and the most
 * that it can be.
 * Threads: pure but for the files of /proc and /sys it reads; any thread. */
#ifndef DDPFS_FS_MEMORY_H
#define DDPFS_FS_MEMORY_H

#include <stdint.h>

#define FS_MEMORY_MIN (UINT64_C(64) << 20)     /* bytes: the default at least */
#define FS_MEMORY_BESIDES (UINT64_C(64) << 20) /* what a server needs besides memory= */
#define FS_MEMORY_LEAST (UINT64_C(16) << 20)

/* Bytes for a mount that shares the host with `others` more (LOCAL_WORLD_SIZE, when set and larger, counts instead). */
uint64_t fs_memory_default(uint32_t others);

/* What memory= can be at most: what the host, or the tightest of the cgroups above, has at all, less FS_MEMORY_BESIDES; a server
 * with more would be killed for it again and again.  At least FS_MEMORY_LEAST.  root: as below. */
uint64_t fs_memory_most(const char *root);

/* What host and cgroups leave free, from files below `root` ("" = the real ones). */
uint64_t fs_memory_free(const char *root);

#endif
