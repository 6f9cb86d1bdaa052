/* SPDX-License-Identifier: Apache-2.0 */
/* Which errno a reader sees for an error of ours. Threads: any. */
#ifndef DDPFS_FS_ERRORS_H
#define DDPFS_FS_ERRORS_H

struct fs_server;

/* The one place where codes are translated: a negative errno of ours into one for a reader, also negative. fs_errno
 * is for requests in general, fs_read_errno for a READ whose data failed (-EIO; -ESTALE: the shard or the index was
 * replaced; -ENOMEM). */
int fs_errno(int rc);
int fs_read_errno(int rc);

/* Checks the index (shard_index_check) before a reply that was made of its records. Returns @rc, or -errno if
 * somebody changed the index; the log then says so. FUSE workers, the engine's threads, the helper. */
int fs_index_check(struct fs_server *server, int rc);

#endif
