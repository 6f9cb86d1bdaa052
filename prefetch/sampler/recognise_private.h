/* SPDX-License-Identifier: Apache-2.0 */
/* What the .c files of recognition share: search.c, seeds.c, track.c and so on.  prefetch/sampler/recognise.h first.
 *
 * Threads: as in recognise.h.  A function without another word is for the recogniser's thread, with the caller's
 * lock. */
#ifndef DDPFS_PREFETCH_SAMPLER_RECOGNISE_PRIVATE_H
#define DDPFS_PREFETCH_SAMPLER_RECOGNISE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "prefetch/sampler/clips.h"
#include "prefetch/sampler/parts.h"
#include "prefetch/sampler/recognise.h"
#include "prefetch/sampler/torch.h"
#include "prefetch/sampler/shuffle_trace.h"
#include "prefetch/sampler/seed_scan.h"
#include "shard/base/bits.h"
#include "shard/base/clock.h"

enum {
	RING = PREFETCH_FIT_MAX, /* opens in the ring */
	RECENT = 64,             /* of these the latest, with which a new ring begins */
	TAIL = 96,               /* of these the latest, at which the search looks alone (struct tail) */
	LATEST = 256,            /* of all opens the latest: a file among them that is opened again counts once */
	LOOSE_MAX = 64,
	TRIAL_MAX = 64,
	LISTS_MAX = 32,
	PART_LISTS_MAX = 1024, /* of 32 lists those of up to 8 ranks in one or two divisions; about 150 bytes each */
	SINGLE_PARTS_MAX = 16,
	HOST_RANKS_TRIED = 8, /* lists of several ranks in one look */
	TRACED_MAX = HOST_RANKS_TRIED + PREFETCH_FILTER_KINDS,
	TARGETS_MAX = LISTS_MAX + TRACED_MAX,
	SAVED_WORDS_MAX = 1 << 28, /* of a generator, in a saved track: they take a second to draw */
	REFUSED_MAX = 8,
	REFUSED_OPENS = 2048,  /* a dropped track is not tried again for so many opens */
	DIRS_MAX = 6,          /* directories whose lists are tried */
	LIKELY_SEEDS = 10000,  /* tried first */
	SLICE_ITEMS = 1 << 16, /* of a permutation or a filter, in one slice: under a millisecond */
	SLICE_FILES = 2048,    /* for the filters of lists, in one slice */
	SLICE_EPOCHS = 4,      /* of ddpfs's own order, in one slice */
	SLICE_WORK = 1 << 17,  /* outputs of all seeds and lists, in one slice */
	EXACT_OUTPUTS = 8192,  /* computed of a hypothesis that passed the filter */
	FAR_OUTPUTS = 1 << 16, /* the same if its world is large */
};

/* Where a permutation comes from. */
struct source {
	enum prefetch_sampler sampler;
	uint64_t seed; /* seeds the generator of the permutation; OWN: the epoch; SORTED: the contiguous parts, or 0 */
	uint64_t skip; /* words drawn from that generator before; SORTED: the kind of the parts */
	uint64_t name; /* the seed for messages; RANDOM: the manual seed */
	uint64_t word; /* RANDOM: which word of the manual seed's generator is `seed` */
	/* Add this for the next epoch: to seed, word or skip.  GENERATOR: to skip, or if it is at most
	 * PREFETCH_RESEED_MAX, to the seed, because the generator is seeded anew for each epoch. */
	uint64_t step;
	uint32_t buffer; /* SORTED behind a shuffle buffer: the most files that it was seen to hold; else 0 */
	bool learned;    /* `step` was seen; else it is assumed */
	/* The samplers of other libraries than torch: as in struct prefetch_shuffle. */
	uint32_t before;
	bool goes_on, in_place;
	/* The permutation is dealt in so many contiguous parts, one a rank; 0: it is not. */
	uint32_t deal;
	enum parts_kind deal_kind;
};

enum { PREFETCH_RESEED_MAX = 1 }; /* fewer than the words of any permutation */

/* Whether the next epoch's permutation comes from the same generator, a GENERATOR that is not seeded anew. */
static inline bool prefetch_source_goes_on(const struct source *source)
{
	return source->sampler == PREFETCH_SAMPLER_GENERATOR && source->step > PREFETCH_RESEED_MAX;
}

