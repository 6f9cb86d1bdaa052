/* The addresses of a stage's samples: the arena, and behind it a window for samples that find no room in one piece.
 *
 *     | arena: memory ............ |gap| window: slots of 2 pages ... | slots of 4 pages ... | slots of 8 pages ... | ...
 *
 * The arena's pages in use lie where consumers hold them, and cannot move.  So a sample of n pages can find n pages free and no n of
 * them in a row.  It then lies in the window, at addresses without memory until they are written, and the arena gives up n of
 * its free pages meanwhile (stage_pages_lend), whose memory goes back to the system: memory in use stays within the arena.
 *
 * A slot of 2^k pages takes a sample of more than 2^(k-1).  Of those not more than arena / 2^(k-1) exist at a time, and so
 * many slots there are: a sample that has free pages in the arena always finds a slot.  That takes 2 x log2(pages) arenas of
 * addresses.  Where a process may have so many addresses no more (RLIMIT_AS), there are fewer slots, or none.
 *
 * Memory of the window is never pinned; with a GPU, the arena's is, and does not go back to the system.
 *
 * Threads: none of its own; the owner (store.c) locks. */
#ifndef DDPFS_GPU_STAGE_SPACE_H
#define DDPFS_GPU_STAGE_SPACE_H

#include <stdbool.h>
#include <stdint.h>

struct stage_space; /* opaque */

/* arena_bytes: whole pages, which can be read and written; none is touched.  -EINVAL, -ENOMEM. */
int stage_space_new(uint64_t arena_bytes, struct stage_space **ret_space);
void stage_space_free(struct stage_space *space); /* NULL is fine */

uint8_t *stage_space_arena(const struct stage_space *space);
uint64_t stage_space_arena_bytes(const struct stage_space *space);
void stage_space_set_pinned(struct stage_space *space); /* the arena is pinned: stage_space_give_up does nothing */

/* A slot for a sample of `pages` (at least 2), zeroed; NULL: none is free, or the system has no memory for it. */
uint8_t *stage_space_take(struct stage_space *space, uint32_t pages);
void stage_space_put(struct stage_space *space, uint8_t *slot, uint32_t pages); /* the pages of stage_space_take */

/* Memory of these pages of the arena goes back to the system; they are zeroed when they are used again. */
void stage_space_give_up(struct stage_space *space, uint32_t first_page, uint32_t pages);

#endif
