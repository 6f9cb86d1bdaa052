/* SPDX-License-Identifier: Apache-2.0 */
/* What the .c files of recognised samplers share: sampler_streams.c (the thread), sampler_follow.c (the streams) and
 * sampler_stats.c (what is said).  fs/sampler_streams.h first.
 *
 * Threads: a function without another word is for the recognise thread. */
#ifndef DDPFS_FS_SAMPLER_STREAMS_PRIVATE_H
#define DDPFS_FS_SAMPLER_STREAMS_PRIVATE_H

#include <pthread.h>

#include "fs/announced_orders.h"
#include "fs/order_left.h"
#include "fs/order_numbers.h"
#include "fs/rank_files.h"
#include "fs/read_ahead_note.h"
#include "fs/sampler_streams.h"
#include "fs/search_rest.h"
#include "fs/server.h"
#include "fs/sink.h"
#include "fs/supervise/handover_memory.h"
#include "fs/trainer_uses.h"
#include "prefetch/sampler/recognise.h"

enum { FS_SAMPLER_TEXT_MAX = 512 };

/* The order of a stream: the epochs of a track that are known. */
struct order {
	const struct shard_index *index;
	const struct shard_view *shown;     /* the view whose on_bad says what a file's name shows */
	pthread_mutex_t lock;               /* a leaf */
	struct prefetch_sequence *known[2]; /* this epoch's and the next one's, or NULL */
};

/* A sampler that is read ahead (sampler_follow.c). */
struct follow {
	bool live;
	uint32_t id, generation;
	uint64_t epoch;
	bool next_known;
	struct order order;
	struct shard_view *view;
	struct fs_sink_stream *stream;
};

/* A sampler that is recognised, as it is shown (sampler_stats.c). */
struct shown {
	struct prefetch_recognised track;
	char text[FS_SAMPLER_TEXT_MAX];
};

struct fs_sampler_streams {
	struct fs_server *server;
	struct fs_view *view;
	struct fs_announced_orders *orders;
	struct fs_order_numbers *numbers; /* main's */
	struct fs_trainer_uses *uses;     /* NULL: there is no tier, or it is told otherwise */
	struct prefetch_recognise *r;     /* the recognise thread's own, from here ... */
	struct follow follows[PREFETCH_TRACKS_MAX];
	struct { /* what the log says already, by track */
		uint32_t id;
		bool repeated, twice;
		uint64_t seed;
		enum prefetch_sampler sampler;
		bool known;
	} told[PREFETCH_TRACKS_MAX * 2];
	struct fs_rank_files *part;     /* one rank's view: its files; NULL: every file */
	struct fs_rank_files *coming;   /* tree: those of the epoch that listings show now, or NULL */
	struct prefetch_scanned before; /* what earlier recognitions scanned */
	bool leads;                     /* what is recognised is read ahead; false: it is only told */
	uint64_t manual, word;          /* where a RandomSampler's generator was seen last; word 0: nowhere */
	_Atomic bool part_made;         /* flat: `part` is constant from then on */
	_Atomic bool settled;           /* flat: a sampler reads the whole part, so the search has ended */
	bool own_begun;                 /* several ranks: the view's own stream was begun for its reader */
	struct prefetch_saved_track saved[PREFETCH_TRACKS_MAX]; /* the last that was left to a successor */
	unsigned n_saved;
	bool told_not_followed; /* the last try to follow a track failed, and the log says so */
	bool restored;          /* what a predecessor left was taken over */
	uint64_t opened_ns;     /* time of the last opens */
	struct fs_search_rest rest;
	struct fs_order_left left;
	uint64_t in_lists; /* opens since the search began that announced orders explain */
	uint32_t batch[FS_SAMPLER_STREAMS_BATCH], explained[FS_SAMPLER_STREAMS_BATCH]; /* ... to here */
	pthread_t thread;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t cond;
	bool stop;
	bool woken;  /* something was announced, or a reader of the rank came or went */
	bool forget; /* the reader of the rank has gone: everything begins anew */
	bool begun;  /* what a predecessor left, and what the first reader of the rank reads, is read ahead */
	uint32_t queue[FS_SAMPLER_STREAMS_QUEUE];
	uint64_t queued, taken, published; /* all since the start; published <= taken <= queued */
	struct shown shown[PREFETCH_TRACKS_MAX];
	unsigned n_shown;
	bool shown_left;    /* left.left */
	bool sharded_twice; /* since the start: the list that showed it may be another epoch's */
	struct prefetch_scanned scanned;
	struct prefetch_searched searched;
	enum fs_search search;
	char reason[FS_READ_AHEAD_REASON_MAX];   /* why a trainer announces nothing, or "" */
	char reason_list[FS_HANDOVER_LIST_NAME]; /* the list that it would have announced */
};

/* ---- sampler_follow.c ---- */

/* struct prefetch_recognise_options.explained: the engine learns that a turn of a followed sampler was opened. */
void fs_sampler_explained(void *user, uint32_t id, uint32_t generation, uint64_t epoch, uint64_t turn);

/* Ends the stream of a follow.  Does nothing if it is not live. */
void fs_sampler_unfollow(struct fs_sampler_streams *fr, struct follow *follow);

/* Makes streams of what is recognised now, and ends those of what is not.  Without any, and without an announced order,
 * the view's own order is read ahead. */
void fs_sampler_follow_all(struct fs_sampler_streams *fr);

/* ---- sampler_stats.c ---- */

/* Shows what is recognised, and writes news to the log.  busy: the thread still looks at what it took. */
void fs_sampler_publish(struct fs_sampler_streams *fr, bool busy);

#endif
