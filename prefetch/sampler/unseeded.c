/* SPDX-License-Identifier: Apache-2.0 */
/* When to try all 2^32 seeds, on which lists, and what to do with those that pass; prefetch/sampler/seed_scan.h first.
 *
 * A scan begins when the first opens of an epoch fit no cheap hypothesis.  It goes on beside the search while the
 * trainer opens files.  It has a copy of the targets, because the ring is filled anew meanwhile.  It can find a seed
 * only if those opens were the beginning of an epoch.  TRIED_MAX is the limit: if the trainer uses no RandomSampler,
 * all scans together try 3 x 2^32 seeds, over however many epochs. */
#include <errno.h>
#include <stdlib.h>

#include "prefetch/sampler/recognise_private.h"

enum { VERIFIED = 16 /* seeds compared with the opens in one slice, a tenth of a millisecond each */ };
static const uint64_t TRIED_MAX = UINT64_C(3) << 32;

static bool due(const struct prefetch_recognise *r)
{
	const struct unseeded *u = &r->unseeded;
	return r->options.scan_threads > 0 && !u->scan && !u->looked && u->scanned.tried < TRIED_MAX && !r->rolling &&
	       r->search.n_ring == RING;
}

/* Takes the lists with enough files: an eighth of a list's files must be at least PREFETCH_FIT_HITS_MIN opens. */
static uint32_t choose(
        const struct prefetch_recognise *r, struct target *targets, struct prefetch_seed_scan_list *lists)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < r->search.n_targets && n < PREFETCH_SEED_SCAN_LISTS_MAX; i++) {
		const struct target *target = &r->search.targets[i];
		uint32_t opens = target->n / PREFETCH_SEED_SCAN_SHARE;
		if (opens < PREFETCH_FIT_HITS_MIN)
			continue;
		targets[n] = *target;
		lists[n] = (struct prefetch_seed_scan_list){
			.n = target->n,
			.indices = targets[n].indices,
			.n_indices = opens < target->n_seen ? opens : target->n_seen,
		};
		n++;
	}
	return n;
}

int prefetch_unseeded_begin(struct prefetch_recognise *r)
{
	struct prefetch_seed_scan_list lists[PREFETCH_SEED_SCAN_LISTS_MAX];
	struct unseeded *u = &r->unseeded;
	if (!due(r))
		return 0;
	u->looked = true;
	u->targets = calloc(PREFETCH_SEED_SCAN_LISTS_MAX, sizeof(*u->targets));
	if (!u->targets)
		return -ENOMEM;
	u->n_targets = choose(r, u->targets, lists);
	int rc = 0;
	if (u->n_targets > 0)
		rc = prefetch_seed_scan_new(
		        lists, u->n_targets, r->options.scan_first, r->options.scan_threads, &u->scan);
	if (u->scan)
		u->scanned.begun++;
	else
		prefetch_unseeded_end(r);
	return rc == -EAGAIN ? 0 : rc; /* the system has no thread: go on without a scan */
}

void prefetch_unseeded_end(struct prefetch_recognise *r)
{
	struct unseeded *u = &r->unseeded;
	prefetch_recognise_scanned(r, &u->scanned);
	u->scanned.running = false;
	prefetch_seed_scan_free(u->scan);
	free(u->targets);
	u->scan = NULL;
	u->targets = NULL;
}

void prefetch_unseeded_found(struct prefetch_recognise *r, const struct prefetch_list *list)
{
	for (uint32_t i = 0; r->unseeded.scan && i < r->unseeded.n_targets; i++) {
		if (r->unseeded.targets[i].list == list)
			prefetch_unseeded_end(r);
	}
}

int prefetch_unseeded_step(struct prefetch_recognise *r)
{
	struct unseeded *u = &r->unseeded;
	uint32_t list, seed;
	if (!u->scan)
		return 0;
	for (unsigned i = 0; i < VERIFIED; i++) {
		int rc = prefetch_seed_scan_next(u->scan, &list, &seed);
		if (rc < 0)
			prefetch_unseeded_end(r);
		if (rc <= 0)
			return 0;
		struct source source = { .sampler = PREFETCH_SAMPLER_UNSEEDED, .seed = seed, .name = seed };
		struct match *match = &r->search.match;
		prefetch_torch_seek(&r->search.mt, seed, 0);
		if (!prefetch_seeds_verify(&r->search.bench, u->targets, u->n_targets, &u->targets[list], &source,
		            &r->search.mt, match))
			continue;
		rc = prefetch_search_accept(r, match);
		if (rc >= 0) { /* prefetch_search_accept has ended the scan */
			u->scanned.tried = 0;
			u->scanned.found++;
			u->looked = r->rolling =
			        false; /* unexplained opens are now another reader's, or the next epoch's */
		}
		return rc < 0 ? rc : 1;
	}
	return 1;
}

void prefetch_recognise_scanned(const struct prefetch_recognise *r, struct prefetch_scanned *ret_scanned)
{
	const struct unseeded *u = &r->unseeded;
	*ret_scanned = u->scanned;
	if (!u->scan)
		return;
	ret_scanned->running = true;
	ret_scanned->tried += prefetch_seed_scan_tried(u->scan);
	ret_scanned->cpu_ns += prefetch_seed_scan_cpu_ns(u->scan);
}
