/* SPDX-License-Identifier: Apache-2.0 */
/* Maps the arena and the places apart; space.h first. */
#include "gpu_stage/space.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpu_stage/pages.h"

struct stage_space {
	uint8_t *arena;
	uint64_t arena_bytes;
	uint64_t apart; /* pages in places apart now */
	bool pinned;
};

/* MAP_NORESERVE: pages that nobody writes take no memory, so an arena may be larger than the memory that is free. */
static uint8_t *map(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

int stage_space_new(uint64_t arena_bytes, struct stage_space **ret_space)
{
	if (!arena_bytes || arena_bytes % STAGE_PAGE || arena_bytes / STAGE_PAGE > UINT64_C(1) << 31)
		return -EINVAL;
	struct stage_space *space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	space->arena = map(arena_bytes);
	space->arena_bytes = arena_bytes;
	if (!space->arena) {
		free(space);
		return -ENOMEM;
	}
	*ret_space = space;
	return 0;
}

void stage_space_free(struct stage_space *space)
{
	if (!space)
		return;
	assert(!space->apart);
	munmap(space->arena, space->arena_bytes);
	free(space);
}

uint8_t *stage_space_arena(const struct stage_space *space)
{
	return space->arena;
}

uint64_t stage_space_arena_bytes(const struct stage_space *space)
{
	return space->arena_bytes;
}

void stage_space_set_pinned(struct stage_space *space)
{
	space->pinned = true;
}

uint8_t *stage_space_take(struct stage_space *space, uint32_t pages)
{
	assert(pages > 0);
	uint8_t *place = map((uint64_t)pages * STAGE_PAGE);
	if (!place)
		return NULL;
	madvise(place, (size_t)pages * STAGE_PAGE, MADV_HUGEPAGE); /* as stage_backend_advise */
	madvise(place, (size_t)pages * STAGE_PAGE, MADV_DONTDUMP);
	space->apart += pages;
	return place;
}

void stage_space_put(struct stage_space *space, uint8_t *place, uint32_t pages)
{
	assert(space->apart >= pages);
	space->apart -= pages;
	munmap(place, (size_t)pages * STAGE_PAGE);
}

void stage_space_give_up(struct stage_space *space, uint32_t first_page, uint32_t pages)
{
	if (!space->pinned)
		madvise(space->arena + (uint64_t)first_page * STAGE_PAGE, (size_t)pages * STAGE_PAGE, MADV_DONTNEED);
}

uint64_t stage_space_apart(const struct stage_space *space)
{
	return space->apart;
}
