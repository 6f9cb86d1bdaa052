/* SPDX-License-Identifier: Apache-2.0 */
/* The page cache as the engine's sink, and its streams; fs/sink.h and prefetch/sink.h first. */
#include "fs/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cache/ledger.h"
#include "fs/budget.h"
#include "fs/directory_names.h"
#include "fs/hang_injection.h"
#include "fs/listing_offset.h"
#include "fs/names_ahead.h"
#include "fs/detached_thread.h"
#include "fs/server.h"
#include "fs/supervise/handover_memory.h"
#include "fs/warm_up.h"
#include "shard/base/cleanup.h"

enum {
	NOTIFY_PRUNE = 9,      /* FUSE_NOTIFY_PRUNE, protocol 7.45, Linux 6.18 */
	PRUNE_MAX = 256,       /* inodes in one message */
	USES_MAX = 1024,       /* uses handed to the engine at once */
	LIST_BYTES = 64 << 10, /* bytes of directory entries taken from the kernel at once */
	LIST_NAMES = 1024,     /* most names of a directory that are listed between look-ups */
	LIST_PART = 16,        /* names that are listed for one look-up: as much work again */
	LIST_OPEN = 32,        /* names that could be listed while a directory is opened and closed */
	LIST_WARM_UP = 4096,   /* names that a warm-up lists at once: 18 ms */
	/* Names of the next turns of all streams together may take so much of the budget, and be of so many files as
	 * fill the budget a few times: names of large files would lie there long. */
	NAMES_AHEAD_PART = 16,
	NAMES_AHEAD_FILLS = 4,
	REST_MS = 100, /* ms without an open, after which nothing is looked up if there is no copy of the mount */
	/* Announced lists, those that replace them, and recognised samplers: one at least in each rank. */
	FOLLOWED_MAX = 192 + FS_VIEWS_MAX,
};
_Static_assert((int)FS_VIEWS_MAX + (int)FOLLOWED_MAX + 1 <= (int)CACHE_STREAMS_MAX,
        "the ledger takes the views' own streams, those that are followed, and the warm-up");

/* The message's payload, as the kernel's include/uapi/linux/fuse.h has it. */
struct prune_out {
	uint32_t count;
	uint32_t padding;
	uint64_t spare;
};
_Static_assert(sizeof(struct prune_out) == 16, "struct fuse_notify_prune_out");

/* Layout of struct fuse_out_header, as <linux/fuse.h> and libfuse's own headers have it. */
struct notify_header {
	uint32_t len;
	int32_t error;
	uint64_t unique;
};

struct fs_sink_stream {
	struct fs_sink *sink;
	struct fs_view *view;
	struct shard_view *order; /* the view's order, or one that was recognised */
	uint32_t rank;            /* whose turns of `order` the stream reads */
	bool by_directory;        /* names come from listings of whole directories, where these fit */
	bool ahead;               /* names come from listings of the files that are needed next */
	uint32_t ahead_most;      /* of how many turns at most: the engine was told so */
	bool warm_up;
	bool fits; /* warm-up: a tenth of all files or more */
	struct prefetch_stream *stream;
	/* Uses gathered from one drain of the watcher, under its lock. */
	struct prefetch_use uses[USES_MAX];
	uint32_t samples[USES_MAX];
	size_t n_uses, n_samples;
	struct fs_names_ahead names; /* the toucher's */
};

struct fs_sink {
	struct prefetch_sink base;
	struct fs_server *server;
	pthread_mutex_t lock;                         /* keeps the streams below from ending while they are used */
	struct fs_sink_stream *streams[FS_VIEWS_MAX]; /* of the views' own orders */
	struct fs_sink_stream *followed[FOLLOWED_MAX];
	struct fs_warm_up *warm_up;
	struct fs_sink_stream *warm_up_stream;
	uint64_t gone_fetched[FS_VIEWS_MAX], gone_jumps[FS_VIEWS_MAX]; /* of each view's streams that ended */
	struct fs_detached *toucher;                                   /* the thread that lists and looks up */
	_Atomic uint32_t n_ahead;   /* streams whose names are made ahead, but for the warm-up's */
	_Atomic uint64_t opened_ns; /* the last open of a watched file; 0: none yet */
	_Atomic bool pins;  /* the thread's work makes the mount busy: there is no copy (fs/detached_thread.h) */
	bool no_prune;      /* lister's: this kernel does not have FUSE_NOTIFY_PRUNE */
	char *list_buf;     /* lister's, LIST_BYTES */
	uint32_t list_due;  /* lister's: names to list for the look-ups that were made */
	bool names_changed; /* lister's: another directory is listed */
	bool names_fit;     /* those of all files, in the part of the budget that is for names */
};

static struct fs_sink *sink_of(struct prefetch_sink *base)
{
	return (struct fs_sink *)base;
}

