/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a stage's samples: the arena, and places apart for samples that find no room in it in one piece.
 *
 *     | arena .... |##| free |#| free |###| ... |          | place apart |
 *                        \________\____________ lent _______________/
 *
 * Samples that consumers hold cannot move, so a sample of n pages can find n pages free and no n of them in a row.
 * It then gets a mapping of its own.  The arena gives up n of its free pages meanwhile (stage_pages_lend), and their
 * memory goes back to the system: memory in use stays within the arena's size, but for what the kernel makes huge
 * pages of again.
 *
 * Memory apart is never pinned.  With a GPU the arena's is, and does not go back to the system.
 *
 * Threads: none of its own; the owner (store.c) locks. */
#ifndef DDPFS_GPU_STAGE_SPACE_H
#define DDPFS_GPU_STAGE_SPACE_H

#include <stdint.h>

struct stage_space; /* opaque */

/* arena_bytes: whole pages, none of which is touched.  -EINVAL, -ENOMEM. */
int stage_space_new(uint64_t arena_bytes, struct stage_space **ret_space);
void stage_space_free(struct stage_space *space); /* nothing may be apart; NULL is fine */

uint8_t *stage_space_arena(const struct stage_space *space);
uint64_t stage_space_arena_bytes(const struct stage_space *space);
void stage_space_set_pinned(struct stage_space *space); /* the arena is pinned: stage_space_give_up does nothing */

/* A place apart of so many pages (at least 1); NULL: the process may have no more addresses (RLIMIT_AS), mappings
 * (vm.max_map_count) or memory (vm.overcommit_memory=2). */
uint8_t *stage_space_take(struct stage_space *space, uint32_t pages);
void stage_space_put(struct stage_space *space, uint8_t *place, uint32_t pages); /* the pages of stage_space_take */

/* Memory of these pages of the arena goes back to the system; they are zeroed when they are used again. */
void stage_space_give_up(struct stage_space *space, uint32_t first_page, uint32_t pages);

uint64_t stage_space_apart(const struct stage_space *space); /* pages in places apart now */

#endif
