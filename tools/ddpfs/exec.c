/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs exec`: runs a command with a dataset mounted only for it; launcher.h, namespace.h and daemonize.h first.
 *
 *     ddpfs exec --(fork)--> middle --(fork)--> server      new session, private mount namespace
 *         |                    '-- exits when the mount answers
 *         '-- becomes the command (execvp)
 *
 * The process that the launcher started becomes the command itself.  So nothing must forward signals, process group,
 * terminal, exit status or process id, and kill -9 reaches the command.  The server is no child of the command, so
 * the command cannot wait for it by accident.  The server watches the command through a pidfd; when the command ends,
 * the server unmounts and ends. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/launcher.h"
#include "tools/ddpfs/mounts.h"
#include "tools/ddpfs/namespace.h"
#include "tools/ddpfs/daemonize.h"

/* The exit status of env(1), timeout(1) and shells for a command that could not be run. */
enum { EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

struct arguments {
	struct options options;
	const char *dataset;
	const char *target;
	const char *launcher;
	char **command;
	bool no_interpose;
	char place[PATH_MAX]; /* the directory of this program with '/' behind it, or "" */
	bool quiet;
	uint32_t task_rank;   /* of this process in its job, also with view=all; 0: the first one, or not known */
	uint32_t task_world;  /* processes of the job; 0: not known */
	uint32_t local_world; /* ranks of this host, from the launcher; 0: not known */
};

/* Cuts argv at the first "--": all that follows belongs to the command. */
static int split_command(int argc, char **argv, char ***ret_command)
{
	*ret_command = NULL;
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--") != 0)
			continue;
		if (i + 1 < argc)
			*ret_command = argv + i + 1;
		argv[i] = NULL;
		return i;
	}
	return argc;
}

/* If every rank gets the same -o rank=, all ranks read the same samples, and no other message shows that. */
static void warn_of_launcher(const struct arguments *a)
{
	const struct shard_view_options *given = &a->options.view.view;
	struct launcher found;
	struct base_err err = { 0 };
	if (a->options.view.set & VIEW_OPTIONS_SET_RANK && launcher_find(a->launcher, &err, &found) == 0 &&
	        given->world == found.world && given->rank != found.rank)
		cli_warn("-o rank=%u, but %s=%u: ranks that are given the same number read the same samples; without "
		         "-o rank,world the launcher's are taken",
		        given->rank, found.rank_name, found.rank);
}

/* Finds rank and world: -o wins, then the launcher.  Prints on stderr which it took.  Returns 0, or with a sentence
 * -EINVAL, or -ENOENT if no launcher set them. */
static int find_rank(struct arguments *a, struct base_err *err)
{
	struct options *o = &a->options;
	struct launcher found;
	if (o->fs.view_all) {
		if (!a->quiet)
			cli_note("view=all: every file on every rank");
		/* The view needs no rank, so a launcher that is not clear is no error. */
		if (launcher_find(a->launcher, err, &found) == 0) {
			a->task_rank = found.rank;
			a->task_world = found.world;
			a->local_world = found.local_world;
		}
		*err = (struct base_err){ 0 };
		return 0;
	}
	unsigned given = o->view.set & (VIEW_OPTIONS_SET_RANK | VIEW_OPTIONS_SET_WORLD);
	if (o->all_ranks || o->fs.n_ranks > 0)
		return base_err_set(err, -EINVAL,
		        "exec starts one rank: give one rank=R or none. For one mount of all ranks of a host, use "
		        "'ddpfs "
		        "mount -o rank=A-B,world=W' before they start");
	if (given) {
		if (!a->quiet && given == (VIEW_OPTIONS_SET_RANK | VIEW_OPTIONS_SET_WORLD))
			cli_note("rank %u of %u (-o rank, world)", o->view.view.rank, o->view.view.world);
		warn_of_launcher(a);
		a->task_rank = o->view.view.rank;
		a->task_world = o->view.view.world;
		return 0; /* if only one is given, options_finish says what is missing */
	}
	int r = launcher_find(a->launcher, err, &found);
	if (r == -ENOENT && a->launcher)
		return base_err_set(
		        err, r, "--launcher=%s: its variables are not set here: was this started by it?", a->launcher);
	if (r == -ENOENT)
		return base_err_set(err, r,
		        "no launcher's rank is set here: start this under torchrun, srun or mpirun, or add "
		        "-o rank=R,world=W, or -o view=all (as around torchrun itself, where COMMAND starts the "
		        "ranks)");
	if (r < 0)
		return r;
	o->view.view.rank = found.rank;
	o->view.view.world = found.world;
	o->view.set |= VIEW_OPTIONS_SET_RANK | VIEW_OPTIONS_SET_WORLD;
	a->task_rank = found.rank;
	a->task_world = found.world;
	a->local_world = found.local_world;
	if (!a->quiet)
		cli_note("rank %u of %u (%s, %s: %s%s%s)", found.rank, found.world, found.rank_name, found.world_name,
		        found.name, found.note[0] ? "; " : "", found.note);
	return 0;
}

/* The job's log must say from which state a rank goes on: if two ranks differ, some samples are trained twice. */
static void say_state(const struct view_options *o)
{
	if (!o->state_path)
		return;
	const char *quoted = base_quoted(o->state_path);
	if (o->state_missing)
		cli_note("there is no '%s' yet: epoch %" PRIu64 " from step %" PRIu64, quoted, o->view.epoch,
		        o->view.start);
	else
		cli_note("'%s': epoch %" PRIu64 " from step %" PRIu64, quoted, o->view.epoch, o->view.start);
}

static void set_number(const char *name, uint32_t value)
{
	char text[16];
	snprintf(text, sizeof(text), "%u", value);
	setenv(name, text, 1);
}

/* The server, two forks away. */

static _Noreturn void middle_main(const struct arguments *a, int owner_pidfd)
{
	struct base_err err = { 0 };
	pid_t server;
	/* Ranks of a host share its memory, but a rank cannot see the mounts of the others to count them.  So the
	 * server reads torchrun's variable, and this sets it for every launcher. */
	if (a->local_world)
		set_number("LOCAL_WORLD_SIZE", a->local_world);
	int r = serve_background(&(struct serve_background){ .options = &a->options,
	                                 .owner_pidfd = owner_pidfd,
	                                 .keep_stderr = true,
	                                 .quiet = a->quiet || a->task_rank > 0, /* ranks share a terminal */
	                                 .task_rank = a->task_rank,
	                                 .task_world = a->task_world },
	        &err, &server);
	_exit(r < 0 ? cli_fail(&err) : CLI_DONE);
}

/* Returns 0 when the mount answers, else the exit status; the reason is on stderr. */
static int start_server(const struct arguments *a)
{
	int status;
	struct sigaction old;
	cleanup_close int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (self < 0)
		return cli_failf("pidfd_open: %s: 'ddpfs exec' needs Linux 5.3", strerror(errno));
	/* A launcher may ignore SIGCHLD, and waitpid would then fail.  The command gets the old setting back. */
	sigaction(SIGCHLD, &(struct sigaction){ .sa_handler = SIG_DFL }, &old);
	pid_t middle = fork();
	if (middle == 0)
		middle_main(a, self);
	if (middle < 0)
		return cli_failf("cannot start a process: %s", strerror(errno));
	while (waitpid(middle, &status, 0) < 0)
		if (errno != EINTR)
			return cli_failf("waitpid: %s", strerror(errno));
	sigaction(SIGCHLD, &old, NULL);
	return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
}

/* The command's environment. */

/* Before this process has a mount namespace of its own: after chroot(2), the link then gives the path from outside the
 * root, because the program's file lies in a mount of the old namespace. */
static void find_place(char place[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", place, PATH_MAX - 1);
	place[n > 0 ? n : 0] = '\0';
	char *slash = strrchr(place, '/');
	place[slash ? slash + 1 - place : 0] = '\0';
}

/* Finds a file that belongs to this program: beside the binary in a build tree, or where both are installed, or at the
 * configured place. */
static const char *find_own(const char *place, const char *name, char buf[PATH_MAX])
{
	static const char *const places[] = { "", "../" INTERPOSE_LIBDIR "/ddpfs/" };
	for (int i = 0; place[0] && i < 2; i++)
		if (snprintf(buf, PATH_MAX, "%s%s%s", place, places[i], name) < PATH_MAX && access(buf, R_OK) == 0)
			return buf;
	snprintf(buf, PATH_MAX, "%s/%s", INTERPOSE_DIR, name);
	return access(buf, R_OK) == 0 ? buf : NULL;
}

static void set_preload(const char *place)
{
	char buf[PATH_MAX];
	const char *path = find_own(place, INTERPOSE_NAME, buf);
	const char *old = getenv("LD_PRELOAD");
	if (!path) {
		cli_warn("%s/%s is not there: Python's open() will take 40 us longer a file", INTERPOSE_DIR,
		        INTERPOSE_NAME);
		return;
	}
	/* ld.so(8) splits LD_PRELOAD at blanks and colons, and has no escape. */
	if (strpbrk(path, " :")) {
		cli_warn("'%s' cannot stand in LD_PRELOAD (blank or colon): Python's open() will take 40 us longer a "
		         "file",
		        path);
		return;
	}
	if (old && strstr(old, INTERPOSE_NAME))
		return;
	cleanup_free char *value = NULL;
	if (asprintf(&value, "%s%s%s", path, old && *old ? ":" : "", old ? old : "") > 0)
		setenv("LD_PRELOAD", value, 1);
}

/* Finds where Python's start shall import sitecustomize from: gpu_stage/python/exec/sitecustomize.py. */
static const char *find_hook(const char *place, char buf[PATH_MAX])
{
	return find_own(place, "python/exec", buf);
}

/* PYTHONPATH has no escape for a colon. */
static bool can_stand_in_pythonpath(const char *path)
{
	return path && !strchr(path, ':');
}

static void set_pythonpath(const char *place)
{
	char buf[PATH_MAX];
	const char *path = find_hook(place, buf);
	const char *old = getenv("PYTHONPATH");
	if (!can_stand_in_pythonpath(path)) {
		cli_warn("%s/python/exec %s: what PyTorch's samplers draw is not announced", INTERPOSE_DIR,
		        path ? "cannot stand in PYTHONPATH (colon)" : "is not there");
		return;
	}
	size_t len = strlen(path);
	if (old && strncmp(old, path, len) == 0 && (old[len] == ':' || old[len] == '\0'))
		return;
	cleanup_free char *value = NULL;
	if (asprintf(&value, "%s%s%s", path, old && *old ? ":" : "", old ? old : "") > 0)
		setenv("PYTHONPATH", value, 1);
}

/* A rank's view has an order of its own. */
static bool watches_loaders(const struct arguments *a)
{
	char buf[PATH_MAX];
	return !a->no_interpose && a->options.fs.view_all && can_stand_in_pythonpath(find_hook(a->place, buf));
}

static void set_environment(const struct arguments *a)
{
	const struct fs_options *fs = &a->options.fs;
	setenv("DDPFS_MOUNT", fs->mountpoint, 1);
	setenv("DDPFS_DATASET", fs->dataset, 1);
	if (fs->index_file)
		setenv("DDPFS_INDEX", fs->index_file, 1);
	else
		unsetenv("DDPFS_INDEX");
	setenv("DDPFS_VIEW", fs->view_all ? "all" : "rank", 1);
	if (fs->view_all) {
		unsetenv("DDPFS_RANK");
		unsetenv("DDPFS_WORLD");
	} else {
		set_number("DDPFS_RANK", fs->view.rank);
		set_number("DDPFS_WORLD", fs->view.world);
	}
	if (!a->no_interpose) {
		set_preload(a->place);
		if (fs->view_all) /* a rank's view has an order of its own */
			set_pythonpath(a->place);
	}
}

/* The mount may cover the working directory (`cd MNT; ddpfs exec DATASET . -- ls`).  A process stays in the covered
 * directory, so this changes to the same path in the mount. */
static void enter_mount(const struct arguments *a)
{
	char cwd[PATH_MAX];
	if (!getcwd(cwd, sizeof(cwd)) || !mounts_lies_below(cwd, a->options.fs.mountpoint) || chdir(cwd) == 0)
		return;
	cli_warn("working directory '%s': %s in the mount that covers it: the command starts in the covered one",
	        base_quoted(cwd), strerror(errno));
}

static int run(struct arguments *a)
{
	struct base_err err = { 0 };
	struct stat st;
	bool user;
	bool usage = false;
	int r = find_rank(a, &err);
	if (r < 0)
		cli_usage("%s", err.text);
	bool existed = stat(a->target, &st) == 0;
	r = ddpfs_prepare(&a->options, a->dataset, a->target, true, &err, &usage);
	if (usage)
		cli_usage("%s", err.text);
	if (r < 0)
		return cli_fail(&err);
	if (!a->quiet)
		say_state(&a->options.view);
	if (!existed && !a->quiet)
		cli_note("made the directory '%s'; it stays, other ranks may be using it", a->target);
	find_place(a->place);
	a->options.fs.loaders_watched = watches_loaders(a);
	r = namespace_enter(&err, &user);
	if (r < 0)
		return cli_fail(&err);
	int status = start_server(a);
	if (status != CLI_DONE)
		return status;
	set_environment(a);
	enter_mount(a);
	execvp(a->command[0], a->command);
	status = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
	int code = errno;
	cli_failf("'%s': %s", base_quoted(a->command[0]), strerror(code));
	return status; /* the server ends with this process */
}

int ddpfs_exec(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET MNT -- COMMAND [ARG...]",
		"Runs COMMAND with DATASET mounted on MNT, for it and its children alone: every rank of a host can "
		"use the same MNT. Rank and world come from -o rank=R,world=W or from the launcher's variables.",
		.options = { { "options", "OPTIONS", "Mount options, see below; may be repeated", 'o',
		                     CLI_CALL(struct arguments, options, options_take) },
		        { "launcher", "NAME",
		                "Take rank and world from this launcher's variables only: torchrun, horovod, ompi, pmi "
		                "or slurm",
		                CLI_TEXT(struct arguments, launcher) },
		        { "no-interpose", NULL,
		                "Leave LD_PRELOAD and PYTHONPATH alone: Python's open() then asks the server whether "
		                "each file is a terminal, 40 us a file, and what PyTorch's samplers draw is not "
		                "announced",
		                CLI_FLAG(struct arguments, no_interpose) },
		        { "quiet", NULL, "Do not say where rank and world came from", 'q',
		                CLI_FLAG(struct arguments, quiet) } },
		.words = { { "DATASET", .at = offsetof(struct arguments, dataset) },
		        { "MNT", .at = offsetof(struct arguments, target), "the directory to mount on" } },
		.too_many = "put -- before the command: ddpfs exec ... DATASET MNT -- COMMAND",
		.help_filter = options_help_filter };
	struct arguments a = { 0 };
	options_init(&a.options);
	a.options.log_level = BASE_LOG_WARNING; /* the server logs to the command's stderr */
	argc = split_command(argc, argv, &a.command);
	cli_parse(&line, argc, argv, &a);
	if (!a.command)
		cli_usage("the command is missing: ddpfs exec ... DATASET MNT -- COMMAND");
	int status = run(&a);
	options_done(&a.options);
	return status;
}
