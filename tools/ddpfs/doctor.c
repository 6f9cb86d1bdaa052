/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: looks for what keeps mounts from working well, and says what to do; doctor.h first.
 *
 * Each check runs in a process of its own, which sends its findings through a pipe.  So a check may change its process,
 * and a read that hangs ends neither the other checks nor the command. */
#include "tools/ddpfs/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/base/clock.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/mounts.h"

enum { REPLY_MAX = 1 << 20 /* bytes of the findings of one check */ };

struct arguments {
	const char *target;     /* NULL: the host only */
	const char *index_file; /* of a dataset, if it does not lie with the shards; else NULL */
	bool json;
};

/* What is looked at. */
struct subject {
	const char *dataset;  /* NULL: none */
	const char *index;    /* its index, if that does not lie with the shards; else NULL */
	bool remote;          /* it lies in a store */
	json_t *stats;        /* of a mount; NULL: none */
	struct base_err dead; /* why a mount does not answer; code 0: it answers, or there is none */
};

/* ---- the checks ---- */

static void check_fuse(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_fuse("/dev/fuse", findings);
}

static void check_fusermount(const struct subject *p, json_t *findings)
{
	struct doctor_process process;
	(void)p;
	doctor_process_read("", &process);
	doctor_fusermount(getenv("PATH"), &process, findings);
}

static void check_control(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_control(findings);
}

static void check_dataset(const struct subject *p, json_t *findings)
{
	doctor_dataset(p->dataset, p->index, findings);
}

static void check_sums(const struct subject *p, json_t *findings)
{
	doctor_sums(p->dataset, p->index, findings);
}

static void check_store(const struct subject *p, json_t *findings)
{
	doctor_store(p->dataset, p->index, findings);
}

static void check_mount(const struct subject *p, json_t *findings)
{
	if (p->dead.code)
		doctor_say(findings, DOCTOR_FAILURE,
		        "run 'ddpfs umount MNT' and mount again; the log says why it ended", "%s", p->dead.text);
	else
		doctor_mount(p->stats, findings);
}

static void check_namespaces(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_namespaces(findings);
}

static void check_io_uring(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_io_uring("", findings);
}

static void check_memlock(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_memlock(findings);
}

static void check_memory(const struct subject *p, json_t *findings)
{
	uint64_t bytes = p->stats ? (uint64_t)json_integer_value(json_object_get(p->stats, "content_bytes")) : 0;
	if (!p->stats && p->dataset && !p->remote)
		bytes = doctor_content_bytes(p->dataset, p->index);
	doctor_memory("", bytes, findings);
}

static void check_kernel(const struct subject *p, json_t *findings)
{
	struct utsname name;
	(void)p;
	if (uname(&name) == 0)
		doctor_kernel(name.release, findings);
}

static void check_disk(const struct subject *p, json_t *findings)
{
	doctor_disk(p->dataset, findings);
}

static void check_device(const struct subject *p, json_t *findings)
{
	doctor_device(p->dataset, p->index, findings);
}

static void check_damon(const struct subject *p, json_t *findings)
{
	(void)p;
	doctor_damon("", findings);
}

/* What must be there for a check to run. */
enum { HOST = 0, LOCAL = 1, REMOTE = 2, MOUNT = 4 };

struct check {
	const char *name;
	void (*look)(const struct subject *subject, json_t *findings);
	unsigned needs;
	unsigned limit_s; /* then it is given up */
	const char *cost; /* for people: what a check costs that is not free; NULL: nothing */
};

/* In the order of their findings, among those of one level. */
static const struct check checks[] = {
	{ "fuse", check_fuse, HOST, 10, NULL },
	{ "fusermount3", check_fusermount, HOST, 10, NULL },
	{ "control", check_control, HOST, 10, NULL },
	{ "mount", check_mount, MOUNT, 10, NULL },
	{ "dataset", check_dataset, LOCAL, 20, "reads an index of up to 64 MiB" },
	{ "store", check_store, REMOTE, 60, "reads an index of up to 64 MiB and 8 blocks" },
	{ "checksums", check_sums, LOCAL, 30, "reads up to 256 MiB for 2 s" },
	{ "memory", check_memory, HOST, 10, NULL },
	{ "memlock", check_memlock, HOST, 10, NULL },
	{ "io_uring", check_io_uring, HOST, 10, NULL },
	{ "namespaces", check_namespaces, HOST, 10, NULL },
	{ "kernel", check_kernel, HOST, 10, NULL },
	{ "disk", check_disk, LOCAL, 10, NULL },
	{ "device", check_device, LOCAL, 30, "reads up to 256 MiB for 2 s" },
	{ "damon", check_damon, HOST, 10, NULL },
};

