/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition at work: it compares a view's opens with samplers (prefetch/sampler/recognise.h), and reads ahead what
 * it recognises.
 *
 * In a tree of all files the trainer's own sampler decides what comes next. Each sampler that is recognised becomes a
 * stream of the engine. Its order is this epoch's permutation and the next one's, as they become known. While there
 * is such a stream the view's own stream, which is doubtful, ends: its order would mislead the cache.
 *
 *     watcher --> queue --> recognise thread --> announced orders --> tracks --> streams (fs/sink.h)
 *                               `--> seed-search thread, at idle priority
 *
 * Announced orders (fs/announced_orders.h) come first: an open that one of them explains is not looked at here. Only if
 * there is a tier, another recogniser takes it in (fs/trainer_uses.h). While there are such orders, or recognised ones,
 * the view's own stream is ended in a tree of all files.
 *
 * The thread always takes in what is queued first. A search takes a bounded burst, then a twentieth of a processor
 * (prefetch/sampler/recognise.h). It rests while all that is opened is in memory or announced (fs/search_rest.h).
 *
 * In the view of one rank, samplers are compared with its part (fs/rank_files.h). A DistributedSampler over the part
 * shards twice; the log and the statistics say so. In a tree the part is another one in each epoch. Recognition
 * begins anew when the first file of the new part is opened, and what is recognised is read ahead there, too. In a
 * flat view the order is the listing's. There the search ends when one sampler (usually the listing itself) explains
 * 4,096 opens. `samplers` in the statistics does not change after that.
 *
 * Threads: one `recognise` for each view with a reader does all that takes long (searches, permutations).
 * fs_sampler_streams_opened from the watcher, the rest from any. `lock` is a leaf. */
#ifndef DDPFS_FS_SAMPLER_STREAMS_H
#define DDPFS_FS_SAMPLER_STREAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct fs_server;
struct fs_view;

enum {
	FS_SAMPLER_STREAMS_QUEUE = 1 << 15, /* opens that wait for the thread; more are lost, which costs hits only */
	FS_SAMPLER_STREAMS_BATCH = 1024,    /* opens that the thread takes in at once */
	FS_SAMPLER_STREAMS_PAUSE_S = 2,     /* seconds without opens after which an epoch may begin */
};

struct fs_sampler_streams; /* opaque */

/* Starts the thread. The workers must run. One of several ranks has a reader when this is called, and its order is read
 * ahead from then on. Returns 0; -ENOMEM, -EAGAIN. */
int fs_sampler_streams_new(struct fs_server *server, struct fs_view *view, struct fs_sampler_streams **ret_recognise);
/* Tells the thread to end; NULL is fine. It may take a while, so all threads are told before one is waited for. */
void fs_sampler_streams_stop(struct fs_sampler_streams *recognise);
/* Waits for the end of the thread and its streams; NULL is fine. The session must still be answered. */
void fs_sampler_streams_end(struct fs_sampler_streams *recognise);
/* Frees it, after fs_sampler_streams_end; NULL is fine. */
void fs_sampler_streams_free(struct fs_sampler_streams *recognise);

/* Records that a file was opened: by name in a tree, or at a turn of an epoch in a flat view (@file is SHARD_NONE).
 * Never waits for the thread's work. */
void fs_sampler_streams_opened(struct fs_sampler_streams *recognise, uint32_t file, uint64_t epoch, uint64_t turn);
/* Tells that a rank whose reader had gone (fs_sampler_streams_forget) has one again. */
void fs_sampler_streams_wake(struct fs_sampler_streams *recognise);
/* Forgets what the reader of one of several ranks did, and ends its streams, because it has no reader any more
 * (fs_view_reset). @recognise may be NULL. */
void fs_sampler_streams_forget(struct fs_sampler_streams *recognise);
/* Tells that a batch of opens is complete. @recognise may be NULL. */
void fs_sampler_streams_drained(struct fs_sampler_streams *recognise);

/* Gets the latest files that were opened, at most `max`, in the order of the opens.  Returns how many.  Any thread. */
size_t fs_sampler_streams_latest(struct fs_sampler_streams *recognise, uint32_t *files, size_t max);

/* Returns the announced orders of the view, and what their numbers mean. Main. */
struct fs_announced_orders *fs_sampler_streams_orders(struct fs_sampler_streams *recognise);
struct fs_order_numbers *fs_sampler_streams_numbers(struct fs_sampler_streams *recognise);
/* Keeps why a trainer announces nothing in the list, for order_note and read_ahead_note: one reason, the last one. It
 * is cut to FS_READ_AHEAD_REASON_MAX bytes. @reason NULL: the list is announced now. Main. */
void fs_sampler_streams_reason(struct fs_sampler_streams *recognise, const char *list, const char *reason);

/* Adds what is recognised to the statistics @object: "recognised", a sentence; "recognised_note", if the user should
 * change something; "samplers", one object each; "seed_search", if there are threads for it; and of the recogniser
 * itself:
 *
 *     recognise_unexplained  opens that no order has explained since something was recognised
 *     recognise_looks, recognise_seeds, recognise_search_ns  the search: looks at opens, seeds tried, processor time
 *     recognise_rests        the search rests, because all that is opened is in memory or announced
 *     recognise_wrong        orders that were recognised and then dropped, because the opens went on otherwise
 *     read_ahead_note        a sentence, if this is why opens are not read ahead; needs "opens", "misses" in @object
 *     order_source           who told the order: "own" (also if a rank's files are read as they are listed),
 *                            "announced", "recognised" or "unknown"
 *     order_note             a sentence: which order, or what to do about an unknown one
 *
 * It also adds what fs_announced_orders_stats adds.
 *
 * The view may have no reader yet. */
void fs_sampler_streams_stats(struct fs_server *server, const struct fs_view *view, json_t *object);

/* Counts the opens that the thread has not finished to examine, and those of them that it has not begun to examine. Any
 * thread. @recognise may be NULL. */
void fs_sampler_streams_queue(struct fs_sampler_streams *recognise, uint64_t *ret_queued, uint64_t *ret_behind);

/* Returns whether the thread has made streams of what a predecessor left, and of what the first reader of a rank reads.
 * Any thread. @recognise may be NULL. */
bool fs_sampler_streams_begun(struct fs_sampler_streams *recognise);

/* Tells how far the recognised sampler with the most opens is. Returns false if none is recognised. Any thread.
 * @recognise may be NULL. */
bool fs_sampler_streams_progress(
        struct fs_sampler_streams *recognise, uint64_t *ret_epoch, uint64_t *ret_turn, uint64_t *ret_turns);

struct fs_announced_orders_counts;
/* Counts what was announced (fs/announced_orders.h).  @recognise may be NULL. */
void fs_sampler_streams_announced(struct fs_sampler_streams *recognise, struct fs_announced_orders_counts *ret_counts);

#endif
