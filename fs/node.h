/* SPDX-License-Identifier: Apache-2.0 */
/* From names to nodes, from nodes to attributes.  All of it pure functions of the dataset and the options but the
 * dynamic files' sizes and times.
 *
 * Threads: any. */
#ifndef DDPFS_FS_NODE_H
#define DDPFS_FS_NODE_H

#include "fs/server.h"

/* The child `name` of a directory.  -ENOENT: there is none and never will be; index errors. */
int fs_node_lookup(struct fs_server *server, struct fs_node parent, const char *name, struct fs_node *ret_node);

/* The directory that holds a node (for a file: one of them). */
int fs_node_parent(struct fs_server *server, struct fs_node node, struct fs_node *ret_parent);

/* Attributes, and for how long (seconds) the kernel may keep them.  The size of a list (fs_node_is_list) is left 0: only the
 * helper knows it (fs/job_queue.h).  -ESTALE: a node that the dataset does not have; index errors. */
int fs_node_attr(struct fs_server *server, struct fs_node node, struct stat *ret_attr, double *ret_timeout_s);

/* Attributes of a file whose record is at hand. */
void fs_file_attr(const struct fs_server *server, uint32_t id, const struct shard_file *file, struct stat *ret_attr);

/* The epoch's files by flat name: `name` of `epoch` (or of any epoch where any_epoch is set), or a common file. */
int fs_flat_lookup(struct fs_server *server, struct fs_view *view, const char *name, const uint64_t *only_epoch,
        uint32_t *ret_file);

/* The epoch and turn that a flat name of this view stands for, without looking at its path: for names that are known
 * to exist.  -ENOENT. */
int fs_flat_place(const struct fs_view *view, const char *name, uint64_t *ret_epoch, uint64_t *ret_turn);

/* The same where only names of one epoch count. */
int fs_flat_turn(struct fs_view *view, struct shard_epoch *epoch, const char *name, uint64_t *ret_turn);

#endif
