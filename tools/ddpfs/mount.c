/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs mount`: makes one mount, in the background or in the foreground; daemonize.h and mount_options.h first. */
#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "shard/index.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/mounts.h"
#include "tools/ddpfs/daemonize.h"

enum { FILES_MIN = 64 }; /* open files of a server: 24 for itself, the others for shards */

struct arguments {
	struct options options;
	const char *dataset;
	const char *target;
	uint64_t owner; /* process id; 0: none */
	bool front;
	bool quiet;
};

/* Whether the user wrote `ddpfs mount MNT DATASET`: only the second one has an index.  The function checks `target`
 * last, because it may be a mount. */
static bool are_swapped(const char *dataset, const char *target)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, dataset);
	if (n >= (int)sizeof(path) || remote_is_url(dataset) || access(path, F_OK) == 0)
		return false;
	n = snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, target);
	return n < (int)sizeof(path) && access(path, F_OK) == 0;
}

/* With state=-FILE a missing file means a first start.  If its directory is missing too, the user may have mistyped
 * it. */
static void warn_of_state(const struct view_options *view)
{
	char folder[PATH_MAX];
	if (!view->state_missing || strlen(view->state_path) >= sizeof(folder))
		return;
	memcpy(folder, view->state_path, strlen(view->state_path) + 1);
	const char *name = dirname(folder);
	if (access(name, F_OK) < 0)
		cli_warn("state=-FILE: there is no directory '%s': this begins at epoch %" PRIu64 ", step %" PRIu64,
		        base_quoted(name), view->view.epoch, view->view.start);
}

/* No process can reach what lies below the mountpoint, because the mount hides it. */
static int check_outside(const char *what, const char *path, const char *mountpoint, struct base_err *err)
{
	char folder[PATH_MAX];
	char resolved[PATH_MAX];
	if (!path || strlen(path) >= sizeof(folder))
		return 0;
	memcpy(folder, path, strlen(path) + 1);
	if (!realpath(dirname(folder), resolved) || !mounts_lies_below(resolved, mountpoint))
		return 0;
	return base_err_set(err, -EINVAL,
	        "%s=%s lies below the mountpoint, which the mount hides: choose another place", what,
	        base_quoted(path));
}

/* With fewer than FILES_MIN the mount would fail halfway, or the server could not open shards later. */
static int check_files_limit(struct base_err *err)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= FILES_MIN)
		return 0;
	return base_err_set(err, -EMFILE,
	        "a process may have %llu files open here, a server needs %d: raise the limit (`ulimit -n 1024`, or "
	        "LimitNOFILE= of the systemd unit)",
	        (unsigned long long)limit.rlim_cur, FILES_MIN);
}

void ddpfs_warn_of_hidden(const struct options *options)
{
	if (!mounts_is_empty(options->fs.mountpoint))
		cli_warn("'%s' is not empty: what is in it is hidden until the mount is taken away",
		        base_quoted(options->fs.mountpoint));
}

int ddpfs_prepare(struct options *options, const char *dataset, const char *target, bool make_target,
        struct base_err *err, bool *ret_usage)
{
	char path[PATH_MAX];
	*ret_usage = false;
	int r = options_finish(options, err);
	if (r < 0) {
		*ret_usage = true;
		return r;
	}
	if (!options->fs.index_file && are_swapped(dataset, target)) {
		char quoted[2][256];
		return base_err_set(err, -EINVAL,
		        "'%s' has no index, '%s' has one: is it the other way round? The dataset comes first, then the "
		        "directory to mount on",
		        base_err_quote(dataset, quoted[0], sizeof(quoted[0])),
		        base_err_quote(target, quoted[1], sizeof(quoted[1])));
	}
	r = check_files_limit(err);
	if (r == 0)
		r = mounts_check_dataset(dataset, err, path);
	if (r < 0)
		return r;
	options->fs.dataset = options_keep(options, path);
	if (!options->fs.dataset)
		return base_err_set(err, -ENOMEM, "out of memory");
	r = mounts_check_target(target, options->fs.dataset, make_target, err, path, NULL);
	if (r < 0)
		return r;
	options->fs.mountpoint = options_keep(options, path);
	if (!options->fs.mountpoint)
		return base_err_set(err, -ENOMEM, "out of memory");
	r = check_outside("control", options->fs.control_path, path, err);
	if (r == 0)
		r = check_outside("log", options->log_file, path, err);
	if (r == 0)
		r = check_outside("index", options->fs.index_file, path, err);
	if (r == 0)
		r = options_settle_view(options, err);
	if (r == 0)
		warn_of_state(&options->view);
	return r;
}

static uint64_t number(const json_t *stats, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(stats, key));
	return value < 0 ? 0 : (uint64_t)value;
}

/* Says what was mounted, what the mount does, and what to do next; nothing if the server does not answer. */
static void introduce(const struct fs_options *fs)
{
	char size[16], memory[16];
	json_t *reply;
	struct base_err err = { 0 };
	if (ask(fs->mountpoint, json_pack("{s:s}", "cmd", "stat"), &err, &reply) < 0)
		return;
	const json_t *stats = json_object_get(reply, "stats");
	const char *order = json_string_value(json_object_get(stats, "order"));
	const char *quoted = base_quoted(fs->mountpoint);
	base_format_size(number(stats, "content_bytes"), size);
	base_format_size(number(stats, "memory_bytes"), memory);
	if (fs->view_all && fs->layout == FS_LAYOUT_TREE) {
		cli_note("'%s' shows all %" PRIu64 " files of the dataset (%s)", quoted, number(stats, "files"), size);
		cli_note("the mount recognises the trainer's sampler, then reads ahead in its order, with at most %s "
		         "of memory",
		        memory);
	} else {
		if (fs->view_all)
			cli_note("'%s' shows all %" PRIu64 " samples, named in the order of epoch %" PRIu64, quoted,
			        number(stats, "turns"), number(stats, "epoch"));
		else if (fs->n_ranks > 0) {
			/* With tail=pad the ranks have more turns than there are samples. */
			uint64_t turns = number(stats, "turns"), samples = number(stats, "samples");
			cli_note("'%s' shows ranks %u to %u of %u, each in a directory: %" PRIu64 " of %" PRIu64
			         " samples in epoch %" PRIu64,
			        quoted, fs->view.rank, fs->view.rank + fs->n_ranks - 1, fs->view.world,
			        turns < samples ? turns : samples, samples, number(stats, "epoch"));
		} else
			cli_note("'%s' shows the part of rank %u of %u: %" PRIu64 " of %" PRIu64
			         " samples in epoch %" PRIu64,
			        quoted, fs->view.rank, fs->view.world, number(stats, "turns"), number(stats, "samples"),
			        number(stats, "epoch"));
		cli_note("the mount reads ahead in the order of the epoch (order=%s), with at most %s of memory",
		        order ? order : "?", memory);
	}
	cli_note("next: 'ls %s'; what it does: 'ddpfs stat %s'; to end it: 'ddpfs umount %s'", quoted, quoted, quoted);
	json_decref(reply);
}

static int serve(const struct arguments *a, struct base_err *err)
{
	pid_t server;
	cleanup_close int owner = -1;
	ddpfs_warn_of_hidden(&a->options);
	if (a->front)
		return serve_front(&a->options, err);
	if (a->owner)
		owner = (int)syscall(SYS_pidfd_open, (pid_t)a->owner, 0);
	if (a->owner && owner < 0)
		return base_err_set(err, -errno, "--owner=%d: %s", (int)a->owner, strerror(errno));
	int r = serve_background(
	        &(struct serve_background){ .options = &a->options, .owner_pidfd = owner, .quiet = a->quiet }, err,
	        &server);
	if (r == 0 && !a->quiet && isatty(STDERR_FILENO))
		introduce(&a->options.fs);
	return r;
}

int ddpfs_mount(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET MNT",
		"Mounts DATASET on the directory MNT. Returns when the mount answers; the server goes on in the "
		"background until 'ddpfs umount MNT'.",
		.options = { { "options", "OPTIONS", "Mount options, see below; may be repeated", 'o',
		                     CLI_CALL(struct arguments, options, options_take) },
		        { "foreground", NULL, "Stay in front and log on stderr", 'f',
		                CLI_FLAG(struct arguments, front) },
		        { "quiet", NULL, "Print nothing on a terminal but warnings and errors", 'q',
		                CLI_FLAG(struct arguments, quiet) },
		        { "owner", "PID", "Unmount when that process ends, however it ends",
		                CLI_NUMBER(struct arguments, owner, 1, INT32_MAX) } },
		.words = { { "DATASET", .at = offsetof(struct arguments, dataset) },
		        { "MNT", .at = offsetof(struct arguments, target), "the directory to mount on" } },
		.too_many = "options stand behind -o, joined by commas", .help_filter = options_help_filter };
	struct arguments a = { 0 };
	struct base_err err = { 0 };
	bool usage = false;
	options_init(&a.options);
	cli_parse(&line, argc, argv, &a);
	if (a.front && a.owner)
		cli_usage("--owner is for a mount in the background: leave -f out");
	int r = ddpfs_prepare(&a.options, a.dataset, a.target, false, &err, &usage);
	if (usage)
		cli_usage("%s", err.text);
	if (r == 0 && a.options.writable)
		cli_warn("rw: a ddpfs mount is read-only all the same");
	if (r == 0)
		r = serve(&a, &err);
	options_done(&a.options);
	return r < 0 ? cli_fail(&err) : CLI_DONE;
}
