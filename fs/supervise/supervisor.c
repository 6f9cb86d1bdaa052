/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, watches, replaces and ends the servers of a mount; fs/supervise/supervisor.h first. */
#include "fs/supervise/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/supervise/confine.h"
#include "fs/supervise/control_socket.h"
#include "fs/supervise/handover_memory.h"
#include "fs/supervise/mount.h"
#include "fs/supervise/priority.h"
#include "fs/supervise/thread_state.h"
#include "fs/supervise/unmounter.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"

enum {
	BEATS = 4,            /* a server hangs if it misses this many in a row */
	BEAT_MS_MAX = 5000,   /* longer, and the supervisor would see hangs too late */
	START_MS_MIN = 60000, /* a successor hangs if it takes longer than this + 10 x the first server's start */
	RESEND_MS = 1000,     /* to the next resend while a dead server has threads left; then doubled */
	RESEND_MS_MAX = 64000,
	PAUSE_MS = 100, /* to the next try after a server failed before it served; then doubled */
	PAUSE_MS_MAX = 2000,
	DELAY_MS = 100,    /* after the 2nd failure in a row; twice that after the 3rd, and so on */
	IN_A_ROW_MAX = 20, /* servers that did not serve (supervisor.h) */
	DEATH_MS = 500,    /* between two checks whether the main thread has ended */
	REASON_MAX = BASE_ERR_TEXT_MAX + 16,
	UNREAPED_MAX = 16, /* remembered; more are reaped all the same */
	LINES_MAX = 100,   /* of a server's log in LINES_S seconds; a good server's own limits are far below */
	LINES_S = 5,
	LAST_WORDS_MAX = 1024, /* more messages than a socket holds */
};

/* supervisor.h has the picture. */
enum server_state { SERVER_NONE, SERVER_STARTING, SERVER_SERVING, SERVER_ENDING };

/* How a server ended.  Facts come one by one, in any order.  The last one in this list that is known counts. */
enum server_outcome {
	OUTCOME_UNKNOWN,
	OUTCOME_DONE,    /* exit status 0 */
	OUTCOME_EXITED,  /* another exit status */
	OUTCOME_KILLED,  /* SIGKILL from outside */
	OUTCOME_CRASHED, /* `signal` says by what */
	OUTCOME_FAILED,  /* `failed` says why */
	OUTCOME_HUNG,    /* the watchdog killed it */
};

struct supervisor {
	const struct fs_supervise *how;
	struct base_err *err;
	struct fs_supervised held;
	struct fs_handover_head *head;
	int signal_fd;
	sigset_t old_mask;
	pid_t self;

	/* The current server.  `outcome` and what explains it stay until the next one starts. */
	enum server_state state;
	enum server_outcome outcome;
	pid_t pid;              /* 0: none */
	int channel;            /* -1: no server, or its socket has ended */
	bool reaped;            /* waitpid(2) has returned its status */
	int exit_status;        /* OUTCOME_EXITED */
	int signal;             /* OUTCOME_CRASHED; 0: unknown, the kernel is writing a core */
	struct base_err failed; /* OUTCOME_FAILED */
	uint32_t asked_id;      /* a request to restart that came before READY and is answered then; 0: none */
	uint64_t start_ns;
	uint64_t beat;   /* at the last check */
	uint32_t still;  /* checks in a row that saw no new beat */
	bool told_waits; /* the log says that it waits for a disk */

	pid_t greeter; /* the process that tells the other mounts (fs/host_sharing.h); 0: none runs */
	struct fs_unmounter unmounter;

	bool was_ready;               /* one of the servers has been */
	bool stopping;                /* the mount shall end */
	pid_t unreaped[UNREAPED_MAX]; /* servers that were killed and have not ended: they may still hold requests */
	uint32_t n_unreaped;
	uint64_t unreaped_ns; /* when the first of them was killed */
	uint64_t resend_ns;   /* `unreaped`: when to resend next */
	uint32_t resend_ms;   /* ... and the pause after that: it grows, so that a slow request can end */
	uint64_t stop_ns;     /* `stopping` or SERVER_ENDING: when to kill the server */
	uint64_t failures[FS_SUPERVISOR_FAILURES_MAX]; /* their times; a ring */
	uint32_t n_failures;                           /* since the start */
	uint32_t in_a_row;                             /* servers that ended and did not serve */
	uint64_t start_at_ns;                          /* no server: when the next one starts */
	bool told_no_process;                          /* the log says that fork(2) fails */
	uint64_t waits_ns; /* when the first of them failed before it served; 0: the last one served */
	uint32_t pause_ms; /* ... and the pause before the next of them */

	/* Lines of servers' logs. */
	uint64_t lines_ns;   /* when the count of `lines` began */
	uint32_t lines;      /* written */
	uint32_t left_lines; /* left out, and the log does not say so yet */
};

/* ---- the server's process ---- */

struct served {
	struct supervisor *sup;
	const struct fs_channel *channel;
	bool ready;
};

static void on_ready(void *arg)
{
	struct served *served = arg;
	const struct fs_supervise *how = served->sup->how;
	if (!served->sup->was_ready && how->ready_server)
		how->ready_server(how->arg);
	served->ready = true;
	fs_channel_say(served->channel->channel, FS_CHANNEL_READY, 0, NULL);
}

