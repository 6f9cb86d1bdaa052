/* SPDX-License-Identifier: Apache-2.0 */
/* Private to recognise*.c. */
#ifndef DDPFS_PREFETCH_SAMPLER_RECOGNISE_PRIVATE_H
#define DDPFS_PREFETCH_SAMPLER_RECOGNISE_PRIVATE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "prefetch/sampler/recognise.h"
#include "prefetch/sampler/torch.h"
#include "prefetch/sampler/seed_scan.h"

enum {
	RING = PREFETCH_FIT_MAX, /* unexplained opens that are kept */
	RECENT = 64,             /* the latest of them, to begin a new ring with */
	LATEST = 256,            /* opens, whoever's: a file among them that is opened again counts once */
	LOOSE_MAX = 64,
	TRIAL_MAX = 64,
	LISTS_MAX = 32,
	SAVED_WORDS_MAX = 1 << 28, /* of a generator, in what was saved: a second to draw */
	REFUSED_MAX = 8,
	REFUSED_OPENS = 2048,  /* so long it is not tried again */
	DIRS_MAX = 6,          /* directories whose lists are tried */
	LIKELY_SEEDS = 10000,  /* looked at first */
	SLICE_ITEMS = 1 << 16, /* of a permutation or a filter, in one slice: under a millisecond */
	SLICE_FILES = 2048,    /* looked at for the filters */
	SLICE_EPOCHS = 4,      /* of ddpfs's own order */
	SLICE_WORK = 1 << 17,  /* outputs looked at, of all seeds and lists */
	EXACT_OUTPUTS = 8192,  /* of a hypothesis that passed the filter */
	FAR_OUTPUTS = 1 << 16, /* of one whose world is large */
};

/* Where a permutation comes from. */
struct source {
	enum prefetch_sampler sampler;
	uint32_t seed; /* what the generator of the permutation is seeded with; OWN: the epoch */
	uint64_t skip; /* words drawn from it before */
	uint64_t name; /* for people, and for RANDOM the manual seed */
	uint64_t word; /* RANDOM: index of the word of that generator that is `seed` */
	uint64_t step; /* what to add for the next epoch: to seed, word or skip */
	bool learned;  /* `step` was seen, not assumed */
};

/* A list in contiguous parts, one a rank (parts.c).  In a source: seed is the world, skip the kind. */
enum parts_kind {
	PARTS_UP,   /* of n / world files, rounded up; the last one has what is left */
	PARTS_DOWN, /* rounded down; the rest is nobody's */
	PARTS_EVEN, /* the first n % world have one file more */
};
struct parts {
	uint32_t n, world; /* world <= n */
	enum parts_kind kind;
};

struct track {
	uint32_t id, generation;
	struct source source, next_source;
	bool has_next;              /* next_source is what is expected */
	struct prefetch_list *list; /* NULL for OWN */
	uint64_t size;              /* positions */
	struct prefetch_part part;
	struct source before_source;       /* of the epoch before; name UINT64_MAX: none */
	struct prefetch_perm *perm, *next; /* NULL where there is no shuffle; else made or being made */
	struct prefetch_sequence *now, *then;
	uint64_t *used;        /* bit a position */
	uint64_t high;         /* behind the farthest position opened */
	uint64_t recent[RING]; /* positions near here, in the order of the opens, whichever rank's */
	uint64_t n_recent;     /* ever */
	struct loose {
		uint64_t position;
		uint64_t at; /* opens then */
		uint32_t file;
	} loose[LOOSE_MAX]; /* opened, and none just before it was: a batch begins, or a stranger's */
	uint32_t n_loose;
	uint64_t refit_at;
	uint64_t began;   /* positions below it may have been read before they were seen */
	uint32_t outside; /* opens near `high` that are not of the part, since the last refit */
	uint64_t epoch, opens, last_open;
	uint64_t made_at;        /* opens, of whomever */
	bool unverified;         /* restored: the next opens have not borne it out yet */
	uint32_t missed, fitted; /* opens of its files that were not expected, and that were, lately */
	uint32_t repeated;
	bool confirmed;
	uint32_t calm;                           /* expected opens since the trial began */
	uint32_t trial, trial_next, trial_again; /* opens that are not of this epoch's rest; of the next one, again */
	uint64_t trial_at[TRIAL_MAX];            /* their positions */
	double score;
	uint64_t after;
	struct prefetch_pace pace;
	bool pace_sure; /* two looks in a row gave it */
};

