/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition: finds out which sampler orders the trainer's opens, and predicts the next opens.
 *
 * The caller feeds it the files that a trainer opens, in the order seen.  Opens that no known sampler explains go
 * into a ring of the first few hundred.  From time to time a search compares the ring with hypotheses: ddpfs's own
 * orders, sorted lists, torch's DistributedSampler and RandomSampler, and numpy's, Python's and DALI's shuffles, over
 * each list that the files may come from (prefetch/sampler/file_list.h).  A hypothesis that explains the ring by more
 * than chance (prefetch/sampler/fit.h has the bound) becomes a *track*.  Opens that a track explains do not enter the
 * ring.  So a validation loader or a second job is found beside the first one.
 *
 *   opens --> tracks: expected here? --no--> ring --search--> new track
 *                |
 *                +--> epoch over: next permutation confirmed, or the same again (set_epoch forgotten), or search anew
 *
 * DataLoader workers read their batches side by side, ranks are mixed, and other programs open files between them.
 * So the set of files is compared, never the strict sequence.
 *
 * What is expected after an epoch:
 *   DistributedSampler      the permutation of seed + epoch + 1
 *   RandomSampler           draws its next seed from the default generator, which goes on from a known state by an
 *                           unknown number of draws: 2 for a DataLoader made anew each epoch (assumed at first), 1 with
 *                           persistent workers, one more for each validation pass, many with dropout on the CPU.  The
 *                           search looks for the new state ahead of the old one, and assumes a step again once seen
 *   a generator of its own  goes on from where the permutation left it, known to the word, unless something else
 *                           draws from it.  If it is seeded anew for each epoch, the search tries seed + 1 first, and
 *                           once seen, that is expected
 *   numpy, Python           the shuffle of seed + epoch + 1; else the same generator goes on, or each epoch shuffles
 *                           the order that the one before has left.  The search finds out, and assumes it again
 *   RandomSampler unseeded  unknown.  The current epoch is found among 2^32 seeds if the caller spends threads on it
 *                           (prefetch/sampler/seed_scan.h)
 *
 * Use: prefetch_recognise_opened() takes well under a microsecond for each file and track.  prefetch_recognise_step()
 * searches and builds permutations, in slices that the caller bounds.
 *
 * Memory: 8 bytes a file of its list for each permutation, and about a byte a file besides.  At most
 * PREFETCH_TRACKS_MAX tracks have two permutations each, the current and the next one.
 *
 * Threads: any thread, one at a time (the caller's lock).  Sequences are immutable, and any thread may use them.  With
 * `search_thread` the recogniser has a thread of its own, at idle priority, which holds no lock. */
#ifndef DDPFS_PREFETCH_SAMPLER_RECOGNISE_H
#define DDPFS_PREFETCH_SAMPLER_RECOGNISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "prefetch/sampler/fit.h"
#include "prefetch/sampler/file_list.h"
#include "prefetch/sampler/sequence.h"

enum {
	PREFETCH_TRACKS_MAX = 8,
	PREFETCH_GIVEN_MAX = 4,
	PREFETCH_SEED_MAX_DEFAULT = 1000000,
	PREFETCH_POPULAR_WORDS_DEFAULT = 1 << 15,
	/* Defaults for the search's budget: the likely seeds, and seeds below 10,000 of each library, at once; then a
	 * twentieth of a processor. */
	PREFETCH_SEARCH_BURST_NS = 800000000,
	PREFETCH_SEARCH_PERMILLE = 50,
};

struct prefetch_recognise; /* opaque */

/* What trying all 2^32 seeds has cost. */
struct prefetch_scanned {
	bool running;          /* they are being tried */
	uint64_t tried;        /* seeds, since one was found */
	uint64_t cpu_ns;       /* of all threads, ever */
	unsigned begun, found; /* scans; seeds */
};

struct prefetch_recognise_options {
	const struct shard_index *index;         /* not owned */
	const struct shard_view *shown;          /* NULL, or the view whose on_bad leaves samples out; not owned */
	const struct prefetch_list_given *given; /* the caller's lists, such as this rank's part of a view; copied */
	unsigned n_given;                        /* at most PREFETCH_GIVEN_MAX */
	const struct prefetch_own_order *own;    /* ddpfs's own order, or NULL; copied */
	/* Epochs of `own` to try: the first own_epochs, and then as many from own_first on. */
	uint64_t own_epochs, own_first;
	bool own_last;        /* try `own` after sorted lists, because it may be one of them */
	uint32_t seed_max;    /* the largest seed + epoch to try; 0 = PREFETCH_SEED_MAX_DEFAULT */
	uint32_t shuffle_max; /* the same for other libraries than torch; 0 = as seed_max */
	/* RandomSampler: how many words of the default generator to try behind well-known manual seeds, because
	 * models may draw their weights first; 0 = PREFETCH_POPULAR_WORDS_DEFAULT, 1 = none. */
	uint32_t popular_words;
	/* A RandomSampler drew from the generator of manual_seed(seen_manual), up to its word seen_word; 0: unknown. */
	uint64_t seen_manual, seen_word;
	/* Threads that try all 2^32 seeds of a RandomSampler if the first opens of an epoch fit nothing else.  0 =
	 * none, at most PREFETCH_SEED_SCAN_THREADS_MAX. */
	unsigned scan_threads;
	uint32_t scan_first; /* the seed that they begin with */
	/* The budget of searching, in processor time, besides what opens cost.  It begins at search_burst_ns, its
	 * maximum, and grows by search_permille thousandths of the time that passes.  search_burst_ns 0: no limit.
	 * When opens have ended, the search finishes the look that they began, and stops trying all seeds. */
	uint64_t search_burst_ns;
	unsigned search_permille;
	bool search_thread; /* a thread at idle priority tries all seeds */
	/* For tests, or NULL: the processor time of the calling thread, and the time, in ns. */
	uint64_t (*cpu_ns)(void *user);
	uint64_t (*elapsed_ns)(void *user);
	struct prefetch_scanned scanned; /* what an earlier recogniser has counted; this one goes on from there */
	/* Called for each open that a track explains, from within prefetch_recognise_opened and _step.  May be NULL. */
	void (*explained)(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn);
	void *user;
};

/* Makes a recogniser.  Returns 0; -EINVAL: n_given or scan_threads is too large; -ENOMEM; -EAGAIN: the system has no
 * thread for `search_thread`; errors of a given list. */
int prefetch_recognise_new(const struct prefetch_recognise_options *options, struct prefetch_recognise **ret_recognise);

/* Ends its threads and frees it.  NULL is fine.  Sequences that it has returned stay valid. */
void prefetch_recognise_free(struct prefetch_recognise *recognise);

/* Takes in opens of `n` files, in the order seen.  Ids beyond the dataset's files are ignored.  A file that is opened
 * again before 256 others counts once (or before a sixteenth of all files, if that is less).  Readers look at a
 * header first, or try again.  Files of one sample count as one file, unless a track expects each of them. */
void prefetch_recognise_opened(struct prefetch_recognise *recognise, const uint32_t *files, size_t n);

/* Tells that opens have paused or that a listing was seen: an epoch may have ended, or may begin.  The search looks
 * at the opens since its last look.  Once all of them were looked at, the ring begins anew. */
void prefetch_recognise_pause(struct prefetch_recognise *recognise);

/* Ends all searches, because nobody needs their result now.  Opens are still taken in.  Nothing may be searched
 * (prefetch_recognise_step) before prefetch_recognise_go_on. */
void prefetch_recognise_rest(struct prefetch_recognise *recognise);
/* Ends a rest: a new search begins with the latest 96 unexplained opens, or with all of them if fewer came. */
void prefetch_recognise_go_on(struct prefetch_recognise *recognise);

enum { PREFETCH_RECOGNISE_LATER = 2 };
/* Searches and builds permutations for about `max_ns` of CPU time.  0: one slice, which takes about a millisecond, or
 * three for a world of hundreds of ranks.  It takes longer to list a directory tree whose files are opened for the
 * first time.  Cheap orders come first, however many seeds are being tried.
 * Returns 1: there is more to do; PREFETCH_RECOGNISE_LATER: there is, but the search's budget is spent, so call again
 * after some milliseconds; 0: it needs opens (all seeds may still be tried); -ENOMEM or index errors: call again
 * later. */
int prefetch_recognise_step(struct prefetch_recognise *recognise, uint64_t max_ns);

/* What searching has cost since the recogniser was made. */
struct prefetch_searched {
	uint64_t looks;       /* of the search at the ring */
	uint64_t seeds;       /* tried; counted once for each list */
	uint64_t cpu_ns;      /* of looks and seeds */
	uint64_t unexplained; /* opens that nothing explained, since the last recognition */
	uint64_t opens;       /* all; repeated ones, and files of one sample that are opened together, count once */
	uint64_t explained;   /* of these, what a track explained */
	unsigned wrong;       /* tracks that were dropped because the opens went on in another way */
	bool running;         /* all seeds are being tried */
};
/* Gets what searching has cost. */
void prefetch_recognise_searched(const struct prefetch_recognise *recognise, struct prefetch_searched *ret_searched);

enum prefetch_sampler {
	PREFETCH_SAMPLER_OWN,         /* ddpfs's own order */
	PREFETCH_SAMPLER_SORTED,      /* shuffle=False */
	PREFETCH_SAMPLER_DISTRIBUTED, /* torch.randperm of a generator seeded with `seed` */
	PREFETCH_SAMPLER_GENERATOR,   /* RandomSampler with a generator of its own, seeded with `seed` */
	PREFETCH_SAMPLER_RANDOM,      /* RandomSampler after torch.manual_seed(seed) */
	PREFETCH_SAMPLER_UNSEEDED,    /* RandomSampler that drew `seed` for this epoch from an unknown generator */
	/* Other libraries' shuffles, seeded with `seed` (prefetch/sampler/shuffle.h) */
	PREFETCH_SAMPLER_NUMPY,         /* RandomState, or numpy.random.seed() */
	PREFETCH_SAMPLER_NUMPY_RNG,     /* default_rng; Hugging Face datasets */
	PREFETCH_SAMPLER_PYTHON,        /* random.shuffle */
	PREFETCH_SAMPLER_PYTHON_SAMPLE, /* random.sample of the whole list */
	PREFETCH_SAMPLER_DALI,          /* readers.file(random_shuffle=True) */
	PREFETCH_SAMPLER_DALI_EPOCH,    /* readers.file(shuffle_after_epoch=True) */
};
enum { PREFETCH_SAMPLERS = PREFETCH_SAMPLER_DALI_EPOCH + 1 }; /* how many there are; saved tracks have no other */

/* A track as it is now. */
struct prefetch_recognised {
	uint32_t id;         /* of the track; never used again */
	uint32_t generation; /* changes when sequences that were returned before are wrong */
	enum prefetch_sampler sampler;
	uint64_t seed;                /* seed + epoch, the epoch for OWN, the manual seed for RANDOM */
	uint32_t before;              /* other libraries' shuffles: how many came before, if `goes_on` or `in_place` */
	bool goes_on, in_place;       /* the same: struct prefetch_shuffle */
	uint64_t word;                /* RANDOM: the word of the default generator that seeded the permutation */
	uint32_t world, first, ranks; /* as in prefetch/sampler/sequence.h */
	uint32_t buffer;              /* files that a shuffle buffer behind the sorted list holds, about; 0: none */
	uint32_t parts;               /* contiguous parts of the list or of its permutation, one a rank; else 0 */
	struct prefetch_pace pace;
	bool pace_sure;    /* two checks in a row gave this pace, enough batches were seen to begin, all of one size */
	uint64_t epoch;    /* 0 = the one in which it was recognised */
	uint64_t turn;     /* behind the farthest turn opened */
	uint64_t turns;    /* of an epoch */
	uint64_t opens;    /* explained by this track */
	uint64_t since;    /* opens of all readers since the last one that it explained */
	uint32_t repeated; /* how often the same permutation came again: set_epoch was forgotten */
	bool next_same;    /* the next epoch is expected to have the permutation of this one */
	bool unverified;   /* restored, and opens have not confirmed it yet */
	bool ready;        /* its permutation is made, so prefetch_recognise_sequence() works */
	bool confirmed;    /* this epoch came as expected */
	bool shards_twice; /* a distributed sampler over the part of one rank: the rest of the part is not read */
	bool as_given;     /* reads a whole list of `given` in its order */
	double score;      /* nats, at recognition */
	uint64_t after;    /* opens in the ring at recognition */
	char list[320];    /* prefetch_list_describe() */
};

/* A track in a few bytes, for a process that goes on after this one.  It lacks the permutations and which turns were
 * opened. */
struct prefetch_saved_track {
	uint32_t sampler, before, goes_on, in_place, deal, deal_kind;
	uint64_t seed, skip, name, word, step;
	uint32_t learned, repeated;
	uint32_t dir, sort, filter;               /* the list; dir SHARD_NONE: ddpfs's own order */
	uint32_t part_start, part_stride, part_n; /* a rank's part of it; part_n 0: the whole list */
	uint32_t world, first, ranks, stride, workers, batch, buffer;
	uint64_t size, high, epoch;
	char suffix[32];
};

/* Saves the tracks that can be saved: not those of given lists, nor unverified ones, nor ones without a permutation
 * yet.
 * Returns how many. */
unsigned prefetch_recognise_save(
        const struct prefetch_recognise *recognise, struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX]);
