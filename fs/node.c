/* SPDX-License-Identifier: Apache-2.0 */
/* From names to nodes, from nodes to attributes; fs/node.h first. */
#include "fs/node.h"

#include <errno.h>
#include <string.h>

#include "fs/server.h"
#include "fs/stats_files.h"
#include "fs/name.h"

enum {
	LISTING_NAME = 192, /* bytes of a READDIRPLUS entry of usual length */
	LISTING_MIN = 4 << 10,
	LISTING_MAX = 256 << 10, /* 1,300 names, made in 0.6 ms; a larger size gains nothing */
};

/* ---- names ---- */

static int common_lookup(struct fs_server *server, const char *name, uint32_t *ret_file)
{
	char path[SHARD_NAME_MAX + 1];
	size_t len = strlen(name);
	enum shard_kind kind;
	uint32_t id;
	if (server->common.n == 0 || len > SHARD_NAME_MAX)
		return -ENOENT;
	/* A decoded path must be the only spelling of its file, but shard_index_find_path accepts extra slashes. */
	if (fs_name_decode(name, len, path) == 0 && path[0] != '/' && !strstr(path, "//") &&
	        shard_index_find_path(server->index, path, &kind, &id) == 0 && kind == SHARD_KIND_FILE) {
		struct shard_file file;
		int rc = shard_index_file(server->index, id, &file);
		if (rc < 0)
			return rc;
		if (file.common && strcmp(path, ".") != 0) {
			*ret_file = id;
			return 0;
		}
		return -ENOENT;
	}
	if (!memchr(name, '~', len))
		return -ENOENT;
	/* The name was cut: only the list of common files can tell which file it is. */
	for (uint32_t i = 0; i < server->common.n; i++) {
		char full[SHARD_PATH_MAX + 1];
		char encoded[SHARD_NAME_MAX + 1];
		int rc = shard_index_file_path(server->index, server->common.files[i], full, sizeof(full));
		if (rc < 0)
			return rc;
		fs_name_encode(full, (size_t)rc, SHARD_NAME_MAX, encoded);
		if (strcmp(encoded, name) == 0) {
			*ret_file = server->common.files[i];
			return 0;
		}
	}
	return -ENOENT;
}

static int sample_lookup(
        struct fs_server *server, uint32_t sample, uint64_t epoch, uint64_t step, const char *name, uint32_t *ret_file)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX];
	uint32_t n;
	int rc = shard_index_sample_files(server->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		char path[SHARD_PATH_MAX + 1];
		char flat[SHARD_NAME_MAX + 1];
		int len = shard_index_file_path(server->index, files[i], path, sizeof(path));
		if (len < 0)
			return len;
		fs_name_flat(epoch, step, path, (size_t)len, flat);
		if (strcmp(flat, name) == 0) {
			*ret_file = files[i];
			return 0;
		}
	}
	return rc < 0 ? rc : -ENOENT;
}

int fs_flat_lookup(struct fs_server *server, struct fs_view *view, const char *name, const uint64_t *only_epoch,
        uint32_t *ret_file)
{
	uint64_t number;
	uint64_t step;
	if (fs_name_parse(name, &number, &step) == 0 && (!only_epoch || *only_epoch == number)) {
		/* Not from the cache of all ranks, which may have dropped it, unless the name is of another epoch. */
		struct shard_epoch *epoch = fs_view_epoch(view);
		uint32_t sample;
		int rc = 0;
		if (shard_epoch_number(epoch) != number) {
			shard_epoch_put(epoch);
			rc = shard_view_epoch(view->order, number, &epoch);
		}
		if (rc < 0)
			return rc;
		rc = shard_epoch_step_sample(epoch, step, &sample);
		shard_epoch_put(epoch);
		if (rc == 0)
			rc = sample_lookup(server, sample, number, step, name, ret_file);
		if (rc != -ENOENT && rc != -ERANGE)
			return rc;
	}
	return common_lookup(server, name, ret_file);
}

