/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher: adds inotify watches, drains events, pairs READs with opens; fs/watch.h first. */
#include "fs/watch.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "fs/server.h"
#include "fs/supervise/handover_memory.h"
#include "fs/log_queue.h"
#include "fs/node.h"
#include "fs/hit_counting.h"
#include "fs/detached_thread.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

enum {
	READY_DIRS = 4096, /* directories that are watched before the mount, or a rank of it, is called ready */
	DRAIN_DIRS = 64,   /* directories that are watched between two drains; the look-up of one takes about 25 us */
	DRAIN_READS_MAX = 64, /* reads of FS_HANDOVER_EVENTS_BYTES in one drain: a limit under a flood of events */
	IN_ORDER_FULL = 64,   /* events in a row within the slack after which an order is trusted */
	PAIR_MS_MAX = 3600000,
	EPOCHS_KEPT = 2, /* epochs whose turns READs are compared with: the current one, and the one before */
	/* names of a file that a READ is looked for by: in each view the file itself, and a turn of each epoch */
	KEYS_MAX = FS_VIEWS_MAX * (1 + EPOCHS_KEPT),
};

#define PAIR_ENVIRON "DDPFS_TEST_PAIR_MS" /* for tests: counts must not depend on how busy the machine is */

struct watched {
	struct fs_view *view;
	uint32_t dir; /* tree: the directory; flat: 0 */
};

/* An epoch whose turns READs are compared with. */
struct kept_epoch {
	struct shard_epoch *epoch; /* referenced; NULL: none */
	uint64_t turns;            /* of the view's rank */
	uint32_t last; /* the sample of its last turn, which tail=pad may deal to two ranks; or SHARD_NONE */
};

struct watched_view {
	_Atomic bool wanted;                   /* the view has a reader */
	_Atomic bool ready;                    /* its first watches are set; changes with ready_lock held */
	bool watched;                          /* the thread's own: its watches are set, as far as they can be */
	uint32_t in_order;                     /* how far the opens follow the order, 0..IN_ORDER_FULL */
	bool lost;                             /* events were lost after the last one that had a turn */
	struct kept_epoch epochs[EPOCHS_KEPT]; /* of a flat view with opens, latest first */
};

struct fs_watch {
	struct fs_server *server;
	pthread_t thread;
	bool started;
	int fd;
	int poke_fd; /* eventfd: the thread must end, watch a view, or look whether the mount is gone */
	_Atomic bool stopping;
	_Atomic bool settled; /* the number of every watch is known, so a predecessor's events can be read */
	_Atomic uint64_t n_dirs;

	pthread_mutex_t ready_lock;
	pthread_cond_t ready_cond;
	_Atomic bool ready; /* changes with ready_lock held */
	int answer;         /* result of the first stat, 0 or -errno; set before `ready` */

	/* The thread's own. */
	struct fs_detached_root root;
	bool has_root;
	bool told_full; /* the note that there are no more watches was given */

	pthread_mutex_t lock; /* guards what follows */
	struct fs_watch_listener listener;
	struct watched *by_wd;
	size_t by_wd_size;
	struct fs_hit_counting *opens;
	struct watched_view *views;     /* one for each view of the server */
	struct fs_handover_opens *kept; /* buffer for events, in the handover memory */
	bool has_left;                  /* a predecessor may have left events there */
};

/* A predecessor's opens came in order if nearly all turns up to the farthest one were opened. */
static uint32_t seen_in_order(struct fs_view *view)
{
	struct fs_view_progress progress;
	fs_view_progress(view, &progress);
	bool most = progress.n_opened >= IN_ORDER_FULL && progress.n_opened >= progress.next_turn / 10 * 9;
	return most ? IN_ORDER_FULL : 0;
}

static uint32_t pair_ms(void)
{
	const char *value = getenv(PAIR_ENVIRON);
	unsigned long ms = value ? strtoul(value, NULL, 10) : 0;
	return ms && ms <= PAIR_MS_MAX ? (uint32_t)ms : FS_HIT_COUNTING_PAIR_MS;
}

