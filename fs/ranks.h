/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a mount of several, which begin with their first reader.
 *
 * Such a mount may show the ranks of a whole job, of which this host reads few. So only a rank with a reader is watched
 * (fs/watch.h), has a recogniser and streams (fs/sampler_streams.h), and is known to the tier (fs/mount_tier.h). The
 * view keeps who has a reader (fs_view_begin).
 *
 * The rank of a mount of one rank begins when the server does.
 *
 * Threads: any, for fs_ranks_begin_one; else main. server.ranks_lock is held while a rank begins. */
#ifndef DDPFS_FS_RANKS_H
#define DDPFS_FS_RANKS_H

struct fs_server;
struct fs_view;

/* Lets ranks begin from now on, and begins those whose reader came earlier, or read from a predecessor. The workers
 * must run, and the sink.  Returns 0; in a mount of one rank -ENOMEM, -EAGAIN.  In a mount of several the log tells of
 * a rank that could not begin, and the others begin. */
int fs_ranks_begin(struct fs_server *server);
/* No rank begins after this. */
void fs_ranks_end(struct fs_server *server);

/* Somebody lists a view or opens its files. If it is the first reader of a rank, the rank begins. Does nothing in a
 * mount of one rank. If there is no thread to be had, the next call tries again. */
void fs_ranks_begin_one(struct fs_server *server, struct fs_view *view);

#endif
