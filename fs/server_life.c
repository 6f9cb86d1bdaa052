/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a server: open, mount, answer, end; fs/fs.h and fs/server.h first. */
#include "fs/server.h"

#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/budget.h"
#include "fs/supervise/confine.h"
#include "shard/base/control_client.h"
#include "fs/control_server.h"
#include "fs/supervise/crash.h"
#include "fs/listing_ahead.h"
#include "fs/stats.h"
#include "fs/stats_files.h"
#include "fs/lookup_readahead.h"
#include "fs/hang_injection.h"
#include "fs/guest_announcements.h"
#include "fs/heartbeat.h"
#include "fs/epoch_list.h"
#include "fs/job_queue.h"
#include "fs/log_queue.h"
#include "fs/mount_check.h"
#include "fs/supervise/mount.h"
#include "fs/name.h"
#include "fs/ranks.h"
#include "fs/read.h"
#include "fs/recorder.h"
#include "fs/store_limit.h"
#include "fs/sampler_streams.h"
#include "fs/host_sharing.h"
#include "fs/supervise/sigbus.h"
#include "fs/supervise/supervisor.h"
#include "fs/sink.h"
#include "fs/mount_tier.h"
#include "fs/read_latency.h"
#include "fs/watch.h"
#include "fs/worker_reads.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"
#include "shard/base/units.h"
#include "shard/remote/store.h"

enum {
	THREADS_MIN = 4,  /* default at least: LOOKUPs of one directory run in parallel even on a small machine */
	THREADS_MAX = 16, /* default at most: few workers ever wait, so more would only compete */
	DELAY_US_MAX = 10000000,
	KICK_MS = 10,         /* pause between the signals that end a worker's read(2) */
	READ_AHEAD_KB = 1024, /* one block: with the kernel's 128 KiB a large file would need eight times the READs */
};

#define KICK_SIGNAL SIGRTMIN
#define DELAY_ENVIRON "DDPFS_TEST_READ_DELAY_US"

/* ---- the session's descriptor ---- */

struct init_answer {
	struct fuse_out_header head;
	struct fuse_init_out out;
};

static int refuse_init(struct base_err *err, int rc)
{
	return base_err_set(err, rc, "the kernel's fuse does not agree with libfuse: %s", strerror(-rc));
}

/* Makes a session on a descriptor that is mounted already: libfuse takes "/dev/fd/N" as a mountpoint. */
static int make_session(struct fs_server *server, struct base_err *err)
{
	char name[] = "ddpfs";
	char debug[] = "-d";
	char device[32];
	char *argv[] = { name, debug, NULL };
	struct fuse_args args = FUSE_ARGS_INIT(server->options.debug ? 2 : 1, argv);
	server->session = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), server);
	fuse_opt_free_args(&args);
	if (!server->session)
		return base_err_set(err, -ENOMEM, "libfuse refuses to make a session");
	snprintf(device, sizeof(device), "/dev/fd/%d", server->fuse_fd);
	if (fuse_session_mount(server->session, device) != 0)
		return base_err_set(err, -EINVAL, "libfuse refuses the session's descriptor");
	return 0;
}

/* Reads INIT, which mount(2) has queued. It is kept: a successor gives it to its own libfuse, to agree on the same
 * flags. */
static int read_init(struct fs_server *server, struct base_err *err)
{
	_Alignas(struct fuse_in_header) uint8_t buf[FUSE_MIN_READ_BUFFER];
	const struct fuse_in_header *head = (const struct fuse_in_header *)buf;
	ssize_t len;
	do
		len = read(server->fuse_fd, buf, sizeof(buf));
	while (len < 0 && errno == EINTR);
	if (len < 0)
		return refuse_init(err, -errno);
	if (len < (ssize_t)sizeof(*head) || head->opcode != FUSE_INIT || len > FS_INIT_BYTES_MAX)
		return refuse_init(err, -EPROTO);
	memcpy(server->mount.init, buf, (size_t)len);
	server->mount.init_len = (uint32_t)len;
	return 0;
}

static void give_init(struct fs_server *server)
{
	_Alignas(struct fuse_in_header) uint8_t copy[FS_INIT_BYTES_MAX];
	const struct fuse_buf buf = { .mem = copy, .size = server->mount.init_len };
	memcpy(copy, server->mount.init, sizeof(copy));
	fuse_session_process_buf(server->session, &buf);
}