static int serve(struct served *served, struct base_err *err)
{
	const struct fs_supervise *how = served->sup->how;
	int rc = how->serve(how->serve_arg, served->channel, on_ready, served, err);
	if (rc < 0)
		return rc;
	if (!served->ready)
		return base_err_set(err, -ECANCELED, "the mount was taken away before it answered");
	return 0;
}

static int relay_channel = -1;      /* in a server's process: its end of the channel */
static _Atomic uint32_t relay_lost; /* lines since the last one that was sent */

/* Sends a line of the server's log to the supervisor.  Never waits, because a supervisor that stands still must not
 * stop its server.  Any thread but the detached ones (fs/detached_thread.h), which log nothing themselves. */
static void relay(enum base_log_level level, const char *line)
{
	char text[96];
	uint32_t lost = atomic_exchange(&relay_lost, 0);
	if (lost > 0) {
		snprintf(text, sizeof(text), "%u lines of this server's log were lost", lost);
		if (fs_channel_try(relay_channel, FS_CHANNEL_LOG, BASE_LOG_WARNING, text) < 0)
			atomic_fetch_add(&relay_lost, lost);
	}
	if (fs_channel_try(relay_channel, FS_CHANNEL_LOG, (int)level, line) < 0)
		atomic_fetch_add(&relay_lost, 1);
}

/* Exists in builds with AddressSanitizer.  It looks for leaks at exit(3), and a server calls _exit(2). */
void __lsan_do_leak_check(void) __attribute__((weak));

static _Noreturn void server_main(struct supervisor *sup, int channel)
{
	struct base_err err = { 0 };
	struct fs_channel handed = {
		.supervisor = sup->self,
		.channel = channel,
		.handover_fd = sup->held.handover_fd,
		.inotify_fd = sup->held.inotify_fd,
		.control_fd = sup->held.control_fd,
		.control_path = sup->held.control_path,
		.fuse_fd = sup->held.fuse_fd,
		.mount = sup->held.mount,
		.started_ns = sup->held.started_ns,
		.restarts = sup->held.restarts,
	};
	struct served served = { .sup = sup, .channel = &handed };
	handed.hang_ms = sup->how->watchdog_s * 1000;
	handed.beat_ms = handed.hang_ms / BEATS < BEAT_MS_MAX ? handed.hang_ms / BEATS : BEAT_MS_MAX;
	relay_channel = channel;
	base_log_relay(relay);
	int confined = fs_confine_server(sup->self);
	if (confined == -ESRCH)
		_exit(1);
	if (confined < 0)
		log_warning("capabilities cannot be given up (%s): the server goes on with them", strerror(-confined));
	pthread_setname_np(pthread_self(), "ddpfs-server");
	close(sup->channel);
	close(sup->signal_fd);
	if (sup->how->owner_pidfd >= 0)
		close(sup->how->owner_pidfd);
	int rc = 0;
	if (handed.fuse_fd >= 0 && !handed.mount.resends)
		rc = fs_mount_clone(handed.fuse_fd, &err);
	if (rc == 0)
		rc = serve(&served, &err);
	if (rc < 0)
		fs_channel_say(channel, FS_CHANNEL_FAILED, rc, err.text);
	if (__lsan_do_leak_check)
		__lsan_do_leak_check();
	_exit(rc < 0);
}

/* ---- starting a server ---- */

/* Goes along an arrow of the picture in supervisor.h. */
static void enter(struct supervisor *sup, enum server_state to)
{
	static const unsigned from[] = {
		[SERVER_NONE] = 1 << SERVER_STARTING | 1 << SERVER_SERVING | 1 << SERVER_ENDING,
		[SERVER_STARTING] = 1 << SERVER_NONE,
		[SERVER_SERVING] = 1 << SERVER_STARTING,
		[SERVER_ENDING] = 1 << SERVER_STARTING | 1 << SERVER_SERVING | 1 << SERVER_ENDING,
	};
	assert(from[to] & 1U << sup->state);
	sup->state = to;
}

static int start_server(struct supervisor *sup)
{
	int ends[2];
	sup->reaped = sup->told_waits = false;
	sup->still = 0;
	sup->asked_id = 0;
	sup->outcome = OUTCOME_UNKNOWN;
	sup->signal = 0;
	sup->failed = (struct base_err){ 0 };
	sup->start_ns = base_now_ns();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
		return -errno;
	sup->channel = ends[0];
	fflush(NULL);
	sup->pid = fork();
	if (sup->pid == 0)
		server_main(sup, ends[1]);
	int rc = sup->pid < 0 ? -errno : 0;
	close(ends[1]);
	if (rc < 0) {
		close(steal_fd(&sup->channel));
		sup->pid = 0;
	} else {
		enter(sup, SERVER_STARTING);
	}
	return rc;
}

/* Starts a server for a mount that is there.  If there is no process for it, tries again later. */
static void start_successor(struct supervisor *sup)
{
	sup->start_at_ns = 0;
	if (sup->held.mount.resends)
		fs_mount_resend(sup->held.fuse_fd);
	int rc = start_server(sup);
	if (rc < 0)
		sup->start_at_ns = base_now_ns() + UINT64_C(1000000000);
	if (rc < 0 && !sup->told_no_process)
		log_error("'%s': no process for its server (%s): trying again each second, its readers wait",
		        sup->how->mountpoint, strerror(-rc));
	sup->told_no_process = rc < 0;
}

/* ---- how a server ended ---- */

static void learn(struct supervisor *sup, enum server_outcome outcome)
{
	if (outcome > sup->outcome)
		sup->outcome = outcome;
}

