/* SPDX-License-Identifier: Apache-2.0 */
/* The budget of a mount without `memory=`: it follows the host.
 *
 * A mount wants what its dataset can use. It gets the smaller of two: what it wants, or its part of half of what host
 * and cgroup leave free (fs/host_memory.h). Only mounts that were used in the last FS_BUDGET_IDLE_S seconds take part.
 * The server checks the budget every FS_BUDGET_CHECK_MS. It changes it if the difference is more than a sixteenth, or
 * if the mount can have all that it wants.
 *
 * The greeter brings the claims of other mounts (fs/host_sharing.h). This file asks for a greeter when the number of
 * control sockets changes, and when this mount begins to be used or becomes idle.
 *
 * Threads: main, if a function does not say "any". One lock, taken before that of the names and the engine's. */
#ifndef DDPFS_FS_BUDGET_H
#define DDPFS_FS_BUDGET_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/host_memory.h"

struct fs_server;

enum {
	FS_BUDGET_CHECK_MS = 2000,
	FS_BUDGET_IDLE_S = 60,
	FS_BUDGET_CLAIMS_MAX = 256, /* mounts of one host that are told apart; more are not counted */
	FS_BUDGET_WHY_BYTES = 128,
};

struct fs_budget; /* opaque */

/* Makes the budget and finds its first size. Returns 0; -ENOMEM. */
int fs_budget_new(struct fs_server *server, struct fs_budget **ret_budget);
void fs_budget_free(struct fs_budget *budget);      /* NULL is fine */
uint64_t fs_budget_bytes(struct fs_budget *budget); /* the budget now, in bytes; any thread */

/* Checks the host if it is time to, and sets the engine's budget. Returns the milliseconds until the next check. */
int fs_budget_check(struct fs_budget *budget);

/* Sets the engine's budget: this one, less what the names of whole directories take (fs/directory_names.h). For who
 * changed one of them; any thread. */
void fs_budget_apply(struct fs_budget *budget);

/* Takes in what the greeter found.
 * @servers: mounts that show this dataset, with this one.
 * @mounts: mounts that the greeter knows, with this one, and those that have no server any more.
 * @claims: what the other mounts that are in use claim; @n above FS_BUDGET_CLAIMS_MAX - 1 is cut. */
void fs_budget_met(
        struct fs_budget *budget, uint32_t servers, uint32_t mounts, const struct fs_memory_claim *claims, size_t n);

/* Returns this mount's claim for the greeter: {"want": bytes, "fixed": bool, "active": bool}; NULL: out of memory.
 * Any thread. */
json_t *fs_budget_json(struct fs_budget *budget);

/* Writes one phrase for people into buf[size]: why the budget is what it is. Any thread. */
void fs_budget_why(struct fs_budget *budget, char *buf, size_t size);

#endif
