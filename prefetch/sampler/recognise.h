/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition: which sampler made the opens that are seen, and so, what will be opened next.
 *
 * Fed with the files a trainer opens, in the order seen.  What no known sampler explains is collected in a ring of the
 * first few hundred; from time to time the ring is held against hypotheses: ddpfs's own orders, sorted lists, torch's
 * DistributedSampler and RandomSampler over every list the files may come from (prefetch/sampler/list.h).  One that
 * explains them by more than chance (prefetch/sampler/fit.h has the bound) becomes a *track*; what a track explains no
 * longer enters the ring, so that a validation loader or a second job is found beside it.
 *
 *   opens --> tracks: expected here? --no--> ring --search--> new track
 *                |
 *                +--> epoch over: next permutation confirmed, or the same again (set_epoch forgotten), or search anew
 *
 * DataLoader workers read their batches side by side, ranks are mixed, strangers open files between: what is compared
 * is the set of files, never the strict sequence.
 *
 * What follows an epoch:
 *   DistributedSampler      the permutation of seed + epoch + 1
 *   RandomSampler           draws its next seed from the default generator, which goes on from a known state by an
 *                           unknown number of draws: 2 for a DataLoader made anew each epoch (assumed at first), 1 with
 *                           persistent workers, one more for each validation pass, many with dropout on the CPU.  The
 *                           state is looked for ahead of where it was, and a step seen once is assumed again.
 *   a generator of its own  goes on from where the permutation left it, known to the word, unless something else
 *                           draws from it
 *   RandomSampler unseeded  cannot be known; the epoch itself is found among 2^32 seeds where the caller spends threads on
 *                           it (prefetch/sampler/seed_scan.h)
 *
 * Use: prefetch_recognise_opened() costs well under a microsecond a file and a track; prefetch_recognise_step() does the
 * searching and builds permutations, in slices that the caller bounds.
 *
 * Memory: 8 bytes a file of the list for each permutation (the current and the next of at most PREFETCH_TRACKS_MAX
 * tracks), and about a byte a file besides.
 *
 * Threads: one at a time (the caller's lock); the sequences handed out are immutable and any thread's.  With `search_thread` one of
 * its own, at idle priority, which holds no lock. */
#ifndef DDPFS_PREFETCH_SAMPLER_RECOGNISE_H
#define DDPFS_PREFETCH_SAMPLER_RECOGNISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefetch/sampler/fit.h"
#include "prefetch/sampler/list.h"
#include "prefetch/sampler/sequence.h"

enum {
	PREFETCH_TRACKS_MAX = 4,
	PREFETCH_GIVEN_MAX = 4,
	PREFETCH_SEED_MAX_DEFAULT = 1000000,
	PREFETCH_POPULAR_WORDS_DEFAULT = 1 << 15,
	/* Of the search, for who has no figures of his own: the likely seeds twice over at once, then a twentieth of a processor. */
	PREFETCH_SEARCH_BURST_NS = 120000000,
	PREFETCH_SEARCH_PERMILLE = 50,
};

struct prefetch_recognise; /* opaque */

/* What trying all seeds has taken. */
struct prefetch_scanned {
	bool running;
	uint64_t tried;  /* seeds, since one was found */
	uint64_t cpu_ns; /* of all threads, ever */
	unsigned begun, found;
};

struct prefetch_recognise_options {
	const struct shard_index *index; /* not owned */
	const struct shard_view *shown;  /* NULL, or whose on_bad leaves samples out of every listing; not owned */
	const struct prefetch_list_given *given; /* lists of others, such as this rank's part of a view; copied */
	unsigned n_given;                        /* at most PREFETCH_GIVEN_MAX */
	const struct prefetch_own_order *own;    /* ddpfs's own order, or NULL; copied */
	/* Of it, the first own_epochs epochs are looked at, and as many from own_first on (behind those). */
	uint64_t own_epochs, own_first;
	bool own_last;     /* after sorted lists, which it may be one of */
	uint32_t seed_max; /* seed + epoch up to here; 0 = PREFETCH_SEED_MAX_DEFAULT */
	/* RandomSampler: words of the default generator behind well-known manual seeds that are looked at, for models that
	 * draw their weights first; 0 = PREFETCH_POPULAR_WORDS_DEFAULT, 1 = none. */
	uint32_t popular_words;
	/* A RandomSampler drew from the generator of manual_seed(seen_manual), up to its word seen_word; 0: not known. */
	uint64_t seen_manual, seen_word;
	/* Threads that try all 2^32 seeds of a RandomSampler once the first opens of an epoch fit nothing else; 0 = none.  At most
	 * PREFETCH_SEED_SCAN_THREADS_MAX. */
	unsigned scan_threads;
	uint32_t scan_first; /* seed they begin with */
	/* What searching may take of a processor, beside what opens cost: search_burst_ns at first, and after a rest; then
	 * search_permille thousandths of the time that passes.  search_burst_ns 0: no bound.  Where opens have ended, only what they
	 * had begun is looked at, and of all seeds no more are tried. */
	uint64_t search_burst_ns;
	unsigned search_permille;
	bool search_thread; /* all seeds are tried by a thread at idle priority */
	/* For tests: processor time of the calling thread, and time that passes, in ns; or NULL. */
	uint64_t (*cpu_ns)(void *user);
	uint64_t (*elapsed_ns)(void *user);
	struct prefetch_scanned scanned; /* what one before this took: from where it counts */
	/* Hears of each open that a track explains, from within prefetch_recognise_opened and _step; or NULL. */
	void (*explained)(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn);
	void *user;
};

/* -EINVAL, -ENOMEM, -EAGAIN (no thread is to be had). */
int prefetch_recognise_new(const struct prefetch_recognise_options *options, struct prefetch_recognise **ret_recognise);
void prefetch_recognise_free(struct prefetch_recognise *recognise); /* NULL is fine; sequences handed out live on */

/* Files in the order their opens were seen.  A file that is opened again before 256 others were (a sixteenth of the files, where
 * that is less) counts once: readers look at a header first, or try again. */
void prefetch_recognise_opened(struct prefetch_recognise *recognise, const uint32_t *files, size_t n);

/* Opens have paused, or a listing was seen: an epoch may have ended, or begin.  What came since the last look is looked at; where all
 * of it was, what comes is a new beginning. */
void prefetch_recognise_pause(struct prefetch_recognise *recognise);

enum { PREFETCH_RECOGNISE_LATER = 2 };
/* Works for about `max_ns` of CPU time (0: one slice: about a millisecond, three for a world of hundreds of ranks, and what it
 * takes to list a directory tree when its files are first opened).  Orders that cost little come first, however many seeds are being
 * tried.  Returns 1 while there is more to do; PREFETCH_RECOGNISE_LATER when there is and the budget of the search is spent: call
 * again after some milliseconds; 0 when opens are needed (all seeds may still be tried); -ENOMEM, index errors (both: tried again
 * later). */
int prefetch_recognise_step(struct prefetch_recognise *recognise, uint64_t max_ns);

/* What searching took, ever. */
struct prefetch_searched {
	uint64_t looks;       /* at the opens that nothing explains */
	uint64_t seeds;       /* tried, each for each list */
	uint64_t cpu_ns;      /* of looks and seeds */
	uint64_t unexplained; /* opens that nothing has explained since something was recognised last */
	unsigned wrong;       /* recognised, and dropped because the opens went on otherwise */
	bool running;         /* all seeds are being tried */
};
void prefetch_recognise_searched(const struct prefetch_recognise *recognise, struct prefetch_searched *ret_searched);

enum prefetch_sampler {
	PREFETCH_SAMPLER_OWN,
	PREFETCH_SAMPLER_SORTED,      /* shuffle=False */
	PREFETCH_SAMPLER_DISTRIBUTED, /* torch.randperm of a generator seeded with `seed` */
	PREFETCH_SAMPLER_GENERATOR,   /* RandomSampler with a generator of its own, seeded with `seed` */
	PREFETCH_SAMPLER_RANDOM,      /* RandomSampler after torch.manual_seed(seed) */
	PREFETCH_SAMPLER_UNSEEDED,    /* RandomSampler that drew `seed` for this epoch, from wherever */
};

/* A track as it is now. */
struct prefetch_recognised {
	uint32_t id;         /* of the track; never used again */
	uint32_t generation; /* changes when sequences handed out before are no longer right */
	enum prefetch_sampler sampler;
	uint64_t seed;                /* seed + epoch for DISTRIBUTED, the epoch for OWN, the manual seed for RANDOM */
	uint64_t word;                /* RANDOM: of the default generator, that seeded the permutation */
	uint32_t world, first, ranks; /* as in a sequence */
	uint32_t parts;               /* SORTED: contiguous ones, one a rank; else 0 */
	struct prefetch_pace pace;
	bool pace_sure;    /* two looks in a row, opens apart, gave this pace */
	uint64_t epoch;    /* 0 = the one it was recognised in */
	uint64_t turn;     /* behind the farthest turn opened */
	uint64_t turns;    /* of an epoch */
	uint64_t opens;    /* explained by this track */
	uint64_t since;    /* opens, of whomever, since the last one that it explained */
	uint32_t repeated; /* times the same permutation came again: set_epoch was forgotten */
	bool unverified;   /* restored, and opens have not borne it out yet */
	bool ready;        /* its permutation is made: sequences can be had */
	bool confirmed;    /* this epoch was expected and came */
	bool shards_twice; /* a distributed sampler over the part of one rank: the rest of the part is not read */
	double score;      /* nats, at recognition */
	uint64_t after;    /* opens in the ring when it was recognised */
	char list[320];    /* prefetch_list_describe() */
};

/* A track in a few bytes, for who goes on after this process: all but its permutations, and which turns were opened. */
struct prefetch_saved_track {
	uint32_t sampler, seed;
	uint64_t skip, name, word, step;
	uint32_t learned, repeated;
	uint32_t dir, sort, filter; /* of the list; dir SHARD_NONE: ddpfs's own order */
	uint32_t world, first, ranks, stride, workers, batch;
	uint32_t pad;
	uint64_t size, high, epoch;
	char suffix[32];
};

/* Tracks that can be saved: those of given lists cannot.  Returns how many. */
unsigned prefetch_recognise_save(
        const struct prefetch_recognise *recognise, struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX]);