static void learn_of_signal(struct supervisor *sup, int number)
{
	if (sup->outcome < OUTCOME_CRASHED || sup->signal == 0)
		sup->signal = number;
	learn(sup, OUTCOME_CRASHED);
}

/* status: of waitpid(2). */
static void learn_of_status(struct supervisor *sup, int status)
{
	sup->reaped = true;
	if (WIFEXITED(status)) {
		sup->exit_status = WEXITSTATUS(status);
		learn(sup, sup->exit_status == 0 ? OUTCOME_DONE : OUTCOME_EXITED);
	} else if (WTERMSIG(status) == SIGKILL) {
		learn(sup, OUTCOME_KILLED);
	} else {
		learn_of_signal(sup, WTERMSIG(status));
	}
}

static void learn_of_failure(struct supervisor *sup, const struct fs_channel_message *message)
{
	base_err_set(&sup->failed, message->code, "%s", message->text);
	learn(sup, OUTCOME_FAILED);
}

static bool resends(const struct supervisor *sup)
{
	return sup->n_unreaped > 0 && sup->held.mount.resends && sup->held.fuse_fd >= 0;
}

/* Whether servers that were killed hold requests that nobody can answer, because this kernel cannot resend.  Such a
 * server waits in the kernel for the answer to one of them, which locks a page that it was storing. */
static bool unanswerable(const struct supervisor *sup)
{
	return sup->n_unreaped > 0 && !sup->held.mount.resends && sup->held.fuse_fd >= 0;
}

/* When the mount is given up because of them; UINT64_MAX: not at all. */
static uint64_t unanswered_end_ns(const struct supervisor *sup)
{
	uint64_t ms = sup->how->timeout_s * UINT64_C(1000);
	if (!unanswerable(sup) || sup->stopping || sup->state == SERVER_ENDING)
		return UINT64_MAX;
	return sup->unreaped_ns + (ms > FS_SUPERVISOR_STOP_MS ? ms : FS_SUPERVISOR_STOP_MS) * 1000000;
}

/* Resends once more.  A thread of a dead server that ended late can have taken a request after the last resend.  The
 * threads that are left may wait for its answer.  Requests that the living server works on come to it twice; its
 * answer to the second one counts. */
static void resend(struct supervisor *sup)
{
	if (!resends(sup))
		return;
	fs_mount_resend(sup->held.fuse_fd);
	if (sup->resend_ms < RESEND_MS_MAX)
		sup->resend_ms *= 2;
	sup->resend_ns = base_now_ns() + sup->resend_ms * UINT64_C(1000000);
}

/* ---- unmounting for a server, which may not do it ---- */

static int unmount_it(void *arg, bool lazy)
{
	const struct supervisor *sup = arg;
	/* The last step of umount(2) would wait for them without an end, and so would sync(2) of the whole host. */
	if (unanswerable(sup)) {
		if (!lazy && fs_mount_in_use(sup->how->mountpoint, sup->held.mount.dev))
			return -EBUSY;
		fs_mount_abort(sup->how->mountpoint, sup->held.mount.dev);
	}
	return fs_unmount(sup->how->mountpoint, sup->held.mount.dev, sup->held.mount.fusermount, lazy);
}

static void answer_unmount(void *arg, const struct fs_unmount_request *request, int rc)
{
	const struct supervisor *sup = arg;
	if (sup->channel >= 0 && request->server == sup->pid)
		fs_channel_answer(sup->channel, request->id, rc, NULL);
}

static void ask_unmounter(struct supervisor *sup, uint32_t id, bool lazy)
{
	const struct fs_unmount_request request = { .id = id, .server = sup->pid, .lazy = lazy };
	if (sup->held.fuse_fd < 0)
		answer_unmount(sup, &request, -EBUSY); /* FS_CHANNEL_MOUNTED has not come */
	else
		fs_unmounter_ask(&sup->unmounter, &request);
}

/* ---- telling other mounts of the dataset, for a server, which may connect no socket ---- */

static void end_greeter(struct supervisor *sup)
{
	if (sup->greeter <= 0)
		return;
	kill(sup->greeter, SIGKILL);
	while (waitpid(sup->greeter, NULL, 0) < 0 && errno == EINTR) {
	}
	sup->greeter = 0;
}

/* It parses what other mounts answer, so it has fewer rights than the supervisor. */
static _Noreturn void greeter_main(const struct supervisor *sup)
{
	pthread_setname_np(pthread_self(), "ddpfs-greeter");
	sigprocmask(SIG_SETMASK, &sup->old_mask, NULL);
	close_range(STDERR_FILENO + 1, UINT_MAX, 0);
	fs_priority_usual();
	if (fs_confine_greeter(sup->self) == 0)
		sup->how->greet(sup->held.control_path);
	_exit(0);
}

/* Starts a greeter, for each server anew.  If fork(2) fails, the server shares no pages with other mounts. */
static void start_greeter(struct supervisor *sup)
{
	end_greeter(sup);
	fflush(NULL);
	sup->greeter = fork();
	if (sup->greeter == 0)
		greeter_main(sup);
}

/* ---- the end of children ---- */

static void forget_unreaped(struct supervisor *sup, pid_t pid)
{
	for (uint32_t i = 0; i < sup->n_unreaped; i++) {
		if (sup->unreaped[i] != pid)
			continue;
		sup->unreaped[i] = sup->unreaped[--sup->n_unreaped];
		return;
	}
}

