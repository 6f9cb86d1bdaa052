/* SPDX-License-Identifier: Apache-2.0 */
/* The local copy of an index that lies in a store.  All processes of this host map the same file.
 *
 * Place: the first of these that applies, made with mode 0700 if it is missing:
 *   $DDPFS_INDEX_DIR             if that variable is set
 *   /var/cache/ddpfs             if the process runs as root
 *   $XDG_CACHE_HOME/ddpfs        else, if that variable is an absolute path
 *   $HOME/.cache/ddpfs           else, if that variable is an absolute path
 *   /tmp/ddpfs-UID               else
 * Name: HASH-HASH.index: of the index's URL, and of its size and ETag (else header).  So a copy never changes,
 * and another index in the store gets another copy.  Copies of a name that nobody has open are removed when a new one
 * comes.  A copy may be removed at any time; it is fetched again.
 * What is fetched is checked and written to the disk (fsync(2)) before it becomes a copy.  What the store gives in
 * place of an index (a page of a server under maintenance) never does, and removes no copy.  A copy that is damaged
 * when it is opened is removed and fetched again.
 * Processes that need the same copy at once fetch it once: HASH.lock, an empty file that stays, is locked (flock(2)) by
 * the one that fetches.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_REMOTE_INDEX_COPY_H
#define DDPFS_SHARD_REMOTE_INDEX_COPY_H

#include <stdbool.h>

#include "shard/base/err.h"
#include "shard/remote/store.h"

/* Makes the directory if it is missing, and returns its path; the caller frees it.
 * Returns 0; -EACCES: it belongs to somebody else, or others may write there; -ENOMEM; errors of mkdir(2). */
int remote_index_directory(struct base_err *err, char **ret_path);

/* An index that somebody wants to open. */
struct remote_index_want {
	const char *object; /* relative to the dataset */
	/* The caller knows the dataset's identity, and refuses another one.  Then a copy is taken whatever the store
	 * answers.  And if there is a copy, the store is not waited for if it has no address, or takes no connection
	 * for a second. */
	bool again;
	/* Checks that a file is an index; name: for the sentence.  whole: all of it; else what a mount checks when it
	 * opens one.  Returns 0; -EUCLEAN, -EBADMSG: it is none, or damaged; or another -errno; with a sentence. */
	int (*check)(int fd, const char *name, bool whole, struct base_err *err);
};

/* Opens the local copy of an index, and fetches it first if there is none.  If the store cannot be reached,
 * or answers with 5xx, the latest copy is taken, and the log says so.  The descriptor is locked (flock(2), shared), so
 * that the copy is not removed as long as it is open.
 * Returns 0, a path to free and a descriptor to close; or with a sentence: -ENOENT: there is no such object; -EACCES;
 * errors of want->check: what the store has is no index; -ETIMEDOUT and others of remote_fetch: the store does not
 * answer and there is no copy; -ENOSPC and other errors of writing the copy; -ENOMEM. */
int remote_index_open(struct remote_store *store, const struct remote_index_want *want, struct base_err *err,
        char **ret_path, int *ret_fd);

#endif