/* ---- announce ---- */

/* Reads directory entries from `*offset` on until those of `n` turns (or files) came, and sets `*offset` to where the
 * next one is. Their names are not used here: the kernel has made inodes for them. Returns 0, or an error of
 * getdents(2) or lseek(2). */
static int list_entries(struct fs_sink *sink, int fd, uint64_t *offset, uint64_t n)
{
	if (lseek(fd, (off_t)*offset, SEEK_SET) < 0)
		return -errno;
	while (n && !sink->server->gone && !sink->server->stopping) {
		long len = syscall(SYS_getdents64, fd, sink->list_buf, LIST_BYTES);
		if (len <= 0)
			return len < 0 ? -errno : 0;
		for (long at = 0; at < len && n; n--) {
			unsigned short reclen;
			memcpy(offset, sink->list_buf + at + 8, sizeof(*offset)); /* d_ino, d_off, d_reclen */
			memcpy(&reclen, sink->list_buf + at + 16, sizeof(reclen));
			at += reclen;
		}
	}
	return 0;
}

static void announce_flat(struct fs_sink *sink, const struct fs_detached_root *root, const struct fs_view *view,
        uint64_t epoch, uint64_t turn, uint32_t n)
{
	char path[PATH_MAX];
	sink->server->lister_epoch = epoch;
	if (snprintf(path, sizeof(path), "%s%s.", root->at, view->place) >= (int)sizeof(path))
		return;
	cleanup_detached_fd int fd = fs_detached_open(root->fd, path, O_RDONLY | O_DIRECTORY | O_NOCTTY | FS_DIR_MARK);
	uint64_t offset = fs_offset_turn(turn);
	if (fd >= 0)
		(void)list_entries(sink, fd, &offset, n); /* what is not listed is looked up by its reader */
}

/* A file has one inode under all of its names. So in a flat view, where a name tells an epoch, its name in the tree of
 * all files (which is not watched) makes the inode known. Returns whether the server was asked: if the kernel has the
 * name and its attributes, this costs no request. A request that came from elsewhere meanwhile counts, too. */
static bool look_up(
        struct fs_sink *sink, const struct fs_detached_root *root, const struct fs_view *view, uint32_t file)
{
	char path[PATH_MAX];
	struct statx st;
	const struct fs_counters *c = &sink->server->counters;
	bool flat = view->layout == FS_LAYOUT_FLAT;
	size_t len = (size_t)snprintf(
	        path, sizeof(path), "%s%s%s", root->at, view->place, flat ? FS_HIDDEN_NAME "/all/" : "");
	if (len >= sizeof(path) || shard_index_file_path(sink->server->index, file, path + len, sizeof(path) - len) < 0)
		return false;
	uint64_t before = fs_counted(&c->lookups) + fs_counted(&c->getattrs);
	statx(root->fd, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_SIZE, &st);
	return fs_counted(&c->lookups) + fs_counted(&c->getattrs) != before;
}

/* Opens a directory of the tree of all files for a marked listing. Returns a descriptor, or a negative number. */
static int open_directory(struct fs_sink *sink, const struct fs_detached_root *root, uint32_t dir)
{
	char path[PATH_MAX];
	size_t len = strlen(root->at);
	memcpy(path, root->at, len + 1);
	int rc = shard_index_dir_path(sink->server->index, dir, path + len, sizeof(path) - len - 1);
	if (rc == 0)
		memcpy(path + len, ".", 2);
	return rc < 0 ? rc : fs_detached_open(root->fd, path, O_RDONLY | O_DIRECTORY | O_NOCTTY | FS_DIR_MARK);
}

/* Goes on with the listing of a directory, by about `n` names. */
static void list_names(
        struct fs_sink *sink, const struct fs_detached_root *root, uint32_t dir, uint64_t offset, uint64_t n)
{
	struct fs_directory_names *names = sink->server->names;
	cleanup_detached_fd int fd = open_directory(sink, root, dir);
	if (fd >= 0 && list_entries(sink, fd, &offset, n) == 0) {
		fs_directory_names_listed(names, dir, offset);
	} else {
		fs_directory_names_failed(names, dir);
		sink->names_changed = true;
	}
}

/* Lists the next piece of a directory if there were look-ups enough. A warm-up, which comes to a directory once, needs
 * no look-ups. Returns whether a piece was listed. */
static bool list_next(struct fs_sink *sink, const struct fs_detached_root *root, bool warm_up)
{
	enum { FIXED = FS_OFFSET_FIXED }; /* "." and ".." */
	uint64_t offset, most = warm_up ? LIST_WARM_UP : LIST_NAMES;
	uint32_t dir, in_dir;
	bool listing = fs_directory_names_next(sink->server->names, &dir, &offset, &in_dir);
	uint64_t n = in_dir + FIXED < most ? in_dir + FIXED : most;
	listing = listing && (warm_up || sink->list_due >= n + LIST_OPEN);
	if (listing) {
		list_names(sink, root, dir, offset, n);
		sink->list_due -= sink->list_due < n + LIST_OPEN ? sink->list_due : n + LIST_OPEN;
	}
	if (sink->list_due > LIST_NAMES + LIST_OPEN)
		sink->list_due = LIST_NAMES + LIST_OPEN;
	return listing;
}

