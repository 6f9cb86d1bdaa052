/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out runs of pages of one arena, by number.
 *
 *     | run | free ... | run | run | free | fresh ............. |
 *
 * Every free run knows its neighbours (boundary tags) and stands in a bin by the power of two of its length.  Fresh
 * pages were never handed out.
 *
 * A search takes the first run that fits, from the bin of that length or a larger one.  It takes fresh pages only if no
 * free run is long enough, because memory that nobody has used yet costs the kernel most.  Pages that are given back
 * join free neighbours at once.
 *
 * Threads: none of its own; the owner locks. */
#ifndef DDPFS_GPU_STAGE_PAGES_H
#define DDPFS_GPU_STAGE_PAGES_H

#include <stdint.h>

enum { STAGE_PAGE = 4096 };
#define STAGE_PAGES_NONE UINT32_MAX

struct stage_pages; /* opaque */

/* Makes the pages of an arena; all are fresh.  n_pages: 1 .. 2^31.
 * Returns 0, or -EINVAL (n_pages), -ENOMEM. */
int stage_pages_new(uint64_t n_pages, struct stage_pages **ret_pages);
void stage_pages_free(struct stage_pages *pages); /* NULL: does nothing */

/* Takes a run of n (>= 1) pages.  Returns its first page, or STAGE_PAGES_NONE if no run is long enough. */
uint32_t stage_pages_get(struct stage_pages *pages, uint32_t n);
/* Gives back a run that stage_pages_get returned. */
void stage_pages_put(struct stage_pages *pages, uint32_t first, uint32_t n);

/* Lends n (>= 1) free pages in any number of runs, fresh ones first, then long runs.  At least n pages must be free.
 * They count as used until stage_pages_give_back.  Returns the first of their runs. */
uint32_t stage_pages_lend(struct stage_pages *pages, uint32_t n);
/* Returns the pages of a lent run.  *ret_next becomes the next run, or STAGE_PAGES_NONE. */
uint32_t stage_pages_lent(const struct stage_pages *pages, uint32_t run, uint32_t *ret_next);
/* Gives back all runs of one stage_pages_lend, from its first run on. */
void stage_pages_give_back(struct stage_pages *pages, uint32_t first_run);

uint64_t stage_pages_used(const struct stage_pages *pages);       /* pages handed out or lent */
uint64_t stage_pages_free_pages(const struct stage_pages *pages); /* fresh ones too */
uint64_t stage_pages_touched(const struct stage_pages *pages);    /* pages that are not fresh: all below this number */

#endif
