#include "gpu_stage/space.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "gpu_stage/pages.h"

enum {
	CLASSES = 32,         /* slots of 2^k pages, k from 1 */
	SHRINK_MAX = 6,       /* where addresses are few: a 64th of the slots, then none */
	ALIGN = 2 << 20,      /* huge pages of the arena */
	GAP = ALIGN,          /* no sample of the arena has its neighbour in the window */
	OPEN_BYTES = 2 << 20, /* slots are made accessible by so many bytes */
};

struct slots {
	uint64_t offset; /* of the first one, from base */
	uint32_t n;
	uint32_t opened; /* the first ones can be read and written */
	uint32_t fresh;  /* from here on none was used */
	uint32_t n_free; /* in `free` */
	uint32_t *free;
};

struct stage_space {
	uint8_t *mapping, *base;
	uint64_t mapping_bytes, arena_bytes;
	bool pinned;
	struct slots classes[CLASSES];
};

static unsigned class_of(uint32_t pages)
{
	return 32U - (unsigned)__builtin_clz(pages - 1);
}

static uint64_t slot_bytes(unsigned class)
{
	return ((uint64_t)1 << class) * STAGE_PAGE;
}

/* Places the slots; returns the bytes of addresses in all. */
static uint64_t lay_out(struct stage_space *s, unsigned shrink)
{
	uint64_t pages = s->arena_bytes / STAGE_PAGE, at = s->arena_bytes + GAP;
	for (unsigned class = 1; class < CLASSES; class ++) {
		uint64_t n = shrink > SHRINK_MAX ? 0 : pages / (((uint64_t)1 << (class - 1)) + 1);
		s->classes[class].n = (uint32_t)(n >> shrink ? n >> shrink : n > 0);
		s->classes[class].offset = at;
		at += s->classes[class].n * slot_bytes(class);
	}
	return at;
}

/* Addresses only: PROT_NONE is not counted by a host that allows no overcommit. */
static int reserve(struct stage_space *s)
{
	for (unsigned shrink = 0; shrink <= SHRINK_MAX + 1; shrink++) {
		uint64_t bytes = lay_out(s, shrink) + ALIGN;
		void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED)
			continue;
		s->mapping = at;
		s->mapping_bytes = bytes;
		s->base = s->mapping + (-(uintptr_t)at & (ALIGN - 1));
		return 0;
	}
	return -ENOMEM;
}

int stage_space_new(uint64_t arena_bytes, struct stage_space **ret_space)
{
	if (!arena_bytes || arena_bytes % STAGE_PAGE || arena_bytes / STAGE_PAGE > UINT64_C(1) << 31)
		return -EINVAL;
	struct stage_space *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->arena_bytes = arena_bytes;
	int rc = reserve(s);
	if (rc == 0 && mprotect(s->base, arena_bytes, PROT_READ | PROT_WRITE) < 0)
		rc = -ENOMEM;
	for (unsigned class = 1; rc == 0 && class < CLASSES; class ++) {
		struct slots *c = &s->classes[class];
		c->free = calloc(c->n + 1, sizeof(*c->free)); /* pages of it that are never needed are never touched */
		if (!c->free)
			rc = -ENOMEM;
	}
	if (rc < 0) {
		stage_space_free(s);
		return rc;
	}
	madvise(s->mapping, s->mapping_bytes, MADV_DONTDUMP);
	/* A huge page would be more memory than the sample has. */
	uint8_t *window = s->base + s->arena_bytes + GAP;
	madvise(window, (size_t)(s->mapping + s->mapping_bytes - window), MADV_NOHUGEPAGE);
	*ret_space = s;
	return 0;
}

void stage_space_free(struct stage_space *s)
{
	if (!s)
		return;
	if (s->mapping)
		munmap(s->mapping, s->mapping_bytes);
	for (unsigned class = 0; class < CLASSES; class ++)
		free(s->classes[class].free);
	free(s);
}

uint8_t *stage_space_arena(const struct stage_space *space)
{
	return space->base;
}

uint64_t stage_space_arena_bytes(const struct stage_space *space)
{
	return space->arena_bytes;
}

void stage_space_set_pinned(struct stage_space *space)
{
	space->pinned = true;
}

/* Fresh slots are opened in their order, so that the kernel has two mappings a class and not one a slot. */
static bool open_fresh(struct stage_space *s, unsigned class)
{
	struct slots *c = &s->classes[class];
	if (c->fresh < c->opened)
		return true;
	uint64_t bytes = slot_bytes(class), n = bytes < OPEN_BYTES ? OPEN_BYTES / bytes : 1;
	if (n > c->n - c->opened)
		n = c->n - c->opened;
	if (mprotect(s->base + c->offset + c->opened * bytes, n * bytes, PROT_READ | PROT_WRITE) < 0)
		return false;
	c->opened += (uint32_t)n;
	return true;
}

uint8_t *stage_space_take(struct stage_space *s, uint32_t pages)
{
	assert(pages > 1);
	unsigned class = class_of(pages);
	struct slots *c = &s->classes[class];
	uint32_t slot;
	if (class >= CLASSES)
		return NULL;
	if (c->n_free)
		slot = c->free[--c->n_free];
	else if (c->fresh < c->n && open_fresh(s, class))
		slot = c->fresh++;
	else
		return NULL;
	return s->base + c->offset + slot * slot_bytes(class);
}

void stage_space_put(struct stage_space *s, uint8_t *at, uint32_t pages)
{
	unsigned class = class_of(pages);
	struct slots *c = &s->classes[class];
	uint64_t slot = (uint64_t)(at - s->base - c->offset) / slot_bytes(class);
	assert(slot < c->fresh && c->n_free < c->n);
	madvise(at, (size_t)pages * STAGE_PAGE, MADV_DONTNEED);
	c->free[c->n_free++] = (uint32_t)slot;
}

void stage_space_give_up(struct stage_space *s, uint32_t first_page, uint32_t pages)
{
	if (!s->pinned)
		madvise(s->base + (uint64_t)first_page * STAGE_PAGE, (size_t)pages * STAGE_PAGE, MADV_DONTNEED);
}
