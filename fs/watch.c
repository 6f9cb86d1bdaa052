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

#include "fs/helper.h"
#include "fs/node.h"
#include "fs/touch.h"
#include "shard/base/log.h"

enum {
	READY_DIRS = 4096,    /* directories after which the mount is called ready */
	DRAIN_READS_MAX = 64, /* reads of FS_WATCH_BUFFER a drain: bounds it under a flood */
	IN_ORDER_FULL = 64,   /* events in a row within the slack that make an order trusted */
};

struct watched {
	struct fs_view *view;
	uint32_t dir; /* tree: directory; flat: 0 */
};

struct fs_watch {
	struct fs_server *server;
	pthread_t thread;
	bool started;
	int fd;
	int stop_fd;
	_Atomic bool stopping;
	_Atomic uint64_t n_dirs;

	pthread_mutex_t ready_lock;
	pthread_cond_t ready_cond;
	_Atomic bool ready; /* changed with ready_lock held */
	int answer;         /* of the first stat, 0 or -errno; set before `ready` */

	pthread_mutex_t lock; /* guards what follows */
	struct fs_watch_listener listener;
	struct watched *by_wd;
	size_t by_wd_size;
	uint32_t in_order; /* how much the opens follow the order, 0..IN_ORDER_FULL */
	bool lost;         /* events were lost since the last one that had a turn */
	_Alignas(struct inotify_event) char buf[FS_WATCH_BUFFER];
};

int fs_watch_new(struct fs_server *server, struct fs_watch **ret_watch)
{
	struct fs_watch *watch = calloc(1, sizeof(*watch));
	if (!watch)
		return -ENOMEM;
	watch->server = server;
	pthread_mutex_init(&watch->lock, NULL);
	pthread_mutex_init(&watch->ready_lock, NULL);
	pthread_cond_init(&watch->ready_cond, NULL);
	watch->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	watch->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (watch->stop_fd < 0) {
		int rc = -errno;
		fs_watch_free(watch);
		return rc;
	}
	if (watch->fd < 0)
		log_warning("inotify is not to be had (%s): epochs do not advance by themselves; raise "
		            "fs.inotify.max_user_instances",
		        strerror(errno));
	*ret_watch = watch;
	return 0;
}

