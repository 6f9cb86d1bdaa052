/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the host and the cgroups above this process leave, and how mounts share it.
 * Threads: pure but for the files of /proc and /sys that it reads; any thread. */
#ifndef DDPFS_FS_MEMORY_H
#define DDPFS_FS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FS_MEMORY_MIN (UINT64_C(64) << 20)     /* bytes: the default of memory= at least */
#define FS_MEMORY_BESIDES (UINT64_C(64) << 20) /* bytes that a server needs besides memory= */
#define FS_MEMORY_LEAST (UINT64_C(16) << 20)   /* bytes: fs_memory_most at least */

#define FS_MEMORY_CLAIM_MAX (INT64_MAX / 256) /* bytes */

/* What one mount of the host may use. */
struct fs_memory_claim {
	uint64_t want_bytes; /* all that its dataset can use, or its memory= */
	bool fixed;          /* memory= was given: it takes want_bytes, whatever there is */
};

/* Shares room_bytes among n >= 1 claims and returns the part of claims[0] in bytes.  Fixed claims come first.  The others get equal
 * parts, but none gets more than it wants (max-min fairness: Bertsekas and Gallager, Data Networks, 6.5.2).  At most 256 claims of at most
 * FS_MEMORY_CLAIM_MAX. */
uint64_t fs_memory_share(uint64_t room_bytes, const struct fs_memory_claim *claims, size_t n);

/* Bytes that host and cgroups leave free.  own_bytes: pages of files that the caller holds in the page cache and would give back:
 * they count as free.  root: where /proc and /sys are ("": the real ones). */
uint64_t fs_memory_free(const char *root, uint64_t own_bytes);

/* What memory= can be at most: what the host, or the tightest of the cgroups above, has at all, less FS_MEMORY_BESIDES.  The kernel
 * kills a server that takes more, again and again.  At least FS_MEMORY_LEAST.  root: as above. */
uint64_t fs_memory_most(const char *root);

#endif