/* Follows `n` saved tracks.  Call it before the first opens.  It trusts nothing in them: it leaves out impossible
 * ones, and a track is `unverified` until opens confirm it, or is dropped.  It makes the lists that it needs, which
 * takes its time.
 * Returns 0; -ENOMEM; index errors. */
int prefetch_recognise_restore(
        struct prefetch_recognise *recognise, const struct prefetch_saved_track *saved, unsigned n);

/* Gets track i.  Returns 0; -ERANGE: there are no more than i tracks. */
int prefetch_recognise_get(
        const struct prefetch_recognise *recognise, unsigned i, struct prefetch_recognised *ret_track);

/* Writes what a person wants to know: "torch DistributedSampler, seed+epoch 17, rank 1 of 2, batch about 32".  Cuts
 * it to `size` bytes.  Returns buf. */
const char *prefetch_recognise_describe(const struct prefetch_recognised *track, char *buf, size_t size);

/* Gets the sequence of the track's current epoch (ahead 0) or of the one expected next (1), with a reference for the
 * caller.
 * Returns 0; -ENOENT: there is no such track, or nothing is expected; -EAGAIN: it is not made yet. */
int prefetch_recognise_sequence(
        struct prefetch_recognise *recognise, uint32_t id, unsigned ahead, struct prefetch_sequence **ret_sequence);

