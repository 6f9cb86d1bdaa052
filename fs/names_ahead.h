/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the next turns, listed by directory.
 *
 * A name that is looked up costs 25 us, a name in a marked listing 4.5 us, and such a listing 85 us more: opening the
 * directory, its first name, one READDIRPLUS. So the toucher takes more turns than the engine has asked for, sorts
 * their files, and lists those that share a directory. The server's answer has these names only (fs/listing_picks.h).
 * The files of other directories are looked up one by one, when their turn is asked for.
 *
 * The kernel may have some names already, because the files are in memory. Then it does not ask the server, and a
 * look-up takes 1 us. So the files of a directory are looked up until the server was asked for one; the rest is listed.
 *
 *     turns:  ....|<- asked ->|.............|....
 *                 next                      until     [next, until): listed, or still in `picks`
 *
 * The turns taken at once grow fourfold, from FS_NAMES_AHEAD_FIRST on. So a reader that has just begun gets its first
 * names after a few look-ups.
 *
 * Threads: one owner (the toucher). */
#ifndef DDPFS_FS_NAMES_AHEAD_H
#define DDPFS_FS_NAMES_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/format.h"

enum {
	FS_NAMES_AHEAD_FIRST = 16,
	/* Turns taken at once, and their files: 10 ms, or 30 ms if there are 256 directories to list. */
	FS_NAMES_AHEAD_MAX = 2048,
	FS_NAMES_AHEAD_RUN = 8, /* fewer names of a directory are looked up */
};
_Static_assert((int)SHARD_SAMPLE_FILES_MAX <= (int)FS_NAMES_AHEAD_MAX, "any turn can be taken");

/* A file whose name is needed. */
struct fs_names_ahead_pick {
	uint64_t turn;
	uint32_t file; /* SHARD_NONE: done */
};

/* What is known of a stream; zeros at first, but for `most`. */
struct fs_names_ahead {
	uint32_t most; /* turns taken at once: 1 .. FS_NAMES_AHEAD_MAX; the owner may change it between two calls */
	uint64_t epoch, next; /* the turn that the engine will ask for, if it goes on */
	uint64_t until;       /* the turns before it were taken */
	uint32_t at_once;     /* turns that are taken next; 0: none were taken yet */
	bool took_most;       /* the last time, `most` turns or FS_NAMES_AHEAD_MAX files were taken */
	uint32_t n;
	struct fs_names_ahead_pick picks[FS_NAMES_AHEAD_MAX]; /* files of turns before `until` that are not done */
};

struct fs_names_ahead_ops {
	/* Gives the files of a turn whose names are not known. Returns how many there are. */
	uint32_t (*files)(void *user, uint64_t turn, uint32_t files[SHARD_SAMPLE_FILES_MAX]);
	/* Returns the directory of a file. */
	uint32_t (*dir)(void *user, uint32_t file);
	/* Makes the names of files[n] of one directory known; the files ascend. Returns false: they are not known. */
	bool (*list)(void *user, uint32_t dir, const uint32_t *files, uint32_t n);
	/* Makes the name of one file known. Returns whether the server was asked; if not, the kernel has the name, or
	 * the server ends. */
	bool (*look_up)(void *user, uint32_t file);
	/* The same, if its directory has fewer than FS_NAMES_AHEAD_RUN files of `most` turns. */
	void (*look_up_lone)(void *user, uint32_t file);
};

/* The engine asks for turns [turn, turn + n) of an epoch that has `turns` of them. */
void fs_names_ahead_asked(struct fs_names_ahead *ahead, const struct fs_names_ahead_ops *ops, void *user,
        uint64_t epoch, uint64_t turns, uint64_t turn, uint32_t n);

#endif
