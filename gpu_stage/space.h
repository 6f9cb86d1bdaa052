/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a stage's samples: the arena, and places apart for samples that fit in no free run of it.
 *
 *     | arena .... |##| free |#| free |###| ... |          | place apart |
 *                        \________\____________ lent _______________/
 *
 * Samples that consumers hold cannot move.  So n pages can be free although no run of n pages is.  A sample of n pages
 * then gets a mapping of its own, a place apart.  The arena lends n of its free pages meanwhile (stage_pages_lend), and
 * their memory goes back to the system.  So memory in use stays within the size of the arena, except for pages that the
 * kernel makes huge pages of again.
 *
 * Places apart are never pinned.  With a GPU the arena is pinned, and its memory does not go back to the system.
 *
 * Threads: none of its own; the owner (arena_samples.c) locks. */
#ifndef DDPFS_GPU_STAGE_SPACE_H
#define DDPFS_GPU_STAGE_SPACE_H

#include <stdint.h>

struct stage_space; /* opaque */

/* Maps an arena.  arena_bytes: a multiple of STAGE_PAGE, 1 to 2^31 pages; no page is used yet.
 * Returns 0, or -EINVAL (arena_bytes), -ENOMEM. */
int stage_space_new(uint64_t arena_bytes, struct stage_space **ret_space);
void stage_space_free(struct stage_space *space); /* nothing may be apart; NULL: does nothing */

uint8_t *stage_space_arena(const struct stage_space *space);
uint64_t stage_space_arena_bytes(const struct stage_space *space);
/* Says that the arena is pinned: stage_space_give_up does nothing from now on. */
void stage_space_set_pinned(struct stage_space *space);

/* Maps a place apart that has `pages` pages (at least 1).  Returns NULL if the process may have no more addresses
 * (RLIMIT_AS), mappings (vm.max_map_count) or memory (vm.overcommit_memory=2). */
uint8_t *stage_space_take(struct stage_space *space, uint32_t pages);
/* Unmaps a place apart; `pages` as for stage_space_take. */
void stage_space_put(struct stage_space *space, uint8_t *place, uint32_t pages);

/* Gives memory of these pages of the arena back to the system.  The pages are zeroed when they are used again. */
void stage_space_give_up(struct stage_space *space, uint32_t first_page, uint32_t pages);

uint64_t stage_space_apart(const struct stage_space *space); /* pages in places apart now */

#endif