int fs_flat_place(const struct fs_view *view, const char *name, uint64_t *ret_epoch, uint64_t *ret_turn)
{
	uint64_t number, step, turn;
	uint32_t rank;
	if (fs_name_parse(name, &number, &step) < 0 ||
	        shard_view_step_turn(view->order, number, step, &rank, &turn) < 0 || rank != view->options.rank)
		return -ENOENT;
	*ret_epoch = number;
	*ret_turn = turn;
	return 0;
}

/* `shown`: the view whose on_bad decides what a name shows, or NULL. */
static int dir_lookup(struct fs_server *server, const struct fs_view *shown, uint32_t dir, const char *name,
        enum fs_kind dirs, uint32_t view, struct fs_node *ret_node)
{
	uint32_t id;
	size_t len = strlen(name);
	int rc = shard_index_find_file(server->index, dir, name, len, &id);
	if (rc == 0 && shown) {
		rc = shard_view_instead_file(shown->order, id, &id);
		if (rc < 0)
			return rc;
	}
	if (rc == 0) {
		*ret_node = (struct fs_node){ .kind = FS_FILE, .id = id };
		return 0;
	}
	if (rc != -ENOENT)
		return rc;
	rc = shard_index_find_dir(server->index, dir, name, len, &id);
	if (rc == 0)
		*ret_node = (struct fs_node){ .kind = dirs, .view = view, .id = id };
	return rc;
}

static const struct {
	const char *name;
	enum fs_kind kind;
} hidden_names[] = {
	{ "all", FS_ALL_DIR },
	{ "epoch", FS_EPOCHS },
	{ "metrics", FS_METRICS },
	{ "state", FS_STATE },
	{ "stats.json", FS_STATS },
};

static int hidden_lookup(uint32_t view, const char *name, struct fs_node *ret_node)
{
	for (size_t i = 0; i < sizeof(hidden_names) / sizeof(hidden_names[0]); i++) {
		if (strcmp(name, hidden_names[i].name) == 0) {
			*ret_node = (struct fs_node){ .kind = hidden_names[i].kind, .view = view };
			return 0;
		}
	}
	return -ENOENT;
}

static int epochs_lookup(uint32_t view, const char *name, struct fs_node *ret_node)
{
	size_t len = strlen(name);
	enum fs_kind kind = FS_EPOCH_DIR;
	uint64_t number;
	if (len > 5 && strcmp(name + len - 5, ".list") == 0) {
		kind = FS_EPOCH_LIST;
		len -= 5;
	} else if (len > 6 && strcmp(name + len - 6, ".list0") == 0) {
		kind = FS_EPOCH_LIST0;
		len -= 6;
	}
	int rc = fs_name_number(name, len, FS_EPOCH_MAX, &number);
	if (rc == 0)
		*ret_node = (struct fs_node){ .kind = kind, .view = view, .id = number };
	return rc;
}

static int ranks_lookup(struct fs_server *server, const char *name, struct fs_node *ret_node)
{
	static const char prefix[] = FS_RANK_PREFIX;
	const size_t len = sizeof(prefix) - 1;
	uint32_t first = server->views[0]->options.rank;
	uint64_t rank;
	if (strncmp(name, prefix, len) != 0 || fs_name_number(name + len, strlen(name + len), UINT32_MAX, &rank) < 0 ||
	        rank < first || rank - first >= server->n_views)
		return -ENOENT;
	*ret_node = fs_server_root(server, (uint32_t)rank - first);
	return 0;
}

static int flat_lookup(struct fs_server *server, struct fs_view *view, const char *name, const uint64_t *only_epoch,
        struct fs_node *ret_node)
{
	uint32_t file;
	int rc = fs_flat_lookup(server, view, name, only_epoch, &file);
	if (rc == 0)
		*ret_node = (struct fs_node){ .kind = FS_FILE, .id = file };
	return rc;
}

