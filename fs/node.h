/* SPDX-License-Identifier: Apache-2.0 */
/* From names to nodes, from nodes to attributes. All results are pure functions of the dataset and the
 * options, with two exceptions: sizes and times of the files of fs/stats_files.h, and the mtime of the root.
 *
 * Threads: any. */
#ifndef DDPFS_FS_NODE_H
#define DDPFS_FS_NODE_H

#include <stdint.h>
#include <sys/stat.h>

#include "fs/ino.h"

struct fs_server;
struct fs_view;
struct shard_file;

/* Finds the child @name of a directory. Returns 0; -ENOENT: there is none, and there never will be; -ENOTDIR,
 * -ESTALE; index errors. */
int fs_node_lookup(struct fs_server *server, struct fs_node parent, const char *name, struct fs_node *ret_node);

/* Finds the directory that holds a node; for a file, one of them. Returns 0; index errors. */
int fs_node_parent(struct fs_server *server, struct fs_node node, struct fs_node *ret_parent);

/* Tells a node's attributes, and for how many seconds the kernel may keep them. The size of a list (fs_node_is_list)
 * stays 0, because only the helper knows it (fs/epoch_list_reply.h). Returns 0; -ESTALE: the dataset has no such
 * node; index errors. */
int fs_node_attr(struct fs_server *server, struct fs_node node, struct stat *ret_attr, double *ret_timeout_s);

/* Writes the attributes of file @id from its record. */
void fs_file_attr(const struct fs_server *server, uint32_t id, const struct shard_file *file, struct stat *ret_attr);

/* Finds a file by a flat name: @name of the epoch *only_epoch (of any epoch if @only_epoch is NULL), or of a common
 * file.
 * Returns 0; -ENOENT; index errors. */
int fs_flat_lookup(struct fs_server *server, struct fs_view *view, const char *name, const uint64_t *only_epoch,
        uint32_t *ret_file);

/* Finds the epoch and turn of a flat name of this view, without a look at its path: for names that are known to
 * exist.
 * Returns 0; -ENOENT: not a flat name, or another rank's. */
int fs_flat_place(const struct fs_view *view, const char *name, uint64_t *ret_epoch, uint64_t *ret_turn);

#endif