/* Finds out what libfuse answers to INIT. Meanwhile a socket is in the place of /dev/fuse, because /dev/fuse takes
 * one answer only. A successor's libfuse must answer too, and the first server corrects the answer. */
static int ask_libfuse(struct fs_server *server, struct init_answer *ret_answer, size_t *ret_len)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	cleanup_close int theirs = ends[0];
	cleanup_close int ours = ends[1];
	cleanup_close int device = fcntl(server->fuse_fd, F_DUPFD_CLOEXEC, 3);
	if (device < 0 || dup3(theirs, server->fuse_fd, O_CLOEXEC) < 0)
		return -errno;
	give_init(server);
	ssize_t len = recv(ours, ret_answer, sizeof(*ret_answer), MSG_DONTWAIT | MSG_TRUNC);
	int rc = len < 0 ? -EPROTO : 0; /* libfuse did not answer */
	if (dup3(device, server->fuse_fd, O_CLOEXEC) < 0)
		return -errno;
	if (rc == 0 && (len < (ssize_t)(offsetof(struct init_answer, out.flags) + sizeof(uint32_t)) ||
	                       len > (ssize_t)sizeof(*ret_answer) || ret_answer->head.error != 0))
		rc = -EPROTO;
	if (rc == 0)
		*ret_len = (size_t)len;
	return rc;
}

/* Answers INIT here, so that the flags are fixed before any worker starts. */
static int answer_init(struct fs_server *server, struct base_err *err)
{
	struct init_answer answer;
	size_t len = 0;
	int rc = ask_libfuse(server, &answer, &len);
	if (rc == 0 && fuse_session_exited(server->session))
		rc = -EPROTO;
	if (rc < 0)
		return refuse_init(err, rc);
	if (server->successor)
		return 0; /* the kernel has its answer from the first server */
	/* libfuse 3.14 asks for parallel lookups in a directory, but does not tell the kernel. With this bit the
	 * kernel does not take the directory's lock for each lookup. */
	answer.out.flags |= FUSE_PARALLEL_DIROPS;
	return write(server->fuse_fd, &answer, len) < 0 ? refuse_init(err, -errno) : 0;
}

static void raise_read_ahead(uint64_t dev)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(dev), minor(dev));
	cleanup_fclose FILE *f = fopen(path, "we");
	if (f)
		fprintf(f, "%d\n", READ_AHEAD_KB);
}

/* ---- new ---- */

static int copy_options(struct fs_server *server, const struct fs_options *options, struct base_err *err)
{
	struct fs_options *own = &server->options;
	char now[PATH_MAX];
	*own = *options;
	own->dataset = strdup(options->dataset);
	if (server->successor && fs_mount_path(server->channel->mount.dev, options->mountpoint, now) == 0)
		own->mountpoint = strdup(now);
	else
		own->mountpoint = realpath(options->mountpoint, NULL);
	own->index_file = options->index_file ? strdup(options->index_file) : NULL;
	own->control_path = options->control_path ? strdup(options->control_path) : NULL;
	own->tier_dir = options->tier_dir ? strdup(options->tier_dir) : NULL;
	own->view.subdir = NULL; /* the view has its own copy */
	if (!own->mountpoint) {
		int code = -errno;
		return base_err_set(err, code, "'%s': %s: the mountpoint must be an existing directory",
		        options->mountpoint, strerror(-code));
	}
	if (!own->dataset || (options->index_file && !own->index_file) ||
	        (options->control_path && !own->control_path) || (options->tier_dir && !own->tier_dir))
		return base_err_set(err, -ENOMEM, "out of memory");
	struct stat st;
	/* For a successor, a stat of the mountpoint would wait for this server, which does not answer yet. */
	if (!server->successor && stat(own->mountpoint, &st) == 0 && !S_ISDIR(st.st_mode))
		return base_err_set(
		        err, -ENOTDIR, "'%s': not a directory: the mountpoint must be one", own->mountpoint);
	server->uid = own->set_uid ? own->uid : geteuid();
	server->gid = own->set_gid ? own->gid : getegid();
	return 0;
}

/* The first rank warns if hosts do not keep their part of the samples (shard/deal.h). */
static void check_groups(const struct fs_server *server)
{
	const struct fs_view *view = server->views[0];
	uint64_t groups = view->options.groups;
	if (groups <= 1 || view->options.rank > 0 || server->successor || view->options.world % groups == 0 ||
	        groups % view->options.world == 0)
		return;
	log_warning("groups=%" PRIu64
	            " does not fit world=%u: other hosts read the groups of a host, too; give as many groups "
	            "as the job has hosts",
	        groups, view->options.world);
}