/* Whether the sampler is another library's than torch: its permutation is named by struct prefetch_shuffle. */
static inline bool prefetch_source_foreign(const struct source *source)
{
	return source->sampler > PREFETCH_SAMPLER_UNSEEDED;
}

/* track.c and track_*.c have how a track is followed. */
struct track {
	uint32_t id, generation; /* struct prefetch_recognised */
	struct source source, next_source;
	bool has_next;              /* next_source is set: it is expected next */
	struct prefetch_list *list; /* NULL for OWN */
	uint64_t size;              /* positions */
	struct prefetch_part part;
	struct source before_source;          /* of the last epoch, if `epoch` is not 0 */
	struct prefetch_perm *perm, *next;    /* this epoch's and the next one's; NULL: no shuffle, or not begun */
	struct prefetch_sequence *now, *then; /* the same as sequences; NULL: not made yet */
	uint64_t *used;                       /* a bit a position: opened in this epoch */
	uint64_t *used_before;                /* opened in the epoch before, valid if `late`; NULL before the first */
	bool late;       /* a rank with a part of its own, or a shuffle buffer, may still read the epoch before */
	uint64_t opened; /* behind a shuffle buffer: opens of this epoch, ... */
	uint32_t held;   /* ... and the most files that the buffer held in it */
	uint64_t high;   /* behind the farthest position opened */
	uint64_t window; /* while the ring's opens are taken in: all below it fit, because the search found so many */
	uint64_t recent[RING]; /* opened positions near `high`, of any rank, in the order of the opens; a ring */
	uint64_t n_recent;     /* in this epoch */
	struct loose {
		uint64_t position;
		uint64_t at; /* the recogniser's `opens` then */
		uint32_t file;
		bool told;  /* that it was opened */
	} loose[LOOSE_MAX]; /* opened, but none just before it: it begins a batch, or another reader opened it */
	uint32_t n_loose;
	uint64_t refit_at;                /* n_recent at the next refit */
	uint64_t began;                   /* positions below it may have been opened unseen */
	uint32_t outside;                 /* opens near `high` outside the part, since the last refit */
	uint64_t epoch, opens, last_open; /* last_open: the recogniser's `opens` when it last explained one */
	uint64_t made_at;                 /* the recogniser's `opens` when the track was made */
	bool unverified;                  /* restored, and opens have not confirmed it yet */
	uint32_t missed, fitted;          /* opens of its list's files, lately: not expected, and expected */
	uint32_t repeated;                /* struct prefetch_recognised */
	bool confirmed;                   /* the same */
	uint32_t calm;                    /* expected opens since the trial began */
	/* Unexpected opens; of these, those at the beginning of the next epoch, and of this one again. */
	uint32_t trial, trial_next, trial_again;
	uint64_t trial_at[TRIAL_MAX]; /* positions of the trial */
	double score;                 /* struct prefetch_recognised */
	uint64_t after;               /* the same */
	struct prefetch_pace pace;
	uint32_t batch, batch_starts; /* that refits have found, and the sum of their pace.starts */
	bool batch_doubtful;          /* refits found different ones */
	bool pace_sure;               /* struct prefetch_recognised */
	/* A random.sample of a part: the samples of one file less and of one more (sample_size.c).  NULL: not begun, or
	 * there is none. */
	struct prefetch_perm *rivals[2];
	bool size_sure;      /* no other length is looked for */
	uint64_t compare_at; /* the recogniser's `opens` at the next comparison with them */
};

/* One list as the search sees it. */
struct target {
	struct prefetch_list *list; /* NULL for OWN */
	uint32_t n, n_seen;         /* files of the list; entries of `indices` */
	uint32_t threshold;         /* a hypothesis of the current family passes the filter with so many hits */
	bool last;                  /* all seeds are tried on it after they were tried on all other lists in vain */
	uint32_t indices[RING];     /* of the ring's files in this list, in the order of the opens */
	uint32_t entries[RING * 4]; /* hash table, open addressing: index + 1; 0: empty */
	uint16_t numbers[RING * 4]; /* the entry's place in `indices` */
	struct prefetch_torch_filter filter;
};

