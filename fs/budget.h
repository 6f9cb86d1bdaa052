/* SPDX-License-Identifier: Apache-2.0 */
/* The budget of a mount when `memory=` is not given: it follows the host.
 *
 * A mount wants what its dataset can use.  It gets that, or its part of half of what host and cgroup leave free, whichever is
 * less (fs/memory.h).  Only mounts that were used in the last FS_BUDGET_IDLE_S seconds take part.  The budget is looked at every
 * FS_BUDGET_CHECK_MS and changes when the difference is worth it.
 *
 * Other mounts' claims come with the greeter (fs/host_sharing.h).  This file asks for a greeter when the number of control sockets
 * changes, and when this mount begins to be used or ceases to be.
 *
 * Threads: main, but where a function says any.  One lock, a leaf. */
#ifndef DDPFS_FS_BUDGET_H
#define DDPFS_FS_BUDGET_H

#include <jansson.h>

#include "fs/memory.h"
#include "fs/server.h"

enum {
	FS_BUDGET_CHECK_MS = 2000,
	FS_BUDGET_IDLE_S = 60,
	FS_BUDGET_CLAIMS_MAX = 256, /* mounts of one host that are told apart; more of them are not counted */
	FS_BUDGET_WHY_BYTES = 128,
};

struct fs_budget; /* opaque */

/* Finds out how much the mount may use at first: fs_budget_bytes.  -ENOMEM. */
int fs_budget_new(struct fs_server *server, struct fs_budget **ret_budget);
void fs_budget_free(struct fs_budget *budget);      /* NULL is fine */
uint64_t fs_budget_bytes(struct fs_budget *budget); /* the budget now; any thread */

/* Looks at the host when it is time to, and sets the engine's budget.  Returns the milliseconds until the next look. */
int fs_budget_check(struct fs_budget *budget);

/* The greeter knows `mounts` mounts, and `servers` of them show this dataset, this one among both.  claims: what the others that
 * are in use claim; n above FS_BUDGET_CLAIMS_MAX - 1 is cut. */
void fs_budget_met(
        struct fs_budget *budget, uint32_t servers, uint32_t mounts, const struct fs_memory_claim *claims, size_t n);

/* {"want": bytes, "fixed": bool, "active": bool}: this mount's claim, for the greeter. */
json_t *fs_budget_json(struct fs_budget *budget);

/* Why the budget is what it is: one phrase for people, at most `size` bytes with its NUL.  Any thread. */
void fs_budget_why(struct fs_budget *budget, char *buf, size_t size);

#endif