void fs_watch_free(struct fs_watch *watch)
{
	if (!watch)
		return;
	if (watch->fd >= 0)
		close(watch->fd);
	if (watch->stop_fd >= 0)
		close(watch->stop_fd);
	free(watch->by_wd);
	pthread_cond_destroy(&watch->ready_cond);
	pthread_mutex_destroy(&watch->ready_lock);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

void fs_watch_listen(struct fs_watch *watch, struct fs_watch_listener listener)
{
	pthread_mutex_lock(&watch->lock);
	watch->listener = listener;
	pthread_mutex_unlock(&watch->lock);
}

uint64_t fs_watch_dirs(struct fs_watch *watch)
{
	return watch ? atomic_load(&watch->n_dirs) : 0;
}

/* ---- watches ---- */

static int remember(struct fs_watch *watch, int wd, struct fs_view *view, uint32_t dir)
{
	int rc = 0;
	pthread_mutex_lock(&watch->lock);
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
	pthread_mutex_unlock(&watch->lock);
	return rc;
}

/* The lookups of this path are answered by our own workers; an event that comes before `remember` waits for the lock. */
static int watch_dir(struct fs_watch *watch, struct fs_view *view, uint32_t dir)
{
	char path[PATH_MAX + SHARD_PATH_MAX + 2];
	char inner[SHARD_PATH_MAX + 1];
	int rc = shard_index_dir_path(watch->server->index, dir, inner, sizeof(inner));
	if (rc < 0)
		return rc;
	int len = snprintf(path, sizeof(path), "%s/%s", watch->server->options.mountpoint, inner);
	if (len < 0 || len >= PATH_MAX)
		return -ENAMETOOLONG;
	int wd = inotify_add_watch(watch->fd, path, IN_OPEN | IN_ONLYDIR);
	if (wd < 0)
		return -errno;
	rc = remember(watch, wd, view, dir);
	if (rc == 0)
		atomic_fetch_add(&watch->n_dirs, 1);
	return rc;
}

static void set_ready(struct fs_watch *watch)
{
	pthread_mutex_lock(&watch->ready_lock);
	watch->ready = true;
	pthread_cond_broadcast(&watch->ready_cond);
	pthread_mutex_unlock(&watch->ready_lock);
}

static void watch_tree(struct fs_watch *watch, struct fs_view *view)
{
	uint32_t n_dirs = watch->server->info->n_dirs;
	uint64_t too_long = 0;
	for (uint32_t dir = 0; dir < n_dirs && !watch->stopping; dir++) {
		struct shard_dir rec;
		int rc = shard_index_dir(watch->server->index, dir, &rec);
		if (rc == 0 && rec.n_files > 0)
			rc = watch_dir(watch, view, dir);
		if (rc == -ENAMETOOLONG) {
			too_long++;
		} else if (rc == -ENOSPC) {
			fs_helper_note(watch->server->helper,
			        "only %llu of %u directories are watched: opens in the others are not counted; raise "
			        "fs.inotify.max_user_watches",
			        (unsigned long long)fs_watch_dirs(watch), n_dirs);
			break;
		} else if (rc < 0 && !watch->stopping) {
			fs_helper_note(watch->server->helper,
			        "directory %u of the mount cannot be watched (%s): opens in it are not counted", dir,
			        base_err_str(rc));
		}
		if (dir == READY_DIRS)
			set_ready(watch);
	}
	if (too_long)
		fs_helper_note(watch->server->helper,
		        "%llu directories have paths too long to be watched: opens in them are not counted",
		        (unsigned long long)too_long);
}

int fs_watch_wait_ready(struct fs_watch *watch)
{
	pthread_mutex_lock(&watch->ready_lock);
	while (!watch->ready)
		pthread_cond_wait(&watch->ready_cond, &watch->ready_lock);
	pthread_mutex_unlock(&watch->ready_lock);
	return watch->stopping ? -ECANCELED : watch->answer;
}

bool fs_watch_is_ready(struct fs_watch *watch)
{
	return watch->ready;
}

/* ---- events ---- */

static void overflowed(struct fs_watch *watch)
{
	fs_count(&watch->server->counters.watch_overflows, 1);
	watch->lost = true;
}

/* After a loss the next event says where the trainer is now.  If it went in order until then, it went in order meanwhile:
 * all before this turn but what its workers may still hold was opened. */
static void recover(struct fs_watch *watch, struct fs_view *view, uint64_t epoch, uint64_t turn)
{
	struct fs_view_progress progress;
	watch->lost = false;
	fs_view_progress(view, &progress);
	if (watch->in_order == IN_ORDER_FULL && turn > progress.next_turn + FS_WATCH_SLACK)
		fs_view_opened_range(view, epoch, progress.next_turn, turn - FS_WATCH_SLACK);
}

static void took_turn(struct fs_watch *watch, struct fs_view *view, uint64_t epoch, uint64_t turn)
{
	struct fs_view_progress progress;
	if (watch->lost)
		recover(watch, view, epoch, turn);
	fs_view_progress(view, &progress);
	uint64_t apart = turn > progress.next_turn ? turn - progress.next_turn : progress.next_turn - turn;
	if (apart > FS_WATCH_SLACK)
		watch->in_order /= 2;
	else if (watch->in_order < IN_ORDER_FULL)
		watch->in_order++;
	if (fs_view_opened(view, epoch, turn) && (view->layout == FS_LAYOUT_FLAT || !view->all))
		fs_helper_note(watch->server->helper,
		        "the trainer reads a list of epoch %llu again: it lists once, so epoch %llu's part is all it "
		        "will see; let it list the directory each epoch, or mount with view=all,layout=tree and let "
		        "its "
		        "sampler shuffle",
		        (unsigned long long)epoch, (unsigned long long)epoch);
}

/* The file behind a name in a watched directory. */
static int event_file(struct fs_watch *watch, const struct watched *where, const char *name, uint32_t *ret_file)
{
	if (where->view->layout == FS_LAYOUT_FLAT)
		return fs_flat_lookup(watch->server, where->view, name, NULL, ret_file);
	return shard_index_find_file(watch->server->index, where->dir, name, strlen(name), ret_file);
}

static int event_turn(struct fs_watch *watch, const struct watched *where, struct shard_epoch *epoch, const char *name,
        uint64_t *ret_turn)
{
	struct shard_file file;
	uint32_t id;
	if (where->view->layout == FS_LAYOUT_FLAT)
		return fs_flat_turn(where->view, epoch, name, ret_turn);
	int rc = event_file(watch, where, name, &id);
	if (rc == 0)
		rc = shard_index_file(watch->server->index, id, &file);
	if (rc == 0)
		rc = fs_view_turn(where->view, epoch, file.sample, ret_turn);
	return rc;
}

/* An open of whatever epoch, to the listener.  A flat name says all that it needs; looking its file up would cost more than
 * the rest of the event. */
static void tell(struct fs_watch *watch, const struct watched *where, const char *name, uint64_t epoch, uint64_t turn)
{
	const struct fs_watch_listener *listener = &watch->listener;
	uint32_t file = SHARD_NONE;
	if (!listener->opened)
		return;
	bool flat = where->view->layout == FS_LAYOUT_FLAT;
	if (flat && turn == UINT64_MAX)
		fs_flat_place(where->view, name, &epoch, &turn);
	if ((flat && turn != UINT64_MAX) || event_file(watch, where, name, &file) == 0)
		listener->opened(listener->arg, where->view, file, epoch, turn);
}

static void handle(
        struct fs_watch *watch, const struct inotify_event *event, struct fs_view **view, struct shard_epoch **epoch)
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
	}
	fs_count(&watch->server->counters.opens, 1);
	uint64_t turn = UINT64_MAX;
	uint64_t number = shard_epoch_number(*epoch);
	if (event_turn(watch, where, *epoch, event->name, &turn) == 0)
		took_turn(watch, where->view, number, turn);
	else
		turn = UINT64_MAX;
	tell(watch, where, event->name, number, turn);
}