int fs_watch_new(struct fs_server *server, struct fs_watch **ret_watch)
{
	struct fs_watch *watch = calloc(1, sizeof(*watch));
	if (!watch)
		return -ENOMEM;
	watch->server = server;
	pthread_mutex_init(&watch->lock, NULL);
	pthread_mutex_init(&watch->ready_lock, NULL);
	pthread_cond_init(&watch->ready_cond, NULL);
	watch->poke_fd = -1;
	watch->fd = server->channel->inotify_fd; /* has watches and events already if there was a server before */
	watch->views = calloc(server->n_views, sizeof(*watch->views));
	if (!watch->views || fs_hit_counting_new(pair_ms(), &watch->opens) < 0) {
		fs_watch_free(watch);
		return -ENOMEM;
	}
	watch->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (watch->poke_fd < 0) {
		int rc = -errno;
		fs_watch_free(watch);
		return rc;
	}
	watch->settled = !server->successor;
	watch->has_left = server->successor;
	watch->kept = fs_handover_opens(server->handover);
	for (uint32_t i = 0; i < server->n_views; i++) {
		watch->views[i].wanted = fs_view_has_reader(server->views[i]);
		watch->views[i].in_order = server->successor ? seen_in_order(server->views[i]) : 0;
	}
	*ret_watch = watch;
	return 0;
}

void fs_watch_free(struct fs_watch *watch)
{
	if (!watch)
		return;
	if (watch->poke_fd >= 0)
		close(watch->poke_fd);
	free(watch->by_wd);
	for (uint32_t v = 0; watch->views && v < watch->server->n_views; v++)
		for (size_t i = 0; i < EPOCHS_KEPT; i++)
			shard_epoch_put(watch->views[v].epochs[i].epoch);
	free(watch->views);
	fs_hit_counting_free(watch->opens);
	pthread_cond_destroy(&watch->ready_cond);
	pthread_mutex_destroy(&watch->ready_lock);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

void fs_watch_listen(struct fs_watch *watch, struct fs_watch_listener listener)
{
	lock_for_scope(&watch->lock);
	watch->listener = listener;
}

uint64_t fs_watch_dirs(struct fs_watch *watch)
{
	return watch ? atomic_load(&watch->n_dirs) : 0;
}

/* A nonblocking eventfd fails with EAGAIN only, and then it is set already. */
static void poke(struct fs_watch *watch)
{
	uint64_t one = 1;
	ssize_t n = write(watch->poke_fd, &one, sizeof(one));
	(void)n;
}

/* ---- watches ---- */

static int remember(struct fs_watch *watch, int wd, struct fs_view *view, uint32_t dir)
{
	int rc = 0;
	lock_for_scope(&watch->lock);
	if ((size_t)wd >= watch->by_wd_size) {
		size_t size = watch->by_wd_size ? watch->by_wd_size : 64;
		while (size <= (size_t)wd)
			size *= 2;
		struct watched *more = realloc(watch->by_wd, size * sizeof(*more));
		if (more) {
			memset(more + watch->by_wd_size, 0, (size - watch->by_wd_size) * sizeof(*more));
			watch->by_wd = more;
			watch->by_wd_size = size;
		} else {
			rc = -ENOMEM;
		}
	}
	if (rc == 0)
		watch->by_wd[wd] = (struct watched){ .view = view, .dir = dir };
	return rc;
}

/* Watches one directory and returns the watch's number. The server's own workers answer the lookups of this path. An
 * event that comes before `remember` waits for the lock. */
static int watch_dir(struct fs_watch *watch, const struct fs_detached_root *root, struct fs_view *view, uint32_t dir)
{
	char path[PATH_MAX + sizeof(view->place) + SHARD_PATH_MAX + 2];
	char inner[SHARD_PATH_MAX + 1];
	int rc = shard_index_dir_path(watch->server->index, dir, inner, sizeof(inner));
	if (rc < 0)
		return rc;
	/* inotify_add_watch(2) takes no directory descriptor to start from. */
	int len = root->fd < 0
	                  ? snprintf(path, sizeof(path), "%s%s%s", root->at, view->place, inner)
	                  : snprintf(path, sizeof(path), "/proc/thread-self/fd/%d/%s%s", root->fd, view->place, inner);
	if (len < 0 || len >= PATH_MAX)
		return -ENAMETOOLONG;
	int wd = inotify_add_watch(watch->fd, path, IN_OPEN | IN_ONLYDIR);
	if (wd < 0)
		return -errno;
	rc = remember(watch, wd, view, dir);
	if (rc < 0)
		return rc;
	atomic_fetch_add(&watch->n_dirs, 1);
	return wd;
}

static void set_ready(struct fs_watch *watch)
{
	lock_for_scope(&watch->ready_lock);
	watch->ready = true;
	pthread_cond_broadcast(&watch->ready_cond);
}

static void set_view_ready(struct fs_watch *watch, const struct fs_view *view)
{
	lock_for_scope(&watch->ready_lock);
	watch->views[view->number].ready = true;
	pthread_cond_broadcast(&watch->ready_cond);
}

static void note_full(struct fs_watch *watch)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < watch->server->n_views; i++)
		n += watch->views[i].wanted ? watch->server->info->n_dirs : 0;
	if (!watch->told_full)
		fs_log_queue_note(watch->server->log,
		        "only %llu of %llu directories are watched: opens in the others are not counted; raise "
		        "fs.inotify.max_user_watches",
		        (unsigned long long)fs_watch_dirs(watch), (unsigned long long)n);
	watch->told_full = true;
}

