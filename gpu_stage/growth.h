/* SPDX-License-Identifier: Apache-2.0 */
/* Lets a stage use more and more of its arena, a step at a time.
 *
 * The kernel clears a page that is used for the first time.  In a virtual machine the host may hand it out slowly,
 * too.  A stage that used its whole arena in the first epoch would wait for each page.  So it begins with a part, and
 * a thread ("stage-grow") makes the next pages ready before it lets the stage use them.  Until then the stage reuses
 * the pages of samples that were used.
 *
 *   | in use: samples that were used make room for others | ready next | never used |
 *   0                                                   opened                    bytes
 *
 * Threads: any for stage_growth_stored; the others belong to who owns the object. */
#ifndef DDPFS_GPU_STAGE_GROWTH_H
#define DDPFS_GPU_STAGE_GROWTH_H

#include <stdint.h>

struct stage_growth; /* opaque */

/* Starts the thread.  base: the arena, of `bytes`; `first` of these are open already, less than `bytes`.
 * opened(arg, n): from now on the first n bytes are for use; the thread calls it, at last with `bytes`.
 * Returns 0, or -ENOMEM, or an error of starting a thread. */
int stage_growth_new(uint8_t *base, uint64_t bytes, uint64_t first, void (*opened)(void *arg, uint64_t n), void *arg,
        struct stage_growth **ret_growth);
/* Ends the thread: waits for the end of a step.  stage_growth_stored may still be called.  NULL: does nothing. */
void stage_growth_end(struct stage_growth *growth);
/* Frees it, after stage_growth_end, when nobody calls stage_growth_stored any more.  NULL: does nothing. */
void stage_growth_free(struct stage_growth *growth);

/* Counts bytes that were stored in the arena.  The arena grows when the samples stored so far need more; NULL: does
 * nothing. */
void stage_growth_stored(struct stage_growth *growth, uint64_t bytes);

#endif
