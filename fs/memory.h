/* The default of `memory=`: a quarter of what host and cgroup leave free, shared among the ddpfs mounts of the host.
 * Threads: pure but for the files of /proc and /sys it reads; any thread. */
#ifndef DDPFS_FS_MEMORY_H
#define DDPFS_FS_MEMORY_H

#include <stdint.h>

#define FS_MEMORY_MIN (UINT64_C(64) << 20) /* bytes: what a mount gets at least */

/* Bytes for a mount that shares the host with `others` more (LOCAL_WORLD_SIZE, when set and larger, counts instead). */
uint64_t fs_memory_default(uint32_t others);

/* For tests: the same from files below `root` ("" = the real ones). */
uint64_t fs_memory_free(const char *root);

#endif