struct order {
	struct fs_sink *sink;
	const struct fs_detached_root *root;
	const struct fs_sink_stream *stream;
	const struct shard_epoch *epoch;
};

/* Whether the part of a rank has a file. A warm-up has all files, but may store few. */
static bool has_file(const void *user, uint32_t file)
{
	const struct order *order = user;
	const struct fs_sink_stream *vs = order->stream;
	struct shard_place place;
	uint32_t rank;
	if (vs->warm_up)
		return vs->fits;
	return shard_index_place(vs->sink->server->index, file, &place) == 0 && place.sample != SHARD_NONE &&
	       shard_epoch_find(order->epoch, place.sample, NULL, &rank, NULL) == 0 && rank == vs->rank;
}

/* Makes the name of a file known: by a look-up, if a listing has not done it. Look-ups pay for listings. Returns
 * whether a piece of a directory was listed besides. */
static bool announce_name(const struct order *order, uint32_t file)
{
	const struct fs_sink_stream *vs = order->stream;
	struct fs_sink *sink = order->sink;
	struct fs_directory_names *names = sink->server->names;
	if (vs->by_directory && fs_directory_names_known(names, file))
		return false;
	if (!look_up(sink, order->root, vs->view, file) || !vs->by_directory)
		return false;
	sink->names_changed |= fs_directory_names_looked_up(names, file, has_file, order);
	sink->list_due += LIST_PART;
	return list_next(sink, order->root, vs->warm_up);
}

/* ---- names of the next turns, by directory (fs/names_ahead.h) ---- */

/* The server has unmounted or ends: only the copy keeps the session alive. */
static bool is_over(const struct order *order)
{
	return order->sink->server->gone || order->sink->server->stopping;
}

static uint32_t files_ahead(void *user, uint64_t turn, uint32_t files[SHARD_SAMPLE_FILES_MAX])
{
	const struct order *order = user;
	const struct fs_server *server = order->sink->server;
	uint32_t sample, n = 0, left = 0;
	if (shard_epoch_turn(order->epoch, order->stream->rank, turn, &sample, NULL) < 0 ||
	        shard_index_sample_files(server->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!order->stream->by_directory || !fs_directory_names_known(server->names, files[i]))
			files[left++] = files[i];
	}
	return left;
}

static uint32_t directory_ahead(void *user, uint32_t file)
{
	const struct order *order = user;
	struct shard_file f;
	return shard_index_file(order->sink->server->index, file, &f) < 0 ? SHARD_NONE : f.dir;
}

static bool list_ahead(void *user, uint32_t dir, const uint32_t *files, uint32_t n)
{
	const struct order *order = user;
	struct fs_server *server = order->sink->server;
	struct shard_dir rec;
	cleanup_detached_fd int fd = is_over(order) ? -1 : open_directory(order->sink, order->root, dir);
	if (fd < 0 || shard_index_dir(server->index, dir, &rec) < 0)
		return false;
	uint64_t offset = FS_OFFSET_FIRST + (files[0] - rec.first_file);
	fs_listing_picks_set(&server->picks, files, n);
	int rc = list_entries(order->sink, fd, &offset, n);
	fs_listing_picks_clear(&server->picks);
	if (rc < 0 || is_over(order))
		return false; /* some of the names may not have come */
	for (uint32_t i = 0; i < n; i++)
		fs_directory_names_came(server->names, files[i]);
	return true;
}

static bool look_up_ahead(void *user, uint32_t file)
{
	const struct order *order = user;
	if (is_over(order) || !look_up(order->sink, order->root, order->stream->view, file))
		return false;
	fs_directory_names_came(order->sink->server->names, file);
	return true;
}

static void look_up_lone_ahead(void *user, uint32_t file)
{
	const struct order *order = user;
	if (!is_over(order))
		announce_name(order, file);
}

/* Returns of how many turns of a stream the names may be made at once, if there are so many streams. */
static uint32_t names_ahead_most(const struct fs_sink *sink, uint32_t n_streams)
{
	const struct shard_info *info = sink->server->info;
	uint64_t budget = fs_budget_bytes(sink->server->budget) / n_streams;
	uint64_t names = budget / NAMES_AHEAD_PART / FS_FILE_OVERHEAD_BYTES;
	uint64_t files = budget / (info->content_bytes / (info->n_files + 1) + 1) * NAMES_AHEAD_FILLS;
	uint64_t most = names < files ? names : files;
	if (info->grouped && info->n_samples > 0 && info->n_files > info->n_samples)
		most /= info->n_files / info->n_samples;
	return most > FS_NAMES_AHEAD_MAX     ? FS_NAMES_AHEAD_MAX
	       : most < FS_NAMES_AHEAD_FIRST ? FS_NAMES_AHEAD_FIRST
	                                     : (uint32_t)most;
}

