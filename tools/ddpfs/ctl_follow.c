/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a list of paths or numbers and announces it piece by piece; tools/ddpfs/ctl_follow.h first. */
#include "tools/ddpfs/ctl_follow.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/base/units.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ask_server.h"

enum {
	PIECE_BYTES = 4 << 20,       /* of the list, announced at once */
	OUT_BYTES = PIECE_BYTES * 8, /* room for what is announced: a number takes 8 bytes, and 2 or more as text */
	FIRST_BYTES = 1 << 16,       /* of the first piece, so that reading ahead begins at once */
	PAUSE_MS = 50,               /* when nothing comes for so long, what has come is announced */
	REPLY_MS = 60000,
	PREFIXES = 3,
};

/* A list that is being announced. */
struct job {
	const struct ctl_follow *options;
	const char *name;                  /* of the file, for messages */
	struct base_control_peer peer;     /* with `root` only its mountpoint */
	int root;                          /* the mount's root, if its socket cannot be reached; else -1 */
	struct base_err unreachable;       /* why it cannot */
	char prefixes[PREFIXES][PATH_MAX]; /* of absolute paths in the mount, each with a slash at its end; "": none */
	char *in;                          /* PIECE_BYTES of the list; in_len of them came */
	size_t in_len;
	char *out; /* what is announced of them: paths, or numbers */
	size_t out_len;
	bool narrowed;  /* its numbers have 4 bytes, though they came with 8 or as text */
	int memory;     /* a memfd; -1: not made yet */
	uint64_t entry; /* the entry that is looked at, from 1 on */
	bool begun;     /* a piece was announced */
	uint64_t entries, skipped;
	char *reply; /* the last one */
};

static bool is_binary(const struct ctl_follow *options)
{
	return options->form && strcmp(options->form, CTL_FOLLOW_LINES) != 0;
}

bool ctl_follow_is_set(const struct ctl_follow *options)
{
	return options->list || options->form || options->listing || options->dir || options->null || options->append ||
	       options->end || options->skip_unknown || options->buffer;
}

static const char *list_name(const struct ctl_follow *options)
{
	return options->list ? options->list : "default";
}

/* ---- the mount ---- */

static void add_prefix(char prefix[PATH_MAX], const char *path)
{
	size_t len = strlen(path);
	while (len > 0 && path[len - 1] == '/')
		len--;
	if (path[0] == '/' && len + 2 <= PATH_MAX)
		snprintf(prefix, PATH_MAX, "%.*s/", (int)len, path);
}

/* Finds the root of the FUSE mount in which the target lies: the server takes announcements there, too. Returns 0;
 * -ENOENT: there is none. */
static int find_root(struct job *job, const char *target)
{
	struct statfs fs;
	struct stat st, above;
	char *path = realpath(target, NULL);
	job->peer.mountpoint = path;
	if (!path || statfs(path, &fs) < 0 || (unsigned long)fs.f_type != FUSE_SUPER_MAGIC || stat(path, &st) < 0)
		return -ENOENT;
	for (char *slash = strrchr(path, '/'); slash && slash > path; slash = strrchr(path, '/')) {
		*slash = '\0';
		if (stat(path, &above) < 0 || above.st_dev != st.st_dev) {
			*slash = '/';
			break;
		}
	}
	job->root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return job->root < 0 ? -ENOENT : 0;
}

static int find_mount(struct job *job, const char *target, struct base_err *err)
{
	int rc = ask_find(target, &job->unreachable, &job->peer);
	/* A server that does not answer its socket would not answer over the mount either. */
	if (rc < 0 && (rc == -ETIMEDOUT || rc == -ENOMEM || target[0] == '@' || find_root(job, target) < 0)) {
		*err = job->unreachable;
		return rc;
	}
	cleanup_free char *real = realpath(job->peer.mountpoint, NULL);
	cleanup_free char *named =
	        realpath(target, NULL); /* it may lie inside the mount, or be a symbolic link to it */
	add_prefix(job->prefixes[0], job->peer.mountpoint);
	if (real)
		add_prefix(job->prefixes[1], real);
	if (real && named && strcmp(real, named) == 0)
		add_prefix(job->prefixes[2], target);
	return 0;
}

/* Returns the part of a path below the mountpoint, or NULL if it does not lie there. */
static const char *below(const struct job *job, const char *path)
{
	if (path[0] != '/')
		return path;
	for (int i = 0; i < PREFIXES; i++) {
		size_t len = strlen(job->prefixes[i]);
		if (len > 0 && strncmp(path, job->prefixes[i], len) == 0)
			return path + len;
	}
	return NULL;
}