/* Hypotheses that are tried one after the other. */
struct family {
	enum prefetch_sampler sampler;
	uint32_t from, to; /* seeds [from, to); `deep`: words */
	bool traced;       /* by prefetch_trace_try(): another library's shuffle, or torch's in contiguous parts */
	bool quick, again; /* traced: by the quick test; not by it, after it has found nothing */
	bool shared;       /* traced: half of the opens may be another job's */
	bool spare;        /* of the likely ones: left out if less than the reserve of the budget is left */
	uint32_t skip;     /* words drawn before the permutation */
	uint32_t draws;    /* RANDOM: how many seeds to try that are drawn after each manual seed */
	uint32_t outputs;  /* that the filter checks; above PREFETCH_FILTER_WORDS: computed exactly, seed by seed */
	bool deep;         /* RANDOM: all words [from, to) of the generator seeded with `manual` */
	uint64_t manual;
};

enum { FAMILIES_MAX = 192 };

/* Memory for prefetch_torch_prefix(). */
struct workbench {
	uint32_t *perm;  /* FAR_OUTPUTS */
	uint64_t *table; /* 2 * FAR_OUTPUTS */
};

/* A hypothesis that explains a list's files. */
struct match {
	struct prefetch_list *list; /* no reference */
	struct source source;
	struct shard_mt19937 mt; /* where its permutation begins; only if shuffled */
	struct prefetch_fit fit;
	uint32_t n;
	uint64_t positions[RING]; /* n, of the files, in the order of the opens */
};

/* What a family of hypotheses costs, which says when it is tried:
 *
 *   orders   lists as they are, ddpfs's own epochs, generators that go on: the search tries them at once
 *   FIRST    a few seeds of shuffles that the ring's look may have missed (struct tail)
 *   LIKELY   the first seeds, milliseconds: the recogniser's thread tries them while the budget lasts
 *   FAR      all seeds up to a million, seconds: with the rest of the budget, by a thread at idle priority if there is
 *            one (background.c) */
enum seeds_cost { SEEDS_FIRST, SEEDS_LIKELY, SEEDS_FAR };

/* Where a run of FAR seeds ended. */
struct seeds_place {
	uint32_t family;
	uint64_t at;
};

/* Seeds that are tried on a copy of the ring.  It shares nothing with the recogniser, so any one thread may go on
 * with it. */
struct seeds {
	/* The targets before n_targets; after these up to n_traced are those that only families with `traced` try. */
	uint32_t n_targets, n_traced;
	uint32_t n_families, family, far_target;
	uint32_t n_planned, turned; /* families of the plan; which of them came first */
	uint64_t at;                /* the next seed or word of the family */
	uint64_t tried;             /* seeds, once for each list, since prefetch_seeds_init() */
	struct target *targets;     /* room for TARGETS_MAX + 1 */
	struct family families[FAMILIES_MAX];
	struct shard_mt19937 deep_mt; /* `deep`: the generator at word `at` */
	struct shard_mt19937 exact_mt;
	struct prefetch_torch_words words;
	struct workbench bench;
	struct prefetch_seeded seeded;                  /* for the traces */
	struct prefetch_trace *traces[TARGETS_MAX + 1]; /* of the targets, made when needed; NULL: none, or no memory */
	uint32_t dali_cells[TARGETS_MAX + 1][RING]; /* where the shuffles of the epochs so far have put opened files */
	struct match match;
};

enum search_phase {
	SEARCH_TARGETS, /* makes a target of each list */
	SEARCH_OWN,     /* ddpfs's own order, unless own_last */
	SEARCH_SORTED,
	SEARCH_PARTS,       /* contiguous parts of a list, one a rank */
	SEARCH_NAMES,       /* SORTED over lists by name alone, which are made when needed */
	SEARCH_NAMED_PARTS, /* PARTS over these */
	SEARCH_OWN_LAST,    /* ddpfs's own order, if own_last */
	SEARCH_RANKS,       /* makes targets of ranks' parts of the lists */
	SEARCH_GENERATORS,  /* generators of tracks that go on */
	SEARCH_BUFFER       /* a shuffle buffer behind a list, if it can be nothing else; then the seeds begin */
};

/* A shuffle buffer behind a list, which explains the opens of a look. */
struct buffer_match {
	struct prefetch_list *list; /* no reference; NULL: none */
	struct prefetch_fit fit;
	uint32_t opens; /* of the list's files */
};