static void announce_ahead(struct order *order, struct fs_sink_stream *vs, uint64_t epoch, uint64_t turn, uint32_t n)
{
	static const struct fs_names_ahead_ops ops = {
		.files = files_ahead,
		.dir = directory_ahead,
		.list = list_ahead,
		.look_up = look_up_ahead,
		.look_up_lone = look_up_lone_ahead,
	};
	uint32_t n_streams = order->sink->n_ahead;
	uint32_t most = names_ahead_most(order->sink, n_streams > 0 ? n_streams : 1);
	vs->names.most = most < vs->ahead_most ? most : vs->ahead_most;
	fs_names_ahead_asked(&vs->names, &ops, order, epoch, shard_epoch_turns(order->epoch, vs->rank), turn, n);
}

/* ---- names of a tree ---- */

/* Returns how many of the turns are announced: a warm-up lists one piece, and lets others go first. */
static uint32_t announce_turns(const struct order *order, uint64_t turn, uint32_t n)
{
	const struct fs_sink_stream *vs = order->stream;
	bool listed = false;
	uint32_t i;
	for (i = 0; i < n && !order->sink->server->gone && !(listed && vs->warm_up); i++) {
		uint32_t files[SHARD_SAMPLE_FILES_MAX], sample, n_files = 0;
		int rc = shard_epoch_turn(order->epoch, vs->rank, turn + i, &sample, NULL);
		if (rc == 0)
			rc = shard_index_sample_files(
			        order->sink->server->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n_files);
		for (uint32_t f = 0; rc == 0 && f < n_files; f++)
			listed |= announce_name(order, files[f]);
	}
	return order->sink->server->gone ? n : i;
}

static uint32_t announce_tree(struct fs_sink *sink, const struct fs_detached_root *root, struct fs_sink_stream *vs,
        uint64_t epoch, uint64_t turn, uint32_t n)
{
	struct shard_epoch *e;
	if (shard_view_epoch(vs->order, epoch, &e) < 0)
		return n;
	struct order order = { .sink = sink, .root = root, .stream = vs, .epoch = e };
	if (vs->ahead)
		announce_ahead(&order, vs, epoch, turn, n);
	else
		n = announce_turns(&order, turn, n);
	shard_epoch_put(e);
	return n;
}

struct announcement {
	struct fs_sink *sink;
	struct fs_sink_stream *stream;
	uint64_t epoch;
	uint64_t turn;
	uint32_t n; /* then: how many of the turns were announced */
};

static void announce_now(void *arg, const struct fs_detached_root *root)
{
	struct announcement *a = arg;
	struct fs_server *server = a->sink->server;
	if (!server->lister)
		server->lister = (pid_t)syscall(SYS_gettid);
	if (server->stopping)
		return;
	a->sink->pins = root->fd < 0;
	if (a->stream->view->layout == FS_LAYOUT_FLAT && !shard_view_is_given(a->stream->order))
		announce_flat(a->sink, root, a->stream->view, a->epoch, a->turn, a->n);
	else
		a->n = announce_tree(a->sink, root, a->stream, a->epoch, a->turn, a->n);
}

static uint32_t sink_announce(struct prefetch_sink *base, void *user, uint64_t epoch, uint64_t turn, uint32_t n)
{
	struct fs_sink *sink = sink_of(base);
	struct fs_sink_stream *vs = user;
	struct announcement a = { .sink = sink, .stream = vs, .epoch = epoch, .turn = turn, .n = n };
	fs_detached_run(sink->toucher, announce_now, &a);
	if (sink->names_changed) /* not by the toucher: it has no descriptors to wake the engine with */
		fs_budget_apply(sink->server->budget);
	sink->names_changed = false;
	return a.n;
}

/* When a trainer stops, umount(8) often follows. It fails while a look-up waits for its answer, so there are none
 * then. The trainer's next open makes the engine ask again. */
static bool sink_rests(struct prefetch_sink *base)
{
	struct fs_sink *sink = sink_of(base);
	uint64_t opened_ns = atomic_load_explicit(&sink->opened_ns, memory_order_relaxed);
	return atomic_load_explicit(&sink->pins, memory_order_relaxed) && opened_ns > 0 &&
	       base_now_ns() - opened_ns > REST_MS * UINT64_C(1000000);
}

/* ---- store ---- */

