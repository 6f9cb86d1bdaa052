/* SPDX-License-Identifier: Apache-2.0 */
/* Listings.  A handle keeps what its OPENDIR saw (the epoch), so no listing mixes two epochs.
 *
 * Everybody's entries carry nodeid 0: the kernel lists the names and makes no inodes (a million of them would cost 1.1 GB).
 * Only a marked handle, opened with FS_DIR_MARK by the thread that server->lister names, is answered with nodes and
 * attributes: the engine's way of bringing inodes into being right before it stores their bytes.
 *
 * Handles are values and offsets are places, not counts: a listing goes on across a restart of the server, as do
 * telldir/seekdir, and a handle has no end (RELEASEDIR is answered by libfuse).
 *
 * Threads: any FUSE worker; a handle may be used by several at once. */
#ifndef DDPFS_FS_DIR_H
#define DDPFS_FS_DIR_H

#include <fcntl.h>

#include "fs/listing_offset.h"
#include "fs/server.h"

void fs_dir_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_dir_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void fs_dir_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);

#endif