static int make_views(struct fs_server *server, const struct fs_options *options, struct base_err *err)
{
	int rc = fs_view_new(server->index, options, 0, err, &server->views[0]);
	server->n_views = rc == 0;
	for (uint32_t i = 1; rc == 0 && i < options->n_ranks; i++) {
		rc = fs_view_new_rank(server->views[0], i, err, &server->views[i]);
		server->n_views += rc == 0;
	}
	return rc;
}

static int open_dataset(struct fs_server *server, const struct fs_options *options, struct base_err *err)
{
	char path[PATH_MAX];
	struct stat st;
	const char *dataset = server->options.dataset, *index_file = server->options.index_file;
	/* The identity of what a successor opens is compared below: it need not hear from the store first. */
	int rc = server->successor ? shard_index_open_again(dataset, index_file, err, &server->index)
	                           : shard_index_open_with(dataset, index_file, err, &server->index);
	/* A successor has nobody to tell, and its readers wait while the store is away. */
	if (rc == 0 && !server->successor)
		rc = shard_index_check_shards(server->index, err);
	if (rc < 0)
		return rc;
	struct remote_store *store = shard_index_store(server->index);
	rc = store ? remote_store_use_agent(store) : 0;
	if (rc < 0)
		log_warning("no process can be started to renew credentials (%s): they may expire", strerror(-rc));
	server->info = shard_index_info(server->index);
	if (shard_index_separate(server->index))
		snprintf(path, sizeof(path), "%s", shard_index_separate(server->index));
	else if (shard_index_store(server->index))
		snprintf(path, sizeof(path), "%s", shard_index_path(server->index));
	else
		snprintf(path, sizeof(path), "%s/%s", shard_index_dataset(server->index), SHARD_INDEX_NAME);
	if (stat(path, &st) == 0)
		server->index_mtime = st.st_mtim;
	rc = fs_common_files_init(&server->common, server->index);
	if (rc < 0)
		return base_err_set(err, rc, "'%s': %s: `mkshard verify` says more", path, base_err_str(rc));
	if (server->successor &&
	        memcmp(server->channel->mount.identity, server->info->identity, FS_IDENTITY_BYTES) != 0)
		return base_err_set(err, -ESTALE,
		        "'%s': another dataset lies there now: the mount shows the old one; unmount it, then mount the "
		        "new one",
		        index_file ? index_file : dataset);
	memcpy(server->mount.identity, server->info->identity, FS_IDENTITY_BYTES);
	rc = make_views(server, options, err);
	if (rc < 0)
		return rc;
	check_groups(server);
	return shard_index_check_err(server->index, err); /* what is in memory now was made of the index's records */
}

/* Takes over the handover memory of the predecessor, or makes it. */
static int settle_handover(struct fs_server *server, struct base_err *err)
{
	bool kept = false;
	uint64_t bits = fs_view_turns_max(server->views[0]); /* other ranks have the same world and samples */
	const struct fs_handover_sizes sizes = {
		.n_views = server->n_views,
		.view_bits = bits,
		.samples = server->info->n_samples,
		.dirs = server->info->n_dirs,
		.files = server->info->n_files,
	};
	int rc = fs_handover_open(server->channel->handover_fd, &sizes, &server->handover, &kept);
	for (uint32_t i = 0; rc == 0 && i < server->n_views; i++) {
		const struct fs_handover_view view = fs_handover_view(server->handover, i);
		rc = fs_view_keep(server->views[i], &view, kept && server->successor);
		if (rc == 0 && server->successor && !kept)
			fs_view_begin(server->views[i]); /* nothing tells which ranks had readers */
	}
	if (rc < 0)
		return base_err_set(err, rc, "memory for a successor: %s", base_err_str(rc));
	fs_server_find_epochs(server); /* the first READs may come before the ranks begin */
	return 0;
}