static int sink_store(struct prefetch_sink *base, uint32_t file, uint64_t offset, const uint8_t *data, uint32_t len)
{
	struct fs_sink *sink = sink_of(base);
	fs_hang_here(sink->server, FS_HANG_STORE);
	struct fuse_bufvec buf = FUSE_BUFVEC_INIT(len);
	buf.buf[0].mem = (void *)(uintptr_t)data;
	int rc = fuse_lowlevel_notify_store(
	        sink->server->session, fs_ino((struct fs_node){ .kind = FS_FILE, .id = file }), (off_t)offset, &buf, 0);
	if (rc == -ENOENT)
		fs_directory_names_forget(sink->server->names, file);
	return rc;
}

/* ---- look ---- */

/* The kernel answers with what it has of these bytes, up to the first page that is gone. Without an inode it has
 * nothing: -ENOENT. */
static int sink_look(struct prefetch_sink *base, uint32_t file, uint64_t offset, uint32_t len)
{
	const struct fs_server *server = sink_of(base)->server;
	return fuse_lowlevel_notify_retrieve(server->session, fs_ino((struct fs_node){ .kind = FS_FILE, .id = file }),
	        len, (off_t)offset, (void *)(uintptr_t)len);
}

/* ---- drop ---- */

/* Drops many inodes with one message. The kernel keeps those in use. */
static int prune(struct fs_sink *sink, uint64_t *inos, uint32_t n)
{
	struct prune_out out = { .count = n };
	struct notify_header header = {
		.len = (uint32_t)(sizeof(header) + sizeof(out) + n * sizeof(uint64_t)),
		.error = NOTIFY_PRUNE,
	};
	struct iovec iov[] = {
		{ .iov_base = &header, .iov_len = sizeof(header) },
		{ .iov_base = &out, .iov_len = sizeof(out) },
		{ .iov_base = inos, .iov_len = n * sizeof(uint64_t) },
	};
	return writev(sink->server->fuse_fd, iov, 3) < 0 ? -errno : 0;
}

static void drop_inos(struct fs_sink *sink, uint64_t *inos, uint32_t n)
{
	if (!sink->no_prune) {
		int rc = prune(sink, inos, n);
		if (rc != -EINVAL)
			return;
		sink->no_prune = true;
	}
	for (uint32_t i = 0; i < n; i++)
		fuse_lowlevel_notify_inval_inode(sink->server->session, inos[i], 0, 0);
}

struct ino_list {
	struct fs_sink *sink;
	uint64_t inos[PRUNE_MAX];
	uint32_t n;
};

static void drop_file(struct ino_list *list, uint32_t file)
{
	list->inos[list->n++] = fs_ino((struct fs_node){ .kind = FS_FILE, .id = file });
	if (list->n == PRUNE_MAX) {
		drop_inos(list->sink, list->inos, list->n);
		list->n = 0;
	}
}

/* Drops a sample. Only its pages go if it will be stored again before it is announced again, or if the names of its
 * directory are kept. */
static void drop_sample(struct ino_list *list, uint32_t sample, bool announced)
{
	const struct fs_server *server = list->sink->server;
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n_files = 0;
	int rc = shard_index_sample_files(server->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n_files);
	for (uint32_t f = 0; rc == 0 && f < n_files; f++) {
		if (fs_directory_names_dropped(list->sink->server->names, files[f]) || announced)
			fuse_lowlevel_notify_inval_inode(
			        server->session, fs_ino((struct fs_node){ .kind = FS_FILE, .id = files[f] }), 0, 0);
		else
			drop_file(list, files[f]);
	}
}

/* Drops a block of a large file: only its pages, the inode stays. */
static void drop_block(struct ino_list *list, uint32_t file, uint32_t block)
{
	struct shard_file f;
	if (shard_index_file(list->sink->server->index, file, &f) < 0)
		return;
	if (f.length <= SHARD_BLOCK)
		drop_file(list, file);
	else
		fuse_lowlevel_notify_inval_inode(list->sink->server->session,
		        fs_ino((struct fs_node){ .kind = FS_FILE, .id = file }), (off_t)block * SHARD_BLOCK,
		        SHARD_BLOCK);
}

static void sink_drop(struct prefetch_sink *base, const struct cache_victim *victims, size_t n)
{
	struct ino_list list = { .sink = sink_of(base) };
	fs_hang_here(list.sink->server, FS_HANG_DROP);
	for (size_t i = 0; i < n; i++) {
		if (victims[i].block == CACHE_WHOLE)
			drop_sample(&list, victims[i].id, victims[i].announced);
		else
			drop_block(&list, victims[i].id, victims[i].block);
	}
	if (list.n)
		drop_inos(list.sink, list.inos, list.n);
}

/* ---- consumption ---- */