int fs_node_lookup(struct fs_server *server, struct fs_node parent, const char *name, struct fs_node *ret_node)
{
	struct fs_view *view = fs_server_view(server, parent);
	if (!view)
		return -ESTALE;
	switch (parent.kind) {
	case FS_ROOT:
		if (strcmp(name, FS_HIDDEN_NAME) == 0) {
			*ret_node = (struct fs_node){ .kind = FS_HIDDEN, .view = parent.view };
			return 0;
		}
		if (view->layout == FS_LAYOUT_FLAT)
			return flat_lookup(server, view, name, NULL, ret_node);
		return dir_lookup(server, view, 0, name, FS_TREE_DIR, parent.view, ret_node);
	case FS_TREE_DIR:
		return dir_lookup(server, view, (uint32_t)parent.id, name, FS_TREE_DIR, parent.view, ret_node);
	case FS_ALL_DIR:
		return dir_lookup(server, NULL, (uint32_t)parent.id, name, FS_ALL_DIR, parent.view, ret_node);
	case FS_HIDDEN:
		return hidden_lookup(parent.view, name, ret_node);
	case FS_EPOCHS:
		return epochs_lookup(parent.view, name, ret_node);
	case FS_EPOCH_DIR:
		return flat_lookup(server, view, name, &parent.id, ret_node);
	case FS_RANKS:
		return ranks_lookup(server, name, ret_node);
	case FS_FILE:
	case FS_EPOCH_LIST:
	case FS_EPOCH_LIST0:
	case FS_STATS:
	case FS_METRICS:
	case FS_STATE:
	case FS_KIND_COUNT:
		break;
	}
	return -ENOTDIR;
}

int fs_node_parent(struct fs_server *server, struct fs_node node, struct fs_node *ret_parent)
{
	struct fs_node parent = fs_server_root(server, node.view);
	struct shard_dir dir;
	int rc;
	switch (node.kind) {
	case FS_TREE_DIR:
	case FS_ALL_DIR:
		rc = shard_index_dir(server->index, (uint32_t)node.id, &dir);
		if (rc < 0)
			return rc;
		if (dir.parent == SHARD_NONE)
			parent = (struct fs_node){ .kind = FS_HIDDEN, .view = node.view };
		else if (dir.parent != 0 || node.kind == FS_ALL_DIR)
			parent = (struct fs_node){ .kind = node.kind, .view = node.view, .id = dir.parent };
		break;
	case FS_EPOCHS:
	case FS_STATS:
	case FS_METRICS:
	case FS_STATE:
		parent = (struct fs_node){ .kind = FS_HIDDEN, .view = node.view };
		break;
	case FS_EPOCH_DIR:
	case FS_EPOCH_LIST:
	case FS_EPOCH_LIST0:
		parent = (struct fs_node){ .kind = FS_EPOCHS, .view = node.view };
		break;
	case FS_RANKS:
		parent = node;
		break;
	case FS_ROOT:
		if (node.id)
			parent = (struct fs_node){ .kind = FS_RANKS };
		break;
	case FS_FILE:
	case FS_HIDDEN:
	case FS_KIND_COUNT:
		break;
	}
	*ret_parent = parent;
	return 0;
}

/* ---- attributes ---- */

static void base_attr(const struct fs_server *server, struct fs_node node, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = fs_ino(node);
	st->st_uid = server->uid;
	st->st_gid = server->gid;
	st->st_blksize = 4096;
	st->st_nlink = 1;
	st->st_mtim = server->index_mtime;
}

static void set_size(struct stat *st, uint64_t bytes)
{
	st->st_size = (off_t)bytes;
	st->st_blocks = (blkcnt_t)((bytes + 511) / 512);
}

static void same_times(struct stat *st)
{
	st->st_atim = st->st_mtim;
	st->st_ctim = st->st_mtim;
}

void fs_file_attr(const struct fs_server *server, uint32_t id, const struct shard_file *file, struct stat *ret_attr)
{
	base_attr(server, (struct fs_node){ .kind = FS_FILE, .id = id }, ret_attr);
	ret_attr->st_mode = S_IFREG | (file->mode & 01777 & ~server->options.umask);
	ret_attr->st_mtim = (struct timespec){ .tv_sec = file->mtime_s };
	set_size(ret_attr, file->length);
	same_times(ret_attr);
}

/* glibc's opendir makes its buffer as large as the directory's st_blksize (sysdeps/unix/sysv/linux/opendir.c). The
 * kernel asks for as much of a listing as that buffer holds (fs/fuse/readdir.c, fuse_readdir_uncached; older kernels
 * ask for a page). So a larger st_blksize means fewer requests. */
