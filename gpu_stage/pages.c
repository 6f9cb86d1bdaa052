/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of pages with boundary tags and bins; pages.h first. */
#include "gpu_stage/pages.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { BINS = 32 };

/* The tag of a page.  Only the first and last page of a free run have `len` set; for other pages it is 0. */
struct tag {
	uint32_t len; /* pages of the free run */
	/* First page of a free run: its neighbours in the bin.  First page of a lent run: the next run, and its
	 * pages. */
	uint32_t next, prev;
};

struct stage_pages {
	uint32_t n;
	uint32_t fresh; /* pages from here on were never handed out; they stand in no bin */
	uint64_t used;
	uint32_t bins[BINS]; /* first page of the first run of each bin; STAGE_PAGES_NONE: empty */
	struct tag tags[];
};

static unsigned bin_of(uint32_t len)
{
	return 31U - (unsigned)__builtin_clz(len);
}

static void insert(struct stage_pages *p, uint32_t first, uint32_t len)
{
	uint32_t *bin = &p->bins[bin_of(len)];
	struct tag *tag = &p->tags[first];
	p->tags[first + len - 1].len = len;
	tag->len = len;
	tag->next = *bin;
	tag->prev = STAGE_PAGES_NONE;
	if (*bin != STAGE_PAGES_NONE)
		p->tags[*bin].prev = first;
	*bin = first;
}

static void remove_run(struct stage_pages *p, uint32_t first)
{
	struct tag *tag = &p->tags[first];
	uint32_t len = tag->len;
	if (tag->prev != STAGE_PAGES_NONE)
		p->tags[tag->prev].next = tag->next;
	else
		p->bins[bin_of(len)] = tag->next;
	if (tag->next != STAGE_PAGES_NONE)
		p->tags[tag->next].prev = tag->prev;
	p->tags[first + len - 1].len = 0;
	tag->len = 0;
}

int stage_pages_new(uint64_t n_pages, struct stage_pages **ret_pages)
{
	if (!n_pages || n_pages > UINT64_C(1) << 31)
		return -EINVAL;
	struct stage_pages *p = calloc(1, sizeof(*p) + n_pages * sizeof(struct tag));
	if (!p)
		return -ENOMEM;
	p->n = (uint32_t)n_pages;
	for (unsigned i = 0; i < BINS; i++)
		p->bins[i] = STAGE_PAGES_NONE;
	*ret_pages = p;
	return 0;
}

void stage_pages_free(struct stage_pages *pages)
{
	free(pages);
}

/* Takes n pages: the free run that ends where fresh pages begin, if there is one, and fresh pages after it. */
static uint32_t get_fresh(struct stage_pages *p, uint32_t n)
{
	uint32_t before = p->fresh ? p->tags[p->fresh - 1].len : 0;
	if (n - before > p->n - p->fresh)
		return STAGE_PAGES_NONE;
	uint32_t first = p->fresh - before;
	if (before)
		remove_run(p, first);
	p->fresh = first + n;
	p->used += n;
	return first;
}

uint32_t stage_pages_get(struct stage_pages *p, uint32_t n)
{
	assert(n > 0);
	for (unsigned bin = bin_of(n); bin < BINS; bin++) {
		/* Only the first bin can hold runs that are too short. */
		for (uint32_t first = p->bins[bin]; first != STAGE_PAGES_NONE; first = p->tags[first].next) {
			uint32_t len = p->tags[first].len;
			if (len < n)
				continue;
			remove_run(p, first);
			if (len > n)
				insert(p, first + n, len - n);
			p->used += n;
			return first;
		}
	}
	return get_fresh(p, n);
}

void stage_pages_put(struct stage_pages *p, uint32_t first, uint32_t n)
{
	assert(n > 0 && first < p->n && n <= p->n - first && n <= p->used);
	p->used -= n;
	if (first + n < p->n && p->tags[first + n].len) {
		uint32_t len = p->tags[first + n].len;
		remove_run(p, first + n);
		n += len;
	}
	if (first > 0 && p->tags[first - 1].len) {
		uint32_t len = p->tags[first - 1].len;
		remove_run(p, first - len);
		first -= len;
		n += len;
	}
	insert(p, first, n);
}

static void lend_run(struct stage_pages *p, uint32_t first, uint32_t n, uint32_t *list)
{
	p->tags[first].next = *list;
	p->tags[first].prev = n;
	*list = first;
}

uint32_t stage_pages_lend(struct stage_pages *p, uint32_t n)
{
	uint32_t list = STAGE_PAGES_NONE;
	uint32_t fresh = p->n - p->fresh < n ? p->n - p->fresh : n;
	assert(n > 0 && n <= stage_pages_free_pages(p));
	p->used += n;
	if (fresh)
		lend_run(p, p->fresh, fresh, &list);
	p->fresh += fresh;
	n -= fresh;
	for (unsigned bin = BINS; n && bin--;) {
		while (n && p->bins[bin] != STAGE_PAGES_NONE) {
			uint32_t first = p->bins[bin], len = p->tags[first].len, some = len < n ? len : n;
			remove_run(p, first);
			if (some < len)
				insert(p, first + some, len - some);
			lend_run(p, first, some, &list);
			n -= some;
		}
	}
	assert(n == 0);
	return list;
}

uint32_t stage_pages_lent(const struct stage_pages *p, uint32_t run, uint32_t *ret_next)
{
	*ret_next = p->tags[run].next;
	return p->tags[run].prev;
}

void stage_pages_give_back(struct stage_pages *p, uint32_t run)
{
	while (run != STAGE_PAGES_NONE) {
		uint32_t first = run, n = stage_pages_lent(p, run, &run);
		stage_pages_put(p, first, n);
	}
}

uint64_t stage_pages_used(const struct stage_pages *p)
{
	return p->used;
}

uint64_t stage_pages_free_pages(const struct stage_pages *p)
{
	return p->n - p->used;
}

uint64_t stage_pages_touched(const struct stage_pages *p)
{
	return p->fresh;
}
