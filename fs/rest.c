#include "fs/rest.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "fs/name.h"

struct fs_rest {
	struct fs_server *server;
	int fd;                       /* the supervisor's */
	struct fs_estate_opens *kept; /* the marks: the watcher's until begun */
	_Atomic bool begun;
};

/* Of what a predecessor left only what can be is kept. */
static void adopt(struct fs_rest *rest)
{
	struct fs_estate_opens *kept = rest->kept;
	struct fs_view *view = rest->server->views[0];
	struct shard_epoch *epoch = fs_view_epoch(view);
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	if (kept->n_marks > FS_REST_MARKS)
		kept->n_marks = FS_REST_MARKS;
	for (uint32_t i = 0; i < kept->n_marks; i++) {
		struct fs_estate_mark *mark = &kept->marks[i];
		if (mark->epoch != shard_epoch_number(epoch) || mark->from > mark->to || mark->to > turns)
			mark->from = mark->to = 0; /* only to be taken away */
	}
	shard_epoch_put(epoch);
	rest->begun = kept->n_marks > 0;
}

int fs_rest_new(struct fs_server *server, struct fs_rest **ret_rest)
{
	struct fs_rest *rest = calloc(1, sizeof(*rest));
	if (!rest)
		return -ENOMEM;
	rest->server = server;
	rest->fd = server->link->rest_fd;
	rest->kept = fs_estate_opens(server->estate);
	if (server->successor)
		adopt(rest);
	*ret_rest = rest;
	return 0;
}

void fs_rest_free(struct fs_rest *rest)
{
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
	struct fs_estate_opens *kept = rest->kept;
	uint64_t turns = shard_epoch_turns(epoch, view->options.rank);
	uint32_t n = turns < FS_REST_MARKS ? (uint32_t)turns : FS_REST_MARKS;
	bool all = true;
	kept->n_marks = 0;
	for (uint32_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		struct fs_estate_mark mark = {
			.epoch = shard_epoch_number(epoch), .from = turns * i / n, .to = turns * (i + 1) / n
		};
		int wd = turn_path(rest->server, view, epoch, mark.to - 1, path);
		if (wd == 0)
			wd = inotify_add_watch(rest->fd, path, IN_OPEN | IN_ONESHOT | IN_DONT_FOLLOW);
		mark.wd = wd > 0 ? wd : 0;
		all &= wd > 0;
		kept->marks[i] = mark;
		kept->n_marks = i + 1;
	}
	shard_epoch_put(epoch);
	rest->begun = true;
	return all;
}

static struct fs_estate_mark *find(struct fs_rest *rest, int wd)
{
	for (uint32_t i = 0; i < rest->kept->n_marks; i++)
		if (rest->kept->marks[i].wd == wd)
			return &rest->kept->marks[i];
	return NULL;
}

bool fs_rest_next(struct fs_rest *rest, struct fs_rest_stretch *ret_stretch)
{
	struct inotify_event event; /* on a file itself: without a name */
	if (!rest->begun)
		return false;
	while (read(rest->fd, &event, sizeof(event)) == (ssize_t)sizeof(event)) {
		struct fs_estate_mark *mark = event.mask & IN_OPEN && event.wd > 0 ? find(rest, event.wd) : NULL;
		if (!mark)
			continue;
		*ret_stretch = (struct fs_rest_stretch){ .epoch = mark->epoch, .from = mark->from, .to = mark->to };
		mark->wd = 0;
		return true;
	}
	return false;
}

void fs_rest_end(struct fs_rest *rest)
{
	struct fs_rest_stretch late;
	for (uint32_t i = 0; i < rest->kept->n_marks; i++) {
		if (rest->kept->marks[i].wd > 0)
			inotify_rm_watch(rest->fd, rest->kept->marks[i].wd);
		rest->kept->marks[i].wd = 0;
	}
	while (fs_rest_next(rest, &late))
		;
	rest->kept->n_marks = 0;
	rest->begun = false;
}