/* ---- pieces ---- */

/* Puts what is announced into the memory whose descriptor the server gets. It is written anew for each piece, because
 * the server has read it when it answers. */
static int put_in_memory(struct job *job, struct base_err *err)
{
	const char *bytes = job->out;
	size_t len = job->out_len;
	if (job->memory < 0)
		job->memory = memfd_create("ddpfs order", MFD_CLOEXEC);
	if (job->memory < 0)
		return base_err_set(err, -errno, "memfd_create: %s", strerror(errno));
	while (len > 0) {
		ssize_t n = pwrite(job->memory, bytes, len, bytes - job->out);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return base_err_set(err, -errno, "memory for the list: %s", strerror(errno));
		bytes += n;
		len -= (size_t)n;
	}
	return 0;
}

static json_t *request_of(const struct job *job, const char *how, size_t bytes)
{
	const struct ctl_follow *o = job->options;
	const char *dir = o->dir ? below(job, o->dir) : "";
	json_t *request = json_pack("{ss ss ss}", "cmd", "follow", "list", list_name(o), "how", how);
	if (strcmp(how, "end") == 0)
		return request;
	json_object_set_new(request, "form",
	        json_string(!o->form        ? "text"
	                    : job->narrowed ? "u32"
	                    : is_binary(o)  ? o->form
	                                    : "u64"));
	json_object_set_new(request, "bytes", json_integer((json_int_t)bytes));
	if (o->form) {
		json_object_set_new(request, "listing", json_string(o->listing ? o->listing : "sorted"));
		json_object_set_new(request, "dir", json_string(dir ? dir : o->dir));
	}
	if (o->skip_unknown)
		json_object_set_new(request, "skip_unknown", json_true());
	if (o->buffer)
		json_object_set_new(request, "buffer", json_integer((json_int_t)o->buffer));
	return request;
}

static int send_request(struct job *job, const char *how, int fd, struct base_err *err)
{
	cleanup_json json_t *request = request_of(job, how, job->out_len);
	cleanup_free char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	if (!text)
		return base_err_set(err, -EINVAL, "the name of a list or directory is no UTF-8 text");
	free(job->reply);
	job->reply = NULL;
	return base_control_request_with(job->peer.socket, text, fd, REPLY_MS, err, &job->reply);
}

/* Returns how many of the `len` bytes go into one request with this much room: whole entries; 0: not one. */
static size_t piece_length(const struct job *job, const char *bytes, size_t len, size_t room)
{
	size_t size = !job->options->form ? 1 : job->narrowed || strcmp(job->options->form, "u32") == 0 ? 4 : 8;
	if (len <= room)
		return len;
	if (size > 1)
		return room / size * size;
	const char *end = memrchr(bytes, '\0', room);
	return end ? (size_t)(end - bytes) + 1 : 0;
}

/* Counts what a reply says was taken. */
static void count_taken(struct job *job)
{
	cleanup_json json_t *reply = json_loads(job->reply, 0, NULL);
	uint64_t entries = (uint64_t)json_integer_value(json_object_get(reply, "entries"));
	job->entries += entries;
	job->skipped += (uint64_t)json_integer_value(json_object_get(reply, "skipped"));
	job->begun |= entries > 0;
}

/* Sends one request to the root of the mount. */
static int ask_root(struct job *job, const char *how, const char *bytes, size_t len, struct base_err *err)
{
	cleanup_json json_t *request = request_of(job, how, len);
	json_object_set_new(request, "from", json_integer((json_int_t)(job->entries + job->skipped)));
	cleanup_free char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	if (!text)
		return base_err_set(err, -EINVAL, "the name of a list or directory is no UTF-8 text");
	free(job->reply);
	job->reply = NULL;
	int rc = base_control_announce(job->root, job->peer.mountpoint, text, bytes, len, REPLY_MS, err, &job->reply);
	if (rc == -ENOTTY)
		*err = job->unreachable;
	return rc;
}

