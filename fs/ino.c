/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers; fs/ino.h first. */
#include "fs/ino.h"

#include <assert.h>
#include <errno.h>

enum { VIEW_SHIFT = 48, KIND_SHIFT = 40 };

enum { MOUNT_ROOT = 1, RANK_ROOT = 2 }; /* in the place of an id; FUSE fixes the first one */

/* Kinds without an id have id 0, except roots. */
static bool kind_has_id(enum fs_kind kind)
{
	return kind == FS_FILE || kind == FS_TREE_DIR || kind == FS_ALL_DIR || kind == FS_EPOCH_DIR ||
	       kind == FS_EPOCH_LIST || kind == FS_EPOCH_LIST0;
}

static bool kind_has_view(enum fs_kind kind)
{
	return kind != FS_FILE && kind != FS_RANKS;
}

uint64_t fs_ino(struct fs_node node)
{
	assert(node.kind < FS_KIND_COUNT && node.view < FS_VIEWS_MAX && node.id <= FS_INO_ID_MAX);
	uint64_t view = kind_has_view(node.kind) ? node.view : 0;
	uint64_t id = kind_has_id(node.kind) ? node.id : 0;
	if (node.kind == FS_RANKS)
		return MOUNT_ROOT;
	if (node.kind == FS_ROOT)
		id = node.id ? RANK_ROOT : MOUNT_ROOT;
	return view << VIEW_SHIFT | (uint64_t)node.kind << KIND_SHIFT | id;
}

int fs_ino_node(uint64_t ino, struct fs_node *ret_node)
{
	uint64_t kind = ino >> KIND_SHIFT & 0xff;
	uint64_t view = ino >> VIEW_SHIFT;
	uint64_t id = ino & FS_INO_ID_MAX;

	if (kind >= FS_KIND_COUNT || kind == FS_RANKS || view >= FS_VIEWS_MAX)
		return -ESTALE;
	if (kind == FS_ROOT) {
		if (id != MOUNT_ROOT && id != RANK_ROOT)
			return -ESTALE;
		id = id == RANK_ROOT;
	} else if (!kind_has_id((enum fs_kind)kind) && id != 0) {
		return -ESTALE;
	}
	if (!kind_has_view((enum fs_kind)kind) && view != 0)
		return -ESTALE;
	if (kind == FS_TREE_DIR && id == 0)
		return -ESTALE;
	if ((kind == FS_EPOCH_DIR || kind == FS_EPOCH_LIST || kind == FS_EPOCH_LIST0) && id > FS_EPOCH_MAX)
		return -ESTALE;
	if ((kind == FS_FILE || kind == FS_TREE_DIR || kind == FS_ALL_DIR) && id >= UINT32_MAX)
		return -ESTALE;
	*ret_node = (struct fs_node){ .kind = (enum fs_kind)kind, .view = (uint32_t)view, .id = id };
	return 0;
}
