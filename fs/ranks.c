/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that begin with their first reader; fs/ranks.h first. */
#include "fs/ranks.h"

#include "fs/log_queue.h"
#include "fs/mount_tier.h"
#include "fs/sampler_streams.h"
#include "fs/server.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"

/* Under ranks_lock. */
static int start_samplers(struct fs_server *server, struct fs_view *view)
{
	struct fs_sampler_streams *samplers = server->samplers[view->number];
	if (samplers) {
		fs_sampler_streams_wake(samplers);
		return 0;
	}
	int rc = fs_sampler_streams_new(server, view, &samplers);
	server->samplers[view->number] = samplers;
	return rc;
}

/* Under ranks_lock. */
static int begin_one(struct fs_server *server, struct fs_view *view)
{
	if (fs_view_begin(view))
		fs_server_find_epochs(server);
	fs_watch_begin(server->watch, view);
	fs_tier_begin(server, view);
	return start_samplers(server, view);
}

/* Under ranks_lock.  Each later file that somebody looks up tries again, so the log has one line. */
static void tell_failure(struct fs_server *server, const struct fs_view *view, int rc)
{
	if (!server->ranks_failure_told)
		fs_log_queue_note(server->log,
		        "rank %u is not read ahead until its reader lists a directory or looks up a file again: %s",
		        view->options.rank, base_err_str(rc));
	server->ranks_failure_told = true;
}

void fs_ranks_begin_one(struct fs_server *server, struct fs_view *view)
{
	if (server->options.n_ranks == 0 || (fs_view_has_reader(view) && server->samplers[view->number]))
		return;
	lock_for_scope(&server->ranks_lock);
	if (!server->ranks_may_begin) {
		fs_view_begin(view); /* fs_ranks_begin finds it */
		return;
	}
	int rc = begin_one(server, view);
	if (rc < 0)
		tell_failure(server, view, rc);
}

int fs_ranks_begin(struct fs_server *server)
{
	int rc = 0;
	lock_for_scope(&server->ranks_lock);
	server->ranks_may_begin = true;
	for (uint32_t i = 0; rc == 0 && i < server->n_views; i++) {
		if (!fs_view_has_reader(server->views[i]))
			continue;
		rc = begin_one(server, server->views[i]);
		if (rc < 0 && server->options.n_ranks > 0) { /* the other ranks go on */
			tell_failure(server, server->views[i], rc);
			rc = 0;
		}
	}
	fs_server_find_epochs(server);
	return rc;
}

void fs_ranks_end(struct fs_server *server)
{
	lock_for_scope(&server->ranks_lock);
	server->ranks_may_begin = false;
}