static int make_parts(struct fs_server *server, struct base_err *err)
{
	int rc = fs_read_latency_new(&server->read_latency);
	if (rc == 0)
		rc = fs_listing_ahead_new(&server->listing_ahead);
	if (rc == 0)
		rc = fs_lookup_readahead_new(&server->lookup_readahead);
	if (rc == 0)
		rc = fs_reads_new(server, &server->reads);
	if (rc == 0)
		rc = fs_job_queue_new(&server->jobs);
	if (rc == 0)
		rc = fs_log_queue_new(server->index, server->jobs, &server->log);
	if (rc == 0)
		rc = fs_lists_new(server->index, server->n_views, &server->lists);
	if (rc == 0)
		rc = fs_stats_new(server, &server->stats);
	if (rc == 0)
		rc = fs_stats_files_new(server, fs_stats_text, fs_metrics_text, fs_state_text, &server->stats_files);
	if (rc == 0)
		rc = fs_recorder_new(server, &server->recorder);
	if (rc == 0)
		rc = fs_store_limits_new(server->prefetch, &server->counters, &server->store_limits);
	if (rc == 0)
		rc = fs_watch_new(server, &server->watch);
	if (rc == 0)
		rc = fs_control_open(server, &server->control);
	if (rc == 0)
		rc = fs_guests_new(server, &server->guests);
	if (rc == 0)
		rc = fs_heartbeat_new(server, &server->heartbeat);
	return rc < 0 ? base_err_set(err, rc, "%s", base_err_str(rc)) : 0;
}

static uint64_t delay_ns(void *arg, uint32_t shard, uint64_t offset, uint32_t len)
{
	const struct fs_server *server = arg;
	(void)shard;
	(void)offset;
	(void)len;
	fs_hang_here(server, FS_HANG_ENGINE);
	return server->test_delay_ns;
}

/* Reads the delay of a slow store, for tests and benchmarks. */
static int take_test_delay(struct fs_server *server, struct base_err *err)
{
	const char *text = getenv(DELAY_ENVIRON);
	uint64_t us;
	if (!text || !*text)
		return 0;
	if (fs_name_number(text, strlen(text), DELAY_US_MAX, &us) < 0)
		return base_err_set(err, -EINVAL,
		        DELAY_ENVIRON "=%s: this test hook takes microseconds, at most %d; unset it", text,
		        (int)DELAY_US_MAX);
	server->test_delay_ns = us * 1000;
	if (us)
		log_warning("every read of the dataset is held back for %llu us: " DELAY_ENVIRON
		            " is set, a hook for tests",
		        (unsigned long long)us);
	return 0;
}

static int start_engine(struct fs_server *server, struct base_err *err)
{
	int rc = fs_budget_new(server, &server->budget);
	if (rc < 0)
		return base_err_set(err, rc, "%s", base_err_str(rc));
	rc = take_test_delay(server, err);
	if (rc == 0)
		rc = fs_hang_take(server, err);
	if (rc < 0)
		return rc;
	rc = fs_sink_new(server, &server->sink);
	if (rc < 0)
		return base_err_set(err, rc, "%s", base_err_str(rc));
	const struct prefetch_hook slow = { .delay_ns = delay_ns, .arg = server };
	struct prefetch_options engine = {
		.hook = server->test_delay_ns || server->test_hang == FS_HANG_ENGINE ? &slow : NULL,
		.index = server->index,
		.memory_bytes = fs_budget_bytes(server->budget),
		.sink = fs_sink_base(server->sink),
		.resident = fs_handover_resident(server->handover),
		.timeout_ns = server->options.timeout_set ? server->options.timeout_s * UINT64_C(1000000000) : 0,
		.tier = server->tier,
		.tier_uses = server->tier_uses,
	};
	rc = prefetch_new(&engine, err, &server->prefetch);
	if (rc < 0)
		return rc;
	fs_budget_apply(server->budget); /* a predecessor may have listed names */
	rc = fs_host_sharing_new(server, &server->host_sharing);
	return rc < 0 ? base_err_set(err, rc, "%s", base_err_str(rc)) : 0;
}

/* Gives the supervisor the descriptor as soon as the mount is worth keeping. */
static int hand_over(struct fs_server *server, struct base_err *err)
{
	struct fs_channel_message message = { .kind = FS_CHANNEL_MOUNTED };
	server->mount.dev = server->dev;
	server->mount.fusermount = server->fusermount;
	server->mount.resends = fs_mount_resends(server->mount.init, server->mount.init_len);
	/* The supervisor gets the session itself; this server gets a clone, which ends with it. */
	cleanup_close int session = server->mount.resends ? -1 : fcntl(server->fuse_fd, F_DUPFD_CLOEXEC, 3);
	if (session >= 0)
		server->mount.cloned = fs_mount_clone(server->fuse_fd, NULL) == 0;
	message.mount = server->mount;
	int rc = fs_channel_send(server->channel->channel, &message, session >= 0 ? session : server->fuse_fd);
	return rc < 0 ? base_err_set(err, rc, "the supervisor is gone: %s", strerror(-rc)) : 0;
}