/* Reaps all children that have ended, and notes what that says. */
static void reap(struct supervisor *sup)
{
	pid_t pid;
	int status;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (fs_unmounter_ended(&sup->unmounter, pid, status)) {
			/* it has answered the server */
		} else if (pid == sup->pid) {
			learn_of_status(sup, status);
		} else if (pid == sup->greeter) {
			sup->greeter = 0;
		} else {
			resend(sup); /* the dead server may have taken a request while it ended */
			forget_unreaped(sup, pid);
		}
	}
}

/* Returns the number after `key` in /proc/PID/status (proc(5)); 0: there is none. */
static int status_number(pid_t pid, const char *key)
{
	char path[64];
	char line[128];
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	cleanup_fclose FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			return (int)strtol(line + strlen(key), NULL, 10);
	return 0;
}

static bool is_dumping(pid_t pid)
{
	return status_number(pid, "CoreDumping:") != 0;
}

/* ---- what a server says ---- */

static void tell_left_lines(struct supervisor *sup)
{
	if (sup->left_lines > 0)
		log_warning("'%s': %u more lines of its server's log were left out: at most %d are written in %d s",
		        sup->how->mountpoint, sup->left_lines, LINES_MAX, LINES_S);
	sup->left_lines = 0;
}

/* Logs a server's line as a stranger's: without control characters, and at most LINES_MAX lines in LINES_S seconds. */
static void take_line(struct supervisor *sup, const struct fs_channel_message *message)
{
	char line[PATH_MAX];
	uint64_t now_ns = base_now_ns();
	if (now_ns - sup->lines_ns > LINES_S * UINT64_C(1000000000)) {
		tell_left_lines(sup);
		sup->lines_ns = now_ns;
		sup->lines = 0;
	}
	if (sup->lines >= LINES_MAX) {
		sup->left_lines++;
		return;
	}
	sup->lines++;
	base_log((enum base_log_level)message->code, "%s", base_err_printable(message->text, line, sizeof(line)));
}

/* Takes in a line of the log, a failure or a crash.  False: the message is another kind, or not valid. */
static bool take_words(struct supervisor *sup, const struct fs_channel_message *message)
{
	if (message->kind == FS_CHANNEL_LOG && message->code >= BASE_LOG_ERROR && message->code <= BASE_LOG_DEBUG)
		take_line(sup, message);
	else if (message->kind == FS_CHANNEL_FAILED && message->code < 0)
		learn_of_failure(sup, message);
	else if (message->kind == FS_CHANNEL_CRASHED && message->code > 0 && message->code < NSIG)
		learn_of_signal(sup, message->code);
	else
		return false;
	return true;
}

/* Takes in what the server sent before it ended, and what would be lost when the channel is closed. */
static void hear_last_words(struct supervisor *sup)
{
	struct fs_channel_message message;
	int fd;
	for (int i = 0; i < LAST_WORDS_MAX && sup->channel >= 0; i++) {
		if (fs_channel_receive(sup->channel, MSG_DONTWAIT, &message, &fd) < 0)
			return;
		take_words(sup, &message);
		if (fd >= 0)
			close(fd);
	}
}

/* Ends the current server and finds out its outcome.  It waits FS_SUPERVISOR_GRACE_MS at most for the process to be
 * reaped.  Two kinds of servers cannot be reaped yet, and go to `unreaped`: one that is writing a core, and one with a
 * thread that waits in the kernel for an answer which only a successor gives. */