/* Before the first opens: follows what was saved.  Nothing in it is believed: what cannot be is left out, and a track that the next
 * opens do not bear out is dropped; until they do it is `unverified`.  Takes as long as the lists take that it needs.  -ENOMEM, index
 * errors. */
int prefetch_recognise_restore(
        struct prefetch_recognise *recognise, const struct prefetch_saved_track *saved, unsigned n);

unsigned prefetch_recognise_count(const struct prefetch_recognise *recognise);
/* i < count.  -ERANGE. */
int prefetch_recognise_get(
        const struct prefetch_recognise *recognise, unsigned i, struct prefetch_recognised *ret_track);

/* "torch DistributedSampler, seed+epoch 17, rank 1 of 2, batch about 32". */
const char *prefetch_recognise_describe(const struct prefetch_recognised *track, char *buf, size_t size);

/* The sequence of the track's current epoch (ahead 0) or the one expected next (1); with a reference for the caller.
 * -ENOENT (no such track; nothing is expected), -EAGAIN (not made yet), -ENOMEM. */
int prefetch_recognise_sequence(
        struct prefetch_recognise *recognise, uint32_t id, unsigned ahead, struct prefetch_sequence **ret_sequence);

/* The turns of the track's current epoch that were opened, from *turn on, at most max; *turn moves behind the last one looked
 * at.  Returns how many: fewer than max at the end.  0 when there is no such track. */
size_t prefetch_recognise_used(
        const struct prefetch_recognise *recognise, uint32_t id, uint64_t *turn, uint64_t *turns, size_t max);

void prefetch_recognise_scanned(const struct prefetch_recognise *recognise, struct prefetch_scanned *ret_scanned);

uint64_t prefetch_recognise_bytes(const struct prefetch_recognise *recognise); /* memory in use */

#endif