static int mount_it(struct fs_server *server, struct base_err *err)
{
	struct fs_mount_options options = {
		.mountpoint = server->options.mountpoint,
		.source = shard_index_dataset(server->index),
		.allow_other = server->options.allow_other,
		.noexec = server->options.noexec,
		.max_read = FS_READ_MAX,
	};
	int rc = fs_mount(&options, err, &server->fuse_fd, &server->dev, &server->fusermount);
	if (rc == 0)
		rc = read_init(server, err);
	if (rc == 0)
		rc = make_session(server, err);
	if (rc == 0)
		rc = answer_init(server, err);
	if (rc == 0)
		rc = hand_over(server, err);
	if (rc == 0)
		raise_read_ahead(server->dev);
	return rc;
}

static int take_over(struct fs_server *server, struct base_err *err)
{
	server->fuse_fd = server->channel->fuse_fd;
	server->dev = server->mount.dev;
	server->fusermount = server->mount.fusermount;
	int rc = make_session(server, err);
	return rc < 0 ? rc : answer_init(server, err);
}

static uint32_t default_threads(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	if (cpus < THREADS_MIN)
		return THREADS_MIN;
	return cpus > THREADS_MAX ? THREADS_MAX : (uint32_t)cpus;
}

static void server_free(struct fs_server *server);

static int server_new(const struct fs_options *options, const struct fs_channel *channel, struct base_err *err,
        struct fs_server **ret_server)
{
	struct fs_server *server = calloc(1, sizeof(*server));
	if (!server)
		return base_err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&server->epochs_lock, NULL);
	fs_listing_picks_init(&server->picks);
	pthread_mutex_init(&server->ranks_lock, NULL);
	server->channel = channel;
	server->successor = channel->fuse_fd >= 0;
	server->mount = channel->mount;
	server->fuse_fd = -1;
	server->control_passed = -1;
	server->started_ns = channel->started_ns;
	server->n_workers = options->threads ? options->threads : default_threads();
	if (server->n_workers > FS_THREADS_MAX)
		server->n_workers = FS_THREADS_MAX;
	server->workers_read_max = server->n_workers / 2;

	server->mounts_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = server->stop_fd < 0 ? base_err_set(err, -errno, "eventfd: %s", strerror(errno)) : 0;
	if (rc == 0)
		rc = copy_options(server, options, err);
	if (rc == 0)
		rc = open_dataset(server, options, err);
	if (rc == 0)
		rc = fs_tier_open(server, err);
	if (rc == 0)
		rc = settle_handover(server, err);
	if (rc == 0)
		rc = start_engine(server, err);
	if (rc == 0)
		rc = make_parts(server, err);
	if (rc == 0)
		rc = server->successor ? take_over(server, err) : mount_it(server, err);
	if (rc < 0) {
		server_free(server);
		return rc;
	}
	*ret_server = server;
	return 0;
}

/* ---- run ---- */

static void *worker_run(void *arg)
{
	struct fs_worker *worker = arg;
	struct fs_server *server = worker->server;
	struct fuse_buf buf = { 0 };
	char name[16];
	snprintf(name, sizeof(name), "fuse-%u", worker->number);
	pthread_setname_np(pthread_self(), name);
	worker->tid = gettid();
	fs_worker_reads_init(worker);

	while (!server->stopping && !fuse_session_exited(server->session)) {
		int rc = fuse_session_receive_buf(server->session, &buf);
		if (rc == -EINTR || rc == -EAGAIN)
			continue;
		if (rc <= 0)
			break;
		atomic_store_explicit(&worker->busy_ns, base_now_ns(), memory_order_relaxed);
		fuse_session_process_buf(server->session, &buf);
		atomic_store_explicit(&worker->busy_ns, 0, memory_order_relaxed);
	}
	free(buf.mem);
	worker->done = true;
	fs_server_stop(server);
	return NULL;
}

static void on_kick(int sig)
{
	(void)sig; /* the signal only ends a read(2) with EINTR */
}

