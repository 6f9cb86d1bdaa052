/* SPDX-License-Identifier: Apache-2.0 */
/* Files whose content changes, as padded snapshots; fs/stats_files.h first. */
#include "fs/stats_files.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/base/cleanup.h"

enum { N_FILES = 3 };

struct snapshot {
	char *text; /* padded to size */
	size_t size;
	struct timespec mtime; /* 0: none yet */
	uint64_t made_ns;
};

struct fs_stats_files {
	struct fs_server *server;
	fs_stats_files_text *texts[N_FILES];
	pthread_mutex_t lock; /* guards the snapshots */
	struct snapshot (*views)[N_FILES];
};

static int place(enum fs_kind kind)
{
	return kind == FS_STATS ? 0 : kind == FS_METRICS ? 1 : 2;
}

int fs_stats_files_new(struct fs_server *server, fs_stats_files_text *stats, fs_stats_files_text *metrics,
        fs_stats_files_text *state, struct fs_stats_files **ret_files)
{
	static const size_t sizes[N_FILES] = { FS_STATS_BYTES, FS_METRICS_BYTES, FS_STATE_BYTES };
	struct fs_stats_files *files = calloc(1, sizeof(*files));
	if (!files)
		return -ENOMEM;
	files->server = server;
	pthread_mutex_init(&files->lock, NULL);
	files->texts[0] = stats;
	files->texts[1] = metrics;
	files->texts[2] = state;
	files->views = calloc(server->n_views, sizeof(*files->views));
	for (uint32_t v = 0; files->views && v < server->n_views; v++) {
		for (int i = 0; i < N_FILES; i++) {
			files->views[v][i].size = sizes[i];
			files->views[v][i].text = calloc(1, sizes[i]);
			if (!files->views[v][i].text) {
				fs_stats_files_free(files);
				return -ENOMEM;
			}
		}
	}
	if (!files->views) {
		fs_stats_files_free(files);
		return -ENOMEM;
	}
	*ret_files = files;
	return 0;
}

void fs_stats_files_free(struct fs_stats_files *files)
{
	if (!files)
		return;
	for (uint32_t v = 0; files->views && v < files->server->n_views; v++)
		for (int i = 0; i < N_FILES; i++)
			free(files->views[v][i].text);
	free(files->views);
	pthread_mutex_destroy(&files->lock);
	free(files);
}

static void pad(char *text, size_t len, size_t size, bool lines)
{
	/* Prometheus' text form allows empty lines, but not lines of blanks. Carriage returns are blanks in JSON, and
	 * a terminal does not show them. */
	memset(text + len, lines ? '\n' : '\r', size - len);
	text[lines ? size - 1 : len < size ? len : size - 1] = '\n';
}

static void refresh(struct fs_stats_files *files, struct fs_view *view, enum fs_kind kind, struct snapshot *snapshot)
{
	struct timespec now;
	size_t len = files->texts[place(kind)](files->server, view, snapshot->text, snapshot->size);
	pad(snapshot->text, len, snapshot->size, kind == FS_METRICS);
	clock_gettime(CLOCK_REALTIME, &now);
	/* A clock that stops or jumps back must not hide the change. */
	if (now.tv_sec < snapshot->mtime.tv_sec ||
	        (now.tv_sec == snapshot->mtime.tv_sec && now.tv_nsec <= snapshot->mtime.tv_nsec)) {
		now = snapshot->mtime;
		if (++now.tv_nsec == 1000000000) {
			now.tv_nsec = 0;
			now.tv_sec++;
		}
	}
	snapshot->mtime = now;
	snapshot->made_ns = base_now_ns();
}

int fs_stats_files_attr(struct fs_server *server, struct fs_node node, struct stat *attr)
{
	struct fs_stats_files *files = server->stats_files;
	struct snapshot *snapshot = &files->views[node.view][place(node.kind)];
	uint64_t age_ns = node.kind == FS_STATE ? 0 : FS_SNAPSHOT_MS * UINT64_C(1000000);
	lock_for_scope(&files->lock);
	if (snapshot->made_ns == 0 || base_now_ns() - snapshot->made_ns >= age_ns)
		refresh(files, fs_server_view(server, node), node.kind, snapshot);
	attr->st_size = (off_t)snapshot->size;
	attr->st_blocks = (blkcnt_t)(snapshot->size / 512);
	attr->st_mtim = snapshot->mtime;
	return 0;
}

void fs_stats_files_read(fuse_req_t req, struct fs_node node, size_t size, off_t off)
{
	struct fs_server *server = fs_server_of(req);
	struct fs_stats_files *files = server->stats_files;
	struct fs_view *view = fs_server_view(server, node);
	char text[FS_METRICS_BYTES];
	if (!view || off < 0) {
		fuse_reply_err(req, view ? EINVAL : ESTALE);
		return;
	}
	struct snapshot *snapshot = &files->views[node.view][place(node.kind)];
	size_t len;
	{
		lock_for_scope(&files->lock);
		if (snapshot->made_ns == 0)
			refresh(files, view, node.kind, snapshot);
		len = (size_t)off < snapshot->size ? snapshot->size - (size_t)off : 0;
		if (len > size)
			len = size;
		memcpy(text, snapshot->text + (len ? off : 0), len);
	}
	fuse_reply_buf(req, text, len);
}