/* Reads what the process of a check writes, until it ends or the time is over.  Returns NULL: it did not end well. */
static json_t *read_findings(int fd, int64_t end_ms)
{
	cleanup_free char *text = malloc(REPLY_MAX);
	size_t len = 0;
	while (text && len < REPLY_MAX) {
		int64_t left = end_ms - base_now_ms();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		int ready = left > 0 ? poll(&p, 1, (int)left) : 0;
		if (ready < 0 && errno == EINTR)
			continue;
		ssize_t n = ready > 0 ? read(fd, text + len, REPLY_MAX - len) : -1;
		if (n < 0)
			return NULL;
		if (n == 0)
			return json_loadb(text, len, 0, NULL);
		len += (size_t)n;
	}
	return NULL;
}

/* The process of a check. */
static _Noreturn void look(const struct check *check, const struct subject *subject, int fd)
{
	json_t *findings = json_array();
	check->look(subject, findings);
	_exit(json_dumpfd(findings, fd, 0) < 0);
}

static void say_what_is_checked(const struct check *check)
{
	char what[100];
	snprintf(what, sizeof(what), "checking %s%s%s", check->name, check->cost ? ": " : "",
	        check->cost ? check->cost : "");
	progress_wait_start(what);
}

/* Runs a check in a process of its own, and says on a terminal what it looks at, after 2 s.  Returns its findings;
 * NULL: it did not end in time, or crashed. */
static json_t *run(const struct check *check, const struct subject *subject)
{
	int pipe_fds[2];
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return NULL;
	cleanup_close int in = pipe_fds[0];
	pid_t pid = fork();
	if (pid == 0) {
		close(pipe_fds[0]);
		look(check, subject, pipe_fds[1]);
	}
	close(pipe_fds[1]);
	if (pid < 0)
		return NULL;
	/* Only now, because a fork does not take the thread along that draws. */
	say_what_is_checked(check);
	json_t *findings = read_findings(in, base_now_ms() + (int64_t)check->limit_s * 1000);
	progress_wait_done();
	kill(pid, SIGKILL);
	/* A process that the kernel does not end, because its read hangs, is left to init. */
	waitpid(pid, NULL, findings ? 0 : WNOHANG);
	return findings;
}

/* Runs a check, and adds its findings, with its name, to a list.  Returns false if it did not end. */
static bool run_and_add(const struct check *check, const struct subject *subject, json_t *all)
{
	cleanup_json json_t *findings = run(check, subject);
	bool ended = findings;
	if (!ended) {
		findings = json_array();
		doctor_say(findings, DOCTOR_FAILURE,
		        "look in dmesg for a disk, a network or a server that does not answer, and for a crash of "
		        "ddpfs",
		        "this check did not end in %u s", check->limit_s);
	}
	size_t i;
	json_t *finding;
	json_array_foreach(findings, i, finding)
	{
		json_object_set_new(finding, "check", json_string(check->name));
		json_array_append(all, finding);
	}
	return ended;
}

static json_t *run_all(const struct subject *subject)
{
	cleanup_json json_t *all = json_array();
	bool terminal = isatty(STDERR_FILENO);
	unsigned have = (subject->dataset ? subject->remote ? REMOTE : LOCAL : 0) |
	                (subject->stats || subject->dead.code ? MOUNT : 0);
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		const struct check *check = &checks[i];
		if (check->needs & ~have)
			continue;
		if (terminal)
			fprintf(stderr, "\r\033[Kddpfs: checking %s%s%s", check->name, check->cost ? ": " : "",
			        check->cost ? check->cost : "");
		/* What hangs in one check of the dataset hangs in the next one. */
		if (!run_and_add(check, subject, all))
			have &= ~check->needs;
	}
	if (terminal)
		fputs("\r\033[K", stderr);
	return doctor_sorted(all);
}

/* ---- what is meant by the operand ---- */

static void look_for_index(const struct subject *subject, json_t *findings)
{
	char index[PATH_MAX];
	struct stat st;
	int n = subject->index ? snprintf(index, sizeof(index), "%s", subject->index)
	                       : snprintf(index, sizeof(index), "%s/index.ddpfs", subject->dataset);
	if (n > 0 && n < (int)sizeof(index) && stat(index, &st) == 0)
		doctor_say(findings, DOCTOR_OK, NULL, "there is an index");
}

