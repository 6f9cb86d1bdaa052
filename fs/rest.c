#include "fs/rest.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "fs/name.h"

struct mark {
	int wd; /* < 0: it could not be marked, or was opened */
	struct fs_rest_stretch stretch;
};

struct fs_rest {
	struct fs_server *server;
	int fd;
	struct mark marks[FS_REST_MARKS]; /* the watcher's until begun */
	uint32_t n_marks;
	_Atomic bool begun;
};

int fs_rest_new(struct fs_server *server, struct fs_rest **ret_rest)
{
	struct fs_rest *rest = calloc(1, sizeof(*rest));
	if (!rest)
		return -ENOMEM;
	rest->server = server;
	rest->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (rest->fd < 0) {
		int rc = -errno;
		free(rest);
		return rc;
	}
	*ret_rest = rest;
	return 0;
}

void fs_rest_free(struct fs_rest *rest)
{
	if (!rest)
		return;
	close(rest->fd);
	free(rest);
}

int fs_rest_fd(const struct fs_rest *rest)
{
	return rest->fd;
}

/* The name of a turn's first file in the root, which the kernel knows: it was announced. */
static int turn_path(const struct fs_server *server, const struct fs_view *view, const struct shard_epoch *epoch,
        uint64_t turn, char ret_path[PATH_MAX])
{
	char inner[SHARD_PATH_MAX + 1], name[SHARD_NAME_MAX + 1];
	uint32_t sample, file;
	uint64_t step;
	int rc = shard_epoch_turn(epoch, view->options.rank, turn, &sample, &step);
	if (rc == 0)
		rc = shard_index_sample_first(server->index, sample, &file);
	if (rc == 0)
		rc = shard_index_file_path(server->index, file, inner, sizeof(inner));
	if (rc < 0)
		return rc;
	fs_name_flat(shard_epoch_number(epoch), step, inner, (size_t)rc, name);
	int len = snprintf(ret_path, PATH_MAX, "%s/%s", server->options.mountpoint, name);
	return len < 0 || len >= PATH_MAX ? -ENAMETOOLONG : 0;
}

bool fs_rest_begin(struct fs_rest *rest, struct fs_view *view)
{
	struct shard_epoch *epoch = fs_view_epoch(view);
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	rest->n_marks = turns < FS_REST_MARKS ? (uint32_t)turns : FS_REST_MARKS;
	bool all = true;
	for (uint32_t i = 0; i < rest->n_marks; i++) {
		struct mark *mark = &rest->marks[i];
		char path[PATH_MAX];
		*mark = (struct mark){ .wd = -1,
			.stretch = { .epoch = shard_epoch_number(epoch),
			        .from = turns * i / rest->n_marks,
			        .to = turns * (i + 1) / rest->n_marks } };
		if (turn_path(rest->server, view, epoch, mark->stretch.to - 1, path) == 0)
			mark->wd = inotify_add_watch(rest->fd, path, IN_OPEN | IN_ONESHOT | IN_DONT_FOLLOW);
		all &= mark->wd >= 0;
	}
	shard_epoch_put(epoch);
	atomic_store(&rest->begun, true);
	return all;
}

static struct mark *find(struct fs_rest *rest, int wd)
{
	for (uint32_t i = 0; i < rest->n_marks; i++)
		if (rest->marks[i].wd == wd)
			return &rest->marks[i];
	return NULL;
}

bool fs_rest_next(struct fs_rest *rest, struct fs_rest_stretch *ret_stretch)
{
	struct inotify_event event; /* on a file itself: without a name */
	if (!atomic_load(&rest->begun))
		return false;
	while (read(rest->fd, &event, sizeof(event)) == (ssize_t)sizeof(event)) {
		struct mark *mark = event.mask & IN_OPEN ? find(rest, event.wd) : NULL;
		if (!mark)
			continue;
		*ret_stretch = mark->stretch;
		mark->wd = -1;
		return true;
	}
	return false;
}

void fs_rest_end(struct fs_rest *rest)
{
	struct fs_rest_stretch late;
	for (uint32_t i = 0; i < rest->n_marks; i++) {
		if (rest->marks[i].wd >= 0)
			inotify_rm_watch(rest->fd, rest->marks[i].wd);
		rest->marks[i].wd = -1;
	}
	while (fs_rest_next(rest, &late))
		;
	atomic_store(&rest->begun, false);
}