static void flush(struct fs_sink_stream *vs)
{
	if (vs->n_uses)
		prefetch_stream_used(vs->stream, vs->uses, vs->n_uses);
	if (vs->n_samples)
		prefetch_stream_used_samples(vs->stream, vs->samples, vs->n_samples);
	vs->n_uses = vs->n_samples = 0;
}

/* Under the sink's lock. */
static void used(struct fs_sink_stream *vs, uint32_t file, uint64_t epoch, uint64_t turn)
{
	if (vs->view->layout == FS_LAYOUT_FLAT && turn != UINT64_MAX && epoch <= FS_EPOCH_MAX) {
		vs->uses[vs->n_uses++] = (struct prefetch_use){ .epoch = epoch, .turn = turn };
	} else {
		/* A name that tells no epoch: the sample was used. */
		struct shard_place f;
		if (shard_index_place(vs->sink->server->index, file, &f) < 0 || f.sample == SHARD_NONE)
			return;
		vs->samples[vs->n_samples++] = f.sample;
	}
	if (vs->n_uses == USES_MAX || vs->n_samples == USES_MAX)
		flush(vs);
}

void fs_sink_opened(struct fs_sink *sink, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn)
{
	atomic_store_explicit(&sink->opened_ns, base_now_ns(), memory_order_relaxed);
	lock_for_scope(&sink->lock);
	if (sink->streams[view->number])
		used(sink->streams[view->number], file, epoch, turn);
}

void fs_sink_drained(struct fs_sink *sink)
{
	for (uint32_t i = 0; i < sink->server->n_views; i++) {
		lock_for_scope(&sink->lock);
		if (sink->streams[i])
			flush(sink->streams[i]);
	}
}

void fs_sink_epoch(struct fs_sink *sink, struct fs_view *view, uint64_t epoch)
{
	if (!sink)
		return;
	lock_for_scope(&sink->lock);
	if (sink->streams[view->number])
		prefetch_stream_epoch(sink->streams[view->number]->stream, epoch);
}

void fs_sink_hold(struct fs_sink *sink)
{
	if (sink->toucher)
		fs_detached_hold(sink->toucher);
}

void fs_sink_release(struct fs_sink *sink)
{
	if (sink->toucher)
		fs_detached_release(sink->toucher);
}

void fs_sink_gone(struct fs_sink *sink)
{
	if (sink->toucher)
		fs_detached_let_go(sink->toucher);
}

/* @view: only the streams of this one; NULL: of all. */
static void add_stats(struct fs_sink_stream *vs, const struct fs_view *view, struct prefetch_stream_stats *stats)
{
	struct prefetch_stream_stats one;
	if (!vs || (view && vs->view != view))
		return;
	prefetch_stream_stats_get(vs->stream, &one);
	stats->used += one.used;
	stats->fetched += one.fetched;
	stats->window_bytes += one.window_bytes;
	stats->window_limit += one.window_limit;
	stats->jumps += one.jumps;
	stats->following |= one.following;
}

void fs_sink_stats(struct fs_sink *sink, const struct fs_view *view, struct prefetch_stream_stats *ret_stats)
{
	*ret_stats = (struct prefetch_stream_stats){ 0 };
	if (!sink)
		return;
	lock_for_scope(&sink->lock);
	for (uint32_t i = 0; i < sink->server->n_views; i++) {
		add_stats(sink->streams[i], view, ret_stats);
		if (view && view->number != i)
			continue;
		ret_stats->fetched += sink->gone_fetched[i];
		ret_stats->jumps += sink->gone_jumps[i];
	}
	for (unsigned i = 0; i < FOLLOWED_MAX; i++)
		add_stats(sink->followed[i], view, ret_stats);
}

/* ---- life ---- */

static const struct prefetch_sink_ops sink_ops = {
	.announce = sink_announce,
	.rests = sink_rests,
	.store = sink_store,
	.look = sink_look,
	.drop = sink_drop,
};

int fs_sink_new(struct fs_server *server, struct fs_sink **ret_sink)
{
	struct fs_sink *sink = calloc(1, sizeof(*sink));
	if (!sink)
		return -ENOMEM;
	sink->base = (struct prefetch_sink){ .ops = &sink_ops, .overhead_bytes = FS_FILE_OVERHEAD_BYTES };
	sink->server = server;
	pthread_mutex_init(&sink->lock, NULL);
	sink->list_buf = malloc(LIST_BYTES);
	/* What a store sends again costs more than a name. And without room for all names, few
	 * directories can be listed whole: so the names that are needed next are. */
	uint64_t memory = fs_budget_bytes(server->budget), most = fs_directory_names_most(memory);
	uint64_t few = memory / 8 < most ? memory / 8 : most;
	uint64_t all = (uint64_t)server->info->n_files * FS_FILE_OVERHEAD_BYTES;
	sink->names_fit = all <= (shard_index_store(server->index) ? few : most);
	const struct fs_handover_names kept = fs_handover_names(server->handover);
	if (!sink->list_buf ||
	        fs_directory_names_new(server->index, sink->names_fit ? all : few, &kept, &server->names) < 0) {
		fs_sink_free(sink);
		return -ENOMEM;
	}
	*ret_sink = sink;
	return 0;
}

