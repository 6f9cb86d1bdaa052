/* SPDX-License-Identifier: Apache-2.0 */
/* The next piece of a listing, made while the reader takes in the last one.
 *
 * To make 1,300 names costs 0.6 ms, mostly cache misses of the index. The reader's side (the kernel's parsing, the
 * names) costs a third of that. One after the other, they would need 66 ms for a listing of 100,000 names.
 *
 * One piece is kept, of the listing that asked for it first. If that listing is given up, its piece stays until the
 * next OPENDIR.
 *
 * Threads: any; one lock, a leaf. fs_listing_ahead_take waits at most 10 ms, while another thread makes the piece. */
#ifndef DDPFS_FS_LISTING_AHEAD_H
#define DDPFS_FS_LISTING_AHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a READDIR asks for. Equal places have equal pieces. */
struct fs_dir_place {
	uint64_t ino;
	uint64_t handle;
	uint64_t off;
	size_t size; /* bytes, > 0 */
	bool plus;
};

struct fs_dir_piece {
	char *buf; /* owned by who has the piece; NULL: no piece */
	size_t used;
	uint64_t names;
	uint64_t next; /* the offset at which the rest begins */
	bool full;     /* there may be a rest */
};

struct fs_listing_ahead; /* opaque */

int fs_listing_ahead_new(struct fs_listing_ahead **ret_ahead); /* -ENOMEM */
void fs_listing_ahead_free(struct fs_listing_ahead *ahead);    /* NULL is fine; after the last user */

/* Takes the piece of @place if it is kept. Returns true: *ret_piece is the caller's, who frees its buf. Returns
 * false: the caller makes the piece. */
bool fs_listing_ahead_take(
        struct fs_listing_ahead *ahead, const struct fs_dir_place *place, struct fs_dir_piece *ret_piece);

/* Returns true: the caller now makes the piece of @place, and calls fs_listing_ahead_end. Returns false: another
 * piece is kept or being made. */
bool fs_listing_ahead_begin(struct fs_listing_ahead *ahead, const struct fs_dir_place *place);
/* Takes over piece.buf, which is NULL if the piece could not be made. */
void fs_listing_ahead_end(struct fs_listing_ahead *ahead, struct fs_dir_piece piece);

/* Begins a listing: no piece from before this call is handed out after it. */
void fs_listing_ahead_forget(struct fs_listing_ahead *ahead);

#endif
