/* SPDX-License-Identifier: Apache-2.0 */
/* The next piece of a listing, made while its reader takes in the last one: making 1,300 names costs 0.6 ms, mostly cache misses of
 * the index, and the reader's side (the kernel's parsing, the names) a third of that; one after the other they took a listing of
 * 100,000 names 66 ms.
 *
 * One piece is kept, of whichever listing asked for it first; a listing that is given up leaves it until the next OPENDIR.
 *
 * Threads: any; one lock, a leaf.  fs_listing_ahead_take waits while another thread makes the piece, 10 ms at most. */
#ifndef DDPFS_FS_LISTING_AHEAD_H
#define DDPFS_FS_LISTING_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a READDIR asks for: equal places have equal pieces. */
struct fs_dir_place {
	uint64_t ino;
	uint64_t handle;
	uint64_t off;
	size_t size; /* bytes, > 0 */
	bool plus;
};

struct fs_dir_piece {
	char *buf; /* owned; NULL = none */
	size_t used;
	uint64_t names;
	uint64_t next; /* where the rest begins */
	bool full;     /* there may be a rest */
};

struct fs_listing_ahead; /* opaque */

int fs_listing_ahead_new(struct fs_listing_ahead **ret_ahead); /* -ENOMEM */
void fs_listing_ahead_free(struct fs_listing_ahead *ahead);    /* NULL is fine; nobody uses it any more */

/* True: *ret_piece is the piece of this place, the caller's from now on.  False: the caller makes it. */
bool fs_listing_ahead_take(
        struct fs_listing_ahead *ahead, const struct fs_dir_place *place, struct fs_dir_piece *ret_piece);

/* True: the caller makes this piece now, and calls fs_listing_ahead_end.  False: another one is kept or being made. */
bool fs_listing_ahead_begin(struct fs_listing_ahead *ahead, const struct fs_dir_place *place);
/* Takes over piece.buf; NULL when it could not be made. */
void fs_listing_ahead_end(struct fs_listing_ahead *ahead, struct fs_dir_piece piece);

/* A listing begins: no piece from before it is handed out any more. */
void fs_listing_ahead_forget(struct fs_listing_ahead *ahead);

#endif