static void end_server(struct supervisor *sup)
{
	if (!sup->pid)
		return;
	bool dumping = false;
	reap(sup);
	/* A server that dies by itself is not killed yet: its status and its core tell why it died. */
	if (!sup->reaped && (sup->outcome == OUTCOME_HUNG || sup->channel >= 0))
		kill(sup->pid, SIGKILL);
	for (int ms = 0; ms < FS_SUPERVISOR_GRACE_MS; ms++) {
		reap(sup);
		dumping = !sup->reaped && is_dumping(sup->pid);
		if (sup->reaped || dumping)
			break;
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	if (dumping)
		learn(sup, OUTCOME_CRASHED);
	else if (!sup->reaped)
		kill(sup->pid, SIGKILL);
	if (!sup->reaped)
		learn(sup, OUTCOME_KILLED);
	hear_last_words(sup);
	if (!sup->reaped && sup->n_unreaped == 0)
		sup->unreaped_ns = base_now_ns();
	if (!sup->reaped && sup->n_unreaped < UNREAPED_MAX)
		sup->unreaped[sup->n_unreaped++] = sup->pid;
	sup->resend_ms = RESEND_MS;
	sup->resend_ns = base_now_ns() + sup->resend_ms * UINT64_C(1000000);
	sup->pid = 0;
	enter(sup, SERVER_NONE);
	if (sup->channel >= 0)
		close(steal_fd(&sup->channel));
}

/* Writes why the server ended, for a sentence that begins with "the server". */
static void reason(const struct supervisor *sup, char *buf, size_t size)
{
	switch (sup->outcome) {
	case OUTCOME_HUNG:
		snprintf(buf, size, "did not answer for %u s", sup->how->watchdog_s);
		break;
	case OUTCOME_FAILED:
		snprintf(buf, size, "failed: %s", sup->failed.text);
		break;
	case OUTCOME_CRASHED:
		if (sup->signal)
			snprintf(buf, size, "died of signal %d (%s)", sup->signal, strsignal(sup->signal));
		else
			snprintf(buf, size, "crashed");
		break;
	case OUTCOME_KILLED:
		snprintf(buf, size, "was killed");
		break;
	case OUTCOME_DONE:
	case OUTCOME_EXITED:
		snprintf(buf, size, "ended with status %d", sup->outcome == OUTCOME_DONE ? 0 : sup->exit_status);
		break;
	case OUTCOME_UNKNOWN: /* there was no server */
		snprintf(buf, size, "did not start");
		break;
	}
}

/* Closes /dev/fuse and so ends the session: nobody waits any more.  Aborts it if a dead server may have it open. */
static void disconnect(struct supervisor *sup)
{
	if (sup->held.fuse_fd < 0)
		return;
	if (sup->n_unreaped > 0)
		fs_mount_abort(sup->how->mountpoint, sup->held.mount.dev);
	close(steal_fd(&sup->held.fuse_fd));
}

static void take_away_mount(struct supervisor *sup)
{
	if (sup->held.fuse_fd < 0)
		return;
	bool there = fs_mount_lives(sup->held.fuse_fd);
	disconnect(sup);
	if (there)
		fs_unmount(sup->how->mountpoint, sup->held.mount.dev, sup->held.mount.fusermount, true);
}

static int give_up(struct supervisor *sup, int code, const char *why)
{
	disconnect(sup);
	return base_err_set(sup->err, code,
	        "'%s': the server %s: the mount ends, its readers get ENOTCONN; `ddpfs umount` takes it away",
	        sup->how->mountpoint, why);
}

/* False: somebody else killed the server. */
static bool at_fault(const struct supervisor *sup)
{
	return sup->outcome != OUTCOME_KILLED;
}

/* Whether the server served for FS_SUPERVISOR_FAILURES_S; the time in which it hung does not count. */
static bool served_long(const struct supervisor *sup)
{
	uint64_t s = FS_SUPERVISOR_FAILURES_S;
	if (sup->outcome == OUTCOME_HUNG)
		s += 3 * (uint64_t)sup->how->watchdog_s;
	return base_now_ns() - sup->start_ns > s * 1000000000;
}

static bool failed_too_often(struct supervisor *sup)
{
	uint64_t now = base_now_ns();
	uint64_t *oldest = &sup->failures[sup->n_failures % FS_SUPERVISOR_FAILURES_MAX];
	bool often = sup->n_failures >= FS_SUPERVISOR_FAILURES_MAX - 1 &&
	             now - sup->failures[(sup->n_failures + 1) % FS_SUPERVISOR_FAILURES_MAX] <
	                     FS_SUPERVISOR_FAILURES_S * UINT64_C(1000000000);
	*oldest = now;
	sup->n_failures++;
	return often;
}

/* The server failed before it served, perhaps because its dataset is away (supervisor.h).  1: another one starts later;
 * else what fs_supervise returns. */
static int try_later(struct supervisor *sup, const char *why)
{
	char long_why[REASON_MAX + 64];
	uint32_t timeout_s = sup->how->timeout_s;
	uint64_t now_ns = base_now_ns();
	if (!timeout_s)
		return give_up(sup, -EIO, why);
	if (!sup->waits_ns) {
		sup->waits_ns = now_ns;
		sup->pause_ms = PAUSE_MS;
		log_warning("'%s': the server %s: trying again for %u s, its readers wait", sup->how->mountpoint, why,
		        timeout_s);
	}
	uint64_t end_ns = sup->waits_ns + timeout_s * UINT64_C(1000000000);
	if (now_ns >= end_ns) {
		snprintf(long_why, sizeof(long_why), "%s, and so did others for %u s", why, timeout_s);
		return give_up(sup, -EIO, long_why);
	}
	sup->start_at_ns = now_ns + sup->pause_ms * UINT64_C(1000000);
	if (sup->start_at_ns > end_ns)
		sup->start_at_ns = end_ns;
	sup->pause_ms = sup->pause_ms * 2 < PAUSE_MS_MAX ? sup->pause_ms * 2 : PAUSE_MS_MAX;
	sup->held.restarts++;
	return 1;
}

/* Takes away a mount that never answered.  Returns what fs_supervise returns. */
static int never_answered(struct supervisor *sup, const char *why)
{
	take_away_mount(sup);
	if (sup->stopping)
		return base_err_set(sup->err, -EINTR, "interrupted");
	if (sup->outcome == OUTCOME_FAILED)
		return base_err_set(sup->err, sup->failed.code, "%s", sup->failed.text);
	return base_err_set(sup->err, -EIO, "the server %s before the mount answered: run it with -f to see more", why);
}

/* The server has ended, or shall end.  1: go on, a successor has started or will; else what fs_supervise returns. */
static int gone(struct supervisor *sup)
{
	char why[REASON_MAX];
	char often[REASON_MAX + 64];
	enum server_state was = sup->state;
	end_server(sup);
	reason(sup, why, sizeof(why));
	bool failed = sup->outcome == OUTCOME_FAILED;
	/* A mount may be in use as soon as it is mounted, also before READY. */
	if (!sup->was_ready && (sup->held.fuse_fd < 0 || (failed && sup->held.restarts == 0) || sup->stopping))
		return never_answered(sup, why);
	if (sup->stopping || was == SERVER_ENDING) {
		if (sup->outcome != OUTCOME_DONE)
			take_away_mount(sup);
		return 0;
	}
	if (!fs_mount_lives(sup->held.fuse_fd))
		return 0;
	if (failed && sup->failed.code == -ESTALE)
		return give_up(sup, -ESTALE, why);
	if (!sup->held.mount.resends && !sup->held.mount.cloned)
		return give_up(sup, -EIO, why);
	if (failed && was == SERVER_STARTING)
		return try_later(sup, why);
	/* A server serves nobody if it is always killed before it answers (OOM killer), or hangs again and again. */
	bool served = was == SERVER_SERVING && (!at_fault(sup) || served_long(sup));
	sup->in_a_row = served ? 0 : sup->in_a_row + 1;
	if (sup->in_a_row > IN_A_ROW_MAX)
		return give_up(sup, -EIO, why);
	if (at_fault(sup) && failed_too_often(sup)) {
		snprintf(often, sizeof(often), "%s, and %d times within %d s it failed", why,
		        FS_SUPERVISOR_FAILURES_MAX, FS_SUPERVISOR_FAILURES_S);
		return give_up(sup, -EIO, often);
	}
	sup->held.restarts++;
	log_warning("'%s': the server %s: another one goes on%s", sup->how->mountpoint, why,
	        sup->held.mount.resends ? "" : "; what readers waited for fails with ECONNABORTED");
	if (sup->in_a_row > 1)
		sup->start_at_ns = base_now_ns() + (uint64_t)DELAY_MS * (sup->in_a_row - 1) * 1000000;
	else
		start_successor(sup);
	return 1;
}

/* Gives the mount up if it is time to.  1: go on; else what fs_supervise returns. */
static int on_unanswered(struct supervisor *sup)
{
	uint64_t now_ns = base_now_ns();
	if (now_ns < unanswered_end_ns(sup))
		return 1;
	for (uint32_t i = 0; i < sup->n_unreaped; i++) {
		if (is_dumping(sup->unreaped[i])) {
			sup->unreaped_ns = now_ns; /* that takes its time */
			return 1;
		}
	}
	end_server(sup);
	return give_up(
	        sup, -EIO, "was killed, and this kernel cannot hand its requests to another one (Linux 6.9 can)");
}

/* ---- the watchdog ---- */

static uint32_t look_ms(const struct supervisor *sup)
{
	uint32_t ms = sup->how->watchdog_s * 1000 / BEATS;
	return ms < BEAT_MS_MAX ? ms : BEAT_MS_MAX;
}

/* Counts checks, not time: after a suspended machine or a frozen cgroup wakes up, no beat is missing. */
static bool hangs(struct supervisor *sup)
{
	if (!sup->how->watchdog_s)
		return false;
	uint64_t beat = atomic_load(&sup->head->beat);
	uint64_t limit_ms = sup->how->watchdog_s * UINT64_C(1000);
	if (sup->state == SERVER_STARTING) {
		limit_ms = START_MS_MIN + 10 * (sup->held.first_start_ns / 1000000);
		if (!sup->was_ready)
			return false; /* the person who mounts waits, and can interrupt */
	}
	if (beat != sup->beat) {
		sup->beat = beat;
		sup->still = 0;
		sup->told_waits = false;
		return false;
	}
	if (is_dumping(sup->pid))
		return true; /* its handler could not tell: there was no stack for it */
	/* One check more than the limit, because the beats and the checks are not in step. */
	if (++sup->still <= limit_ms / look_ms(sup) || status_number(sup->pid, "TracerPid:"))
		return false;
	if (fs_thread_state(sup->pid, sup->pid) != 'D')
		return true;
	if (!sup->told_waits)
		log_warning("'%s': the server waits for a disk; so would another one", sup->how->mountpoint);
	sup->told_waits = true;
	return false;
}

/* ---- messages ---- */

static uint64_t latest_end_ns(void)
{
	return base_now_ns() + FS_SUPERVISOR_STOP_MS * UINT64_C(1000000);
}

static void stop(struct supervisor *sup, const char *why)
{
	if (sup->stopping)
		return;
	log_info("%s: unmounting '%s'", why, sup->how->mountpoint);
	sup->stopping = true;
	sup->stop_ns = latest_end_ns();
	if (sup->asked_id)
		fs_channel_answer(sup->channel, sup->asked_id, -ECANCELED, "the mount is being taken away");
	sup->asked_id = 0;
	if (sup->was_ready)
		fs_channel_try(sup->channel, FS_CHANNEL_STOP, 0, NULL); /* one that does not read is killed later */
	else if (sup->pid)
		kill(sup->pid, SIGKILL); /* it may not read messages yet, and nobody uses the mount */
}

static void on_signal(struct supervisor *sup)
{
	struct signalfd_siginfo info;
	while (read(sup->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			reap(sup);
		else
			stop(sup, strsignal((int)info.ssi_signo));
	}
}

static void asked_to_restart(struct supervisor *sup, uint32_t id, const char *program)
{
	const struct fs_supervise *how = sup->how;
	struct base_err err = { 0 };
	int rc;
	if (sup->stopping)
		rc = base_err_set(&err, -ECANCELED, "the mount is being taken away");
	else if (!how->restart)
		rc = base_err_set(&err, -EOPNOTSUPP, "this mount cannot be restarted");
	else if (!sup->held.mount.resends)
		rc = base_err_set(&err, -EOPNOTSUPP,
		        "this kernel cannot hand requests over to another server (Linux 6.9 can): unmount and mount "
		        "again");
	else
		rc = how->restart(how->arg, program, &sup->held, false, &err);
	fs_channel_answer(sup->channel, id, rc, err.text);
}

/* Becomes the other program.  Ends the server first, because a server unmounts when its socket ends. */
static int restart(struct supervisor *sup, const char *program)
{
	struct base_err err = { 0 };
	end_server(sup);
	end_greeter(sup);
	sup->held.restarts++;
	sup->how->restart(sup->how->arg, program, &sup->held, true, &err);
	log_error("'%s': %s: going on as before", sup->how->mountpoint, err.text);
	start_successor(sup);
	return 1;
}

static void became_ready(struct supervisor *sup)
{
	uint64_t took_ns = base_now_ns() - (sup->waits_ns ? sup->waits_ns : sup->start_ns);
	enter(sup, SERVER_SERVING);
	sup->still = 0;
	sup->waits_ns = 0;
	if (sup->was_ready) {
		log_info("'%s': answers again after %llu ms", sup->how->mountpoint,
		        (unsigned long long)(took_ns / 1000000));
	} else {
		sup->was_ready = true;
		sup->held.first_start_ns = took_ns;
		if (sup->how->ready)
			sup->how->ready(sup->how->arg);
	}
	/* After `ready`, which closes a stderr: a process may wait for its end, and the greeter would keep it open. */
	start_greeter(sup);
}

/* Handles one message of the server.  `program` keeps the path from RESTART until GO.  1: go on; else what fs_supervise
 * returns. */
static int on_message(struct supervisor *sup, char program[PATH_MAX])
{
	struct fs_channel_message message;
	int fd;
	int rc = fs_channel_receive(sup->channel, MSG_DONTWAIT, &message, &fd);
	if (rc == -EAGAIN)
		return 1;
	if (rc < 0) {
		/* The server has ended by itself: end_server() does not kill it at once. */
		close(steal_fd(&sup->channel));
		return gone(sup);
	}
	if (message.kind == FS_CHANNEL_MOUNTED && sup->held.fuse_fd < 0) {
		sup->held.mount = message.mount;
		sup->held.fuse_fd = steal_fd(&fd);
	} else if (message.kind == FS_CHANNEL_READY && sup->state == SERVER_STARTING && sup->held.fuse_fd >= 0) {
		became_ready(sup);
		if (sup->asked_id)
			asked_to_restart(sup, sup->asked_id, program);
		sup->asked_id = 0;
	} else if (take_words(sup, &message)) {
		/* taken in */
	} else if (message.kind == FS_CHANNEL_ENDING) {
		if (sup->state != SERVER_ENDING && !sup->stopping)
			sup->stop_ns = latest_end_ns();
		enter(sup, SERVER_ENDING);
	} else if (message.kind == FS_CHANNEL_GREET && sup->state == SERVER_SERVING) {
		start_greeter(sup);
	} else if (message.kind == FS_CHANNEL_UNMOUNT) {
		ask_unmounter(sup, message.id, message.code == 1);
	} else if (message.kind == FS_CHANNEL_RESTART) {
		/* The server's main thread can be asked before its helper thread has sent READY.  It waits for the
		 * answer. */
		memcpy(program, message.text, PATH_MAX);
		if (sup->state == SERVER_SERVING)
			asked_to_restart(sup, message.id, program);
		else
			sup->asked_id = message.id;
	} else if (message.kind == FS_CHANNEL_GO && sup->state == SERVER_SERVING && program[0] && !sup->stopping) {
		return restart(sup, program);
	}
	if (fd >= 0)
		close(fd);
	return 1;
}

/* ---- the loop ---- */

static int until(uint64_t ns)
{
	uint64_t now = base_now_ns();
	return ns > now ? (int)((ns - now) / 1000000) + 1 : 0;
}

static int timeout_ms(const struct supervisor *sup)
{
	int ms = sup->how->watchdog_s ? (int)look_ms(sup) : -1;
	if (sup->stopping || sup->state == SERVER_ENDING)
		ms = until(sup->stop_ns);
	else if (!sup->pid)
		ms = until(sup->start_at_ns);
	uint64_t due_ns = resends(sup) ? sup->resend_ns : unanswered_end_ns(sup);
	int due_ms = due_ns == UINT64_MAX ? -1 : until(due_ns);
	return ms < 0 || (due_ms >= 0 && due_ms < ms) ? due_ms : ms;
}

/* Does what is due: kills a server that does not end, starts a successor, looks for a hang.  1: go on; else what
 * fs_supervise returns. */
static int on_time(struct supervisor *sup)
{
	if (sup->stopping || sup->state == SERVER_ENDING) {
		if (base_now_ns() < sup->stop_ns)
			return 1;
		log_warning("'%s': the server does not end: killing it", sup->how->mountpoint);
		return gone(sup);
	}
	if (!sup->pid) {
		if (base_now_ns() >= sup->start_at_ns)
			start_successor(sup);
		return 1;
	}
	if (!hangs(sup))
		return 1;
	learn(sup, is_dumping(sup->pid) ? OUTCOME_CRASHED : OUTCOME_HUNG);
	return gone(sup);
}

/* Whether the main thread of a server has ended.  A killed server can leave a thread that waits in the kernel for a
 * page which a READ has locked.  That thread keeps the descriptor table, so the channel does not end.  The process
 * cannot be reaped, and a pidfd does not tell.  But /proc shows the main thread as a zombie. */
static bool main_ended(pid_t pid)
{
	char path[64];
	char line[512];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	cleanup_fclose FILE *f = fopen(path, "re");
	const char *name_end = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	return name_end && strncmp(name_end, ") Z", 3) == 0;
}

static int ended(struct supervisor *sup)
{
	hear_last_words(sup);
	if (sup->channel >= 0)
		close(steal_fd(&sup->channel));
	return gone(sup);
}

static int watch(struct supervisor *sup)
{
	char program[PATH_MAX] = "";
	uint64_t look_ns = base_now_ns();
	for (;;) {
		/* The last one for POLLERR only: somebody unmounted while there is no server to see it. */
		struct pollfd polls[4] = { { .fd = sup->signal_fd, .events = POLLIN },
			{ .fd = sup->channel, .events = POLLIN },
			{ .fd = sup->stopping ? -1 : sup->how->owner_pidfd, .events = POLLIN },
			{ .fd = sup->pid ? -1 : sup->held.fuse_fd } };
		int ms = timeout_ms(sup);
		bool early = sup->pid && (ms < 0 || ms > DEATH_MS);
		int n = poll(polls, 4, early ? DEATH_MS : ms);
		int rc = 1;
		early = early && n == 0;
		if (n < 0 && errno != EINTR)
			return base_err_set(sup->err, -errno, "poll: %s", strerror(errno));
		if (n > 0 && polls[0].revents)
			on_signal(sup);
		if (n > 0 && polls[2].revents)
			stop(sup, "the process it is for has ended");
		if (n > 0 && polls[1].revents)
			rc = on_message(sup, program);
		else if (sup->pid && sup->reaped)
			rc = gone(sup);
		else if (n == 0 && sup->pid && main_ended(sup->pid))
			rc = ended(sup);
		else if (!sup->pid && (sup->stopping || (n > 0 && polls[3].revents & POLLERR)))
			rc = gone(sup);
		if (rc == 1)
			rc = on_unanswered(sup);
		bool again = rc == 1 && resends(sup) && base_now_ns() >= sup->resend_ns;
		if (again)
			resend(sup);
		if (rc == 1 &&
		        ((n == 0 && !early && !again) || base_now_ns() - look_ns > look_ms(sup) * UINT64_C(1000000))) {
			look_ns = base_now_ns();
			rc = on_time(sup);
		}
		if (rc != 1)
			return rc;
	}
}

/* ---- the supervisor's own start and end ---- */

static int take_signals(struct supervisor *sup)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &sup->old_mask);
	if (sup->how->owner_pidfd >= 0) {
		sigemptyset(&set);
		sigaddset(&set, SIGCHLD);
	}
	signal(SIGCHLD, SIG_DFL); /* if it were ignored, waitpid(2) would find no children */
	sup->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return sup->signal_fd < 0 ? -errno : 0;
}

