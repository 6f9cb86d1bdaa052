/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the tier of a mount, and tells when it is off; fs/mount_tier.h first. */
#include "fs/mount_tier.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fs/log_queue.h"
#include "fs/server.h"
#include "fs/supervise/priority.h"
#include "fs/view.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"
#include "shard/base/units.h"
#include "shard/remote/location.h"

enum {
	CHECK_MS = 1000,
	PAUSES = 3, /* the pause after a piece of work is so many times as long as the work */
};
#define CHECK_NS UINT64_C(1000000000)
#define WORK_NS UINT64_C(20000000)      /* one table of 10^6 samples takes longer */
#define TOLD_BYTES ((uint64_t)64 << 20) /* a permutation that takes more is told in the log */

/* A successor would wait for itself if it had to open a directory below its own mount. */
static bool below_mount(const struct fs_server *server)
{
	const char *mountpoint = server->options.mountpoint;
	char path[PATH_MAX];
	size_t len = strlen(mountpoint);
	return !server->successor && realpath(server->options.tier_dir, path) && strncmp(path, mountpoint, len) == 0 &&
	       (path[len] == '/' || path[len] == '\0');
}

static void tell_memory(const struct fs_server *server)
{
	uint64_t bytes = (uint64_t)server->info->n_samples * 8;
	char text[16];
	if (server->views[0]->options.order == SHARD_ORDER_TORCH && bytes > TOLD_BYTES && !server->successor)
		log_info("what order=torch uses next is worked out for the tier, one epoch after the other: that takes "
		         "%s besides memory=",
		        base_format_size(bytes, text));
}

/* The order of rank views is known.  With view=all, the trainer has its own, which fs/trainer_uses.h tells.  A host may
 * show the ranks of a whole job, but it uses what its readers use.  So each of several ranks is told when it begins. */
static int tell_uses(struct fs_server *server, struct base_err *err)
{
	struct fs_view *view = server->views[0];
	int rc = view->all ? cache_tier_uses_new_told(server->tier, server->index, &server->tier_uses)
	                   : cache_tier_uses_new(server->tier, view->order, &server->tier_uses);
	if (rc == -E2BIG) {
		log_info("the tier keeps what it has, whatever is used next: the dataset has too many samples for "
		         "tables of their uses");
		return 0;
	}
	if (rc == 0 && !view->all && server->options.n_ranks == 0)
		rc = cache_tier_uses_add(server->tier_uses, view->options.rank);
	if (rc == 0 && !view->all)
		tell_memory(server);
	if (rc == 0 || rc == -EOPNOTSUPP)
		return 0;
	cache_tier_uses_free(server->tier_uses);
	server->tier_uses = NULL;
	cache_tier_close(server->tier);
	server->tier = NULL;
	return base_err_set(
	        err, rc, "cannot use the tier in '%s': %s", base_quoted(server->options.tier_dir), base_err_str(rc));
}

/* The file is sparse, so nothing else tells it before the disk is full. */
static void warn_of_size(const struct fs_options *options)
{
	struct statvfs st;
	char wanted[16], there[16];
	if (statvfs(options->tier_dir, &st) < 0 || st.f_blocks == 0)
		return;
	uint64_t bytes = (uint64_t)st.f_blocks * st.f_frsize;
	if (options->tier_bytes > bytes)
		log_warning("tier_size=%s is more than the file system of '%s' has (%s): the tier goes off when that "
		            "is full; give a smaller tier_size=",
		        base_format_size(options->tier_bytes, wanted), base_quoted(options->tier_dir),
		        base_format_size(bytes, there));
}

static void warn_of_emptied(const struct fs_options *options, uint64_t emptied_bytes)
{
	char now[16], then[16];
	if (emptied_bytes)
		log_warning("the tier in '%s' had %s, so it begins empty with tier_size=%s: all mounts should give the "
		            "same tier_size=",
		        base_quoted(options->tier_dir), base_format_size(emptied_bytes, then),
		        base_format_size(options->tier_bytes, now));
}

/* A tier is no reason for a trainer to wait, or not to begin. What the user may have mistyped is an error all the same:
 * it is mended at once, and a warning would be overlooked. A successor cannot ask him. */
static bool goes_on_without(const struct fs_server *server, int rc)
{
	return server->successor || rc == -ETIMEDOUT || rc == -ENOSPC || rc == -EDQUOT || rc == -EROFS || rc == -EIO;
}

static const char *next_step(int rc)
{
	if (rc == -ENOSPC || rc == -EDQUOT)
		return "make room there, or give another directory, and mount again";
	if (rc == -EROFS || rc == -EIO)
		return "look at that disk, or give another directory, and mount again";
	return "mount again when that is mended";
}

