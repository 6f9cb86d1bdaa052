/* SPDX-License-Identifier: Apache-2.0 */
/* Listings: OPENDIR, READDIR and READDIRPLUS; fs/dir.h first. */
#include "fs/dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/listing_ahead.h"
#include "fs/errors.h"
#include "fs/job_queue.h"
#include "fs/log_queue.h"
#include "fs/name.h"
#include "fs/node.h"
#include "fs/ranks.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"

enum {
	TURNS_AT_ONCE = 64,
	ENTRY_BYTES = 208, /* bytes of a READDIRPLUS entry with a name of usual length: tells how many may fit */
};

/* What a handle keeps, in the 64 bits that the kernel sends back with each request. The server keeps nothing, so the
 * successor of a killed server goes on with every listing.
 *
 *     63       62       61       32 31          0
 *     +--------+--------+----------+-------------+
 *     | marked | epoch? |    0     | epoch       |
 *     +--------+--------+----------+-------------+ */
#define HANDLE_MARKED (UINT64_C(1) << 63)
#define HANDLE_EPOCH (UINT64_C(1) << 62)
_Static_assert(FS_EPOCH_MAX <= UINT32_MAX, "an epoch fits a handle");

/* A directory, as one request sees it. */
struct dir {
	struct fs_node node;
	struct fs_view *view;
	struct shard_epoch *epoch; /* flat directories and filtered trees; NULL for others */
	uint64_t turns;            /* of this rank in it */
	uint32_t dir;              /* tree: the directory */
	uint32_t stand_in;         /* tree: the file of another rank that fill_class lists, or SHARD_NONE */
	bool filtered;             /* tree: only this rank's files are listed */
	bool marked;
};

struct fill {
	struct fs_server *server;
	const struct dir *dir;
	struct fs_dir_piece piece;
	size_t size;
	bool plus;
	bool picked; /* only the names that the toucher has picked (fs/listing_picks.h) */
};

static bool is_flat(const struct dir *dir)
{
	return dir->node.kind == FS_EPOCH_DIR || (dir->node.kind == FS_ROOT && dir->view->layout == FS_LAYOUT_FLAT);
}

static bool is_tree(const struct dir *dir)
{
	return dir->node.kind == FS_TREE_DIR || dir->node.kind == FS_ALL_DIR ||
	       (dir->node.kind == FS_ROOT && dir->view->layout == FS_LAYOUT_TREE);
}

/* ---- opening ---- */

/* Returns 1 if this rank lists the file, 0 if it does not, or an error. */
static int is_listed(const struct dir *dir, uint32_t id, const struct shard_file *file)
{
	uint64_t turn;
	if (!dir->filtered || !fs_view_deals(dir->view, file) || id == dir->stand_in)
		return 1;
	int rc = fs_view_turn(dir->view, dir->epoch, file->sample, &turn);
	if (rc < 0)
		return rc == -ENOENT ? 0 : rc;
	return 1;
}

static int shows(const void *user, uint32_t id, const struct shard_file *file)
{
	return is_listed(user, id, file);
}

static void count_stand_in(struct fs_server *server)
{
	if (atomic_fetch_add(&server->counters.fill_class, 1) == 0)
		fs_log_queue_note(server->log,
		        "fill_class: some classes hold no file of this rank in this epoch and list one "
		        "of another rank instead, which is then trained on twice; `fill_class` in "
		        "stats.json counts them");
}

static void dir_done(struct dir *dir)
{
	shard_epoch_put(dir->epoch);
}

static bool begins_listing(const struct dir *dir)
{
	return dir->node.kind == FS_ROOT ||
	       (dir->node.kind == FS_TREE_DIR && dir->view->subdir != 0 && dir->node.id == dir->view->subdir);
}

static int dir_init(struct fs_server *server, struct fs_node node, struct dir *dir)
{
	*dir = (struct dir){ .node = node, .view = fs_server_view(server, node), .stand_in = SHARD_NONE };
	if (!dir->view)
		return -ESTALE;
	if (!fs_node_is_dir(node))
		return -ENOTDIR;
	dir->dir = is_tree(dir) && node.kind != FS_ROOT ? (uint32_t)node.id : 0;
	dir->filtered = is_tree(dir) && node.kind != FS_ALL_DIR && !dir->view->all;
	return 0;
}