static void confine(void)
{
	int rc = fs_confine_supervisor();
	if (rc < 0)
		log_warning("capabilities cannot be given up (%s): the mount goes on with them", strerror(-rc));
}

static int make(struct supervisor *sup)
{
	struct fs_supervised *held = &sup->held;
	int rc = take_signals(sup);
	if (rc == 0)
		rc = sup->how->takeover ? fs_handover_map_head(held->handover_fd, &sup->head)
		                        : fs_handover_new(&held->handover_fd, &sup->head);
	if (rc < 0)
		return base_err_set(sup->err, rc, "the supervisor: %s", strerror(-rc));
	if (sup->how->takeover) {
		confine();
		return 0;
	}
	held->started_ns = base_now_ns();
	held->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (held->inotify_fd < 0)
		log_warning("inotify cannot start (%s): epochs do not advance by themselves; raise "
		            "fs.inotify.max_user_instances",
		        strerror(errno));
	rc = fs_control_socket(sup->how->control_path, sup->err, held->control_path, &held->control_fd);
	if (rc == 0) {
		held->control_ino = fs_control_ino(held->control_path);
		confine();
	}
	return rc;
}

static void unmake(struct supervisor *sup)
{
	struct fs_supervised *held = &sup->held;
	if (sup->head)
		munmap(sup->head, FS_HANDOVER_HEAD_BYTES);
	if (held->control_fd >= 0)
		fs_control_remove(held->control_path, held->control_ino);
	const int fds[] = { held->fuse_fd, held->handover_fd, held->inotify_fd, held->control_fd, sup->signal_fd,
		sup->channel };
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	sigprocmask(SIG_SETMASK, &sup->old_mask, NULL);
}

int fs_supervise(const struct fs_supervise *how, struct base_err *err, bool *ret_ready)
{
	struct supervisor sup = { .how = how,
		.err = err,
		.signal_fd = -1,
		.channel = -1,
		.self = getpid(),
		.unmounter = { .unmount = unmount_it, .answer = answer_unmount } };
	sup.unmounter.arg = &sup;
	sup.held = (struct fs_supervised){ .fuse_fd = -1, .handover_fd = -1, .inotify_fd = -1, .control_fd = -1 };
	if (how->takeover) {
		sup.held = *how->takeover;
		sup.was_ready = true;
	}
	int rc = make(&sup);
	if (rc == 0 && how->takeover) {
		start_successor(&sup);
	} else if (rc == 0) {
		rc = start_server(&sup);
		if (rc < 0)
			base_err_set(err, rc, "cannot start the server's process: %s", strerror(-rc));
	}
	if (rc == 0)
		rc = watch(&sup);
	end_greeter(&sup);
	tell_left_lines(&sup);
	*ret_ready = sup.was_ready || sup.held.restarts > 0; /* else nobody can have used the mount */
	unmake(&sup);
	return rc;
}