static void watch_tree(struct fs_watch *watch, const struct fs_detached_root *root, struct fs_view *view)
{
	uint32_t n_dirs = watch->server->info->n_dirs;
	uint64_t too_long = 0;
	for (uint32_t dir = 0; dir < n_dirs && !watch->stopping; dir++) {
		struct shard_dir rec;
		int rc = shard_index_dir(watch->server->index, dir, &rec);
		if (rc == 0 && rec.n_files > 0)
			rc = watch_dir(watch, root, view, dir);
		if (rc == -ENAMETOOLONG) {
			too_long++;
		} else if (rc == -ENOSPC) {
			note_full(watch);
			break;
		} else if (rc < 0 && !watch->stopping) {
			fs_log_queue_note(watch->server->log,
			        "directory %u of the mount cannot be watched (%s): opens in it are not counted", dir,
			        base_err_str(rc));
		}
		if (dir == READY_DIRS) {
			set_ready(watch);
			set_view_ready(watch, view);
		}
		if (watch->settled && dir % DRAIN_DIRS == DRAIN_DIRS - 1)
			fs_watch_drain(watch); /* other ranks are read meanwhile */
		if (watch->server->gone)
			break; /* unmounted: only `root` keeps the session alive */
	}
	if (too_long)
		fs_log_queue_note(watch->server->log,
		        "%llu directories have paths too long to be watched: opens in them are not counted",
		        (unsigned long long)too_long);
}

int fs_watch_wait_ready(struct fs_watch *watch)
{
	lock_for_scope(&watch->ready_lock);
	while (!watch->ready)
		pthread_cond_wait(&watch->ready_cond, &watch->ready_lock);
	return watch->stopping ? -ECANCELED : watch->answer;
}

void fs_watch_wait_view(struct fs_watch *watch, const struct fs_view *view)
{
	lock_for_scope(&watch->ready_lock);
	while (!watch->views[view->number].ready && !watch->stopping)
		pthread_cond_wait(&watch->ready_cond, &watch->ready_lock);
}

bool fs_watch_is_ready(struct fs_watch *watch, const struct fs_view *view)
{
	return watch->ready && (!view || watch->views[view->number].ready || watch->stopping);
}

void fs_watch_begin(struct fs_watch *watch, const struct fs_view *view)
{
	if (!atomic_exchange(&watch->views[view->number].wanted, true))
		poke(watch);
}