/* Completes a directory whose epoch is known. */
static int dir_settle(struct dir *dir)
{
	if (!dir->epoch)
		return 0;
	dir->turns = shard_epoch_turns(dir->epoch, dir->view->options.rank);
	return dir->filtered && dir->view->fill_class
	               ? fs_view_stand_in(dir->view, dir->dir, shows, dir, &dir->stand_in)
	               : 0;
}

/* OPENDIR: decides what this listing shows. */
static int dir_begin(struct fs_server *server, struct fs_node node, bool trainer, bool marked, struct dir *dir)
{
	int rc = dir_init(server, node, dir);
	if (rc < 0)
		return rc;
	struct fs_view *view = dir->view;
	dir->marked = marked;
	if (begins_listing(dir) && trainer) {
		/* What was opened before this listing counts in the epoch before it. */
		fs_watch_drain(server->watch);
		if (fs_view_listing(view))
			fs_server_epoch_changed(server, view);
	}
	if (node.kind == FS_EPOCH_DIR)
		rc = shard_view_epoch(view->order, node.id, &dir->epoch);
	else if (marked && is_flat(dir))
		rc = shard_view_epoch(view->order, server->lister_epoch, &dir->epoch);
	else if (is_flat(dir) || dir->filtered)
		dir->epoch = fs_view_epoch(view);
	return rc < 0 ? rc : dir_settle(dir);
}

static uint64_t dir_handle(const struct dir *dir)
{
	uint64_t handle = dir->marked ? HANDLE_MARKED : 0;
	return dir->epoch ? handle | HANDLE_EPOCH | shard_epoch_number(dir->epoch) : handle;
}

/* READDIR: finds the directory of a handle again. */
static int dir_resume(struct fs_server *server, fuse_ino_t ino, uint64_t handle, struct dir *dir)
{
	struct fs_node node = { 0 };
	int rc = fs_server_node(server, ino, &node);
	*dir = (struct dir){ 0 };
	if (rc == 0)
		rc = dir_init(server, node, dir);
	if (rc < 0)
		return rc;
	dir->marked = handle & HANDLE_MARKED;
	if (handle & HANDLE_EPOCH)
		rc = shard_view_epoch(dir->view->order, handle & UINT32_MAX, &dir->epoch);
	return rc < 0 ? rc : dir_settle(dir);
}

static void opendir_any(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, bool waited);

/* An OPENDIR that comes before the watches are set. The helper waits for the watches of the mount before its first job,
 * and here for those of a rank. */
struct opendir_job {
	struct fs_job job;
	fuse_req_t req;
	fuse_ino_t ino;
	struct fuse_file_info fi;
};

static void run_opendir(struct fs_job *job, bool ending)
{
	struct opendir_job *o = (struct opendir_job *)job;
	if (ending)
		fuse_reply_err(o->req, EIO);
	else
		opendir_any(o->req, o->ino, &o->fi, true);
	free(o);
}

static void opendir_later(fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	struct opendir_job *o = malloc(sizeof(*o));
	if (!o) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	*o = (struct opendir_job){ .job = { .run = run_opendir }, .req = req, .ino = ino, .fi = *fi };
	fs_job_queue_add(fs_server_of(req)->jobs, &o->job);
}

/* What is opened after a listing counts, so the watches must be set. Those of a rank are set for its first reader.
 * @may_wait: do wait for them. Returns whether they are set. */
static bool are_watches_set(struct fs_server *server, struct fs_node node, bool may_wait)
{
	bool rank = server->options.n_ranks > 0 && (node.kind == FS_ROOT || node.kind == FS_TREE_DIR);
	struct fs_view *view = rank ? fs_server_view(server, node) : NULL;
	if (view)
		fs_ranks_begin_one(server, view);
	if (view && may_wait)
		fs_watch_wait_view(server->watch, view);
	return may_wait || fs_watch_is_ready(server->watch, view);
}