/* A look at the ring: all hypotheses that cost little. */
struct search {
	bool running;
	bool all;   /* afterwards all seeds are tried, not only the likely ones */
	bool tail;  /* a look at the tail: only for seeds */
	bool hasty; /* of few opens, and another one follows soon */
	enum search_phase phase;
	const struct target *sorted; /* the list that a sorted reader fits best so far, or NULL */
	struct prefetch_fit sorted_fit;
	unsigned sorted_rank;
	uint32_t sorted_from; /* targets before it are done */
	struct parts parts;   /* those that fit best so far; world 0: none */
	double parts_score;
	const struct target *parts_target;
	/* The look takes these opens: the first n_ring of the ring, or those of the tail. */
	const uint32_t *files;
	uint32_t n_ring, tail_files[TAIL];
	struct buffer_match buffer;   /* explains these opens, too */
	uint32_t n_targets, n_traced; /* n_traced: behind these, for shuffles only; TRACED_MAX at most */
	uint64_t at;                  /* the phase's next item */
	struct target *targets;       /* room for TARGETS_MAX + 1; of the last look */
	struct workbench bench;
	struct shard_mt19937 mt;
	struct match match;
};

/* Others may open files right before an epoch begins.  Then most of the ring is theirs, and no seed explains it.  So
 * the search also looks at the tail, the latest opens alone.  Each look moves on by a third of it. */
struct tail {
	uint64_t since; /* opens since the last such look */
	uint32_t looks; /* one of three tries all likely seeds, the others the first ones of other libraries */
};

/* The likely seeds of the last look. */
struct likely {
	bool running;
	bool tail;                  /* of a look at the tail */
	bool middle;                /* of that, or of a ring that began in the middle of an epoch */
	bool due;                   /* another look came meanwhile: its likely seeds come next */
	bool hasty;                 /* of a hasty look: those of a later look take their place */
	bool far, far_due;          /* all seeds come after these, and first lists by name; after those that are due */
	struct buffer_match buffer; /* of the pass's first look that found one; taken if these seeds are in vain */
	struct buffer_match also;   /* explains the opens of these seeds, too */
	uint32_t opens;             /* of these seeds */
	struct seeds seeds;
};

/* Tries all seeds of a look: in a thread of its own, or without one in prefetch_recognise_step().  background.c has the
 * states. */
enum background_state { BACKGROUND_IDLE, BACKGROUND_BUSY, BACKGROUND_NONE, BACKGROUND_FOUND };
struct background {
	struct seeds *seeds; /* made at first use; belongs to the thread while `state` is BUSY */
	_Atomic enum background_state state;
	_Atomic bool given_up, stop; /* nobody wants the result; the thread shall end */
	_Atomic int64_t granted_ns;  /* processor time that the thread may still spend */
	_Atomic uint64_t cpu_ns;     /* that it has spent */
	_Atomic uint64_t tried;      /* seeds->tried */
	bool has_thread;
	pthread_t thread;
	sem_t work;               /* wakes the thread */
	struct seeds_place place; /* where the next run begins: the last one was given up there */
	/* Lists for shuffles only that the run lacks.  anew: it is given up, and begins anew with them; else they are
	 * tried when it has ended in vain. */
	struct target *more; /* room for TRACED_MAX; NULL: not made yet */
	uint32_t n_more;
	bool anew;
	const struct prefetch_list *traced[TRACED_MAX]; /* those that were tried in this pass, or are being tried */
	uint32_t n_traced;
};

/* Tries all 2^32 seeds (unseeded.c), on a copy of the ring. */
struct unseeded {
	struct prefetch_seed_scan *scan; /* NULL: none runs */
	struct target *targets;          /* the scan's own, because the ring goes on */
	uint32_t n_targets;
	bool looked;                     /* this pass has had its scan */
	struct prefetch_scanned scanned; /* the sums of the scans that have ended */
};

struct prefetch_recognise {
	struct prefetch_recognise_options options;
	struct prefetch_own_order own;
	struct prefetch_list *lists[LISTS_MAX];
	uint32_t n_lists;
	struct prefetch_list *part_lists[PART_LISTS_MAX]; /* ranks' parts of these, shuffled by themselves */
	uint32_t n_part_lists;
	struct prefetch_list
	        *single_parts[SINGLE_PARTS_MAX]; /* of these the latest of single ranks; each look tries them */
	uint64_t n_single_parts;                 /* ever; the array is a ring */
	uint32_t listed[DIRS_MAX * 4];           /* directories whose lists are made */
	uint32_t n_listed;
	unsigned listing;             /* lists of the next directory that are made */
	uint32_t named[DIRS_MAX * 4]; /* directories whose lists by name are made */
	uint32_t n_named;
	struct prefetch_list *shuffled[PREFETCH_FILTER_KINDS]; /* by name, too, for shuffles only */
	uint32_t n_shuffled;
	bool shuffled_made;
	struct prefetch_filters filters;
	bool filters_begun, filters_made;

