/* Hands out runs of pages of one arena: a sample is contiguous, whatever its size.
 *
 *     | run | free ......... | run | run | free . |      every free run knows its neighbours (boundary tags);
 *                                                         free runs stand in bins by their length's power of two
 *
 * Finding takes the first fit of the run's own bin or any of a larger one; giving back joins neighbours at once.
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

uint64_t stage_pages_used(const struct stage_pages *pages); /* pages */

#endif