static void opendir_any(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, bool waited)
{
	struct fs_server *server = fs_server_of(req);
	struct fs_node node;
	struct dir dir = { 0 };
	pid_t lister = atomic_load(&server->lister);
	/* A killed server's lister has the mark, too, but another thread id. It gets an unmarked listing that nobody
	 * reads. */
	bool trainer = !(fi->flags & FS_DIR_MARK);
	bool marked = !trainer && lister != 0 && fuse_req_ctx(req)->pid == lister;

	int rc = fs_server_node(server, ino, &node);
	if (rc == 0 && trainer && !are_watches_set(server, node, waited)) {
		opendir_later(req, ino, fi);
		return;
	}
	if (rc == 0)
		rc = dir_begin(server, node, trainer, marked, &dir);
	rc = fs_index_check(server, rc);
	if (rc == 0) {
		if (trainer) {
			fs_count(&server->counters.listings, 1);
			fs_listing_ahead_forget(server->listing_ahead);
		}
		if (dir.stand_in != SHARD_NONE)
			count_stand_in(server);
		fi->fh = dir_handle(&dir);
		fuse_reply_open(req, fi);
	} else {
		fuse_reply_err(req, -fs_errno(rc));
	}
	dir_done(&dir);
}

void fs_dir_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	opendir_any(req, ino, fi, false);
}

/* ---- filling ---- */

/* Adds an entry. Returns 0 if it fitted, 1 if the buffer is full. `file`: the record of a file if known, else NULL. */
static int add(struct fill *fill, const char *name, struct fs_node node, const struct shard_file *file, uint64_t next)
{
	struct fuse_entry_param e = { .attr.st_ino = fs_ino(node),
		.attr.st_mode = fs_node_is_dir(node) ? S_IFDIR : S_IFREG };
	char *at = fill->piece.buf + fill->piece.used;
	size_t room = fill->size - fill->piece.used;
	size_t need;
	if (fill->plus && fill->dir->marked && file) {
		fs_file_attr(fill->server, (uint32_t)node.id, file, &e.attr);
		e.ino = e.attr.st_ino;
		e.attr_timeout = FS_FOREVER;
		e.entry_timeout = FS_FOREVER;
	}
	/* libfuse does not use the request, and a piece made ahead has none. */
	if (fill->plus)
		need = fuse_add_direntry_plus(NULL, at, room, name, &e, (off_t)next);
	else
		need = fuse_add_direntry(NULL, at, room, name, &e.attr, (off_t)next);
	if (need > room)
		return 1;
	fill->piece.used += need;
	fill->piece.next = next;
	fill->piece.names++;
	return 0;
}

static int add_dots(struct fill *fill, uint64_t *off)
{
	struct fs_node parent;
	if (*off == 0) {
		if (add(fill, ".", fill->dir->node, NULL, 1))
			return 1;
		*off = 1;
	}
	if (*off == 1) {
		int rc = fs_node_parent(fill->server, fill->dir->node, &parent);
		if (rc < 0)
			return rc;
		if (add(fill, "..", parent, NULL, FS_OFFSET_FIXED))
			return 1;
		*off = FS_OFFSET_FIXED;
	}
	return 0;
}

static int add_common(struct fill *fill, uint64_t *off)
{
	const struct fs_common_files *common = &fill->server->common;
	for (; *off < FS_OFFSET_FIRST && *off - FS_OFFSET_FIXED < common->n; ++*off) {
		uint32_t id = common->files[*off - FS_OFFSET_FIXED];
		char path[SHARD_PATH_MAX + 1];
		char name[SHARD_NAME_MAX + 1];
		struct shard_file file;
		int rc = shard_index_file(fill->server->index, id, &file);
		if (rc < 0)
			return rc;
		rc = shard_index_file_path(fill->server->index, id, path, sizeof(path));
		if (rc < 0)
			return rc;
		fs_name_encode(path, (size_t)rc, SHARD_NAME_MAX, name);
		if (strcmp(name, FS_HIDDEN_NAME) == 0)
			continue;
		if (add(fill, name, (struct fs_node){ .kind = FS_FILE, .id = id }, &file, *off + 1))
			return 1;
	}
	if (*off < FS_OFFSET_FIRST)
		*off = FS_OFFSET_FIRST;
	return 0;
}