/* One list as the search sees it. */
struct target {
	struct prefetch_list *list; /* NULL for OWN */
	uint32_t n, n_seen;
	uint32_t threshold;       /* hits in the filter that let a hypothesis pass, in the family at hand */
	uint32_t indices[RING];   /* of the ring's files that are in it, in the order of the opens */
	uint32_t slots[RING * 4]; /* index + 1 -> its number in `indices`, open addressing */
	uint16_t numbers[RING * 4];
	struct prefetch_torch_filter filter;
};

struct family {
	enum prefetch_sampler sampler;
	uint32_t from, to; /* seeds, or words for `deep` */
	uint32_t skip;
	uint32_t draws;   /* RANDOM: seeds drawn after each manual seed that are tried */
	uint32_t outputs; /* what the filter looks at; over PREFETCH_FILTER_WORDS: exactly, one by one */
	bool deep;        /* RANDOM: all words [from, to) of the generator seeded with `manual` */
	uint64_t manual;
};

enum { FAMILIES_MAX = 48 };

/* What the exact prefix of a permutation is made on. */
struct workbench {
	uint32_t *perm;  /* FAR_OUTPUTS */
	uint64_t *table; /* 2 * FAR_OUTPUTS */
};

/* A hypothesis that explains a list's files. */
struct match {
	struct prefetch_list *list; /* not counted */
	struct source source;
	struct shard_mt19937 mt; /* where its permutation begins, if it is shuffled */
	struct prefetch_fit fit;
	uint32_t n;
	uint64_t positions[RING]; /* of the files, in the order of the opens */
};

/* What a family of hypotheses costs says when it is tried:
 *
 *   orders   lists as they are, ddpfs's own epochs, generators that go on: a search does it at once, whatever was spent
 *   LIKELY   the first seeds: milliseconds; by the recogniser's thread, as far as the budget goes
 *   FAR      all seeds up to a million: seconds; from what the budget has left, and by a thread at idle priority where there is
 *            one (background.c) */
enum seeds_cost { SEEDS_LIKELY, SEEDS_FAR };

struct seeds_place {
	uint32_t family;
	uint64_t at;
};

/* Seeds that are tried on a ring as it was then.  It shares nothing with the recogniser: any one thread may go on with it. */
struct seeds {
	uint32_t n_targets, n_families, family, far_target;
	uint32_t n_planned, turned; /* families of the plan, and which of them came first */
	uint64_t at;                /* in the family */
	uint64_t tried;             /* seeds and lists, ever */
	struct target *targets;     /* LISTS_MAX + 1 */
	struct family families[FAMILIES_MAX];
	struct shard_mt19937 deep_mt; /* deep: the generator at word `at` */
	struct shard_mt19937 exact_mt;
	struct prefetch_torch_words words;
	struct workbench bench;
	struct match match;
};

enum search_phase {
	SEARCH_TARGETS,
	SEARCH_OWN,
	SEARCH_SORTED,
	SEARCH_PARTS, /* contiguous parts of a list, one a rank */
	SEARCH_NAMES, /* the same over lists by name alone, which are made when they are needed */
	SEARCH_NAMED_PARTS,
	SEARCH_OWN_LAST,
	SEARCH_GENERATORS
};

/* A look at the ring: everything that costs little. */
struct search {
	bool running;
	bool all; /* all seeds are to be tried, not only the likely ones */
	enum search_phase phase;
	const struct target *sorted; /* what a sorted reader would fit best so far, or NULL */
	struct prefetch_fit sorted_fit;
	unsigned sorted_rank;
	uint32_t sorted_from; /* targets before it were looked at */
	struct parts parts;   /* what fits best so far; world 0: none */
	double parts_score;
	const struct target *parts_target;
	uint32_t n_ring; /* opens of the ring that are looked at: the first */
	uint32_t n_targets;
	uint64_t at;            /* in the phase */
	struct target *targets; /* LISTS_MAX + 1; of the last look */
	struct workbench bench;
	struct shard_mt19937 mt;
	struct match match;
};

/* The likely seeds of the last look. */
struct likely {
	bool running;
	bool due;          /* a look came while others were tried: its seeds are tried behind them */
	bool far, far_due; /* all seeds are to be tried once these are through; those of the look that is due */
	struct seeds seeds;
};

/* All seeds of a look: by its own thread, or where there is none by prefetch_recognise_step(). */
enum background_state { BACKGROUND_IDLE, BACKGROUND_BUSY, BACKGROUND_NONE, BACKGROUND_FOUND };
struct background {
	struct seeds *seeds; /* made at first use; the thread's while `state` is BUSY */
	_Atomic enum background_state state;
	_Atomic bool given_up, stop;
	_Atomic int64_t granted_ns; /* that the thread may spend */
	_Atomic uint64_t cpu_ns;
	_Atomic uint64_t tried;
	bool has_thread;
	pthread_t thread;
	sem_t work;
	struct seeds_place place; /* where it was given up last */
};

