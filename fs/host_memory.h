/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the host and the cgroups above this process leave free, and how mounts share it.
 *
 * Threads: any. No state; the functions read files of /proc and /sys. */
#ifndef DDPFS_FS_HOST_MEMORY_H
#define DDPFS_FS_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FS_MEMORY_MIN (UINT64_C(64) << 20)     /* bytes: memory= is at least this if it follows the host */
#define FS_MEMORY_BESIDES (UINT64_C(64) << 20) /* bytes that a server needs besides memory= */
#define FS_MEMORY_LEAST (UINT64_C(16) << 20)   /* bytes: the least result of fs_memory_most */

#define FS_MEMORY_CLAIM_MAX (INT64_MAX / 256) /* bytes: the largest claim */

/* What one mount of the host may use. */
struct fs_memory_claim {
	uint64_t want_bytes; /* bytes: all that its dataset can use, or its memory= */
	bool fixed;          /* memory= was given: the mount takes want_bytes, however much is free */
};

/* Shares @room_bytes among the claims and returns the part of claims[0], in bytes. Fixed claims come first. The
 * others get equal parts, but none gets more than it wants (max-min fairness: Bertsekas and Gallager, Data Networks,
 * 6.5.2).
 * @n: 1 to 256 claims, of at most FS_MEMORY_CLAIM_MAX each. */
uint64_t fs_memory_share(uint64_t room_bytes, const struct fs_memory_claim *claims, size_t n);

/* Returns the bytes that host and cgroups leave free.
 * @root: the directory with /proc and /sys; "": the real ones.
 * @own_bytes: what the kernel holds for the caller, who would give it back: file pages, inodes and names. It counts as
 * free. */
uint64_t fs_memory_free(const char *root, uint64_t own_bytes);

/* Returns the largest possible memory=, in bytes: all that the host, or the tightest of the cgroups above, has, less
 * FS_MEMORY_BESIDES. The kernel kills a server that takes more, again and again. At least FS_MEMORY_LEAST;
 * UINT64_MAX: not known. @root as above. */
uint64_t fs_memory_most(const char *root);

#endif