/* Announces what is gathered over the mount's root, in pieces. */
static int announce_at_root(struct job *job, struct base_err *err)
{
	cleanup_json json_t *longest = request_of(job, "replace", OUT_BYTES);
	json_object_set_new(longest, "from", json_integer(INT64_MAX));
	cleanup_free char *text = longest ? json_dumps(longest, JSON_COMPACT) : NULL;
	size_t line = text ? strlen(text) + 1 : 0;
	for (size_t at = 0, len; at < job->out_len; at += len) {
		len = line < BASE_ANNOUNCE_BYTES
		              ? piece_length(job, job->out + at, job->out_len - at, BASE_ANNOUNCE_BYTES - line)
		              : 0;
		if (len == 0)
			return base_err_set(err, -EMSGSIZE, "'%s': an entry, or --dir, is too long", job->name);
		int rc = ask_root(
		        job, job->begun || job->options->append ? "append" : "replace", job->out + at, len, err);
		if (rc < 0)
			return rc;
		count_taken(job);
	}
	job->out_len = 0;
	return 0;
}

/* Makes numbers of 8 bytes numbers of 4, if all fit: the server reads half as much. */
static void narrow(struct job *job)
{
	const char *form = job->options->form;
	uint64_t all = 0, number;
	job->narrowed = false;
	if (!form || strcmp(form, "u32") == 0)
		return;
	for (size_t at = 0; at < job->out_len; at += sizeof(number)) {
		memcpy(&number, job->out + at, sizeof(number));
		all |= number;
	}
	if (all > UINT32_MAX)
		return;
	for (size_t at = 0; at < job->out_len; at += sizeof(number)) {
		memcpy(&number, job->out + at, sizeof(number));
		uint32_t small = (uint32_t)number;
		memcpy(job->out + at / 2, &small, sizeof(small));
	}
	job->out_len /= 2;
	job->narrowed = true;
}

/* Announces what is gathered. */
static int announce(struct job *job, struct base_err *err)
{
	if (job->out_len == 0)
		return 0;
	narrow(job);
	if (job->root >= 0)
		return announce_at_root(job, err);
	int rc = put_in_memory(job, err);
	if (rc == 0)
		rc = send_request(job, job->begun || job->options->append ? "append" : "replace", job->memory, err);
	if (rc < 0)
		return rc;
	count_taken(job);
	job->out_len = 0;
	return 0;
}

/* ---- entries ---- */

static int add_path(struct job *job, const char *path, struct base_err *err)
{
	char quoted[256];
	const char *inside = below(job, path);
	if (!inside && !job->options->skip_unknown)
		return base_err_set(err, -EINVAL,
		        "'%s': entry %" PRIu64 ": '%s' is not in the mount '%s': "
		        "--skip-unknown leaves such entries out",
		        job->name, job->entry, base_err_quote(path, quoted, sizeof(quoted)), job->peer.mountpoint);
	if (!inside) {
		job->skipped++;
		return 0;
	}
	size_t len = strlen(inside) + 1;
	memcpy(job->out + job->out_len, inside, len); /* never longer than what came */
	job->out_len += len;
	return 0;
}

static int add_number(struct job *job, const char *text, struct base_err *err)
{
	uint64_t number;
	char quoted[64];
	if (base_parse_u64(text, INT64_MAX, &number) < 0)
		return base_err_set(err, -EINVAL, "'%s': entry %" PRIu64 ": '%s' is no index: a number from 0 on",
		        job->name, job->entry, base_err_quote(text, quoted, sizeof(quoted)));
	memcpy(job->out + job->out_len, &number, sizeof(number));
	job->out_len += sizeof(number);
	return 0;
}

/* Takes in all whole entries of what came. */
static int take_entries(struct job *job, bool at_end, struct base_err *err)
{
	char end = job->options->null ? '\0' : '\n';
	size_t at = 0;
	while (at < job->in_len) {
		char *stop = memchr(job->in + at, end, job->in_len - at);
		if (!stop && !at_end)
			break;
		if (!stop)
			stop = job->in + job->in_len; /* there is one more byte */
		*stop = '\0';
		job->entry++;
		int rc = 0;
		if (memchr(job->in + at, '\0', (size_t)(stop - (job->in + at))))
			rc = base_err_set(err, -EINVAL, "'%s': entry %" PRIu64 " holds a NUL: give --null", job->name,
			        job->entry);
		else if (job->in[at])
			rc = job->options->form ? add_number(job, job->in + at, err) : add_path(job, job->in + at, err);
		if (rc < 0)
			return rc;
		at = (size_t)(stop - job->in) + 1;
	}
	at = at < job->in_len ? at : job->in_len;
	job->in_len -= at;
	memmove(job->in, job->in + at, job->in_len);
	if (job->in_len == PIECE_BYTES)
		return base_err_set(err, -EINVAL, "'%s': entry %" PRIu64 " has no end in %d MiB", job->name,
		        job->entry + 1, PIECE_BYTES >> 20);
	return 0;
}

