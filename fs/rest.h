/* How far a trainer is while the watch rests (watch=rest, fs/watch.h): marks on a few files instead of a watch on all.
 *
 *     turns:   0 ......... 99 100 ........ 199 200 ...          (an epoch of 6,400)
 *                          ^                ^                    marked: the last one of each of FS_REST_MARKS stretches
 *
 * A mark is an inotify watch on the file itself, for one open.  All other opens of the mount make no event and cost their
 * openers nothing; an open of the mark says that its stretch was opened.  So progress goes by stretches, and the rule of half an
 * epoch holds as ever.  A mark sees its file whatever the name: also in .ddpfs/all.
 *
 * The marks outlive the server, on a descriptor and in memory that its successor has too: that takes in what was opened meanwhile,
 * ends the rest and watches.
 *
 * Threads: fs_rest_begin the watcher, without its lock (it looks names up in the mount); all others with that lock. */
#ifndef DDPFS_FS_REST_H
#define DDPFS_FS_REST_H

#include "fs/estate.h"
#include "fs/server.h"

enum { FS_REST_MARKS = FS_ESTATE_MARKS_MAX };

struct fs_rest; /* opaque */

int fs_rest_new(struct fs_server *server, struct fs_rest **ret_rest); /* with the marks of a predecessor; -ENOMEM */
void fs_rest_free(struct fs_rest *rest);                              /* NULL is fine */
int fs_rest_fd(const struct fs_rest *rest);                           /* readable: a mark was opened */

/* Marks the current epoch of a flat view.  False when not all could be marked: what follows is fs_rest_end. */
bool fs_rest_begin(struct fs_rest *rest, struct fs_view *view);

struct fs_rest_stretch {
	uint64_t epoch;
	uint64_t from, to; /* turns; the file of turn to - 1 was opened */
};
/* The next mark that was opened.  False: none for now. */
bool fs_rest_next(struct fs_rest *rest, struct fs_rest_stretch *ret_stretch);

/* Takes the marks away. */
void fs_rest_end(struct fs_rest *rest);

#endif