void fs_watch_drain(struct fs_watch *watch)
{
	if (!watch || watch->fd < 0)
		return;
	struct fs_view *view = NULL;
	struct shard_epoch *epoch = NULL;
	pthread_mutex_lock(&watch->lock);
	for (int i = 0; i < DRAIN_READS_MAX; i++) {
		ssize_t len = read(watch->fd, watch->buf, sizeof(watch->buf));
		if (len <= 0)
			break;
		for (ssize_t at = 0; at < len;) {
			const struct inotify_event *event = (const struct inotify_event *)(watch->buf + at);
			handle(watch, event, &view, &epoch);
			at += (ssize_t)(sizeof(*event) + event->len);
		}
	}
	shard_epoch_put(epoch);
	if (watch->listener.drained)
		watch->listener.drained(watch->listener.arg);
	pthread_mutex_unlock(&watch->lock);
}

/* ---- the thread ---- */

static void *watch_run(void *arg)
{
	struct fs_watch *watch = arg;
	struct fs_server *server = watch->server;
	pthread_setname_np(pthread_self(), "watcher");
	fs_touch_detach(server, true);
	/* One answer through the kernel: after it, everybody will be answered. */
	struct stat st;
	if (stat(server->options.mountpoint, &st) < 0)
		watch->answer = -errno;

	for (uint32_t i = 0; i < server->n_views && watch->fd >= 0 && !watch->stopping; i++) {
		struct fs_view *view = server->views[i];
		if (view->layout == FS_LAYOUT_TREE) {
			watch_tree(watch, view);
			continue;
		}
		int rc = watch_dir(watch, view, 0);
		if (rc < 0 && !watch->stopping)
			fs_helper_note(server->helper,
			        "the mount cannot be watched (%s): epochs do not advance by themselves",
			        base_err_str(rc));
	}
	set_ready(watch);

	struct pollfd fds[2] = { { .fd = watch->stop_fd, .events = POLLIN }, { .fd = watch->fd, .events = POLLIN } };
	while (!watch->stopping) {
		if (poll(fds, watch->fd >= 0 ? 2 : 1, -1) < 0 && errno != EINTR)
			break;
		if (watch->stopping)
			break;
		/* Let a batch gather; a stop ends the pause. */
		poll(fds, 1, FS_WATCH_BATCH_MS);
		fs_watch_drain(watch);
	}
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
	uint64_t one = 1;
	if (write(watch->stop_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_error("eventfd: %s", strerror(errno));
	if (watch->started)
		pthread_join(watch->thread, NULL);
	watch->started = false;
	set_ready(watch);
}