struct prefetch_sink *fs_sink_base(struct fs_sink *sink)
{
	return &sink->base;
}

/* Finds where a predecessor's trainer is. In the last few thousand turns, those not opened belong to other workers.
 * Those not opened before them never will be. */
static uint64_t resume_turn(struct fs_view *view, const struct fs_view_progress *progress)
{
	uint64_t first = fs_view_first_unopened(view, progress->epoch);
	uint64_t least = progress->next_turn > FS_WATCH_SLACK ? progress->next_turn - FS_WATCH_SLACK : 0;
	return first > least ? first : least;
}

static void tell_opened(struct fs_sink_stream *vs, uint64_t epoch, uint64_t turn)
{
	uint64_t turns[USES_MAX];
	size_t n;
	while ((n = fs_view_opened_turns(vs->view, epoch, &turn, turns, USES_MAX)) > 0) {
		for (size_t i = 0; i < n; i++)
			vs->uses[i] = (struct prefetch_use){ .epoch = epoch, .turn = turns[i], .past = true };
		prefetch_stream_used(vs->stream, vs->uses, n);
	}
}

static int stream_new(struct fs_sink *sink, struct fs_view *view, const struct prefetch_stream_options *wanted,
        struct fs_sink_stream **ret_stream)
{
	if (!sink->toucher)
		return -EAGAIN; /* nobody could announce */
	struct fs_sink_stream *vs = calloc(1, sizeof(*vs));
	if (!vs)
		return -ENOMEM;
	vs->sink = sink;
	vs->view = view;
	vs->order = wanted->view;
	vs->rank = wanted->rank;
	vs->warm_up = wanted->warm_up;
	/* A rank's tree has other names in each epoch, a flat view's files are looked up in the tree of all. */
	bool tree = view->all && view->layout == FS_LAYOUT_TREE && !*view->place;
	vs->by_directory = wanted->warm_up || (sink->names_fit && tree);
	/* A warm-up lists whole directories, or, if the names of all files are too many, those that it needs next. */
	vs->ahead = tree && (!wanted->warm_up || !sink->names_fit);
	vs->ahead_most = vs->ahead ? names_ahead_most(sink, 1) : 0;
	vs->fits = fs_budget_bytes(sink->server->budget) > sink->server->info->content_bytes / 10;
	struct prefetch_stream_options options = *wanted;
	options.user = vs;
	options.names_ahead = vs->ahead_most;
	/* Before the first announcement, which may come at once. A warm-up reads alone. */
	sink->n_ahead += vs->ahead && !vs->warm_up;
	int rc = prefetch_stream_new(sink->server->prefetch, &options, &vs->stream);
	if (rc < 0) {
		sink->n_ahead -= vs->ahead && !vs->warm_up;
		free(vs);
		return rc;
	}
	*ret_stream = vs;
	return 0;
}

static void stream_free(struct fs_sink_stream *vs)
{
	prefetch_stream_free(vs->stream);
	vs->sink->n_ahead -= vs->ahead && !vs->warm_up;
	free(vs);
}

static void stream_end(struct fs_sink *sink, struct fs_sink_stream **place)
{
	struct prefetch_stream_stats stats;
	struct fs_sink_stream *vs;
	{
		lock_for_scope(&sink->lock);
		vs = *place;
		*place = NULL;
		if (vs) {
			prefetch_stream_stats_get(vs->stream, &stats);
			sink->gone_fetched[vs->view->number] += stats.fetched;
			sink->gone_jumps[vs->view->number] += stats.jumps;
		}
	}
	if (vs)
		stream_free(vs);
}

static int start_stream(struct fs_sink *sink, struct fs_view *view)
{
	struct fs_sink_stream *vs;
	struct fs_view_progress progress;
	fs_view_progress(view, &progress);
	struct prefetch_stream_options options = {
		.view = view->order,
		.rank = view->options.rank,
		.epoch = progress.epoch,
		.turn = resume_turn(view, &progress),
		/* A trainer that walks a tree usually has its own sampler. */
		.doubtful = view->layout == FS_LAYOUT_TREE,
		.tells_uses = !view->all, /* else fs/trainer_uses.h tells the order of a trainer */
	};
	int rc = stream_new(sink, view, &options, &vs);
	if (rc < 0)
		return rc == -ENODATA ? 0 : rc; /* nothing is dealt to this rank, so there is nothing to read ahead */
	/* A doubtful stream finds its place by files that are opened close together. What was opened before would come
	 * sorted, so it would always look so. */
	if (!options.doubtful)
		tell_opened(vs, options.epoch, options.turn);
	lock_for_scope(&sink->lock);
	sink->streams[view->number] = vs;
	return 0;
}

