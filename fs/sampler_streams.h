/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition at work: a view's opens are held against samplers (prefetch/sampler/recognise.h), and what is recognised is read ahead.
 *
 * In a tree of all files the trainer's own sampler decides what comes next.  Each sampler that is recognised becomes a
 * stream of the engine, whose order is this epoch's permutation and the next one's, as they become known.  While there is
 * such a stream the view's own, doubtful one is gone: its order would only mislead what is kept.
 *
 *   watcher --> queue --> recognise thread --> tracks --> streams (fs/sink.h)
 *                             `--> seed-search thread, at idle priority
 *
 * What is queued is taken in first, always.  Searching takes a bounded burst, then a twentieth of a processor (prefetch/sampler/recognise.h).
 *
 * In the view of one rank samplers are held against its part (fs/rank_files.h).  A DistributedSampler over it shards twice, which is
 * told.  In a tree the part is another one in each epoch, and begun with anew once its first file is opened; what is
 * recognised is read ahead there, too.  In a flat view the order is the listing's, and looking ends when a sampler (the list as it is,
 * mostly) explains some thousands of opens: `samplers` in the statistics stands still from then on.
 *
 * Threads: one `recognise` for each view, where all that takes long is done (searches, permutations); fs_sampler_streams_opened
 * from the watcher, the rest from any. `lock` is a leaf. */
#ifndef DDPFS_FS_SAMPLER_STREAMS_H
#define DDPFS_FS_SAMPLER_STREAMS_H

#include <jansson.h>

#include "fs/server.h"

enum {
	FS_SAMPLER_STREAMS_QUEUE = 1 << 15, /* opens that wait for the thread; more are lost: they cost hits only */
	FS_SAMPLER_STREAMS_BATCH = 1024,    /* opens taken in at once */
	FS_SAMPLER_STREAMS_PAUSE_S = 2,     /* without opens: an epoch may begin */
};

struct fs_sampler_streams; /* opaque */

/* Starts the thread.  The workers must run.  -ENOMEM, -EAGAIN. */
int fs_sampler_streams_new(struct fs_server *server, struct fs_view *view, struct fs_sampler_streams **ret_recognise);
/* Ends the thread and its streams.  The session must still be answered.  NULL is fine. */
void fs_sampler_streams_end(struct fs_sampler_streams *recognise);
/* After it.  NULL is fine. */
void fs_sampler_streams_free(struct fs_sampler_streams *recognise);

/* A file was opened: by name in a tree, or at a turn of an epoch in a flat view (file SHARD_NONE).  Never blocks. */
void fs_sampler_streams_opened(struct fs_sampler_streams *recognise, uint32_t file, uint64_t epoch, uint64_t turn);
/* A batch of them is complete. */
void fs_sampler_streams_drained(struct fs_sampler_streams *recognise);

/* Adds what is recognised to the statistics: "recognised", a sentence; "recognised_note", when something should be mended;
 * "samplers", one object each; "seed_search" where there are threads for it; and of the recogniser itself
 *
 *   recognise_queue        opens that are not looked at to the end
 *   recognise_behind       opens that are not looked at at all
 *   recognise_unexplained  opens that no order has explained since something was recognised
 *   recognise_looks, recognise_seeds, recognise_search_ns  what searching took: looks at the opens, seeds tried, processor time
 *   recognise_wrong        orders that were recognised and dropped, because the opens went on otherwise
 *   read_ahead_note        a sentence, when opens are not read ahead because of all this; "opens" and "misses" must be there
 *
 * recognise may be NULL. */
void fs_sampler_streams_stats(struct fs_sampler_streams *recognise, json_t *object);

#endif