	struct prefetch_clips clips;

	uint64_t latest[LATEST]; /* what was opened latest (`opened_unit`); a ring */
	uint64_t n_latest;       /* since the last pause */
	uint32_t ring[RING];     /* files of unexplained opens, each once, in their order */
	uint32_t n_ring;
	uint64_t ring_since;   /* `opens` at its first entry */
	uint64_t collected_at; /* `opens` at the latest unexplained one */
	uint32_t looked;       /* n_ring at the last look */
	bool pressing;         /* opens have paused, so there may come no more: look at what is there */
	uint32_t recent[TAIL]; /* files of the latest unexplained opens; a ring */
	uint64_t n_recent;
	uint64_t *seen;    /* a bit a file: its open in this pass is unexplained */
	bool rolling;      /* the ring began in the middle of an epoch: only likely hypotheses */
	bool astray;       /* a track's trainer does something else */
	bool changed;      /* a track has changed: sift the ring */
	bool sifting;      /* the tracks are asked about opens of the ring, once more */
	uint64_t overflow; /* unexplained opens since the ring was full */
	uint64_t patience; /* so many of them begin a new ring */
	uint64_t again;    /* the last 64 unexplained opens, a bit each: the file was in `seen` already */
	uint64_t pass_opens, pass_repeats; /* unexplained opens in this pass; those of files that were in `seen` */
	uint32_t n_files;
	uint64_t opens; /* since the recogniser was made; repeated ones count once */

	struct track *tracks[PREFETCH_TRACKS_MAX];
	unsigned n_tracks;
	bool restoring; /* new tracks come from saved ones, so none continues another */
	uint32_t next_id;
	struct search search;
	struct tail tail;
	struct likely likely;
	struct background background;
	struct unseeded unseeded;
	struct budget {
		int64_t left_ns;    /* processor time */
		uint64_t at_ns;     /* when it was last filled up */
		uint64_t opened_ns; /* when the last opens came */
	} budget;
	uint64_t looks, search_ns; /* struct prefetch_searched, without the background's */
	uint64_t unexplained;      /* the same */
	uint64_t explained;        /* the same */
	unsigned wrong;            /* the same */
	struct refused {
		const struct prefetch_list *list;
		enum prefetch_sampler sampler;
		uint64_t seed;
		bool buffered;
		uint64_t opens; /* then; 0: an empty entry */
	} refused[REFUSED_MAX]; /* the dropped tracks; a ring by `wrong` */
};

/* ---- recognise.c ---- */

/* Takes out of the ring what tracks explain. */
void prefetch_recognise_sift(struct prefetch_recognise *r);
/* Returns whether a track like this was dropped within the last REFUSED_OPENS opens. */
bool prefetch_recognise_refused(
        const struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list);
/* Makes the ring anew from these files, which a wrong track had explained. */
void prefetch_recognise_collect_anew(struct prefetch_recognise *r, const uint32_t *files, uint32_t n);
/* Empties the ring: a new pass begins. */
void prefetch_recognise_forget(struct prefetch_recognise *r);
/* ---- search.c ---- */

int prefetch_search_init(struct search *search); /* 0 or -ENOMEM */
void prefetch_search_done(struct search *search);

/* Returns whether there are enough new opens in the ring for a look. */
bool prefetch_search_due(const struct prefetch_recognise *r);

/* Tries the likely seeds of the last look.  cost: FIRST or LIKELY.  far: all seeds come after these. */
void prefetch_search_seeds(struct prefetch_recognise *r, enum seeds_cost cost, bool far);

/* The likely seeds, after which all seeds come, were tried in vain.  Makes the lists by name, which take a sort, and
 * begins to try the same seeds on them.  Does so once, because later looks have these lists.  Returns 1: it began; 0:
 * there are none, or looks have them; -errno. */
int prefetch_search_by_name(struct prefetch_recognise *r);

/* Begins a look at the ring.  Returns 0. */
int prefetch_search_begin(struct prefetch_recognise *r);

