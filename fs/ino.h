/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers. They are pure functions of what they name, so a successor of a killed server agrees with it, and a
 * file is one inode in every layout, epoch and name.
 *
 *     63      56 55        48 47     40 39                              0
 *     +---------+------------+---------+--------------------------------+
 *     |    0    |    view    |  kind   | id                             |
 *     +---------+------------+---------+--------------------------------+
 *
 * The root of the mount is 1 (FUSE_ROOT_ID). In a mount of one rank, that is the root of its view: kind FS_ROOT, with 1
 * in the place of the id. In a mount of several ranks it is FS_RANKS, the directory of the ranks, and the roots of the
 * views have a 2 in the place of the id. Only the server knows which of both a 1 is (fs_server_node).
 *
 * Files are the same in every view: their view is 0. So all ranks share their pages. A directory has a view, because
 * the kernel knows a directory by one name only. The generation is always 0.
 *
 * Threads: any; pure functions. */
#ifndef DDPFS_FS_INO_H
#define DDPFS_FS_INO_H

#include <stdbool.h>
#include <stdint.h>

enum fs_kind {
	FS_ROOT,       /* the view's root; in layout=tree it is directory 0; id: 1 if it is below an FS_RANKS, else 0 */
	FS_FILE,       /* id: file */
	FS_TREE_DIR,   /* id: directory (> 0) of the view's tree */
	FS_ALL_DIR,    /* id: directory (0 = top) of .ddpfs/all/ */
	FS_HIDDEN,     /* .ddpfs/ */
	FS_EPOCHS,     /* .ddpfs/epoch/ */
	FS_EPOCH_DIR,  /* .ddpfs/epoch/N/; id: N */
	FS_EPOCH_LIST, /* .ddpfs/epoch/N.list; id: N */
	FS_STATS,      /* .ddpfs/stats.json */
	FS_METRICS,    /* .ddpfs/metrics */
	FS_STATE,      /* .ddpfs/state */
	FS_EPOCH_LIST0, /* .ddpfs/epoch/N.list0; id: N */
	FS_RANKS,       /* the root of a mount of several ranks: rank0/, rank1/, ... */
	FS_KIND_COUNT
};

#define FS_VIEWS_MAX 256                       /* as many as the view's bits can number; FS_RANKS_MAX */
#define FS_EPOCH_MAX ((UINT64_C(1) << 32) - 1) /* the last epoch that has names and inodes */
#define FS_INO_ID_MAX ((UINT64_C(1) << 40) - 1)

struct fs_node {
	enum fs_kind kind;
	uint32_t view;
	uint64_t id; /* 0 if the kind needs none */
};

/* Returns the inode number of a node. view < FS_VIEWS_MAX, id <= FS_INO_ID_MAX. */
uint64_t fs_ino(struct fs_node node);

/* Finds the node of an inode number; does not check the id against a dataset. 1 is an FS_ROOT here. Returns 0; -ESTALE:
 * fs_ino never gives this number. */
int fs_ino_node(uint64_t ino, struct fs_node *ret_node);

/* Whether the node is a list of an epoch, whose content the helper makes. */
static inline bool fs_node_is_list(struct fs_node node)
{
	return node.kind == FS_EPOCH_LIST || node.kind == FS_EPOCH_LIST0;
}

static inline bool fs_node_is_dir(struct fs_node node)
{
	return node.kind == FS_ROOT || node.kind == FS_RANKS || (node.kind >= FS_TREE_DIR && node.kind <= FS_EPOCH_DIR);
}

#endif