void fs_watch_gone(struct fs_watch *watch)
{
	poke(watch);
}

/* ---- events ---- */

static void overflowed(struct fs_watch *watch)
{
	fs_count(&watch->server->counters.watch_overflows, 1);
	for (uint32_t i = 0; i < watch->server->n_views; i++)
		watch->views[i].lost = true;
}

/* After a loss, the next event says where the trainer is now. If the trainer went in order until the loss, it also
 * did in between. Then all turns before this one were opened, except those that its workers may still hold. */
static void recover(struct fs_watch *watch, struct fs_view *view, uint64_t epoch, uint64_t turn)
{
	struct fs_view_progress progress;
	watch->views[view->number].lost = false;
	fs_view_progress(view, &progress);
	if (watch->views[view->number].in_order == IN_ORDER_FULL && turn > progress.next_turn + FS_WATCH_SLACK)
		fs_view_opened_range(view, epoch, progress.next_turn, turn - FS_WATCH_SLACK);
}

static void took_turn(struct fs_watch *watch, struct fs_view *view, uint64_t epoch, uint64_t turn)
{
	struct fs_view_progress progress;
	struct watched_view *of = &watch->views[view->number];
	if (of->lost)
		recover(watch, view, epoch, turn);
	fs_view_progress(view, &progress);
	uint64_t apart = turn > progress.next_turn ? turn - progress.next_turn : progress.next_turn - turn;
	if (apart > FS_WATCH_SLACK)
		of->in_order /= 2;
	else if (of->in_order < IN_ORDER_FULL)
		of->in_order++;
	if (fs_view_opened(view, epoch, turn) && (view->layout == FS_LAYOUT_FLAT || !view->all))
		fs_log_queue_note(watch->server->log,
		        "the trainer reads a list of epoch %llu again: it lists once, so epoch %llu's part is all it "
		        "will see; let it list the directory each epoch, or mount with view=all,layout=tree and let "
		        "its "
		        "sampler shuffle",
		        (unsigned long long)epoch, (unsigned long long)epoch);
}

/* What an event says. */
struct open_at {
	uint32_t file;  /* SHARD_NONE: not looked up */
	uint64_t epoch; /* the current epoch, or a flat name's own */
	uint64_t turn;  /* UINT64_MAX: none */
};

/* Finds the file behind a name in a watched directory. */
static int event_file(struct fs_watch *watch, const struct watched *where, const char *name, uint32_t *ret_file)
{
	if (where->view->layout == FS_LAYOUT_FLAT)
		return fs_flat_lookup(watch->server, where->view, name, NULL, ret_file);
	return shard_index_find_file(watch->server->index, where->dir, name, strlen(name), ret_file);
}

/* A flat name of this rank says all that is needed. Looking up its file would cost more than the rest of the event. */
static struct open_at locate(
        struct fs_watch *watch, const struct watched *where, struct shard_epoch *epoch, const char *name)
{
	struct open_at at = { .file = SHARD_NONE, .epoch = shard_epoch_number(epoch), .turn = UINT64_MAX };
	struct shard_file file;
	bool flat = where->view->layout == FS_LAYOUT_FLAT;
	if (flat && fs_flat_place(where->view, name, &at.epoch, &at.turn) == 0)
		return at;
	if (event_file(watch, where, name, &at.file) < 0)
		at.file = SHARD_NONE;
	else if (!flat && shard_index_file(watch->server->index, at.file, &file) == 0 &&
	         fs_view_turn(where->view, epoch, file.sample, &at.turn) < 0)
		at.turn = UINT64_MAX;
	return at;
}