/* Returns whether there are enough new opens for a look at the tail. */
bool prefetch_search_tail_due(const struct prefetch_recognise *r);
void prefetch_search_tail_begin(struct prefetch_recognise *r);

/* Does one slice of the look.  Returns 1 or -errno. */
int prefetch_search_step(struct prefetch_recognise *r);

/* Makes a track of a hypothesis that explains the opens, and ends the searches.  Returns as prefetch_track_new. */
int prefetch_search_accept(struct prefetch_recognise *r, const struct match *match);

/* Whether all ranks of some contiguous parts of a sorted list explain `n` opened indices, in the order of the opens.
 * n <= RING.  Pure; a few milliseconds. */
bool prefetch_search_in_parts(uint32_t n_files, const uint32_t *indices, uint32_t n);

/* Ranks how likely a trainer reads this list in its order.  3: its directory holds the directory of the file, as a
 * dataset holds its classes; 2: it is the directory of the file; 1: another one; 0: the reader did not begin at its
 * beginning. */
unsigned prefetch_search_plausible(
        const struct prefetch_recognise *r, const struct target *target, uint32_t a_file, uint64_t low);

/* Ends all searches but the scan of unseeded.c, because the ring has changed. */
void prefetch_search_end(struct prefetch_recognise *r);

/* ---- seeds.c ---- */

int prefetch_workbench_init(struct workbench *bench); /* 0 or -ENOMEM */
void prefetch_workbench_done(struct workbench *bench);
int prefetch_seeds_init(struct seeds *seeds); /* 0 or -ENOMEM */
void prefetch_seeds_done(struct seeds *seeds);

/* Begins to try the seeds of this cost on a copy of `targets`.  place: where to begin, or NULL. */
void prefetch_seeds_begin(const struct prefetch_recognise *r, enum seeds_cost cost, const struct target *targets,
        uint32_t n_targets, const struct seeds_place *place, struct seeds *seeds);

/* Adds targets that only families with `traced` try.  After prefetch_seeds_begin(). */
void prefetch_seeds_add_traced(struct seeds *seeds, const struct target *targets, uint32_t n_targets);

/* Begins anew with the same families, without targets.  The caller adds those that only families with `traced` try. */
void prefetch_seeds_repeat(struct seeds *seeds);

/* Returns where it is, for a later prefetch_seeds_begin(). */
struct seeds_place prefetch_seeds_place(const struct seeds *seeds);

enum seeds_result { SEEDS_NONE, SEEDS_MORE, SEEDS_FOUND };
/* Tries one slice of seeds.  NONE: all were tried in vain; MORE: call again; FOUND: seeds->match has it. */
enum seeds_result prefetch_seeds_step(struct seeds *seeds);

/* Returns whether the seeds that are next are `spare`. */
bool prefetch_seeds_spare(const struct seeds *seeds);
/* Leaves out the rest of the family.  Returns as prefetch_seeds_step(), but not FOUND. */
enum seeds_result prefetch_seeds_skip(struct seeds *seeds);

/* Compares the exact prefix of the permutation (source, mt) with `target`.  Returns true if it explains the target's
 * opens.  Lists of the same size share the permutation, and may agree in most places: *ret_match has the one that it
 * explains best. */
bool prefetch_seeds_verify(struct workbench *bench, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt,
        struct match *ret_match);

/* The same for a shuffle that begins with the generator `rng`.  `trace` is set to the target's opened files.  Tries
 * whether the permutation is read whole, by a rank's stride, or in contiguous parts; ret_match->source says so. */
bool prefetch_seeds_verify_shuffle(struct prefetch_trace *trace, struct prefetch_rng *rng, const struct target *target,
        const struct source *source, struct match *ret_match);

/* ---- background.c ---- */

/* Starts the thread if options.search_thread.  Returns 0; -EAGAIN: the system has no thread. */
int prefetch_background_init(struct prefetch_recognise *r);
void prefetch_background_done(struct prefetch_recognise *r);

/* The likely seeds were tried in vain: begins to try all seeds on their targets.  whole: on all of them, unless it is
 * busy with those of an earlier look; else only on those that only shuffles try, each list once in a pass.
 * Returns 0 or -ENOMEM. */
int prefetch_background_begin(struct prefetch_recognise *r, bool whole);

