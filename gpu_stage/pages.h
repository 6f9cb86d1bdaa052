/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out runs of pages of one arena.
 *
 *     | run | free ... | run | run | free | fresh ............. |
 *
 * Every free run knows its neighbours (boundary tags) and stands in a bin by its length's power of two.  Fresh pages
 * were never handed out.
 *
 * Finding takes the first fit of the run's own bin or any of a larger one.  It takes fresh pages only where no free
 * run is long enough: memory that nobody has touched costs the kernel more than all else.  Giving back joins
 * neighbours at once.
 *
 * Threads: none of its own; the owner locks. */
#ifndef DDPFS_GPU_STAGE_PAGES_H
#define DDPFS_GPU_STAGE_PAGES_H

#include <stdint.h>

enum { STAGE_PAGE = 4096 };
#define STAGE_PAGES_NONE UINT32_MAX

struct stage_pages; /* opaque */

/* n_pages: 1 .. 2^31.  -EINVAL, -ENOMEM. */
int stage_pages_new(uint64_t n_pages, struct stage_pages **ret_pages);
void stage_pages_free(struct stage_pages *pages); /* NULL is fine */

/* The first page of a run of n (>= 1), or STAGE_PAGES_NONE. */
uint32_t stage_pages_get(struct stage_pages *pages, uint32_t n);
void stage_pages_put(struct stage_pages *pages, uint32_t first, uint32_t n);
/* n (>= 1) pages wherever they are, of which so many must be free, fresh ones and long runs first: they count as used
 * until they are given back.  Returns the first of their runs. */
uint32_t stage_pages_lend(struct stage_pages *pages, uint32_t n);
/* The length of a run of those lent, and the run after it or STAGE_PAGES_NONE. */
uint32_t stage_pages_lent(const struct stage_pages *pages, uint32_t run, uint32_t *ret_next);
void stage_pages_give_back(struct stage_pages *pages, uint32_t first_run);

uint64_t stage_pages_used(const struct stage_pages *pages); /* pages */
uint64_t stage_pages_free_pages(const struct stage_pages *pages);
uint64_t stage_pages_touched(const struct stage_pages *pages); /* that are not fresh: all below this one */

#endif