int fs_tier_open(struct fs_server *server, struct base_err *err)
{
	const char *dir = server->options.tier_dir, *dataset = server->options.dataset;
	if (!dir)
		return 0;
	if (below_mount(server))
		return base_err_set(err, -EINVAL,
		        "option tier: '%s' lies below the mountpoint, which hides it: choose another directory",
		        base_quoted(dir));
	int rc = cache_tier_open(dir, server->options.tier_bytes, server->info->identity, err, &server->tier);
	if (rc == 0)
		cache_tier_tell_name(server->tier, dataset, remote_public_len(dataset));
	if (rc == 0)
		rc = tell_uses(server, err);
	if (rc == 0 && !server->successor) {
		warn_of_size(&server->options);
		warn_of_emptied(&server->options, cache_tier_emptied(server->tier));
	}
	if (rc == 0 || !goes_on_without(server, rc))
		return rc;
	log_warning("%s: the mount goes on without a tier; %s", err ? err->text : base_err_str(rc), next_step(rc));
	server->tier_failed = -rc;
	return 0;
}

void fs_tier_begin(struct fs_server *server, const struct fs_view *view)
{
	if (server->options.n_ranks == 0 || !server->tier_uses)
		return;
	int rc = cache_tier_uses_add(server->tier_uses, view->options.rank);
	if (rc < 0)
		fs_log_queue_note(server->log, "the tier does not keep what rank %u uses next: %s", view->options.rank,
		        base_err_str(rc));
}

/* ---- tables of order=torch ---- */

struct fs_tier_tables {
	struct fs_server *server;
	pthread_t thread;
	pthread_mutex_t lock; /* guards `end` */
	pthread_cond_t cond;
	bool end;
};

/* Returns false at once when the thread must end. */
static bool pause_for(struct fs_tier_tables *tables, uint64_t ns)
{
	struct timespec until = base_until(ns);
	lock_for_scope(&tables->lock);
	while (!tables->end && pthread_cond_timedwait(&tables->cond, &tables->lock, &until) == 0)
		;
	return !tables->end;
}

/* A large dataset's tables take tens of seconds of a processor, which a trainer needs: so they get a part of one.
 * Without memory, the thread tries again after the pause. */
static void *tables_run(void *arg)
{
	struct fs_tier_tables *tables = arg;
	const struct fs_server *server = tables->server;
	uint64_t pause_ns = 0;
	pthread_setname_np(pthread_self(), "tier-uses");
	fs_priority_usual();
	while (pause_for(tables, pause_ns)) {
		uint64_t start_ns = base_now_ns();
		pause_ns = CHECK_NS;
		if (cache_tier_off(server->tier) || !cache_tier_uses_lacks(server->tier_uses))
			continue;
		if (cache_tier_uses_work(server->tier_uses, WORK_NS) == 0)
			pause_ns = (base_now_ns() - start_ns) * PAUSES;
	}
	return NULL;
}

static void tables_free(struct fs_tier_tables *tables)
{
	pthread_cond_destroy(&tables->cond);
	pthread_mutex_destroy(&tables->lock);
	free(tables);
}

/* Without memory or a thread, the next check tries again. */
static void begin_tables(struct fs_server *server)
{
	if (!server->tier_uses || server->tier_tables || !cache_tier_uses_lacks(server->tier_uses))
		return;
	struct fs_tier_tables *tables = calloc(1, sizeof(*tables));
	if (!tables)
		return;
	tables->server = server;
	pthread_mutex_init(&tables->lock, NULL);
	base_cond_init(&tables->cond);
	if (pthread_create(&tables->thread, NULL, tables_run, tables) == 0)
		server->tier_tables = tables;
	else
		tables_free(tables);
}

void fs_tier_stop(struct fs_server *server)
{
	struct fs_tier_tables *tables = server->tier_tables;
	if (!tables)
		return;
	{
		lock_for_scope(&tables->lock);
		tables->end = true;
		pthread_cond_signal(&tables->cond);
	}
	pthread_join(tables->thread, NULL);
	tables_free(tables);
	server->tier_tables = NULL;
}

int fs_tier_check(struct fs_server *server)
{
	if (!server->tier || server->tier_off_told)
		return -1;
	int off = cache_tier_off(server->tier);
	if (!off) {
		begin_tables(server);
		return CHECK_MS;
	}
	log_warning("the tier in '%s' is off (%s): blocks come from the dataset until the next mount",
	        base_quoted(server->options.tier_dir), strerror(off));
	server->tier_off_told = true;
	return -1;
}