int fs_sink_own(struct fs_sink *sink, struct fs_view *view, bool wanted)
{
	bool there;
	int rc = 0;
	{
		lock_for_scope(&sink->lock);
		there = sink->streams[view->number] != NULL;
	}
	if (wanted && !there)
		rc = start_stream(sink, view);
	else if (!wanted && there)
		stream_end(sink, &sink->streams[view->number]);
	return rc;
}

bool fs_sink_own_followed(struct fs_sink *sink, const struct fs_view *view)
{
	struct prefetch_stream_stats stats;
	if (!sink)
		return false;
	lock_for_scope(&sink->lock);
	const struct fs_sink_stream *vs = sink->streams[view->number];
	if (!vs)
		return view->layout == FS_LAYOUT_FLAT;
	prefetch_stream_stats_get(vs->stream, &stats);
	return stats.following;
}

int fs_sink_follow(struct fs_sink *sink, struct fs_view *view, const struct prefetch_stream_options *options,
        struct fs_sink_stream **ret_stream)
{
	struct fs_sink_stream *vs;
	int rc = stream_new(sink, view, options, &vs);
	if (rc < 0)
		return rc;
	unsigned i = 0;
	{
		lock_for_scope(&sink->lock);
		while (i < FOLLOWED_MAX && sink->followed[i])
			i++;
		if (i < FOLLOWED_MAX)
			sink->followed[i] = vs;
	}
	if (i == FOLLOWED_MAX) {
		stream_free(vs);
		return -E2BIG;
	}
	*ret_stream = vs;
	return 0;
}

void fs_sink_unfollow(struct fs_sink *sink, struct fs_sink_stream *vs)
{
	for (unsigned i = 0; i < FOLLOWED_MAX; i++) {
		if (sink->followed[i] == vs)
			stream_end(sink, &sink->followed[i]);
	}
}

void fs_sink_used(struct fs_sink_stream *vs, uint64_t epoch, uint64_t turn, bool past)
{
	vs->uses[vs->n_uses++] = (struct prefetch_use){ .epoch = epoch, .turn = turn, .past = past };
	if (vs->n_uses == USES_MAX)
		flush(vs);
}

void fs_sink_flush(struct fs_sink_stream *vs)
{
	flush(vs);
}

void fs_sink_refresh(struct fs_sink_stream *vs)
{
	flush(vs);
	prefetch_stream_refresh(vs->stream);
}

void fs_sink_buffer(struct fs_sink_stream *vs, uint64_t turns)
{
	prefetch_stream_buffer(vs->stream, turns);
}

void fs_sink_tell_uses(struct fs_sink_stream *vs, bool tells)
{
	prefetch_stream_tell_uses(vs->stream, tells);
}

/* Starts the stream of the warm-up, for the first view that is a tree of all files. */
static int start_warm_up(struct fs_sink *sink)
{
	const struct fs_server *server = sink->server;
	struct fs_view *view = NULL;
	for (uint32_t i = 0; !view && i < server->n_views; i++) {
		if (server->views[i]->all && server->views[i]->layout == FS_LAYOUT_TREE)
			view = server->views[i];
	}
	if (!view)
		return 0;
	int rc = fs_warm_up_new(sink->server->index, view, &sink->warm_up);
	if (rc < 0)
		return rc;
	struct prefetch_stream_options options = { .view = fs_warm_up_order(sink->warm_up), .warm_up = true };
	rc = stream_new(sink, view, &options, &sink->warm_up_stream);
	return rc == -ENODATA ? 0 : rc;
}

int fs_sink_start(struct fs_sink *sink)
{
	struct fs_server *server = sink->server;
	int rc = fs_detached_new(server, &sink->toucher);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; rc == 0 && i < server->n_views; i++) {
		if (fs_view_has_reader(server->views[i]))
			rc = start_stream(sink, server->views[i]);
	}
	if (rc == 0)
		rc = start_warm_up(sink);
	if (rc < 0)
		fs_sink_stop(sink);
	return rc;
}

void fs_sink_stop(struct fs_sink *sink)
{
	if (!sink)
		return;
	for (uint32_t i = 0; i < FS_VIEWS_MAX; i++)
		stream_end(sink, &sink->streams[i]);
	stream_end(sink, &sink->warm_up_stream);
	fs_detached_free(sink->toucher);
	sink->toucher = NULL;
}

void fs_sink_free(struct fs_sink *sink)
{
	if (!sink)
		return;
	pthread_mutex_destroy(&sink->lock);
	fs_directory_names_free(sink->server->names);
	fs_warm_up_free(sink->warm_up);
	free(sink->list_buf);
	free(sink);
}
