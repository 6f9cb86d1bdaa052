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

#include "fs/server.h"

/* open(2) flag of a marked listing: passed to OPENDIR by the kernel, and used by nobody on a directory. */
#define FS_DIR_MARK O_DSYNC

/* Directory offset at which turn k of a flat listing begins (lseek on the engine's own descriptor). */
uint64_t fs_dir_turn_offset(uint64_t turn);
/* The same for the file with this place among its directory's own files, in a tree. */
uint64_t fs_dir_file_offset(uint32_t place);

void fs_dir_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_dir_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void fs_dir_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);

#endif