static int take_binary(struct job *job, bool at_end, struct base_err *err)
{
	size_t size = strcmp(job->options->form, "u64") == 0 ? 8 : 4, whole = job->in_len / size * size;
	if (at_end && whole != job->in_len)
		return base_err_set(err, -EINVAL, "'%s': its length is no multiple of %zu bytes", job->name, size);
	memcpy(job->out + job->out_len, job->in, whole);
	job->out_len += whole;
	job->in_len -= whole;
	memmove(job->in, job->in + whole, job->in_len);
	return 0;
}

/* Reads until a piece is full, nothing comes for a moment, or the list ends. */
static int read_some(struct job *job, int fd, bool *ret_end, struct base_err *err)
{
	size_t most = job->begun ? PIECE_BYTES : FIRST_BYTES;
	*ret_end = false;
	while (job->in_len < most) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (job->in_len > 0 && poll(&p, 1, PAUSE_MS) == 0)
			return 0;
		ssize_t n = read(fd, job->in + job->in_len, PIECE_BYTES - job->in_len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return base_err_set(err, -errno, "'%s': %s", job->name, strerror(errno));
		if (n == 0) {
			*ret_end = true;
			return 0;
		}
		job->in_len += (size_t)n;
	}
	return 0;
}

static int follow_file(struct job *job, int fd, struct base_err *err)
{
	bool end = false;
	job->in = malloc(PIECE_BYTES + 1);
	job->out = malloc(OUT_BYTES);
	if (!job->in || !job->out)
		return base_err_set(err, -ENOMEM, "out of memory");
	while (!end) {
		int rc = read_some(job, fd, &end, err);
		if (rc == 0)
			rc = is_binary(job->options) ? take_binary(job, end, err) : take_entries(job, end, err);
		if (rc == 0)
			rc = announce(job, err);
		if (rc < 0)
			return rc;
	}
	if (!job->begun && job->skipped > 0)
		return base_err_set(err, -EINVAL,
		        "'%s': none of the %" PRIu64 " entries is a file of the dataset's samples", job->name,
		        job->skipped);
	if (!job->begun)
		return base_err_set(err, -EINVAL, "'%s': nothing is announced: there is no entry in it", job->name);
	return 0;
}

/* ---- the command ---- */

static void print_result(const struct job *job)
{
	const struct ctl_follow *o = job->options;
	if (o->json)
		printf("{\"list\": \"%s\", \"entries\": %" PRIu64 ", \"skipped\": %" PRIu64 "}\n", list_name(o),
		        job->entries, job->skipped);
	else if (o->end)
		printf("list %s: forgotten\n", list_name(o));
	else if (job->skipped)
		printf("list %s: %" PRIu64 " entries announced, %" PRIu64 " left out\n", list_name(o), job->entries,
		        job->skipped);
	else
		printf("list %s: %" PRIu64 " entries announced\n", list_name(o), job->entries);
}

int ctl_follow(const char *target, const char *list_path, const struct ctl_follow *options)
{
	struct job *job = calloc(1, sizeof(*job));
	struct base_err err = { 0 };
	cleanup_close int fd = -1;
	if (!job)
		return cli_failf("out of memory");
	job->options = options;
	job->memory = -1;
	job->root = -1;
	job->name = list_path && strcmp(list_path, "-") == 0 ? "standard input" : list_path;
	progress_wait_start("announcing the list");
	int rc = find_mount(job, target, &err);
	if (rc == 0 && options->end) {
		rc = job->root >= 0 ? ask_root(job, "end", "", 0, &err) : send_request(job, "end", -1, &err);
	} else if (rc == 0) {
		fd = strcmp(list_path, "-") == 0 ? dup(STDIN_FILENO) : open(list_path, O_RDONLY | O_CLOEXEC);
		rc = fd < 0 ? base_err_set(&err, -errno, "'%s': %s", job->name, strerror(errno))
		            : follow_file(job, fd, &err);
	}
	progress_wait_done();
	if (rc == 0)
		print_result(job);
	base_control_peer_done(&job->peer);
	if (job->memory >= 0)
		close(job->memory);
	if (job->root >= 0)
		close(job->root);
	free(job->in);
	free(job->out);
	free(job->reply);
	free(job);
	return rc < 0 ? cli_fail(&err) : CLI_DONE;
}
