/* SPDX-License-Identifier: Apache-2.0 */
/* A server without a session; tests/fs/fake_server.h first. */
#include "tests/fs/fake_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/budget.h"
#include "fs/job_queue.h"
#include "fs/listing_ahead.h"
#include "fs/log_queue.h"
#include "fs/lookup_readahead.h"
#include "fs/read_latency.h"
#include "fs/sink.h"
#include "fs/watch.h"

static struct fake_server *make(struct shard_index *index, const struct fs_options *options, int inotify_fd)
{
	struct base_err err = { 0 };
	struct fake_server *fake = calloc(1, sizeof(*fake));
	assert_non_null(fake);
	struct fs_server *server = &fake->server;
	bool kept;
	pthread_mutex_init(&server->epochs_lock, NULL);
	fs_listing_picks_init(&server->picks);
	pthread_mutex_init(&server->ranks_lock, NULL);
	server->options = *options;
	server->uid = FAKE_UID;
	server->gid = FAKE_GID;
	server->index = index;
	server->info = shard_index_info(index);
	server->fuse_fd = -1;
	server->mounts_fd = -1;
	fake->channel = (struct fs_channel){ .inotify_fd = inotify_fd, .channel = -1 };
	server->channel = &fake->channel;
	assert_int_equal(fs_common_files_init(&server->common, index), 0);
	if (fs_view_new(index, &server->options, 0, &err, &server->views[0]) < 0)
		fail_msg("%s", err.text);
	for (server->n_views = 1; server->n_views < options->n_ranks; server->n_views++)
		if (fs_view_new_rank(server->views[0], server->n_views, &err, &server->views[server->n_views]) < 0)
			fail_msg("%s", err.text);
	assert_int_equal(fs_handover_new(&fake->handover_fd, &fake->head), 0);
	const struct fs_handover_sizes sizes = {
		.n_views = server->n_views,
		.view_bits = server->info->n_samples,
		.samples = server->info->n_samples,
		.dirs = server->info->n_dirs,
		.files = server->info->n_files,
	};
	assert_int_equal(fs_handover_open(fake->handover_fd, &sizes, &server->handover, &kept), 0);
	assert_int_equal(fs_job_queue_new(&server->jobs), 0);
	assert_int_equal(fs_log_queue_new(index, server->jobs, &server->log), 0);
	assert_int_equal(fs_listing_ahead_new(&server->listing_ahead), 0);
	assert_int_equal(fs_lookup_readahead_new(&server->lookup_readahead), 0);
	assert_int_equal(fs_read_latency_new(&server->read_latency), 0);
	assert_int_equal(fs_watch_new(server, &server->watch), 0);
	fs_watch_stop(server->watch);
	return fake;
}

struct fake_server *fake_server_new(struct shard_index *index, enum fs_layout layout, int inotify_fd)
{
	const struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT, .layout = layout, .umask = 022 };
	return make(index, &options, inotify_fd);
}

struct fake_server *fake_server_new_ranks(
        struct shard_index *index, enum fs_layout layout, uint32_t first, uint32_t n, uint32_t world)
{
	struct fs_options options = {
		.view = SHARD_VIEW_OPTIONS_DEFAULT, .layout = layout, .umask = 022, .n_ranks = n
	};
	options.view.rank = first;
	options.view.world = world;
	return make(index, &options, -1);
}

void fake_server_free(struct fake_server *fake)
{
	struct fs_server *server = &fake->server;
	fs_watch_free(server->watch);
	fs_read_latency_free(server->read_latency);
	fs_lookup_readahead_free(server->lookup_readahead);
	fs_listing_ahead_free(server->listing_ahead);
	fs_job_queue_stop(server->jobs);
	fs_log_queue_free(server->log);
	fs_job_queue_free(server->jobs);
	fs_handover_close(server->handover);
	munmap(fake->head, FS_HANDOVER_HEAD_BYTES);
	close(fake->handover_fd);
	while (server->n_views > 0)
		fs_view_free(server->views[--server->n_views]);
	pthread_mutex_destroy(&server->ranks_lock);
	fs_listing_picks_done(&server->picks);
	pthread_mutex_destroy(&server->epochs_lock);
	fs_common_files_done(&server->common);
	free(fake);
}

void fake_server_add_engine(struct fake_server *fake, const char *mountpoint)
{
	struct base_err err = { 0 };
	struct stat st;
	struct fs_server *server = &fake->server;
	assert_int_equal(stat(mountpoint, &st), 0);
	server->options.mountpoint = mountpoint;
	server->options.memory_bytes = 512 << 20;
	server->dev = st.st_dev;
	assert_int_equal(fs_budget_new(server, &server->budget), 0);
	assert_int_equal(fs_sink_new(server, &server->sink), 0);
	const struct prefetch_options options = {
		.index = server->index, .memory_bytes = server->options.memory_bytes, .sink = fs_sink_base(server->sink)
	};
	if (prefetch_new(&options, &err, &server->prefetch) < 0)
		fail_msg("%s", err.text);
}

void fake_server_end_engine(struct fake_server *fake)
{
	struct fs_server *server = &fake->server;
	fs_sink_stop(server->sink);
	prefetch_free(server->prefetch);
	fs_sink_free(server->sink);
	fs_budget_free(server->budget);
}
