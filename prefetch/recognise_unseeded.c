/* Trying all seeds: when, on which lists, and what becomes of those left over.
 *
 * A scan is begun when the first opens of an epoch fit no likely seed, and goes on beside the search while the trainer
 * opens files.  It is of use only where the ring holds an epoch's beginning; a trainer whose order is no RandomSampler's
 * costs VAIN_MAX scans, and no more. */
#include <errno.h>

#include "prefetch/recognise_private.h"

enum {
	SCAN_RING = 96, /* opens a scan begins with */
	VAIN_MAX = 3,
	VERIFIED = 16, /* seeds held against the opens in one slice, a tenth of a millisecond each */
};

static bool due(const struct prefetch_recognise *r)
{
	const struct unseeded *u = &r->unseeded;
	return r->options.scan_threads > 0 && !u->scan && !u->looked && u->vain < VAIN_MAX && !r->rolling &&
	       r->search.n_ring >= SCAN_RING;
}

int prefetch_unseeded_begin(struct prefetch_recognise *r)
{
	struct prefetch_seed_scan_list lists[PREFETCH_SEED_SCAN_LISTS_MAX];
	struct unseeded *u = &r->unseeded;
	if (!due(r))
		return 0;
	u->looked = true;
	for (uint32_t i = 0; i < r->search.n_targets && u->n_lists < PREFETCH_SEED_SCAN_LISTS_MAX; i++) {
		const struct target *target = &r->search.targets[i];
		uint32_t opens = target->n_seen < SCAN_RING ? target->n_seen : SCAN_RING;
		if (target->n / PREFETCH_SEED_SCAN_SHARE < opens)
			continue;
		lists[u->n_lists] = (struct prefetch_seed_scan_list){
			.n = target->n, .indices = target->indices, .n_indices = opens
		};
		u->lists[u->n_lists++] = target->list;
	}
	int rc = u->n_lists == 0 ? 0
	                         : prefetch_seed_scan_new(
	                                   lists, u->n_lists, r->options.scan_first, r->options.scan_threads, &u->scan);
	if (u->scan)
		u->begun++;
	else
		prefetch_unseeded_end(r);
	return rc == -EAGAIN ? 0 : rc; /* no thread is to be had: it is not looked for */
}

void prefetch_unseeded_end(struct prefetch_recognise *r)
{
	struct unseeded *u = &r->unseeded;
	if (u->scan)
		u->cpu_ns += prefetch_seed_scan_cpu_ns(u->scan);
	prefetch_seed_scan_free(u->scan);
	u->scan = NULL;
	u->n_lists = 0;
}

int prefetch_unseeded_step(struct prefetch_recognise *r)
{
	struct unseeded *u = &r->unseeded;
	uint32_t list, seed;
	int rc = 0;
	/* The search is making its lists of the ring anew. */
	if (!u->scan || (r->search.running && r->search.phase == SEARCH_TARGETS))
		return 0;
	for (unsigned i = 0; i < VERIFIED && rc == 0; i++) {
		int next = prefetch_seed_scan_next(u->scan, &list, &seed);
		if (next == 0)
			return 0;
		if (next < 0) {
			u->vain++;
			prefetch_unseeded_end(r);
			return 0;
		}
		struct source source = { .sampler = PREFETCH_SAMPLER_UNSEEDED, .seed = seed, .name = seed };
		prefetch_torch_seek(&r->search.exact_mt, seed, 0);
		rc = prefetch_search_verify(r, u->lists[list], &source, &r->search.exact_mt);
	}
	if (rc > 0) {
		u->vain = 0;
		u->found++;
		prefetch_unseeded_end(r);
	}
	return rc < 0 ? rc : 1;
}

void prefetch_recognise_scanned(const struct prefetch_recognise *r, struct prefetch_scanned *ret_scanned)
{
	const struct unseeded *u = &r->unseeded;
	*ret_scanned = (struct prefetch_scanned){
		.running = u->scan != NULL,
		.tried = u->scan ? prefetch_seed_scan_tried(u->scan) : 0,
		.cpu_ns = u->cpu_ns + (u->scan ? prefetch_seed_scan_cpu_ns(u->scan) : 0),
		.begun = u->begun,
		.found = u->found,
	};
}