/* Begins the permutation of the epoch that comes `ahead` epochs after the track's current one, with a reference for the
 * caller, who completes it (prefetch_perm_step).  It is of the list of the track's sequences.  It assumes that the next
 * epochs come as the last ones did.
 * Returns 0; -EAGAIN: the track's own one is not made yet; -ENOENT: there is no such track, it has no permutation, or
 * its later ones are not known: only those of samplers that are seeded anew for each epoch are; -ENOMEM. */
int prefetch_recognise_perm(
        struct prefetch_recognise *recognise, uint32_t id, unsigned ahead, struct prefetch_perm **ret_perm);

/* Gets at most `max` turns of the track's current epoch that were opened, from *turn on.  Moves *turn behind the last
 * turn that it checked.  Returns how many; fewer than max: the epoch has no more; 0 also if there is no such track. */
size_t prefetch_recognise_used(
        const struct prefetch_recognise *recognise, uint32_t id, uint64_t *turn, uint64_t *turns, size_t max);

/* Gets what trying all 2^32 seeds has cost. */
void prefetch_recognise_scanned(const struct prefetch_recognise *recognise, struct prefetch_scanned *ret_scanned);

/* Returns the memory in use, in bytes. */
uint64_t prefetch_recognise_bytes(const struct prefetch_recognise *recognise);

#endif