static int add_turn_file(struct fill *fill, uint32_t id, uint64_t epoch, uint64_t step, uint64_t next)
{
	char path[SHARD_PATH_MAX + 1];
	char name[SHARD_NAME_MAX + 1];
	struct shard_file file;
	const struct shard_file *at_hand = NULL;
	int rc = shard_index_file_path(fill->server->index, id, path, sizeof(path));
	if (rc < 0)
		return rc;
	fs_name_flat(epoch, step, path, (size_t)rc, name);
	if (fill->dir->marked) {
		rc = shard_index_file(fill->server->index, id, &file);
		if (rc < 0)
			return rc;
		at_hand = &file;
	}
	return add(fill, name, (struct fs_node){ .kind = FS_FILE, .id = id }, at_hand, next);
}

/* Adds one turn of a dataset of grouped samples, from its `member`-th file on. */
static int add_group(struct fill *fill, uint32_t sample, uint64_t turn, uint64_t step, uint32_t member)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX];
	uint64_t number = shard_epoch_number(fill->dir->epoch);
	uint32_t n;
	int rc = shard_index_sample_files(fill->server->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (; rc == 0 && member < n; member++) {
		uint64_t next = member + 1 < n ? fs_offset_turn(turn) + member + 1 : fs_offset_turn(turn + 1);
		rc = add_turn_file(fill, files[member], number, step, next);
	}
	return rc;
}

struct turn {
	uint32_t sample;
	uint32_t file; /* first */
	uint64_t step;
};

/* Neighbours in an epoch lie far apart in the index, so records and names are cache misses. They take most of a
 * listing's time unless they are fetched for many turns at once. */
static int load_turns(struct fill *fill, uint64_t first, uint32_t n, struct turn turns[TURNS_AT_ONCE])
{
	const struct shard_index *index = fill->server->index;
	for (uint32_t i = 0; i < n; i++) {
		int rc = shard_epoch_turn(
		        fill->dir->epoch, fill->dir->view->options.rank, first + i, &turns[i].sample, &turns[i].step);
		if (rc == 0)
			rc = shard_index_sample_first(index, turns[i].sample, &turns[i].file);
		if (rc < 0)
			return rc;
		shard_index_hint_record(index, turns[i].file);
	}
	for (uint32_t i = 0; i < n; i++)
		shard_index_hint_name(index, turns[i].file);
	return 0;
}

