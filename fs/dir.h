/* SPDX-License-Identifier: Apache-2.0 */
/* Listings. A handle keeps the epoch that its OPENDIR saw, so no listing mixes two epochs.
 *
 * Entries have nodeid 0 in all listings but one kind: the kernel lists the names and makes no inodes (a million of
 * them would cost 1.1 GB). The exception is a marked listing: the thread that server->lister names opens it with
 * FS_DIR_MARK. It gets nodes and attributes. In this way the engine makes inodes right before it stores their bytes.
 *
 * Handles are values, and offsets are places (fs/listing_offset.h). So a listing goes on when the server is
 * restarted, telldir and seekdir work, and a handle needs no end (libfuse answers RELEASEDIR).
 *
 * Threads: any FUSE worker; several may use one handle at once. */
#ifndef DDPFS_FS_DIR_H
#define DDPFS_FS_DIR_H

#include <fcntl.h>

#include "fs/listing_offset.h"
#include "fs/server.h"

/* Answer OPENDIR, READDIR and READDIRPLUS, as libfuse calls them. fs_dir_opendir answers later, from the helper, if
 * the watches are not set yet. */
void fs_dir_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_dir_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void fs_dir_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);

#endif