/* Takes in what was found.  Without a thread it first tries one slice.  Returns 1: there is more to do here, or
 * something was recognised. */
int prefetch_background_step(struct prefetch_recognise *r);

/* Lets the thread spend `ns` more of processor time. */
void prefetch_background_grant(struct prefetch_recognise *r, int64_t ns);

/* Tells that nobody wants the result any more. */
void prefetch_background_give_up(struct prefetch_recognise *r);

bool prefetch_background_busy(const struct prefetch_recognise *r);

/* Returns the entry of an index in target->entries: the one that has it, or the empty one where it belongs. */
static inline uint32_t prefetch_target_entry(const struct target *target, uint32_t index)
{
	uint32_t entry = index * UINT32_C(0x9e3779b9) >> 21; /* 11 bits: RING * 4 entries */
	while (target->entries[entry] != 0 && target->entries[entry] != index + 1)
		entry = (entry + 1) % (RING * 4);
	return entry;
}
_Static_assert(RING * 4 == 1 << 11, "prefetch_target_entry makes 11 bits");

/* ---- unseeded.c ---- */

/* Begins a scan if one is due.  Call it when a look has made its targets.  Returns 0 or -ENOMEM. */
int prefetch_unseeded_begin(struct prefetch_recognise *r);

/* Checks the seeds that passed since the last call.  Returns 1: something was recognised, or there may be more; 0. */
int prefetch_unseeded_step(struct prefetch_recognise *r);

/* Ends the scan, because the epoch is over. */
void prefetch_unseeded_end(struct prefetch_recognise *r);

/* Ends the scan if it is about this list, because a reader of the list was recognised. */
void prefetch_unseeded_found(struct prefetch_recognise *r, const struct prefetch_list *list);

/* ---- candidate_lists.c ---- */

/* Finds the suffix that most of the files have (majority vote); "": none.  In a dataset whose samples have several
 * files it begins at the first dot of a name, if most names agree. */
void prefetch_common_suffix(
        const struct shard_index *index, const uint32_t *files, size_t n, char ret_suffix[PREFETCH_SUFFIX_MAX + 1]);

/* Makes the lists that the ring's files may come from, one slice.  Returns 1: there is more to do; 0: done; -errno. */
int prefetch_lists_step(struct prefetch_recognise *r);

/* Makes the lists by name alone of these directories, if the ring's names suggest such a reader.  Returns as above. */
int prefetch_lists_by_name(struct prefetch_recognise *r);

/* Makes the lists by name of the files that list has, for shuffles, unless they are made.  Returns 0 or -errno. */
int prefetch_lists_shuffled(struct prefetch_recognise *r, const struct prefetch_list *list);
/* A shuffle of one of these lists was found: from now on it is a list as others are. */
void prefetch_lists_found(struct prefetch_recognise *r, const struct prefetch_list *list);

/* ---- part_lists.c ---- */

/* Makes the lists of ranks' parts of a target's list that hold most of its opens, for all looks.  Returns 0 or
 * -ENOMEM. */
int prefetch_part_lists_add(struct prefetch_recognise *r, const struct target *target);

struct rank_lists {
	struct prefetch_list *lists[HOST_RANKS_TRIED]; /* no references */
	uint32_t n;
	bool unsure; /* nothing but the opens' number says that there are such parts */
};
/* Adds the lists of single ranks that may be among several readers of a target's list, each with its own part.  Returns
 * 0 or -ENOMEM. */
int prefetch_part_lists_of_ranks(
        struct prefetch_recognise *r, const struct target *whole, struct rank_lists *ret_lists);

/* Finds or makes this part of a list.  The recogniser keeps the reference.  Returns 0; -ENOSPC: there are too many;
 * errors of prefetch_list_new_part. */
int prefetch_part_lists_make(struct prefetch_recognise *r, struct prefetch_list *whole,
        const struct prefetch_list_part *part, struct prefetch_list **ret_list);

/* The same, and the looks try the part from then on. */
int prefetch_part_lists_get(struct prefetch_recognise *r, struct prefetch_list *whole,
        const struct prefetch_list_part *part, struct prefetch_list **ret_list);

/* ---- begun_parts.c ---- */

enum { PREFETCH_PARTS_WORLD_MAX = 64 }; /* ranks with contiguous parts */

/* Finds the fewest contiguous parts of a list of n_files that have all been begun at their beginnings.  opened: a bit a
 * file of the list.  Returns false if there are none.  Pure; 64 x PARTS_KINDS walks over the bits at most. */