static void keep_epoch(struct fs_watch *watch, struct fs_view *view, struct shard_epoch *epoch)
{
	struct kept_epoch *kept = watch->views[view->number].epochs;
	if (view->layout != FS_LAYOUT_FLAT || kept[0].epoch == epoch)
		return;
	shard_epoch_put(kept[EPOCHS_KEPT - 1].epoch);
	memmove(kept + 1, kept, (EPOCHS_KEPT - 1) * sizeof(*kept));
	kept[0] = (struct kept_epoch){ .epoch = shard_epoch_get(epoch),
		.turns = shard_epoch_turns(epoch, view->options.rank),
		.last = SHARD_NONE };
	if (kept[0].turns > 0 && view->options.tail == SHARD_TAIL_PAD &&
	        shard_epoch_turn(epoch, view->options.rank, kept[0].turns - 1, &kept[0].last, NULL) < 0)
		kept[0].last = SHARD_NONE;
}

static bool is_kept(const struct fs_watch *watch, const struct fs_view *view, uint64_t epoch)
{
	const struct kept_epoch *kept = watch->views[view->number].epochs;
	for (size_t i = 0; i < EPOCHS_KEPT; i++)
		if (kept[i].epoch && shard_epoch_number(kept[i].epoch) == epoch)
			return true;
	return false;
}

/* Counts an open: by its turn if READs will be looked for by turn, else by its file. */
static void count_open(struct fs_watch *watch, const struct watched *where, const char *name, const struct open_at *at,
        uint64_t now_ns)
{
	uint32_t view = where->view->number;
	struct fs_hit_counting_key key = { .place = fs_hit_counting_files(view), .id = at->file };
	struct shard_place place = { .length = fs_mean_file_bytes(watch->server->info) };
	/* Count it under the inode that READs will name. */
	uint32_t shown;
	if (at->file != SHARD_NONE && where->view->layout == FS_LAYOUT_TREE &&
	        shard_view_instead_file(where->view->order, at->file, &shown) == 0)
		key.id = shown;
	if (at->file == SHARD_NONE && is_kept(watch, where->view, at->epoch))
		key = (struct fs_hit_counting_key){ .place = fs_hit_counting_turns(view, at->epoch), .id = at->turn };
	else if (at->file == SHARD_NONE) {
		uint32_t file;
		key.id = event_file(watch, where, name, &file) == 0 ? file : SHARD_NONE;
	}
	/* The size of a turn's file would cost more than the rest, so turns have the mean. */
	if (key.place == fs_hit_counting_files(view) && key.id != SHARD_NONE)
		shard_index_place(watch->server->index, (uint32_t)key.id, &place);
	fs_hit_counting_opened(watch->opens, key, place.length, now_ns);
}

static void handle(struct fs_watch *watch, const struct inotify_event *event, uint64_t now_ns, struct fs_view **view,
        struct shard_epoch **epoch)
{
	if (event->mask & IN_Q_OVERFLOW) {
		overflowed(watch);
		return;
	}
	if (!(event->mask & IN_OPEN) || (event->mask & IN_ISDIR) || event->len == 0)
		return;
	if (event->wd < 0 || (size_t)event->wd >= watch->by_wd_size || !watch->by_wd[event->wd].view)
		return;
	const struct watched *where = &watch->by_wd[event->wd];
	if (*view != where->view) {
		shard_epoch_put(*epoch);
		*view = where->view;
		*epoch = fs_view_epoch(*view);
		keep_epoch(watch, *view, *epoch);
	}
	struct open_at at = locate(watch, where, *epoch, event->name);
	count_open(watch, where, event->name, &at, now_ns);
	if (at.turn != UINT64_MAX && at.epoch == shard_epoch_number(*epoch))
		took_turn(watch, where->view, at.epoch, at.turn);
	const struct fs_watch_listener *listener = &watch->listener;
	if (listener->opened && (at.file != SHARD_NONE || at.turn != UINT64_MAX))
		listener->opened(listener->arg, where->view, at.file, at.epoch, at.turn);
}

/* Finds the turns by which flat views may have opened a sample. Ranks in the same epoch share one look at its order.
 * Returns how many keys there are. */