static int add_turns(struct fill *fill, uint64_t off)
{
	const struct dir *dir = fill->dir;
	bool grouped = fill->server->info->grouped;
	uint64_t number = shard_epoch_number(dir->epoch);
	uint64_t turn = (off - FS_OFFSET_FIRST) >> FS_OFFSET_MEMBER_BITS;
	uint32_t member = (off - FS_OFFSET_FIRST) & ((1 << FS_OFFSET_MEMBER_BITS) - 1);
	while (turn < dir->turns) {
		struct turn turns[TURNS_AT_ONCE];
		size_t fit = (fill->size - fill->piece.used) / ENTRY_BYTES + 1;
		uint64_t n = dir->turns - turn;
		if (n > fit)
			n = fit;
		if (n > TURNS_AT_ONCE)
			n = TURNS_AT_ONCE;
		int rc = load_turns(fill, turn, (uint32_t)n, turns);
		for (uint32_t i = 0; rc == 0 && i < n; i++, turn++, member = 0) {
			if (grouped)
				rc = add_group(fill, turns[i].sample, turn, turns[i].step, member);
			else
				rc = add_turn_file(
				        fill, turns[i].file, number, turns[i].step, fs_offset_turn(turn + 1));
		}
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Finds what a name of a tree shows, by on_bad. -ENOENT: nothing. */
static int shown_file(struct fill *fill, uint32_t *id, struct shard_file *file)
{
	uint32_t instead;
	int rc = shard_view_instead_file(fill->dir->view->order, *id, &instead);
	if (rc < 0 || instead == *id)
		return rc;
	*id = instead;
	return shard_index_file(fill->server->index, instead, file);
}

/* Goes on to the next file that is picked. Returns false if none is left in the directory. */
static bool next_pick(const struct fill *fill, const struct shard_dir *rec, uint64_t *off)
{
	uint32_t id = rec->first_file + (uint32_t)(*off - FS_OFFSET_FIRST);
	uint32_t nth = fs_listing_picks_next(&fill->server->picks, id) - rec->first_file;
	*off = FS_OFFSET_FIRST + nth;
	return nth < rec->n_files;
}

static int add_tree_files(struct fill *fill, const struct shard_dir *rec, uint64_t *off)
{
	if (*off < FS_OFFSET_FIRST)
		*off = FS_OFFSET_FIRST;
	for (; *off < FS_OFFSET_SECOND && *off - FS_OFFSET_FIRST < rec->n_files; ++*off) {
		if (fill->picked && !next_pick(fill, rec, off))
			break;
		uint32_t id = rec->first_file + (uint32_t)(*off - FS_OFFSET_FIRST);
		char name[SHARD_NAME_MAX + 1];
		struct shard_file file;
		int rc = shard_index_file(fill->server->index, id, &file);
		if (rc == 0)
			rc = is_listed(fill->dir, id, &file);
		if (rc < 0)
			return rc;
		if (rc == 0)
			continue;
		memcpy(name, file.name, file.name_len);
		name[file.name_len] = '\0';
		rc = fill->dir->node.kind == FS_ALL_DIR ? 0 : shown_file(fill, &id, &file);
		if (rc == -ENOENT)
			continue;
		if (rc < 0)
			return rc;
		if (add(fill, name, (struct fs_node){ .kind = FS_FILE, .id = id }, &file, *off + 1))
			return 1;
	}
	if (*off < FS_OFFSET_SECOND)
		*off = FS_OFFSET_SECOND;
	return 0;
}

static int add_tree_dirs(struct fill *fill, const struct shard_dir *rec, uint64_t off)
{
	enum fs_kind kind = fill->dir->node.kind == FS_ALL_DIR ? FS_ALL_DIR : FS_TREE_DIR;
	uint64_t id = off - FS_OFFSET_SECOND;
	if (id == 0)
		id = (uint64_t)fill->dir->dir + 1;
	while (id > fill->dir->dir && id < rec->end_dir) {
		char name[SHARD_NAME_MAX + 1];
		struct shard_dir child;
		int rc = shard_index_dir(fill->server->index, (uint32_t)id, &child);
		if (rc < 0)
			return rc;
		if (child.parent != fill->dir->dir || child.end_dir <= id)
			return -EUCLEAN;
		memcpy(name, child.name, child.name_len);
		name[child.name_len] = '\0';
		bool hidden = fill->dir->node.kind == FS_ROOT && strcmp(name, FS_HIDDEN_NAME) == 0;
		struct fs_node node = { .kind = kind, .view = fill->dir->node.view, .id = id };
		if (!hidden && add(fill, name, node, NULL, FS_OFFSET_SECOND + child.end_dir))
			return 1;
		id = child.end_dir;
	}
	return 0;
}

static int add_fixed(struct fill *fill, uint64_t off)
{
	static const char *const hidden[] = { "all", "epoch", "metrics", "state", "stats.json" };
	struct fs_view_progress progress;
	char epoch[3][32];
	const char *names[5];
	size_t n = 0;
	if (fill->dir->node.kind == FS_HIDDEN) {
		for (; n < sizeof(hidden) / sizeof(hidden[0]); n++)
			names[n] = hidden[n];
	} else {
		fs_view_progress(fill->dir->view, &progress);
		snprintf(epoch[0], sizeof(epoch[0]), "%llu", (unsigned long long)progress.epoch);
		snprintf(epoch[1], sizeof(epoch[1]), "%llu.list", (unsigned long long)progress.epoch);
		snprintf(epoch[2], sizeof(epoch[2]), "%llu.list0", (unsigned long long)progress.epoch);
		names[n++] = epoch[0];
		names[n++] = epoch[1];
		names[n++] = epoch[2];
	}
	for (; off - FS_OFFSET_FIXED < n; off++) {
		struct fs_node node;
		const char *name = names[off - FS_OFFSET_FIXED];
		int rc = fs_node_lookup(fill->server, fill->dir->node, name, &node);
		if (rc < 0)
			return rc;
		if (add(fill, name, node, NULL, off + 1))
			return 1;
	}
	return 0;
}

static int add_ranks(struct fill *fill, uint64_t off)
{
	for (; off - FS_OFFSET_FIXED < fill->server->n_views; off++) {
		uint32_t view = (uint32_t)(off - FS_OFFSET_FIXED);
		char name[32];
		snprintf(name, sizeof(name), FS_RANK_PREFIX "%u", fill->server->views[view]->options.rank);
		if (add(fill, name, fs_server_root(fill->server, view), NULL, off + 1))
			return 1;
	}
	return 0;
}

static int fill_all(struct fill *fill, uint64_t off)
{
	int rc = add_dots(fill, &off);
	if (rc != 0)
		return rc;
	if (is_flat(fill->dir)) {
		rc = add_common(fill, &off);
		return rc != 0 ? rc : add_turns(fill, off);
	}
	if (is_tree(fill->dir)) {
		struct shard_dir rec;
		fill->picked = fill->dir->marked && fs_listing_picks_any(&fill->server->picks);
		rc = shard_index_dir(fill->server->index, fill->dir->dir, &rec);
		if (rc == 0)
			rc = add_tree_files(fill, &rec, &off);
		return rc != 0 || fill->picked ? rc : add_tree_dirs(fill, &rec, off);
	}
	return fill->dir->node.kind == FS_RANKS ? add_ranks(fill, off) : add_fixed(fill, off);
}

/* Makes a piece. If an error comes after some names, the piece holds these names, and the error comes again with the
 * next call. */
static int make_piece(struct fs_server *server, const struct fs_dir_place *place, struct fs_dir_piece *ret_piece)
{
	struct dir dir;
	struct fill fill = { .server = server, .dir = &dir, .size = place->size, .plus = place->plus };
	cleanup_free char *buf = malloc(place->size);
	if (!buf)
		return -ENOMEM;
	fill.piece.buf = buf;
	int rc = dir_resume(server, place->ino, place->handle, &dir);
	if (rc == 0)
		rc = fill_all(&fill, place->off);
	dir_done(&dir);
	if (rc < 0 && fill.piece.used == 0)
		return rc;
	fill.piece.full = rc > 0 && fill.piece.used > 0;
	*ret_piece = fill.piece;
	buf = NULL;
	return 0;
}

static void make_ahead(struct fs_server *server, struct fs_dir_place place, uint64_t off)
{
	struct fs_dir_piece piece = { 0 };
	place.off = off;
	if (!fs_listing_ahead_begin(server->listing_ahead, &place))
		return;
	if (make_piece(server, &place, &piece) < 0)
		piece.buf = NULL;
	fs_listing_ahead_end(server->listing_ahead, piece);
}

static void list(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, const struct fuse_file_info *fi, bool plus)
{
	struct fs_server *server = fs_server_of(req);
	struct fs_dir_place place = {
		.ino = ino,
		.handle = fi->fh,
		.off = (uint64_t)off,
		.size = size > FS_READ_MAX ? FS_READ_MAX : size,
		.plus = plus,
	};
	struct fs_dir_piece piece = { 0 };
	int rc = off < 0 ? -EINVAL : 0;
	if (rc == 0 && !fs_listing_ahead_take(server->listing_ahead, &place, &piece))
		rc = make_piece(server, &place, &piece);
	rc = fs_index_check(server, rc);
	if (rc < 0) {
		free(piece.buf);
		fuse_reply_err(req, -fs_errno(rc));
		return;
	}
	fs_count(&server->counters.entries, piece.names);
	fuse_reply_buf(req, piece.buf, piece.used);
	free(piece.buf);
	/* A marked listing ends when the engine has what it wants, so nothing is made ahead for it. */
	if (piece.full && !(fi->fh & HANDLE_MARKED))
		make_ahead(server, place, piece.next);
}

void fs_dir_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, ino, size, off, fi, false);
}

void fs_dir_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	list(req, ino, size, off, fi, true);
}
