/* SPDX-License-Identifier: Apache-2.0 */
/* Announced orders: trainers say what they will open, and the engine reads it ahead.
 *
 *     control socket (main) --> lists (fs/announced_list.h) --> streams (fs/sink.h)
 *                                   ^
 *     watcher --> recognise thread -'  opens (fs/announced_reader.h): explained by a list, or left for the recogniser
 *
 * A view has up to FS_ANNOUNCED_LISTS lists, each with a name: for example one for each rank or worker. Each is a
 * stream of the engine. An announcement changes only what is read ahead. Opens move the reader of a list. A list ends
 * when it is over (fs/announced_reader.h), or when opens do not follow it.
 *
 * Lists lie in the handover memory, so a successor goes on with them.
 *
 * Threads: main writes lists. The recognise thread of the view calls what says so. `lock` guards the table of lists;
 * it is taken before the engine's. */
#ifndef DDPFS_FS_ANNOUNCED_ORDERS_H
#define DDPFS_FS_ANNOUNCED_ORDERS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/announced_list.h"
#include "fs/announced_reader.h"

struct fs_server;
struct fs_view;

enum {
	FS_ANNOUNCED_LISTS = 64,
	FS_GUEST_LISTS_USER = 32, /* lists of one guest: two for each of 16 ranks */
	FS_GUEST_LISTS = 48,      /* lists of all guests */
};

struct fs_announced_orders; /* opaque */

/* Makes it, without lists. @wake: called when the recognise thread has work, by main. Returns 0; -ENOMEM. */
int fs_announced_orders_new(struct fs_server *server, struct fs_view *view, void (*wake)(void *arg), void *arg,
        struct fs_announced_orders **ret_orders);
void fs_announced_orders_free(struct fs_announced_orders *orders); /* after fs_announced_orders_end; NULL is fine */

/* ---- main ---- */

/* Begins to write into the list `name`: behind its end (append), or into a new one that will replace it. @buffer: of
 * a new list (fs/announced_list.h), at most FS_ANNOUNCED_BUFFER_MAX; an append keeps the one of its list.
 * Returns 0; -E2BIG: there are FS_ANNOUNCED_LISTS lists; -ENOMEM. Then call one of the two functions below. */
int fs_announced_orders_begin(struct fs_announced_orders *orders, const char *name, bool append, uint64_t buffer,
        struct fs_announced_piece *ret_piece);
/* Shows what was written. *ret_length: entries of the list that are not used yet. Returns 0; -ENOMEM: nothing was
 * done. */
int fs_announced_orders_show(
        struct fs_announced_orders *orders, struct fs_announced_piece *piece, uint64_t *ret_length);
/* Forgets what was written. */
void fs_announced_orders_undo(struct fs_announced_orders *orders, struct fs_announced_piece *piece);

/* Ends the list. Returns false if there is none. */
bool fs_announced_orders_forget(struct fs_announced_orders *orders, const char *name);

/* Returns the most bytes that orders may take now: a quarter of the mount's budget, at least 64 MiB; but no more
 * than the cap. */
uint64_t fs_announced_orders_limit(struct fs_announced_orders *orders);
/* Caps what fs_announced_orders_limit returns; UINT64_MAX: there is no cap. */
void fs_announced_orders_cap(struct fs_announced_orders *orders, uint64_t cap_bytes);

/* Guests' lists (fs/follow_request.h) have names that begin with "UID "; other names have no space. @owner: this text
 * of one guest; NULL: all guests. Returns the bytes of their entries, also of lists that are about to end. */
uint64_t fs_announced_orders_bytes(struct fs_announced_orders *orders, const char *owner);
/* Returns whether this guest may begin to write into the list `name`: it is there, or he may have one more.
 * False also while too many of his replaced lists have not ended yet (twice the limits). */
bool fs_announced_orders_guest_may(struct fs_announced_orders *orders, const char *owner, const char *name);

/* Returns the memory of the orders. */
struct fs_order_memory *fs_announced_orders_memory(struct fs_announced_orders *orders);

/* ---- the recognise thread ---- */

/* Takes over what a predecessor left. Call it once, before that thread and before the first request. */
void fs_announced_orders_restore(struct fs_announced_orders *orders);
/* Takes in opens. Leaves in @files those that no list explains, and writes the others into @ret_explained, which has
 * room for n. Returns how many no list explains. */
size_t fs_announced_orders_opened(
        struct fs_announced_orders *orders, uint32_t *files, size_t n, uint32_t *ret_explained);
/* Begins and ends streams, and tells the engine what is new. Call it after opens and when woken, and about every two
 * seconds. @now_ns: CLOCK_MONOTONIC. Returns true once for each list that was confirmed. */
bool fs_announced_orders_sync(struct fs_announced_orders *orders, uint64_t now_ns);
/* Ends all streams. The lists are left to a successor. */
void fs_announced_orders_end(struct fs_announced_orders *orders);

/* ---- any thread ---- */

/* Returns how many lists are read ahead. */
unsigned fs_announced_orders_live(struct fs_announced_orders *orders);

/* What announced orders count. */
struct fs_announced_orders_counts {
	uint64_t explained;    /* opens that a list explained */
	uint64_t dropped;      /* lists that the opens did not follow */
	uint64_t memory_bytes; /* of lists and tables, now */
	bool waits;            /* a list was announced or forgotten, and the engine does not know it yet */
	bool ended;            /* the last list was read to its end, and hardly any open came since */
};
/* @orders may be NULL; then all are 0. */
void fs_announced_orders_count(struct fs_announced_orders *orders, struct fs_announced_orders_counts *ret_counts);

/* Adds to the statistics @object: "announced", an object for each list. @orders may be NULL. */
void fs_announced_orders_stats(struct fs_announced_orders *orders, json_t *object);

/* Writes one phrase about the lists into buf[size]: "list 'default', 312 of 10000 entries read". */
void fs_announced_orders_describe(struct fs_announced_orders *orders, char *buf, size_t size);

#endif
