/* SPDX-License-Identifier: Apache-2.0 */
/* Which sampler draws what is announced, for the tier.
 *
 * An announced list (fs/announced_orders.h) says what is opened next, but not what is opened in the next epochs. A tier
 * that is smaller than the dataset gains by knowing that (fs/trainer_uses.h). So the opens that a list explains go to a
 * recogniser of their own. What it recognises is told to the tier, and to nobody else: the lists are read ahead.
 *
 *     opens --> announced orders --not explained--> recogniser, streams --.
 *                     `------------explained------> this recogniser ------+--> fs/trainer_uses.h --> tier
 *
 * A list may have any order, and then the search is in vain. So it takes about FS_ANNOUNCED_SEARCH_NS of processor
 * time. When that is spent and nothing useful is recognised, the recogniser and its memory end. The search begins again
 * after FS_ANNOUNCED_REST_NS, because another job may have come.
 *
 * Threads: one. */
#ifndef DDPFS_FS_ANNOUNCED_SAMPLER_H
#define DDPFS_FS_ANNOUNCED_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefetch/sampler/recognise.h"

#define FS_ANNOUNCED_SEARCH_NS UINT64_C(2000000000)  /* all seeds of torch's samplers below 10^6 take less */
#define FS_ANNOUNCED_REST_NS UINT64_C(3600000000000) /* between two searches */

struct fs_announced_sampler; /* opaque */

/* Makes it. options: of the recogniser; copied. What they point to is not owned. Returns 0 or -ENOMEM. */
int fs_announced_sampler_new(
        const struct prefetch_recognise_options *options, struct fs_announced_sampler **ret_sampler);
/* NULL is fine. */
void fs_announced_sampler_free(struct fs_announced_sampler *sampler);

/* Takes in opens of `n` files that a list explains. @now_ns: CLOCK_MONOTONIC. Without memory for the recogniser they
 * are lost, and the next ones try again. */
void fs_announced_sampler_opened(
        struct fs_announced_sampler *sampler, const uint32_t *files, size_t n, uint64_t now_ns);
/* Says that opens have paused: prefetch_recognise_pause(). */
void fs_announced_sampler_pause(struct fs_announced_sampler *sampler);
/* Searches for about `max_ns` of processor time. Returns as prefetch_recognise_step, but never an error: then it goes
 * on with the next opens. */
int fs_announced_sampler_step(struct fs_announced_sampler *sampler, uint64_t max_ns);
/* Says whether what is recognised is useful now. Ends the recogniser if its search was in vain for too long. While it
 * is useful, the search for other orders goes on, at the pace of any search. */
void fs_announced_sampler_judge(struct fs_announced_sampler *sampler, bool useful, uint64_t now_ns);

/* Returns what recognises, until the next call of fs_announced_sampler_judge; NULL: nothing does. */
struct prefetch_recognise *fs_announced_sampler_recognise(const struct fs_announced_sampler *sampler);
/* Returns the processor time of all searches, in ns. */
uint64_t fs_announced_sampler_search_ns(const struct fs_announced_sampler *sampler);

#endif