static void set_listing_size(uint64_t names, struct stat *st)
{
	st->st_blksize = LISTING_MIN;
	while (st->st_blksize < LISTING_MAX && (uint64_t)st->st_blksize < names * LISTING_NAME)
		st->st_blksize *= 2;
}

static void set_flat_listing_size(const struct fs_server *server, const struct fs_view *view, struct stat *st)
{
	uint64_t samples = (view->sample_end - view->sample0) / view->options.world + 1;
	uint64_t files = server->info->n_samples ? server->info->n_files / server->info->n_samples : 1;
	set_listing_size(samples * files, st);
}

static int dir_attr(const struct fs_server *server, uint32_t id, struct stat *st)
{
	struct shard_dir dir;
	int rc = shard_index_dir(server->index, id, &dir);
	if (rc < 0)
		return rc == -EINVAL ? -ESTALE : rc;
	st->st_mode = S_IFDIR | (dir.mode & 01777 & ~server->options.umask);
	st->st_nlink = 2 + (nlink_t)dir.n_dirs;
	st->st_mtim = (struct timespec){ .tv_sec = dir.mtime_s };
	set_listing_size((uint64_t)dir.n_files + dir.n_dirs, st);
	return 0;
}

static void root_attr(const struct fs_server *server, struct fs_view *view, struct stat *st)
{
	struct fs_view_progress progress;
	if (view->layout == FS_LAYOUT_FLAT) {
		st->st_mode = S_IFDIR | (0755 & ~server->options.umask);
		st->st_nlink = 2;
		st->st_mtim = server->index_mtime;
		set_flat_listing_size(server, view, st);
	}
	/* A new epoch is a new listing. */
	fs_view_progress(view, &progress);
	if (progress.listing_time.tv_sec && (view->layout == FS_LAYOUT_FLAT || !view->all))
		st->st_mtim = progress.listing_time;
}

int fs_node_attr(struct fs_server *server, struct fs_node node, struct stat *ret_attr, double *ret_timeout_s)
{
	struct fs_view *view = fs_server_view(server, node);
	struct shard_file file;
	struct stat st;
	double timeout_s = FS_FOREVER;
	int rc = 0;
	if (!view)
		return -ESTALE;

	base_attr(server, node, &st);
	st.st_mode = S_IFREG | (0444 & ~server->options.umask);
	if (fs_node_is_dir(node)) {
		st.st_mode = S_IFDIR | (0755 & ~server->options.umask);
		st.st_nlink = 2;
		st.st_size = 4096;
		st.st_blocks = 8;
	}
	switch (node.kind) {
	case FS_FILE:
		rc = shard_index_file(server->index, (uint32_t)node.id, &file);
		if (rc == 0)
			fs_file_attr(server, (uint32_t)node.id, &file, &st);
		else if (rc == -EINVAL)
			rc = -ESTALE;
		break;
	case FS_ROOT:
		if (view->layout == FS_LAYOUT_TREE)
			rc = dir_attr(server, 0, &st);
		root_attr(server, view, &st);
		break;
	case FS_TREE_DIR:
	case FS_ALL_DIR:
		rc = dir_attr(server, (uint32_t)node.id, &st);
		break;
	case FS_HIDDEN:
		st.st_nlink = 4; /* all/ and epoch/ */
		break;
	case FS_EPOCHS:
		st.st_nlink = 3; /* for the current epoch, which is listed */
		break;
	case FS_RANKS:
		st.st_nlink = 2 + server->n_views;
		break;
	case FS_STATS:
	case FS_METRICS:
	case FS_STATE:
		timeout_s = 0;
		rc = fs_stats_files_attr(server, node, &st);
		break;
	case FS_EPOCH_DIR:
		set_flat_listing_size(server, view, &st);
		break;
	case FS_EPOCH_LIST:
	case FS_EPOCH_LIST0:
	case FS_KIND_COUNT:
		break;
	}
	if (rc < 0)
		return rc;
	same_times(&st);
	*ret_attr = st;
	*ret_timeout_s = timeout_s;
	return 0;
}