bool prefetch_begun_parts(const uint64_t *opened, uint32_t n_files, struct parts *ret_parts);

/* ---- shuffle_buffer.c ---- */

/* Tries whether the opens of the last look are those of a shuffle buffer behind one of its lists.  If they may also be
 * a shuffle of one rank's contiguous part, the likely seeds have to be tried first: then likely.buffer has what was
 * found.  Of a look at the tail only search.buffer is set.  Returns 1: it was recognised; 0; -ENOMEM. */
int prefetch_shuffle_buffer_try(struct prefetch_recognise *r);

/* Makes a track of what was found, and ends the searches.  Returns 1 or -ENOMEM. */
int prefetch_shuffle_buffer_accept(struct prefetch_recognise *r, const struct buffer_match *match);

/* ---- track.c and track_*.c ---- */

/* Returns the shuffle that makes the permutation of a source. */
struct prefetch_shuffle prefetch_source_shuffle(const struct source *source);

/* Makes a track, or lets an existing one go on with this source.  mt: where the permutation begins, or NULL: no
 * shuffle.  Returns 0; -ENOMEM; errors of a sequence. */
int prefetch_track_new(struct prefetch_recognise *r, const struct source *source, struct prefetch_list *list,
        const struct shard_mt19937 *mt, const struct prefetch_fit *fit, const struct prefetch_part *part);

/* Returns how many turns lie before the farthest open. */
uint64_t prefetch_track_turns_opened(const struct track *track);

/* Sets a new track to the position and the epoch of a saved one. */
void prefetch_track_resume(struct track *track, const struct prefetch_saved_track *saved);
void prefetch_track_free(struct track *track); /* NULL is fine */

/* How well the track expected an open.  A better fit is greater: what one track still waits for may be what another
 * one opens next. */
enum track_fit {
	TRACK_NOT,
	TRACK_LOOSE,
	TRACK_LATE, /* it fits the epoch before, which this rank still reads */
	TRACK_FITS,
};
enum track_fit prefetch_track_fit(const struct track *track, uint32_t file, uint64_t *ret_position);

/* Takes the open of `file` as the track's, at `position`.  fit: what prefetch_track_fit returned, not TRACK_NOT. */
void prefetch_track_open(
        struct prefetch_recognise *r, struct track *track, uint32_t file, uint64_t position, enum track_fit fit);

/* Gets back a loose open that no other has followed: it is another reader's.  Returns false if there is none. */
bool prefetch_track_stranger(const struct prefetch_recognise *r, struct track *track, uint32_t *ret_file);

/* Tells the track of an open that no track expected.  Returns true if the track explains it all the same: it begins
 * an epoch, or is a file of a sample that was opened already, or the same file once more. */
bool prefetch_track_unexpected(struct prefetch_recognise *r, struct track *track, uint32_t file);

/* Lets the track go on with a part of another length, which begins at the same file and has this permutation of the
 * same source.  Takes references.  What was opened is kept.  Returns 0; -ENOMEM, and the track stays as it is. */
int prefetch_track_change_part(
        struct prefetch_recognise *r, struct track *track, struct prefetch_list *list, struct prefetch_perm *perm);

/* Returns struct prefetch_recognised.next_same. */
bool prefetch_track_next_same(const struct track *track);

/* Begins the permutation of a later epoch: prefetch_recognise_perm(). */
int prefetch_track_perm(const struct track *track, unsigned ahead, struct prefetch_perm **ret_perm);

/* Drops a track without shuffle whose latest opens may be clips.  Returns false if there is none. */
bool prefetch_track_drop_clips(struct prefetch_recognise *r);

/* Does one slice of its work: permutations, refits.  Returns 1: there is more to do; 0; -errno. */
int prefetch_track_step(struct prefetch_recognise *r, struct track *track);

/* ---- sample_size.c ---- */

/* Does one slice of finding out how many files the part has whose sample a track follows.  It must have its sequence.
 * Returns 1: there is more to do, or the track goes on with a part of another length; 0.  Without memory the track
 * keeps its length. */
int prefetch_sample_size_step(struct prefetch_recognise *r, struct track *track);

/* Frees what the comparison needs, because the epoch is over. */
void prefetch_sample_size_forget(struct track *track);

#endif