static int start_workers(struct fs_server *server)
{
	struct sigaction action = { .sa_handler = on_kick };
	sigaction(KICK_SIGNAL, &action, NULL);
	for (uint32_t i = 0; i < server->n_workers; i++) {
		struct fs_worker *worker = &server->workers[i];
		worker->server = server;
		worker->number = i;
		int rc = -pthread_create(&worker->thread, NULL, worker_run, worker);
		if (rc < 0) {
			server->n_workers = i;
			return i > 0 ? 0 : rc;
		}
	}
	return 0;
}

/* A worker may wait in read(2) of a session that still lives (detached, but in use). It does not see the flag, so a
 * signal ends its read. The signal may come just before read(2), so it is repeated. */
static void stop_workers(struct fs_server *server)
{
	server->stopping = true;
	for (uint32_t i = 0; i < server->n_workers; i++) {
		struct fs_worker *worker = &server->workers[i];
		while (!worker->done) {
			pthread_kill(worker->thread, KICK_SIGNAL);
			nanosleep(&(struct timespec){ .tv_nsec = KICK_MS * 1000000L }, NULL);
		}
		pthread_join(worker->thread, NULL);
	}
	server->n_workers = 0;
}

/* Takes a message of the supervisor. Returns false if it means the end. */
static bool listen_to_supervisor(struct fs_server *server)
{
	struct fs_channel_message message;
	int fd;
	int rc = fs_channel_receive(server->channel->channel, MSG_DONTWAIT, &message, &fd);
	if (fd >= 0)
		close(fd);
	return rc == -EAGAIN || (rc == 0 && message.kind != FS_CHANNEL_STOP);
}

/* Gives up rights: after the last step that needs one, and before there are workers that an intruder could use. */
static void confine(const struct fs_server *server)
{
	int rc = fs_confine_calls(fs_confine_wanted(), shard_index_store(server->index) != NULL, server->tier != NULL);
	if (rc < 0)
		log_warning("the server cannot be confined (%s): it goes on as it is", strerror(-rc));
}

static int sooner(int a_ms, int b_ms)
{
	return a_ms < 0 || (b_ms >= 0 && b_ms < a_ms) ? b_ms : a_ms;
}

/* A mount came or went. If it was this one, the threads with copies of it are what keeps the session alive. */
static void mounts_changed(struct fs_server *server)
{
	if (server->gone || fs_mount_listed(server->mounts_fd, server->dev))
		return;
	server->gone = true;
	fs_sink_gone(server->sink);
	fs_watch_gone(server->watch);
}