static size_t turns_of(struct fs_watch *watch, uint32_t sample, struct fs_hit_counting_key *keys)
{
	size_t n = 0;
	for (size_t i = 0; i < EPOCHS_KEPT; i++) {
		uint64_t number = UINT64_MAX, turn = 0;
		uint32_t rank = UINT32_MAX;
		for (uint32_t v = 0; v < watch->server->n_views; v++) {
			const struct fs_view *view = watch->server->views[v];
			const struct kept_epoch *kept = &watch->views[v].epochs[i];
			if (!kept->epoch)
				continue;
			if (number != shard_epoch_number(kept->epoch)) {
				number = shard_epoch_number(kept->epoch);
				if (shard_epoch_find(kept->epoch, sample, NULL, &rank, &turn) < 0)
					rank = UINT32_MAX;
			}
			bool own = rank == view->options.rank && turn < kept->turns;
			if (own || sample == kept->last)
				keys[n++] = (struct fs_hit_counting_key){
					.place = fs_hit_counting_turns(v, number),
					.id = own ? turn : kept->turns - 1,
				};
		}
	}
	return n;
}

/* Pairs a READ with the open that it belongs to. */
static void pair(struct fs_watch *watch, struct fs_hit_counting_read read)
{
	struct fs_hit_counting_key keys[KEYS_MAX];
	size_t n = 0;
	struct shard_file file;
	for (uint32_t v = 0; v < watch->server->n_views; v++)
		keys[n++] = (struct fs_hit_counting_key){ .place = fs_hit_counting_files(v), .id = read.file };
	bool known = shard_index_file(watch->server->index, read.file, &file) == 0;
	read.length = known ? file.length : 0;
	if (known && file.sample != SHARD_NONE)
		n += turns_of(watch, file.sample, keys + n);
	if (!fs_hit_counting_pair(watch->opens, keys, n, &read))
		fs_count(&watch->server->counters.unwatched_reads, 1);
}

static void drain_events(struct fs_watch *watch)
{
	struct fs_view *view = NULL;
	struct shard_epoch *epoch = NULL;
	const struct inotify_event *event;
	struct fs_handover_opens *opens = watch->kept;
	uint64_t now_ns = base_now_ns();
	for (int i = 0; i < DRAIN_READS_MAX; i++) {
		if (!watch->has_left && read(watch->fd, opens->events, sizeof(opens->events)) <= 0)
			break;
		while ((event = fs_handover_take_event(opens)))
			handle(watch, event, now_ns, &view, &epoch);
		if (watch->has_left)
			fs_handover_clear_events(opens);
		watch->has_left = false;
	}
	shard_epoch_put(epoch);
}

static void drain_locked(struct fs_watch *watch)
{
	/* READs first: the events of their opens were queued before they came. */
	const struct fs_hit_counting_read *reads;
	size_t n_reads = fs_hit_counting_take(watch->opens, &reads);
	if (watch->fd >= 0 && watch->settled)
		drain_events(watch);
	for (size_t i = 0; i < n_reads; i++)
		pair(watch, reads[i]);
	if (watch->listener.drained)
		watch->listener.drained(watch->listener.arg);
}

void fs_watch_drain(struct fs_watch *watch)
{
	if (!watch)
		return;
	lock_for_scope(&watch->lock);
	drain_locked(watch);
}

void fs_watch_read(struct fs_watch *watch, uint32_t file, bool first, uint32_t bytes, uint64_t now_ns)
{
	struct fs_hit_counting_read read = { .file = file, .bytes = bytes, .first = first, .ns = now_ns };
	/* The list fills up only with READs for which no open wakes the watcher, so this is rare. */
	while (!fs_hit_counting_read(watch->opens, read))
		fs_watch_drain(watch);
}

void fs_watch_count(struct fs_watch *watch, const struct fs_view *view, struct fs_hit_counting_count *ret_count)
{
	lock_for_scope(&watch->lock);
	drain_locked(watch);
	fs_hit_counting_count(watch->opens, view ? view->number : FS_HIT_COUNTING_ALL, ret_count);
}

/* ---- the thread ---- */

static int get_root(struct fs_watch *watch)
{
	int rc = watch->has_root ? 0 : fs_detached_root_open(watch->server, &watch->root);
	watch->has_root = rc == 0;
	return rc;
}