/* All seeds are tried (unseeded.c), for the ring as it was then. */
struct unseeded {
	struct prefetch_seed_scan *scan; /* NULL when none runs */
	struct target *targets;          /* of its own: the ring goes on without it */
	uint32_t n_targets;
	bool looked;                     /* in this pass */
	struct prefetch_scanned scanned; /* by those that have ended */
};

struct prefetch_recognise {
	struct prefetch_recognise_options options;
	struct prefetch_own_order own;
	struct prefetch_list *lists[LISTS_MAX];
	uint32_t n_lists;
	uint32_t listed[DIRS_MAX * 4]; /* directories whose lists were made */
	uint32_t n_listed;
	unsigned listing;             /* lists of the directory at hand that were made */
	uint32_t named[DIRS_MAX * 4]; /* directories whose lists by name were made */
	uint32_t n_named;
	struct prefetch_filters filters;
	bool filters_begun, filters_made;

	uint32_t latest[LATEST];
	uint64_t n_latest; /* ever, or since a pause */
	uint32_t ring[RING];
	uint32_t n_ring;
	uint64_t ring_since; /* opens at its first entry */
	uint32_t looked;     /* n_ring at the last search */
	bool pressing;       /* opens have paused: what is there may be all there is */
	uint32_t recent[RECENT];
	uint64_t n_recent;
	uint64_t *seen;    /* bit a file: unexplained and opened in this pass */
	bool rolling;      /* the ring began in the middle of something: only likely hypotheses */
	bool astray;       /* a track's trainer does something else */
	bool changed;      /* a track has moved: the ring is to be sifted */
	uint64_t overflow; /* unexplained opens since the ring was full, and how many bring a new one */
	uint64_t patience;
	uint64_t again; /* history: one bit an unexplained open, set where the file was seen */
	uint32_t n_files;
	uint64_t opens;

	struct track *tracks[PREFETCH_TRACKS_MAX];
	unsigned n_tracks;
	bool restoring; /* tracks come from what was saved: each is its own */
	uint32_t next_id;
	struct search search;
	struct likely likely;
	struct background background;
	struct unseeded unseeded;
	struct budget {
		int64_t left_ns;
		uint64_t at_ns;     /* elapsed, up to which it was filled up */
		uint64_t opened_ns; /* elapsed, at the last opens */
	} budget;
	uint64_t looks, search_ns; /* ever; without the background's */
	uint64_t unexplained;      /* opens, since something was recognised */
	unsigned wrong;            /* tracks that were dropped because their trainer does something else */
	struct refused {
		const struct prefetch_list *list;
		enum prefetch_sampler sampler;
		uint32_t seed;
		uint64_t opens; /* then; 0: none */
	} refused[REFUSED_MAX]; /* what they were, by `wrong` */
};

/* recognise.c: what the tracks explain by now leaves the ring. */
void prefetch_recognise_sift(struct prefetch_recognise *r);
bool prefetch_recognise_refused(
        const struct prefetch_recognise *r, const struct source *source, const struct prefetch_list *list);
/* These files, which a track was wrong about, are the ring now. */
void prefetch_recognise_collect_anew(struct prefetch_recognise *r, const uint32_t *files, uint32_t n);
/* What was not explained so far is of no interest. */
void prefetch_recognise_forget(struct prefetch_recognise *r);
uint64_t prefetch_recognise_now_ns(void); /* processor time of this thread */

/* search.c */
int prefetch_search_init(struct search *search);
void prefetch_search_done(struct search *search);
bool prefetch_search_due(const struct prefetch_recognise *r);
int prefetch_search_begin(struct prefetch_recognise *r);
/* One slice.  1 when it goes on, or something was recognised. */
int prefetch_search_step(struct prefetch_recognise *r);
/* A track of what explains the opens. */
int prefetch_search_accept(struct prefetch_recognise *r, const struct match *match);
/* All searches but the unseeded one are over: what they looked at is another's now. */
void prefetch_search_end(struct prefetch_recognise *r);

/* seeds.c */
int prefetch_workbench_init(struct workbench *bench);
void prefetch_workbench_done(struct workbench *bench);
int prefetch_seeds_init(struct seeds *seeds);
void prefetch_seeds_done(struct seeds *seeds);
/* targets are copied.  place: where to begin, or NULL. */
void prefetch_seeds_begin(const struct prefetch_recognise *r, enum seeds_cost cost, const struct target *targets,
        uint32_t n_targets, const struct seeds_place *place, struct seeds *seeds);