/* Whether a directory has an index.  One that does not answer counts as a dataset: its checks say so. */
static bool is_dataset(const char *path, const char *index)
{
	static const struct check there = { "dataset", look_for_index, LOCAL, 5, NULL };
	cleanup_json json_t *findings = run(&there, &(struct subject){ .dataset = path, .index = index });
	return !findings || json_array_size(findings) > 0;
}

static void ask_mount(const char *target, struct subject *subject)
{
	json_t *reply;
	if (ask(target, json_pack("{s:s}", "cmd", "stat"), &subject->dead, &reply) < 0)
		return;
	subject->dead.code = 0;
	subject->stats = json_incref(json_object_get(reply, "stats"));
	subject->dataset = json_string_value(json_object_get(subject->stats, "dataset"));
	subject->index = json_string_value(json_object_get(subject->stats, "index"));
	json_decref(reply);
}

/* A mountpoint, also of a dead mount; @PID; or a path that a server in another namespace knows.  A dataset may lie in a
 * mount of ddpfs, so a directory with an index is a dataset. */
static bool is_mount(const char *target)
{
	char path[PATH_MAX];
	struct mounts_entry entry;
	struct base_control_peer peer;
	if (target[0] == '@')
		return true;
	if (mounts_absolute(target, path) == 0 && mounts_find(path, &entry) == 0 && mounts_is_ddpfs(&entry))
		return true;
	if (is_dataset(target, NULL) || ask_find(target, NULL, &peer) < 0)
		return false;
	base_control_peer_done(&peer);
	return true;
}

static void find_subject(const char *target, const char *index, struct subject *subject)
{
	if (!target)
		return;
	if (!remote_is_url(target) && is_mount(target)) {
		ask_mount(target, subject);
		/* A server in another mount namespace can have a dataset that this process does not see. */
		if (subject->dataset && !remote_is_url(subject->dataset) &&
		        !is_dataset(subject->dataset, subject->index))
			subject->dataset = NULL;
	} else {
		subject->dataset = target;
		subject->index = index;
	}
	subject->remote = subject->dataset && remote_is_url(subject->dataset);
}

/* ---- output ---- */

static void print_text(const json_t *findings)
{
	size_t i;
	json_t *finding;
	json_array_foreach((json_t *)(uintptr_t)findings, i, finding)
	{
		const char *advice = json_string_value(json_object_get(finding, "advice"));
		printf("%-8s %-12s %s\n", json_string_value(json_object_get(finding, "level")),
		        json_string_value(json_object_get(finding, "check")),
		        json_string_value(json_object_get(finding, "text")));
		if (advice)
			printf("%-21s what to do: %s\n", "", advice);
	}
}

int ddpfs_doctor(int argc, char **argv)
{
	static const struct cli_line line = { "[DATASET|MNT|@PID]",
		"Looks for what keeps ddpfs from working, or from working well, and says what to do: the host; the "
		"dataset; a mount and its trainer. Worst first; exit status 1 if there is something to mend.\v"
		"It reads at most 512 MiB of the dataset, for some seconds, and writes nothing but a page beside the "
		"control sockets, which it removes. Of a dataset in a store it fetches the index, as a mount does.\n"
		"  failure   something does not work\n"
		"  warning   it works, but slower or less safe\n"
		"  note      good to know\n"
		"  ok        nothing to do",
		.options = { { "index", "FILE", "The index of DATASET, if it does not lie with the shards",
		                     CLI_TEXT(struct arguments, index_file) },
		        { "json", NULL, "Print a JSON object", CLI_FLAG(struct arguments, json) } },
		.words = { { "DATASET", .at = offsetof(struct arguments, target), .may_lack = true } } };
	struct arguments a = { 0 };
	struct subject subject = { 0 };
	cli_parse(&line, argc, argv, &a);
	find_subject(a.target, a.index_file, &subject);
	if (a.index_file && (!a.target || subject.dataset != a.target))
		cli_usage("--index belongs to a DATASET; a mount knows where its index is");
	json_t *findings = run_all(&subject);
	bool mend = json_array_size(findings) > 0 && doctor_level_of(json_array_get(findings, 0)) >= DOCTOR_WARNING;
	if (a.json) {
		json_t *all = json_pack("{so ss so}", "target", a.target ? json_string(a.target) : json_null(),
		        "version", DDPFS_VERSION, "findings", findings);
		json_dumpf(all, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
		putchar('\n');
		json_decref(all);
	} else {
		print_text(findings);
		json_decref(findings);
	}
	json_decref(subject.stats);
	return mend ? CLI_FAILED : CLI_DONE;
}
