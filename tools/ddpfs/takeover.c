/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the handed-over text, tries the other program and executes it; takeover.h first. */
#include "prefetch/sampler/seed_scan.h"
#include "tools/ddpfs/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "fs/supervise/executable_check.h"
#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/index.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"

enum { TRY_MS = 20000 }; /* for another program to say whether it can go on */

/* ---- what is handed over ---- */

enum kind { FIELD_BOOL, FIELD_INT, FIELD_U64, FIELD_TEXT };

struct field {
	const char *name;
	enum kind kind;
	size_t at;
};

#define FIELD(kind, member)                                                                                            \
	{                                                                                                              \
#member, kind, offsetof(struct takeover, member)                                                       \
	}
_Static_assert(sizeof(enum fs_layout) == sizeof(int) && sizeof(uid_t) == sizeof(int) && sizeof(mode_t) == sizeof(int) &&
                       sizeof(pid_t) == sizeof(int) && sizeof(bool) == 1,
        "FIELD_INT and FIELD_BOOL");

static const struct field fields[] = {
	FIELD(FIELD_TEXT, fs.dataset),
	FIELD(FIELD_TEXT, fs.index_file),
	FIELD(FIELD_TEXT, fs.mountpoint),
	FIELD(FIELD_INT, fs.layout),
	FIELD(FIELD_BOOL, fs.view_all),
	FIELD(FIELD_INT, fs.view.order),
	FIELD(FIELD_INT, fs.view.deal),
	FIELD(FIELD_INT, fs.view.tail),
	FIELD(FIELD_U64, fs.view.seed),
	FIELD(FIELD_U64, fs.view.epoch),
	FIELD(FIELD_U64, fs.view.start),
	FIELD(FIELD_INT, fs.view.rank),
	FIELD(FIELD_INT, fs.view.world),
	FIELD(FIELD_INT, fs.n_ranks),
	FIELD(FIELD_TEXT, fs.view.subdir),
	FIELD(FIELD_U64, fs.view.chunk_bytes),
	FIELD(FIELD_U64, fs.view.pool_bytes),
	FIELD(FIELD_U64, fs.view.chunk_items),
	FIELD(FIELD_U64, fs.view.pool_chunks),
	FIELD(FIELD_U64, fs.view.groups),
	FIELD(FIELD_U64, fs.view.redeal),
	FIELD(FIELD_INT, fs.view.on_bad),
	FIELD(FIELD_BOOL, fs.fill_class),
	FIELD(FIELD_INT, fs.advance),
	FIELD(FIELD_U64, fs.memory_bytes),
	FIELD(FIELD_BOOL, fs.allow_other),
	FIELD(FIELD_BOOL, fs.noexec),
	FIELD(FIELD_BOOL, fs.set_uid),
	FIELD(FIELD_BOOL, fs.set_gid),
	FIELD(FIELD_INT, fs.uid),
	FIELD(FIELD_INT, fs.gid),
	FIELD(FIELD_INT, fs.umask),
	FIELD(FIELD_INT, fs.threads),
	FIELD(FIELD_BOOL, fs.gives_up_stderr),
	FIELD(FIELD_BOOL, fs.debug),
	FIELD(FIELD_BOOL, fs.log_history),
	FIELD(FIELD_BOOL, fs.loaders_watched),
	FIELD(FIELD_INT, fs.watchdog_s),
	FIELD(FIELD_INT, fs.timeout_s),
	FIELD(FIELD_BOOL, fs.timeout_set),
	FIELD(FIELD_INT, fs.scan_threads),
	FIELD(FIELD_TEXT, fs.control_path),
	FIELD(FIELD_TEXT, fs.tier_dir),
	FIELD(FIELD_U64, fs.tier_bytes),
	FIELD(FIELD_INT, held.fuse_fd),
	FIELD(FIELD_INT, held.handover_fd),
	FIELD(FIELD_INT, held.inotify_fd),
	FIELD(FIELD_INT, held.control_fd),
	FIELD(FIELD_U64, held.control_ino),
	FIELD(FIELD_U64, held.started_ns),
	FIELD(FIELD_U64, held.first_start_ns),
	FIELD(FIELD_INT, held.restarts),
	FIELD(FIELD_U64, held.mount.dev),
	FIELD(FIELD_U64, held.mount.memory_bytes),
	FIELD(FIELD_BOOL, held.mount.fusermount),
	FIELD(FIELD_BOOL, held.mount.resends),
	FIELD(FIELD_BOOL, held.mount.cloned),
	FIELD(FIELD_INT, log_level),
	FIELD(FIELD_BOOL, to_syslog),
	FIELD(FIELD_INT, owner_pidfd),
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

/* Texts may hold any bytes, but JSON strings must be UTF-8; so texts travel as hex digits. */
static json_t *hex(const void *data, size_t len)
{
	const uint8_t *bytes = data;
	cleanup_free char *text = malloc(2 * len + 1);
	if (!text)
		return NULL;
	text[0] = '\0';
	for (size_t i = 0; i < len; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	return json_string(text);
}

/* Returns the number of bytes, -EINVAL. */
static int unhex(const json_t *value, void *buf, size_t size)
{
	const char *text = json_string_value(value);
	uint8_t *bytes = buf;
	size_t len = text ? strlen(text) : 0;
	if (!text || len % 2 || len / 2 > size || strspn(text, "0123456789abcdef") != len)
		return -EINVAL;
	for (size_t i = 0; i < len / 2; i++) {
		const char digits[3] = { text[2 * i], text[2 * i + 1], '\0' };
		bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return (int)(len / 2);
}

static json_t *write_field(const struct field *field, const void *at)
{
	if (field->kind == FIELD_BOOL)
		return json_boolean(*(const bool *)at);
	if (field->kind == FIELD_INT)
		return json_integer(*(const int *)at);
	if (field->kind == FIELD_U64)
		return hex(at, sizeof(uint64_t)); /* jansson's integers end at 2^63 - 1 */
	const char *text = *(const char *const *)at;
	return text ? hex(text, strlen(text)) : json_null();
}

static int read_field(const struct field *field, const json_t *value, void *at)
{
	char text[PATH_MAX];
	if (field->kind == FIELD_BOOL) {
		*(bool *)at = json_is_true(value);
		return json_is_boolean(value) ? 0 : -EINVAL;
	}
	if (field->kind == FIELD_INT) {
		json_int_t number = json_integer_value(value);
		*(int *)at = (int)number;
		return json_is_integer(value) && number >= INT_MIN && number <= INT_MAX ? 0 : -EINVAL;
	}
	if (field->kind == FIELD_U64)
		return unhex(value, at, sizeof(uint64_t)) == sizeof(uint64_t) ? 0 : -EINVAL;
	*(const char **)at = NULL;
	if (json_is_null(value))
		return 0;
	int len = unhex(value, text, sizeof(text) - 1);
	if (len < 0)
		return len;
	*(const char **)at = strndup(text, (size_t)len);
	return *(const char **)at ? 0 : -ENOMEM;
}

static json_t *write_past(const struct shard_view_options *view)
{
	json_t *list = json_array();
	for (uint32_t i = 0; i < view->n_past; i++)
		json_array_append_new(
		        list, json_pack("[I, I]", (json_int_t)view->past[i].world, (json_int_t)view->past[i].steps));
	return list;
}

static int read_past(const json_t *list, struct shard_view_options *view)
{
	if (!json_is_array(list) || json_array_size(list) > SHARD_DEAL_SEGMENTS_MAX)
		return -EINVAL;
	view->n_past = (uint32_t)json_array_size(list);
	for (uint32_t i = 0; i < view->n_past; i++) {
		json_int_t world;
		json_int_t steps;
		if (json_unpack(json_array_get(list, i), "[I, I!]", &world, &steps) < 0 || world < 0 ||
		        world > UINT32_MAX || steps < 0)
			return -EINVAL;
		view->past[i] = (struct shard_deal_segment){ .world = (uint32_t)world, .steps = (uint64_t)steps };
	}
	return 0;
}

/* The list itself, not its path: the file may have changed since the mount. */
static json_t *write_quarantine(const struct shard_quarantine *list)
{
	return list ? hex(list->samples, list->n * sizeof(list->samples[0])) : json_null();
}

static int read_quarantine(const json_t *value, struct shard_view_options *view)
{
	size_t size = json_string_length(value) / 2;
	struct shard_quarantine *list = NULL;
	if (json_is_null(value))
		return 0;
	cleanup_free uint32_t *samples = malloc(size + 1);
	if (!samples)
		return -ENOMEM;
	int rc = unhex(value, samples, size);
	if (rc < 0 || size % sizeof(*samples))
		return -EINVAL;
	rc = shard_quarantine_new(samples, size / sizeof(*samples), &list);
	view->quarantine = list;
	return rc;
}

char *takeover_write(const struct takeover *t)
{
	json_t *object = json_object();
	json_object_set_new(object, "version", json_integer(TAKEOVER_VERSION));
	for (int i = 0; i < N_FIELDS; i++)
		json_object_set_new(object, fields[i].name, write_field(&fields[i], (const char *)t + fields[i].at));
	json_object_set_new(object, "fs.view.past", write_past(&t->fs.view));
	json_object_set_new(object, "fs.view.quarantine", write_quarantine(t->fs.view.quarantine));
	json_object_set_new(object, "held.control_path", hex(t->held.control_path, strlen(t->held.control_path)));
	json_object_set_new(object, "held.mount.identity", hex(t->held.mount.identity, sizeof(t->held.mount.identity)));
	json_object_set_new(object, "held.mount.init", hex(t->held.mount.init, t->held.mount.init_len));
	char *text = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	return text;
}

static int read_key(struct takeover *t, const char *key, const json_t *value)
{
	for (int i = 0; i < N_FIELDS; i++)
		if (strcmp(key, fields[i].name) == 0)
			return read_field(&fields[i], value, (char *)t + fields[i].at);
	if (strcmp(key, "version") == 0)
		return 0;
	if (strcmp(key, "fs.view.past") == 0)
		return read_past(value, &t->fs.view);
	if (strcmp(key, "fs.view.quarantine") == 0)
		return read_quarantine(value, &t->fs.view);
	if (strcmp(key, "held.control_path") == 0) {
		memset(t->held.control_path, 0, sizeof(t->held.control_path));
		int n = unhex(value, t->held.control_path, sizeof(t->held.control_path) - 1);
		return n < 0 ? n : 0;
	}
	if (strcmp(key, "held.mount.identity") == 0)
		return unhex(value, t->held.mount.identity, FS_IDENTITY_BYTES) == FS_IDENTITY_BYTES ? 0 : -EINVAL;
	if (strcmp(key, "held.mount.init") == 0) {
		int n = unhex(value, t->held.mount.init, sizeof(t->held.mount.init));
		t->held.mount.init_len = n < 0 ? 0 : (uint32_t)n;
		return n < 0 ? n : 0;
	}
	return -EINVAL;
}

static bool ranks_make_sense(const struct fs_options *fs)
{
	return fs->n_ranks == 0 || (!fs->view_all && fs->n_ranks <= FS_RANKS_MAX &&
	                                   (uint64_t)fs->view.rank + fs->n_ranks <= fs->view.world);
}

/* Checks what the rest of the program expects the parser of the options to have checked. */
static bool makes_sense(const struct takeover *t)
{
	const struct fs_supervised *held = &t->held;
	return t->fs.dataset && t->fs.mountpoint && held->mount.init_len > 0 && held->fuse_fd >= 0 &&
	       held->handover_fd >= 0 && held->control_fd >= 0 && held->inotify_fd >= -1 && t->owner_pidfd >= -1 &&
	       t->fs.layout >= FS_LAYOUT_FLAT && t->fs.layout <= FS_LAYOUT_TREE && t->fs.advance >= FS_ADVANCE_AUTO &&
	       t->fs.advance <= FS_ADVANCE_OFF && t->log_level >= BASE_LOG_ERROR && t->log_level <= BASE_LOG_DEBUG &&
	       t->fs.watchdog_s <= INT_MAX / 1000 && t->fs.timeout_s <= INT_MAX / 1000 &&
	       t->fs.scan_threads <= PREFETCH_SEED_SCAN_THREADS_MAX && ranks_make_sense(&t->fs);
}

void takeover_done(struct takeover *t)
{
	for (int i = 0; i < N_FIELDS; i++) {
		char **text = (char **)((char *)t + fields[i].at);
		if (fields[i].kind != FIELD_TEXT)
			continue;
		free(*text);
		*text = NULL;
	}
	shard_quarantine_free((struct shard_quarantine *)(uintptr_t)t->fs.view.quarantine);
	t->fs.view.quarantine = NULL;
}

int takeover_read(const char *text, size_t len, struct base_err *err, struct takeover *ret_takeover)
{
	struct takeover t = { .owner_pidfd = -1,
		.fs = { .timeout_s = FS_TIMEOUT_S }, /* an older program does not write this key */
		.held = { .fuse_fd = -1, .handover_fd = -1, .inotify_fd = -1, .control_fd = -1 } };
	json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	const char *key;
	json_t *value;
	int rc = 0;
	if (json_integer_value(json_object_get(object, "version")) != TAKEOVER_VERSION)
		rc = base_err_set(err, -EPROTONOSUPPORT,
		        "this version (%s) cannot go on where that one stopped: unmount and mount again",
		        DDPFS_VERSION);
	json_object_foreach(object, key, value)
	{
		if (rc == 0 && read_key(&t, key, value) < 0)
			rc = base_err_set(err, -EPROTONOSUPPORT,
			        "this version (%s) cannot go on where that one stopped ('%s'): unmount and mount again",
			        DDPFS_VERSION, key);
	}
	json_decref(object);
	if (rc == 0 && !makes_sense(&t))
		rc = base_err_set(err, -EINVAL, "there is nothing to take over");
	if (rc == 0)
		*ret_takeover = t;
	else
		takeover_done(&t);
	return rc;
}

/* ---- the old program ---- */

static int put_in_memfd(const struct takeover *takeover, struct base_err *err, int *ret_fd)
{
	cleanup_free char *text = takeover_write(takeover);
	cleanup_close int fd = memfd_create("ddpfs-takeover", MFD_CLOEXEC);
	size_t len = text ? strlen(text) : 0;
	if (!text || fd < 0 || pwrite(fd, text, len, 0) != (ssize_t)len)
		return base_err_set(err, -ENOMEM, "no memory to hand the mount over");
	*ret_fd = steal_fd(&fd);
	return 0;
}

static void run_check(const char *program, int fd, int said)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", fd);
	fcntl(fd, F_SETFD, 0);
	dup2(said, STDERR_FILENO);
	execl(program, "ddpfs", "takeover", "--check", number, (char *)NULL);
	fprintf(stderr, "%s\n", strerror(errno));
	_exit(127);
}

void takeover_listen(int fd, int timeout_ms, char ret_said[TAKEOVER_SAID_MAX])
{
	size_t n = 0;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t end_ms = base_now_ms() + timeout_ms;
	while (n < TAKEOVER_SAID_MAX - 1) {
		int64_t left_ms = end_ms - base_now_ms();
		int found = left_ms > 0 ? poll(&p, 1, (int)left_ms) : 0;
		if (found < 0 && errno == EINTR)
			continue;
		if (found <= 0)
			break;
		ssize_t got = read(fd, ret_said + n, TAKEOVER_SAID_MAX - 1 - n);
		if (got <= 0)
			break;
		n += (size_t)got;
	}
	ret_said[n] = '\0';
	ret_said[strcspn(ret_said, "\n")] = '\0';
}

int takeover_try(const char *program, const struct takeover *takeover, struct base_err *err)
{
	char path[PATH_MAX];
	char said[TAKEOVER_SAID_MAX];
	int ends[2];
	int status = 0;
	cleanup_close int fd = -1;
	int rc = fs_executable_check(program, takeover->held.mount.dev, err, path);
	if (rc == 0)
		rc = put_in_memfd(takeover, err, &fd);
	if (rc < 0)
		return rc;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return base_err_set(err, -errno, "pipe: %s", strerror(errno));
	pid_t pid = fork();
	if (pid == 0)
		run_check(path, fd, ends[1]);
	close(ends[1]);
	if (pid > 0)
		takeover_listen(ends[0], TRY_MS, said);
	close(ends[0]);
	if (pid < 0)
		return base_err_set(err, -errno, "fork: %s", strerror(errno));
	kill(pid, SIGKILL); /* it has closed its stderr, or it takes longer than TRY_MS */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	if (strcmp(said, "ok") == 0)
		return 0;
	return base_err_set(err, -EINVAL, "'%s': %s", program, said[0] ? said : "does not answer");
}

static void close_on_exec(const struct takeover *t, bool on)
{
	const int fds[] = { t->held.fuse_fd, t->held.handover_fd, t->held.inotify_fd, t->held.control_fd,
		t->owner_pidfd };
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			fcntl(fds[i], F_SETFD, on ? FD_CLOEXEC : 0);
}

int takeover_become(const char *program, const struct takeover *takeover, struct base_err *err)
{
	char path[PATH_MAX];
	char number[16];
	cleanup_close int fd = -1;
	int rc = fs_executable_check(program, takeover->held.mount.dev, err, path);
	if (rc == 0)
		rc = put_in_memfd(takeover, err, &fd);
	if (rc < 0)
		return rc;
	snprintf(number, sizeof(number), "%d", fd);
	fcntl(fd, F_SETFD, 0);
	close_on_exec(takeover, false);
	execl(path, "ddpfs", "takeover", number, takeover->fs.dataset, takeover->fs.mountpoint, (char *)NULL);
	rc = base_err_set(err, -errno, "'%s': %s", program, strerror(errno));
	close_on_exec(takeover, true);
	return rc;
}

/* ---- the new program ---- */

static int read_memfd(const char *number, struct base_err *err, struct takeover *ret_takeover)
{
	struct stat st;
	char *end;
	cleanup_close int fd = (int)strtol(number, &end, 10);
	if (*end || fstat(fd, &st) < 0 || st.st_size > TAKEOVER_BYTES_MAX)
		return base_err_set(err, -EINVAL, "there is nothing to take over");
	cleanup_free char *text = malloc((size_t)st.st_size + 1);
	if (!text || pread(fd, text, (size_t)st.st_size, 0) != st.st_size)
		return base_err_set(err, -EINVAL, "there is nothing to take over");
	return takeover_read(text, (size_t)st.st_size, err, ret_takeover);
}

static int check(const char *number)
{
	struct base_err err = { 0 };
	struct takeover takeover = { 0 };
	struct shard_index *index = NULL;
	int rc = read_memfd(number, &err, &takeover);
	if (rc == 0)
		rc = shard_index_open_with(takeover.fs.dataset, takeover.fs.index_file, &err, &index);
	if (rc == 0 && memcmp(shard_index_info(index)->identity, takeover.held.mount.identity, FS_IDENTITY_BYTES) != 0)
		rc = base_err_set(&err, -ESTALE,
		        "'%s': another dataset lies there now: the mount goes on with the old one; unmount it, then "
		        "mount the new one",
		        base_quoted(takeover.fs.index_file ? takeover.fs.index_file : takeover.fs.dataset));
	shard_index_close(index);
	takeover_done(&takeover);
	fprintf(stderr, "%s\n", rc < 0 ? err.text : "ok");
	return rc < 0 ? CLI_FAILED : CLI_DONE;
}

int ddpfs_takeover(int argc, char **argv)
{
	struct base_err err = { 0 };
	struct takeover takeover;
	bool ready;
	if (argc == 3 && strcmp(argv[1], "--check") == 0)
		return check(argv[2]);
	if (argc < 2)
		cli_usage("takeover is what 'ddpfs restart' runs");
	int rc = read_memfd(argv[1], &err, &takeover);
	if (rc < 0)
		return cli_fail(&err);
	close_on_exec(&takeover, true);
	base_log_init("ddpfs", takeover.log_level, takeover.to_syslog);
	struct fs_supervise supervise;
	fs_supervise_options(&takeover.fs, &supervise);
	supervise.owner_pidfd = takeover.owner_pidfd;
	supervise.takeover = &takeover.held;
	supervise.restart = takeover_restart;
	supervise.arg = &takeover;
	rc = fs_supervise(&supervise, &err, &ready);
	if (rc < 0)
		log_error("%s", err.text);
	takeover_done(&takeover);
	return rc < 0 ? CLI_FAILED : CLI_DONE;
}

int takeover_restart(void *arg, const char *program, const struct fs_supervised *held, bool go, struct base_err *err)
{
	struct takeover takeover = *(const struct takeover *)arg;
	takeover.held = *held;
	return go ? takeover_become(program, &takeover, err) : takeover_try(program, &takeover, err);
}
