/* Private to recognise*.c. */
#ifndef DDPFS_PREFETCH_RECOGNISE_PRIVATE_H
#define DDPFS_PREFETCH_RECOGNISE_PRIVATE_H

#include "prefetch/recognise.h"
#include "prefetch/recognise_torch.h"
#include "prefetch/seed_scan.h"

enum {
	RING = PREFETCH_FIT_MAX, /* unexplained opens that are kept */
	RECENT = 64,             /* the latest of them, to begin a new ring with */
	LATEST = 256,            /* opens, whoever's: a file among them that is opened again counts once */
	LOOSE_MAX = 64,
	TRIAL_MAX = 64,
	LISTS_MAX = 32,
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
	uint32_t repeated;
	bool confirmed;
	uint32_t calm;                           /* expected opens since the trial began */
	uint32_t trial, trial_next, trial_again; /* opens that are not of this epoch's rest; of the next one, again */
	uint64_t trial_at[TRIAL_MAX];            /* their positions */
	double score;
	uint64_t after;
	struct prefetch_pace pace;
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

enum search_phase { SEARCH_TARGETS, SEARCH_OWN, SEARCH_SORTED, SEARCH_OWN_LAST, SEARCH_GENERATORS, SEARCH_SEEDS };

struct search {
	bool running;
	bool all; /* all seeds, not only the likely ones */
	enum search_phase phase;
	const struct target *sorted; /* what a sorted reader would fit best so far, or NULL */
	struct prefetch_fit sorted_fit;
	unsigned sorted_rank;
	uint32_t far_target;
	uint32_t n_ring; /* opens of the ring that are looked at: the first */
	uint32_t n_targets, n_families, family;
	uint64_t at;            /* in the phase or family */
	struct target *targets; /* LISTS_MAX */
	struct family families[FAMILIES_MAX];
	struct shard_mt19937 deep_mt; /* deep: the generator at word `at` */
	struct shard_mt19937 exact_mt;
	struct prefetch_torch_words words;
	uint32_t *perm;  /* FAR_OUTPUTS */
	uint64_t *table; /* 2 * FAR_OUTPUTS */
};

/* All seeds are tried (recognise_unseeded.c), for the ring as it was then. */
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
	unsigned listing; /* lists of the directory at hand that were made */
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
	uint32_t next_id;
	struct search search;
	struct unseeded unseeded;
};

/* recognise.c: what the tracks explain by now leaves the ring. */
void prefetch_recognise_sift(struct prefetch_recognise *r);
/* What was not explained so far is of no interest. */
void prefetch_recognise_forget(struct prefetch_recognise *r);
uint64_t prefetch_recognise_now_ns(void);

/* recognise_search.c */
int prefetch_search_init(struct search *search);
void prefetch_search_done(struct search *search);
bool prefetch_search_due(const struct prefetch_recognise *r);
int prefetch_search_begin(struct prefetch_recognise *r);
/* One slice.  1 while there is more. */
int prefetch_search_step(struct prefetch_recognise *r);
/* Holds the exact prefix of (source, mt) against one of the targets.  1 when it was recognised: a track more.  Lists of the same
 * size share the permutation, and may agree in most places: the one that explains most is taken. */
int prefetch_search_verify(struct prefetch_recognise *r, const struct target *targets, uint32_t n_targets,
        const struct target *target, const struct source *source, const struct shard_mt19937 *mt);

/* recognise_unseeded.c.  The search has made its lists of the ring: begins a scan if there is to be one.  -ENOMEM. */
int prefetch_unseeded_begin(struct prefetch_recognise *r);
/* What it has found since.  1 when that was recognised. */
int prefetch_unseeded_step(struct prefetch_recognise *r);
/* The epoch is over. */
void prefetch_unseeded_end(struct prefetch_recognise *r);
/* A reader of this list is recognised: there is nothing more to find in it. */
void prefetch_unseeded_found(struct prefetch_recognise *r, const struct prefetch_list *list);

/* recognise_lists.c: the lists the files of the ring may come from.  1 while there is more to do. */
int prefetch_lists_step(struct prefetch_recognise *r);

/* recognise_track.c */
int prefetch_track_new(struct prefetch_recognise *r, const struct source *source, struct prefetch_list *list,
        const struct shard_mt19937 *mt, const struct prefetch_fit *fit, const struct prefetch_part *part);
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