static void put_root(struct fs_watch *watch)
{
	if (watch->has_root)
		fs_detached_root_close(&watch->root);
	watch->has_root = false;
}

/* The copy of the mount is kept while there are views that may get a reader: to make it would make the mount busy. A
 * path that is kept instead might lead elsewhere later; and who keeps a copy must hear of the unmount. */
static bool may_keep_root(const struct fs_watch *watch)
{
	const struct fs_server *server = watch->server;
	bool all = true;
	for (uint32_t i = 0; i < server->n_views; i++)
		all &= watch->views[i].watched;
	return !all && watch->has_root && watch->root.fd >= 0 && server->mounts_fd >= 0 && !server->gone;
}

static void watch_view(struct fs_watch *watch, struct fs_view *view)
{
	int rc = get_root(watch);
	if (rc == 0 && view->layout == FS_LAYOUT_TREE)
		watch_tree(watch, &watch->root, view);
	else if (rc == 0)
		rc = watch_dir(watch, &watch->root, view, 0);
	if (rc < 0 && !watch->stopping)
		fs_log_queue_note(watch->server->log,
		        "the mount cannot be watched (%s): epochs do not advance by themselves", base_err_str(rc));
}

/* Watches the views that have got a reader. */
static void watch_wanted(struct fs_watch *watch)
{
	struct fs_server *server = watch->server;
	for (uint32_t i = 0; i < server->n_views && !watch->stopping; i++) {
		struct watched_view *of = &watch->views[i];
		if (!of->wanted || of->watched)
			continue;
		if (watch->fd >= 0 && !server->gone)
			watch_view(watch, server->views[i]);
		of->watched = true;
		if (watch->settled)
			set_view_ready(watch, server->views[i]);
	}
	if (!may_keep_root(watch))
		put_root(watch);
}

/* What comes first: an answer, and the watches of the views that have a reader from the beginning. */
static void begin(struct fs_watch *watch)
{
	struct fs_server *server = watch->server;
	struct statx st;
	/* One answer through the kernel: from then on everybody gets answers. */
	if (get_root(watch) == 0 && statx(watch->root.fd, watch->root.at, AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
		watch->answer = -errno;
	if (server->options.n_ranks > 0)
		set_ready(watch); /* a listing of a rank waits for the watches of that rank */
	watch_wanted(watch);
	watch->settled = true;
	for (uint32_t i = 0; i < server->n_views; i++)
		if (watch->views[i].watched)
			set_view_ready(watch, server->views[i]);
	set_ready(watch);
}

static void poked(struct fs_watch *watch)
{
	uint64_t n;
	ssize_t len = read(watch->poke_fd, &n, sizeof(n));
	(void)len;
	watch_wanted(watch);
}

static void *watch_run(void *arg)
{
	struct fs_watch *watch = arg;
	struct fs_server *server = watch->server;
	pthread_setname_np(pthread_self(), "watcher");
	fs_detached_detach(server, true);
	begin(watch);

	/* poll(2) skips descriptors below 0. */
	struct pollfd fds[2] = { { .fd = watch->poke_fd, .events = POLLIN }, { .fd = watch->fd, .events = POLLIN } };
	while (!watch->stopping) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (watch->stopping)
			break;
		if (fds[0].revents)
			poked(watch);
		/* Let a batch gather; a stop ends the pause. */
		poll(fds, 1, FS_WATCH_BATCH_MS);
		fs_watch_drain(watch);
	}
	put_root(watch);
	return NULL;
}

int fs_watch_start(struct fs_watch *watch)
{
	int rc = -pthread_create(&watch->thread, NULL, watch_run, watch);
	watch->started = rc == 0;
	return rc;
}

void fs_watch_stop(struct fs_watch *watch)
{
	if (!watch)
		return;
	watch->stopping = true;
	poke(watch);
	if (watch->started)
		pthread_join(watch->thread, NULL);
	watch->started = false;
	set_ready(watch);
}