/* Main waits for the end. Meanwhile it serves the control socket, and tells the supervisor that the server is well. */
static int wait_for_end(struct fs_server *server)
{
	for (;;) {
		if (fs_counted(&server->counters.listings) > 0)
			fs_hang_here(server, FS_HANG_MAIN);
		struct pollfd polls[4 + FS_CONTROL_POLLS_MAX] = { { .fd = server->stop_fd, .events = POLLIN },
			{ .fd = server->channel->channel, .events = POLLIN },
			{ .fd = server->mounts_fd, .events = POLLPRI } };
		int timeout_ms;
		size_t n = fs_control_polls(server->control, polls + 4, &timeout_ms);
		timeout_ms = sooner(timeout_ms, fs_guests_poll(server->guests, &polls[3]));
		timeout_ms = sooner(timeout_ms, fs_heartbeat_check(server->heartbeat));
		timeout_ms = sooner(timeout_ms, fs_budget_check(server->budget));
		timeout_ms = sooner(timeout_ms, fs_recorder_check(server->recorder));
		timeout_ms = sooner(timeout_ms, fs_tier_check(server));
		timeout_ms = sooner(timeout_ms, fs_store_limit_check(server->store_limits));
		if (poll(polls, (nfds_t)(4 + n), timeout_ms) < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		if (polls[0].revents || (polls[1].revents && !listen_to_supervisor(server)))
			return 0;
		if (polls[2].revents)
			mounts_changed(server);
		fs_control_serve(server->control, polls + 4, n);
		fs_guests_serve(server->guests);
		if (server->restart) {
			fs_stats_keep(server);
			fs_channel_say(server->channel->channel, FS_CHANNEL_GO, 0, NULL);
		}
		server->restart = false;
	}
}

/* The watcher's listener: tells the view's own stream, and the recognition of samplers. */
static void opened(void *arg, struct fs_view *view, uint32_t file, uint64_t epoch, uint64_t turn)
{
	struct fs_server *server = arg;
	if (!fs_view_has_reader(view))
		fs_ranks_begin_one(server, view);
	if (server->samplers[view->number])
		fs_sampler_streams_opened(server->samplers[view->number], file, epoch, turn);
	fs_sink_opened(server->sink, view, file, epoch, turn);
}

static void drained(void *arg)
{
	struct fs_server *server = arg;
	for (uint32_t i = 0; i < server->n_views; i++)
		fs_sampler_streams_drained(server->samplers[i]);
	fs_sink_drained(server->sink);
}

static int start_samplers(struct fs_server *server)
{
	int rc = fs_ranks_begin(server);
	if (rc == 0)
		fs_watch_listen(server->watch,
		        (struct fs_watch_listener){ .opened = opened, .drained = drained, .arg = server });
	return rc;
}

/* The watcher has ended, but listings and statistics drain, too, so the listener goes first. */
static void stop_samplers(struct fs_server *server)
{
	fs_watch_listen(server->watch, (struct fs_watch_listener){ 0 });
	fs_ranks_end(server);
	for (uint32_t i = 0; i < server->n_views; i++)
		fs_sampler_streams_stop(server->samplers[i]);
	for (uint32_t i = 0; i < server->n_views; i++)
		fs_sampler_streams_end(server->samplers[i]);
}

/* What the helper does first: it reports the mount as ready only after the mount has answered. */
struct beginning {
	struct fs_server *server;
	void (*ready)(void *arg);
	void *arg;
};

static void begin(void *arg)
{
	const struct beginning *b = arg;
	int rc = fs_watch_wait_ready(b->server->watch);
	if (rc == 0 && !b->server->successor)
		fs_mount_check(b->server);
	if (rc == 0 && b->ready)
		b->ready(b->arg);
	else if (rc < 0 && rc != -ECANCELED)
		log_error("'%s' does not answer: %s", b->server->options.mountpoint, strerror(-rc));
}

static void write_log(void *arg)
{
	const struct beginning *b = arg;
	fs_log_queue_write(b->server->log);
}

static int start_threads(struct fs_server *server, struct beginning *beginning)
{
	const struct fs_job_queue_hooks hooks = { .begin = begin, .woken = write_log, .arg = beginning };
	fs_crash_take(server->channel->channel, server->fuse_fd);
	fs_sigbus_take(server->channel->channel, shard_index_path(server->index), server->options.mountpoint);
	confine(server);
	fs_recorder_check(server->recorder); /* the first reading, before anybody opens a file */
	int rc = start_workers(server);
	if (rc == 0)
		rc = fs_sink_start(server->sink);
	if (rc == 0)
		rc = start_samplers(server);
	if (rc == 0)
		rc = fs_watch_start(server->watch);
	if (rc == 0)
		rc = fs_job_queue_start(server->jobs, hooks);
	return rc;
}

/* Nobody may have looked at `ddpfs stat` while the trainer waited for files. A short run says nothing. */
static void say_why_it_missed(struct fs_server *server)
{
	enum { MISSES_MIN = 500 };
	for (uint32_t i = 0; i < server->n_views; i++) {
		char *text = fs_stats_json(server, server->views[i]);
		json_t *stats = text ? json_loads(text, 0, NULL) : NULL;
		const char *note = json_string_value(json_object_get(stats, "read_ahead_note"));
		if (note && json_integer_value(json_object_get(stats, "misses")) >= MISSES_MIN)
			log_warning("'%s': %s", server->options.mountpoint, note);
		json_decref(stats);
		free(text);
	}
}

/* The watcher and the helper use the mount themselves, so they end while it is still answered. */
static int server_run(struct fs_server *server)
{
	int rc = wait_for_end(server);
	fs_channel_say(server->channel->channel, FS_CHANNEL_ENDING, 0, NULL);
	fs_control_close(server->control);
	server->control = NULL;
	fs_guests_end(server->guests);
	say_why_it_missed(server);
	fs_watch_stop(server->watch);
	stop_samplers(server);
	fs_sink_stop(server->sink);
	fs_job_queue_stop(server->jobs);
	fs_tier_stop(server);
	fs_recorder_end(server->recorder);
	if (fs_mount_lives(server->fuse_fd)) {
		int unmounted = fs_server_unmount(server, true);
		if (unmounted == -EXDEV)
			log_warning(
			        "'%s': another file system is mounted over it: the mount below stays, without a server",
			        server->options.mountpoint);
		else if (unmounted < 0)
			log_warning(
			        "'%s' cannot be unmounted (%s): `fusermount3 -uz` or `umount -l` as its owner does it",
			        server->options.mountpoint, strerror(-unmounted));
	}
	server->unmounted = true;
	stop_workers(server);
	fs_sigbus_give_back();
	fs_crash_give_back();
	return rc;
}

/* ---- end ---- */

static void server_free(struct fs_server *server)
{
	if (!server)
		return;
	fs_control_close(server->control);
	fs_guests_end(server->guests);
	/* Mounted but never run (or INIT failed). */
	if (server->fuse_fd >= 0 && !server->unmounted && !server->successor)
		fs_unmount(server->options.mountpoint, server->dev, server->fusermount, true);
	/* Blocks in flight call back and answer their READs, so this comes before the session's end. */
	prefetch_free(server->prefetch);
	cache_tier_uses_free(server->tier_uses);
	cache_tier_close(server->tier);
	if (server->session)
		fuse_session_destroy(server->session); /* closes fuse_fd */
	else if (server->fuse_fd >= 0)
		close(server->fuse_fd);
	fs_watch_free(server->watch);
	fs_lists_free(server->lists);
	fs_log_queue_free(server->log);
	fs_job_queue_free(server->jobs);
	fs_recorder_free(server->recorder);
	fs_store_limits_free(server->store_limits);
	fs_stats_files_free(server->stats_files);
	fs_stats_free(server->stats);
	fs_guests_free(server->guests);
	fs_reads_free(server->reads);
	fs_read_latency_free(server->read_latency);
	fs_listing_ahead_free(server->listing_ahead);
	fs_lookup_readahead_free(server->lookup_readahead);
	fs_host_sharing_free(server->host_sharing);
	fs_budget_free(server->budget);
	fs_sink_free(server->sink);
	for (uint32_t i = server->n_views; i-- > 0;) { /* view 0 owns the order of all */
		fs_sampler_streams_free(server->samplers[i]);
		fs_view_free(server->views[i]);
	}
	pthread_mutex_destroy(&server->ranks_lock);
	fs_listing_picks_done(&server->picks);
	pthread_mutex_destroy(&server->epochs_lock);
	fs_common_files_done(&server->common);
	shard_index_close(server->index);
	if (server->stop_fd >= 0)
		close(server->stop_fd);
	if (server->mounts_fd >= 0)
		close(server->mounts_fd);
	fs_heartbeat_free(server->heartbeat);
	fs_handover_close(server->handover);
	free((void *)(uintptr_t)server->options.dataset);
	free((void *)(uintptr_t)server->options.index_file);
	free((void *)(uintptr_t)server->options.mountpoint);
	free((void *)(uintptr_t)server->options.control_path);
	free((void *)(uintptr_t)server->options.tier_dir);
	free(server);
}

/* ---- the door ---- */

int fs_serve(const void *options, const struct fs_channel *channel, void (*ready)(void *arg), void *ready_arg,
        struct base_err *err)
{
	struct fs_server *server = NULL;
	int rc = server_new(options, channel, err, &server);
	if (rc < 0 || !server)
		return rc;
	struct beginning beginning = { .server = server, .ready = ready, .arg = ready_arg };
	rc = start_threads(server, &beginning);
	if (rc < 0) {
		base_err_set(err, rc, "'%s': its threads cannot be started: %s", server->options.mountpoint,
		        base_err_str(rc));
		/* Workers may have taken requests already. They are not answered: the caller ends this process at
		 * once, and the next server gets them. Or the supervisor unmounts. */
		server->unmounted = true;
		if (server->n_workers == 0)
			server_free(server);
		return rc;
	}
	rc = server_run(server);
	if (rc < 0)
		base_err_set(err, rc, "serving '%s': %s", server->options.mountpoint, base_err_str(rc));
	server_free(server);
	return rc;
}

void fs_supervise_options(const struct fs_options *options, struct fs_supervise *ret_supervise)
{
	*ret_supervise = (struct fs_supervise){
		.mountpoint = options->mountpoint,
		.control_path = options->control_path,
		.watchdog_s = options->watchdog_s,
		.timeout_s = options->timeout_s,
		.serve = fs_serve,
		.serve_arg = options,
		.greet = fs_host_sharing_greet,
		.owner_pidfd = -1,
	};
}