struct seeds_place prefetch_seeds_place(const struct seeds *seeds);
enum seeds_result { SEEDS_NONE, SEEDS_MORE, SEEDS_FOUND };
/* One slice.  FOUND: seeds->match. */
enum seeds_result prefetch_seeds_step(struct seeds *seeds);
/* Holds the exact prefix of (source, mt) against one of the targets.  True when that explains it.  Lists of the same size share
 * the permutation, and may agree in most places: the one that explains most is taken. */
bool prefetch_seeds_verify(struct workbench *bench, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt,
        struct match *ret_match);

/* recognise_background.c.  All are the recogniser's. */
int prefetch_background_init(struct prefetch_recognise *r);
void prefetch_background_done(struct prefetch_recognise *r);
/* Begins with the targets of the likely seeds, which were tried in vain.  Nothing where it is busy.  -ENOMEM. */
int prefetch_background_begin(struct prefetch_recognise *r);
/* Without a thread: one slice.  Takes what was found.  1 when there is more to do here, or something was recognised. */
int prefetch_background_step(struct prefetch_recognise *r);
/* The thread may spend more. */
void prefetch_background_grant(struct prefetch_recognise *r, int64_t ns);
void prefetch_background_give_up(struct prefetch_recognise *r);
bool prefetch_background_busy(const struct prefetch_recognise *r);

/* Where an index stands in target->slots, or may be put. */
static inline uint32_t prefetch_target_slot(const struct target *target, uint32_t index)
{
	uint32_t slot = index * UINT32_C(0x9e3779b9) >> 21; /* 11 bits: RING * 4 slots */
	while (target->slots[slot] != 0 && target->slots[slot] != index + 1)
		slot = (slot + 1) % (RING * 4);
	return slot;
}
_Static_assert(RING * 4 == 1 << 11, "prefetch_target_slot makes 11 bits");

/* recognise_unseeded.c.  The search has made its lists of the ring: begins a scan if there is to be one.  -ENOMEM. */
int prefetch_unseeded_begin(struct prefetch_recognise *r);
/* What it has found since.  1 when that was recognised. */
int prefetch_unseeded_step(struct prefetch_recognise *r);
/* The epoch is over. */
void prefetch_unseeded_end(struct prefetch_recognise *r);
/* A reader of this list is recognised: there is nothing more to find in it. */
void prefetch_unseeded_found(struct prefetch_recognise *r, const struct prefetch_list *list);

/* lists.c: the lists the files of the ring may come from.  1 while there is more to do. */
int prefetch_lists_step(struct prefetch_recognise *r);

/* The lists by name alone of those directories, if the names of the ring say that they are of use.  1 while there is more to do. */
int prefetch_lists_by_name(struct prefetch_recognise *r);

/* parts.c */
uint32_t prefetch_parts_shortest(const struct parts *parts);
uint32_t prefetch_parts_start(const struct parts *parts, uint32_t rank); /* index of its first file */
/* False: behind the shortest part. */
bool prefetch_parts_position(const struct parts *parts, uint32_t index, uint64_t *ret_position);
int prefetch_parts_perm(const struct parts *parts, struct prefetch_perm **ret_perm); /* -ENOMEM */

/* track.c */
int prefetch_track_new(struct prefetch_recognise *r, const struct source *source, struct prefetch_list *list,
        const struct shard_mt19937 *mt, const struct prefetch_fit *fit, const struct prefetch_part *part);
/* It goes on at this position, of this epoch. */
void prefetch_track_resume(struct track *track, const struct prefetch_saved_track *saved);
void prefetch_track_free(struct track *track);
/* How well an open is what the track expects. */
enum track_fit { TRACK_NOT, TRACK_LOOSE, TRACK_FITS }; /* the better the greater */
enum track_fit prefetch_track_fit(const struct track *track, uint32_t file, uint64_t *ret_position);
/* ... and it is taken for that. */
void prefetch_track_open(
        struct prefetch_recognise *r, struct track *track, uint32_t file, uint64_t position, bool loose);
/* A loose open that nothing has followed on for a while is a stranger's.  False when there is none. */
bool prefetch_track_stranger(const struct prefetch_recognise *r, struct track *track, uint32_t *ret_file);
/* An open that no track expected.  True when an epoch of this one begins with it. */
bool prefetch_track_unexpected(struct prefetch_recognise *r, struct track *track, uint32_t file);
/* One slice of its permutations.  1 while there is more. */
int prefetch_track_step(struct prefetch_recognise *r, struct track *track);

static inline bool bit_get(const uint64_t *map, uint64_t bit)
{
	return map[bit / 64] >> (bit % 64) & 1;
}

static inline void bit_set(uint64_t *map, uint64_t bit)
{
	map[bit / 64] |= UINT64_C(1) << (bit % 64);
}

#endif
