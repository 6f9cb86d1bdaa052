/* SPDX-License-Identifier: Apache-2.0 */
/* The client of the control socket: finds servers, asks them; shard/base/control_client.h first. */
#include "shard/base/control_client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/base/clock.h"
#include "shard/base/list.h"
#include "shard/base/units.h"

enum {
	SILENT_NAMED = 8,       /* pids of silent servers in a message, at most */
	OPEN_MAX_SOCKETS = 256, /* connections at the same time */
	RETRY_MS = 10,          /* after a full listen queue, which poll(2) cannot wait for */
};

static const char info_request[] = "{\"cmd\":\"info\"}";

/* ---- where sockets are ---- */

static int runtime_dir(uid_t uid, char *buf, size_t size)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	struct stat st;
	int n;
	if (uid == 0) {
		n = snprintf(buf, size, "/run/ddpfs");
	} else if (xdg && xdg[0] == '/') {
		n = snprintf(buf, size, "%s/ddpfs", xdg);
	} else {
		n = snprintf(buf, size, "/run/user/%u", (unsigned)uid);
		if (n > 0 && (size_t)n < size && stat(buf, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid)
			n = snprintf(buf, size, "/run/user/%u/ddpfs", (unsigned)uid);
		else
			n = snprintf(buf, size, "/tmp/ddpfs-%u", (unsigned)uid);
	}
	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

int base_control_default_path(unsigned number, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX])
{
	char dir[BASE_CONTROL_PATH_MAX - sizeof("/-2147483648-4294967295.sock" BASE_CONTROL_NEW)];
	struct stat st;
	int rc = runtime_dir(geteuid(), dir, sizeof(dir));
	if (rc < 0)
		return base_err_set(err, rc,
		        "the runtime directory's name is too long for a socket in it: set "
		        "XDG_RUNTIME_DIR to a shorter one");
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return base_err_set(
		        err, -errno, "'%s': %s: the control socket needs this directory", dir, strerror(errno));
	if (lstat(dir, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
		return base_err_set(err, -EACCES,
		        "'%s': not a directory that belongs to this user alone: remove it, then mount again", dir);
	if (number)
		snprintf(ret_path, BASE_CONTROL_PATH_MAX, "%s/%d-%u.sock", dir, (int)getpid(), number);
	else
		snprintf(ret_path, BASE_CONTROL_PATH_MAX, "%s/%d.sock", dir, (int)getpid());
	return 0;
}

/* ---- requests ---- */

/* A request to one server, and its reply. */
struct question {
	char path[BASE_CONTROL_PATH_MAX];
	struct stat found; /* the socket as look_into found it; st_ino 0: the caller named it */
	enum { QUESTION_NEW, QUESTION_ASKED, QUESTION_OVER } state;
	int fd;     /* >= 0 while ASKED */
	int rc;     /* OVER: 0, or why there is no reply */
	char *line; /* ASKED: BASE_CONTROL_LINE_MAX + 1 bytes, len of them filled; OVER: the reply, or NULL; owned */
	size_t len;
	size_t sent; /* bytes of the request and its newline */
};

/* Servers that get the same request at the same time. */
struct questions {
	const char *request;
	int passed; /* a descriptor that goes with the request; -1: none */
	struct question *list;
	size_t n, room; /* entries in use, and allocated */
	size_t n_open;  /* open sockets */
};

/* All servers that were found. */
struct peers {
	struct base_control_peer *list; /* those that answered; owned */
	size_t n;
	size_t room;
	struct questions asked;
};

void base_control_peer_done(struct base_control_peer *peer)
{
	free(peer->mountpoint);
	free(peer->dataset);
	free(peer->info);
	*peer = (struct base_control_peer){ 0 };
}

void base_control_peers_free(struct base_control_peer *peers, size_t n)
{
	for (size_t i = 0; peers && i < n; i++)
		base_control_peer_done(&peers[i]);
	free(peers);
}

static int parse_peer(const char *path, char *reply, struct base_control_peer *ret_peer)
{
	cleanup_json json_t *root = json_loads(reply, 0, NULL);
	const char *mountpoint = json_string_value(json_object_get(root, "mountpoint"));
	const char *dataset = json_string_value(json_object_get(root, "dataset"));
	const char *view = json_string_value(json_object_get(root, "view"));
	int rc = -EPROTO;
	if (mountpoint && dataset && view && json_is_true(json_object_get(root, "ok"))) {
		*ret_peer = (struct base_control_peer){
			.pid = (pid_t)json_integer_value(json_object_get(root, "pid")),
			.dev = (uint64_t)json_integer_value(json_object_get(root, "dev")),
			.rank = (uint32_t)json_integer_value(json_object_get(root, "rank")),
			.world = (uint32_t)json_integer_value(json_object_get(root, "world")),
			.ranks = (uint32_t)json_integer_value(json_object_get(root, "ranks")),
			.view_all = strcmp(view, "all") == 0,
			.mountpoint = strdup(mountpoint),
			.dataset = strdup(dataset),
			.info = strdup(reply),
		};
		snprintf(ret_peer->socket, sizeof(ret_peer->socket), "%s", path);
		rc = ret_peer->mountpoint && ret_peer->dataset && ret_peer->info ? 0 : -ENOMEM;
		if (rc < 0)
			base_control_peer_done(ret_peer);
	}
	return rc;
}

/* Removes a socket of this user on which nobody listens, because its server was killed.  Not one that was put in its
 * place meanwhile. */
static void remove_dead(const struct question *q)
{
	struct stat st;
	if (q->found.st_ino != 0 && q->found.st_uid == geteuid() && lstat(q->path, &st) == 0 &&
	        st.st_dev == q->found.st_dev && st.st_ino == q->found.st_ino)
		unlink(q->path);
}

/* The default name of a socket begins with the server's pid. */
static pid_t pid_of(const struct question *q)
{
	const char *name = strrchr(q->path, '/');
	return name ? (pid_t)strtol(name + 1, NULL, 10) : 0;
}

static void question_close(struct questions *qs, struct question *q)
{
	qs->n_open -= q->fd >= 0;
	if (q->fd >= 0)
		close(q->fd);
	q->fd = -1;
}

static void question_over(struct questions *qs, struct question *q, int rc)
{
	question_close(qs, q);
	q->state = QUESTION_OVER;
	q->rc = rc;
	if (rc < 0) {
		free(q->line);
		q->line = NULL;
	}
}

static void questions_done(struct questions *qs)
{
	for (size_t i = 0; i < qs->n; i++) {
		question_close(qs, &qs->list[i]);
		free(qs->list[i].line);
	}
	free(qs->list);
	*qs = (struct questions){ 0 };
}

static int add_question(struct questions *qs, const char *path, const struct stat *found)
{
	if (base_grow(&qs->list, qs->n, &qs->room, sizeof(*qs->list)) < 0)
		return -ENOMEM;
	struct question *q = &qs->list[qs->n++];
	*q = (struct question){ .fd = -1 };
	if (found)
		q->found = *found;
	snprintf(q->path, sizeof(q->path), "%s", path);
	return 0;
}

/* Says whether a server may be believed: it runs as this user or as root; root believes every user.  The kernel keeps
 * the user who called listen(2).  Returns 0; -EACCES: another user's server. */
static int check_server(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	uid_t uid = geteuid();
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return -errno;
	return uid == 0 || cred.uid == uid || cred.uid == 0 ? 0 : -EACCES;
}

/* Connects without waiting.  If the listen queue is full, the next round tries again. */
static void question_begin(struct questions *qs, struct question *q)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	memcpy(addr.sun_path, q->path, strlen(q->path) + 1);
	q->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (q->fd < 0 && qs->n_open == 0)
		question_over(qs, q, -errno);
	if (q->fd < 0)
		return; /* too many descriptors are open: try again when others have answered */
	qs->n_open++;
	if (connect(q->fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int code = errno;
		if (code == ECONNREFUSED)
			remove_dead(q);
		if (code == EAGAIN || code == EINTR)
			question_close(qs, q);
		else
			question_over(qs, q, -code);
		return;
	}
	int rc = check_server(q->fd);
	if (rc < 0) {
		question_over(qs, q, rc);
		return;
	}
	q->line = malloc(BASE_CONTROL_LINE_MAX + 1);
	if (q->line)
		q->state = QUESTION_ASKED;
	else
		question_over(qs, q, -ENOMEM);
}

/* Sends bytes, and a descriptor with them (-1: none). */
static ssize_t send_with(int fd, const char *bytes, size_t len, int passed)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (passed >= 0) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &passed, sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL);
}

/* Sends what the socket takes of the request and its newline.  A server that refuses the peer writes the reason and
 * closes.  So after EPIPE or ECONNRESET the line is still there. */
static void question_send(struct questions *qs, struct question *q)
{
	size_t len = strlen(qs->request);
	while (q->sent <= len) {
		bool end = q->sent == len;
		ssize_t n = send_with(q->fd, end ? "\n" : qs->request + q->sent, end ? 1 : len - q->sent,
		        q->sent == 0 ? qs->passed : -1);
		if (n >= 0) {
			q->sent += (size_t)n;
		} else if (errno == EPIPE || errno == ECONNRESET) {
			q->sent = len + 1;
		} else {
			if (errno != EAGAIN && errno != EINTR)
				question_over(qs, q, -errno);
			return;
		}
	}
}

static void question_receive(struct questions *qs, struct question *q)
{
	ssize_t n = recv(q->fd, q->line + q->len, BASE_CONTROL_LINE_MAX - q->len, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	char *end = n > 0 ? memchr(q->line + q->len, '\n', (size_t)n) : NULL;
	q->len += n > 0 ? (size_t)n : 0;
	if (n > 0 && !end && q->len < BASE_CONTROL_LINE_MAX)
		return;
	if (end)
		*end = '\0';
	question_over(qs, q, end ? 0 : n < 0 ? -errno : -EPROTO);
}

/* One round: begins the questions that can begin, waits for replies until the deadline, receives them.
 * Returns true if all questions are over. */
static bool ask_round(struct questions *qs, int64_t deadline_ms)
{
	struct pollfd fds[OPEN_MAX_SOCKETS];
	size_t at[OPEN_MAX_SOCKETS];
	nfds_t n = 0;
	bool more = false;
	for (size_t i = 0; i < qs->n && n < OPEN_MAX_SOCKETS; i++) {
		struct question *q = &qs->list[i];
		if (q->state == QUESTION_NEW && qs->n_open < OPEN_MAX_SOCKETS)
			question_begin(qs, q);
		more |= q->state == QUESTION_NEW;
		if (q->state == QUESTION_ASKED)
			question_send(qs, q);
		if (q->state == QUESTION_ASKED) {
			at[n] = i;
			fds[n++] = (struct pollfd){ .fd = q->fd,
				.events = q->sent > strlen(qs->request) ? POLLIN : POLLIN | POLLOUT };
		}
	}
	if (!n && !more)
		return true;
	int64_t left = deadline_ms - base_now_ms();
	left = left < 0 ? 0 : more && left > RETRY_MS ? RETRY_MS : left;
	if (poll(fds, n, (int)left) > 0)
		for (nfds_t i = 0; i < n; i++)
			if (fds[i].revents & ~POLLOUT)
				question_receive(qs, &qs->list[at[i]]);
	return false;
}

/* As base_control_request_all, with a descriptor (-1: none). */
static int request_all(const char *const *sockets, size_t n, const char *request, int passed, unsigned limit_ms,
        int *ret_rcs, char **ret_replies)
{
	struct questions qs = { .request = request, .passed = passed };
	int64_t deadline_ms = base_now_ms() + limit_ms;
	int rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = add_question(&qs, sockets[i], NULL);
	while (rc == 0 && !ask_round(&qs, deadline_ms) && base_now_ms() < deadline_ms)
		;
	for (size_t i = 0; i < n && rc == 0; i++) {
		struct question *q = &qs.list[i];
		ret_rcs[i] = q->state == QUESTION_OVER ? q->rc : -ETIMEDOUT;
		ret_replies[i] = q->state == QUESTION_OVER ? steal_ptr(&q->line) : NULL;
	}
	questions_done(&qs);
	return rc;
}

int base_control_request_all(
        const char *const *sockets, size_t n, const char *request, unsigned limit_ms, int *ret_rcs, char **ret_replies)
{
	return request_all(sockets, n, request, -1, limit_ms, ret_rcs, ret_replies);
}

int base_control_request(
        const char *socket_path, const char *request, unsigned timeout_ms, struct base_err *err, char **ret_reply)
{
	return base_control_request_with(socket_path, request, -1, timeout_ms, err, ret_reply);
}

/* Checks that a reply says ok. */
static int check_reply(const char *from, const char *line, struct base_err *err)
{
	cleanup_json json_t *reply = json_loads(line, 0, NULL);
	if (!json_is_object(reply))
		return base_err_set(err, -EPROTO, "'%s': the answer is no JSON object", from);
	if (json_is_true(json_object_get(reply, "ok")))
		return 0;
	const char *why = json_string_value(json_object_get(reply, "error"));
	return base_err_set(err, -EREMOTEIO, "%s", why ? why : "the server refused without a reason");
}

int base_control_request_with(const char *socket_path, const char *request, int fd, unsigned timeout_ms,
        struct base_err *err, char **ret_reply)
{
	cleanup_free char *line = NULL;
	int rc = 0;
	if (strlen(request) >= BASE_CONTROL_LINE_MAX || strchr(request, '\n'))
		rc = -EMSGSIZE;
	else if (strlen(socket_path) >= BASE_CONTROL_PATH_MAX)
		rc = -ENAMETOOLONG;
	else if (request_all(&socket_path, 1, request, fd, timeout_ms, &rc, &line) < 0)
		rc = -ENOMEM;
	if (rc == -ETIMEDOUT)
		return base_err_set(err, rc, "'%s': the server does not answer within %u ms", socket_path, timeout_ms);
	if (rc < 0)
		return base_err_set(err, rc, "'%s': %s", socket_path,
		        rc == -EPROTO ? "the server closed the connection without an answer" : strerror(-rc));
	rc = check_reply(socket_path, line, err);
	if (rc == 0)
		*ret_reply = steal_ptr(&line);
	return rc;
}

int base_control_announce(int dir, const char *name, const char *request, const void *data, size_t len,
        unsigned timeout_ms, struct base_err *err, char **ret_reply)
{
	size_t line = strlen(request) + 1;
	int64_t deadline_ms = base_now_ms() + timeout_ms;
	if (line > BASE_ANNOUNCE_BYTES || len > BASE_ANNOUNCE_BYTES - line)
		return base_err_set(err, -EMSGSIZE, "'%s': the request is too long", name);
	for (;;) {
		cleanup_free char *bytes = calloc(1, BASE_ANNOUNCE_BYTES + 1);
		if (!bytes)
			return base_err_set(err, -ENOMEM, "out of memory");
		memcpy(bytes, request, line - 1);
		bytes[line - 1] = '\n';
		memcpy(bytes + line, data, len);
		if (ioctl(dir, BASE_ANNOUNCE_IOCTL, bytes) >= 0) {
			char *end = strchr(bytes, '\n');
			if (end)
				*end = '\0';
			int rc = check_reply(name, bytes, err);
			if (rc == 0)
				*ret_reply = steal_ptr(&bytes);
			return rc;
		}
		if ((errno != EAGAIN && errno != EINTR) || base_now_ms() > deadline_ms)
			return base_err_set(err, -errno, "'%s': %s", name, strerror(errno));
		nanosleep(&(struct timespec){ .tv_nsec = RETRY_MS * 1000000 }, NULL);
	}
}

/* ---- finding servers ---- */

/* Adds the servers that have answered since the last call to peers->list.  Returns 0 or -ENOMEM. */
static int take_answers(struct peers *peers)
{
	for (size_t i = 0; i < peers->asked.n; i++) {
		struct question *q = &peers->asked.list[i];
		if (q->state != QUESTION_OVER)
			continue;
		cleanup_free char *line = steal_ptr(&q->line);
		struct base_control_peer peer;
		int rc = q->rc == -ENOMEM ? q->rc : line ? parse_peer(q->path, line, &peer) : -EPROTO;
		q->rc = -EPROTO; /* done: the reply was taken */
		if (rc == 0 && (rc = base_grow(&peers->list, peers->n, &peers->room, sizeof(peer))) < 0)
			base_control_peer_done(&peer);
		if (rc == 0)
			peers->list[peers->n++] = peer;
		if (rc == -ENOMEM)
			return rc;
	}
	return 0;
}

/* Finds the sockets of `uid` in a directory.  Another user may have made a directory of that name, or sockets in one
 * that others can write to.  Returns 0 or -ENOMEM. */
static int look_into(struct peers *peers, const char *dir, uid_t uid)
{
	struct stat st;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	cleanup_closedir DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	struct dirent *entry;
	size_t seen = 0;
	int rc = 0;
	if (fd >= 0 && !d)
		close(fd);
	if (!d || fstat(fd, &st) < 0 || st.st_uid != uid || (st.st_mode & 022))
		return 0;
	while (rc == 0 && seen < BASE_CONTROL_PEERS_MAX && (entry = readdir(d))) {
		char path[BASE_CONTROL_PATH_MAX];
		size_t len = strlen(entry->d_name);
		if (len < 6 || strcmp(entry->d_name + len - 5, ".sock") != 0)
			continue;
		seen++;
		int n = snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (n > 0 && (size_t)n < sizeof(path) && fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		        S_ISSOCK(st.st_mode))
			rc = add_question(&peers->asked, path, &st);
	}
	return rc;
}

/* Root sees the servers of all users: in their runtime directories, and in /tmp. */
static int look_at_users(struct peers *peers)
{
	static const char *const parents[] = { "/run/user", "/tmp" };
	int rc = 0;
	for (size_t i = 0; i < 2 && rc == 0; i++) {
		cleanup_closedir DIR *d = opendir(parents[i]);
		struct dirent *entry;
		while (d && rc == 0 && (entry = readdir(d))) {
			char path[BASE_CONTROL_PATH_MAX];
			uint64_t uid;
			const char *digits = entry->d_name;
			if (i == 1 && strncmp(digits, "ddpfs-", 6) != 0)
				continue;
			digits += i == 1 ? 6 : 0;
			if (base_parse_u64(digits, UINT32_MAX, &uid) < 0 || uid == 0)
				continue;
			int n = snprintf(path, sizeof(path), i == 0 ? "/run/user/%s/ddpfs" : "/tmp/%s", entry->d_name);
			if (n > 0 && (size_t)n < sizeof(path))
				rc = look_into(peers, path, (uid_t)uid);
		}
	}
	return rc;
}

unsigned base_control_count(void)
{
	char dir[BASE_CONTROL_PATH_MAX];
	unsigned n = 0;
	if (runtime_dir(geteuid(), dir, sizeof(dir)) < 0)
		return 0;
	cleanup_closedir DIR *d = opendir(dir);
	struct dirent *entry;
	while (d && n < BASE_CONTROL_PEERS_MAX && (entry = readdir(d))) {
		size_t len = strlen(entry->d_name);
		n += len >= 6 && strcmp(entry->d_name + len - 5, ".sock") == 0;
	}
	return n;
}

static int by_place(const void *a, const void *b)
{
	const struct base_control_peer *x = a;
	const struct base_control_peer *y = b;
	int order = strcmp(x->mountpoint, y->mountpoint);
	if (order == 0 && x->rank != y->rank)
		order = x->rank < y->rank ? -1 : 1;
	if (order == 0)
		order = x->pid < y->pid ? -1 : x->pid > y->pid;
	return order;
}

static void peers_done(struct peers *peers)
{
	questions_done(&peers->asked);
	base_control_peers_free(peers->list, peers->n);
	*peers = (struct peers){ 0 };
}

/* Finds the sockets.  Returns 0 or -ENOMEM; peers_done releases them in both cases. */
static int look_for_sockets(struct peers *peers)
{
	char dir[BASE_CONTROL_PATH_MAX];
	uid_t uid = geteuid();
	int rc = 0;
	if (runtime_dir(uid, dir, sizeof(dir)) == 0)
		rc = look_into(peers, dir, uid);
	if (rc == 0 && uid != 0) {
		/* The user may have mounted in a session with another XDG_RUNTIME_DIR. */
		char other[BASE_CONTROL_PATH_MAX];
		snprintf(other, sizeof(other), "/run/user/%u/ddpfs", (unsigned)uid);
		if (strcmp(other, dir) != 0)
			rc = look_into(peers, other, uid);
		snprintf(other, sizeof(other), "/tmp/ddpfs-%u", (unsigned)uid);
		if (rc == 0 && strcmp(other, dir) != 0)
			rc = look_into(peers, other, uid);
	}
	if (rc == 0 && uid == 0)
		rc = look_at_users(peers);
	return rc;
}

int base_control_survey(unsigned limit_ms, struct base_control_peer **ret_peers, size_t *ret_n,
        struct base_control_silent **ret_silent, size_t *ret_n_silent)
{
	struct peers peers = { .asked = { .request = info_request, .passed = -1 } };
	size_t n_silent = 0;
	int64_t deadline_ms = base_now_ms() + limit_ms;
	int rc = look_for_sockets(&peers);
	while (rc == 0 && !ask_round(&peers.asked, deadline_ms) && base_now_ms() < deadline_ms)
		;
	if (rc == 0)
		rc = take_answers(&peers);
	struct base_control_silent *silent = calloc(peers.asked.n + 1, sizeof(*silent));
	if (rc < 0 || !silent) {
		free(silent);
		peers_done(&peers);
		return -ENOMEM;
	}
	for (size_t i = 0; i < peers.asked.n; i++) {
		const struct question *q = &peers.asked.list[i];
		if (q->state == QUESTION_OVER)
			continue;
		silent[n_silent].pid = pid_of(q);
		memcpy(silent[n_silent++].socket, q->path, sizeof(q->path));
	}
	if (peers.n > 1)
		qsort(peers.list, peers.n, sizeof(peers.list[0]), by_place);
	*ret_peers = peers.list;
	*ret_n = peers.n;
	*ret_silent = silent;
	*ret_n_silent = n_silent;
	peers.list = NULL;
	peers.n = 0;
	peers_done(&peers);
	return 0;
}

int base_control_list(struct base_control_peer **ret_peers, size_t *ret_n)
{
	struct base_control_silent *silent;
	size_t n_silent;
	int rc = base_control_survey(BASE_CONTROL_TIMEOUT_MS, ret_peers, ret_n, &silent, &n_silent);
	if (rc == 0)
		free(silent);
	return rc;
}

/* What base_control_find looks for: the server with a pid, or that of a path. */
struct target {
	const char *path; /* NULL: named by pid */
	uint64_t pid;
	uint64_t dev; /* st_dev of the path as the caller sees it; 0: the path does not exist for the caller */
	/* The caller sees a mount at this path.  A server with the same path but another device is in another
	 * namespace. */
	bool root;
};

static bool is_root(const char *path, const struct stat *st)
{
	char parent[PATH_MAX + 4];
	struct stat above;
	snprintf(parent, sizeof(parent), "%s/..", path);
	return stat(parent, &above) == 0 && above.st_dev != st->st_dev;
}

/* Says how well a server fits: 2: it is this mount; 1: it has the same path in another namespace; 0: it does not
 * fit. */
static int match(const struct base_control_peer *peer, const struct target *target)
{
	if (!target->path)
		return (uint64_t)peer->pid == target->pid ? 2 : 0;
	if (target->dev != 0 && peer->dev == target->dev)
		return 2;
	return !target->root && strcmp(peer->mountpoint, target->path) == 0 ? 1 : 0;
}

/* Makes the error for silent servers: each of them may be the one that is wanted. */
static int silent(const struct peers *peers, const char *target, unsigned waited_ms, struct base_err *err)
{
	char pids[16 + 16 * SILENT_NAMED] = "";
	size_t n = 0;
	for (size_t i = 0; i < peers->asked.n && n < SILENT_NAMED; i++) {
		size_t used = strlen(pids);
		if (peers->asked.list[i].state != QUESTION_OVER)
			snprintf(pids + used, sizeof(pids) - used, "%s%d", n++ ? ", " : "",
			        (int)pid_of(&peers->asked.list[i]));
	}
	return base_err_set(err, -ETIMEDOUT,
	        "'%s': no ddpfs server that answers has it, but server%s %s %s not answer within %u s: try again; "
	        "`ddpfs ls` "
	        "shows which mounts there are and who is silent",
	        target, n > 1 ? "s" : "", pids, n > 1 ? "do" : "does", waited_ms / 1000);
}

static bool is_silent(const struct peers *peers, uint64_t pid)
{
	for (size_t i = 0; i < peers->asked.n; i++)
		if (peers->asked.list[i].state != QUESTION_OVER &&
		        (pid == 0 || (uint64_t)pid_of(&peers->asked.list[i]) == pid))
			return true;
	return false;
}

/* Says whether a silent server may be the one that is wanted. */
static bool may_be_silent(const struct peers *peers, const struct target *target)
{
	if (!target->path)
		return is_silent(peers, target->pid);
	/* The device numbers of FUSE mounts have major number 0. */
	return target->dev != 0 && major(target->dev) == 0 && is_silent(peers, 0);
}

static int not_found(const struct peers *peers, const char *target, const struct target *wanted, unsigned waited_ms,
        struct base_err *err)
{
	struct statfs fs;
	struct stat st;
	bool maybe = may_be_silent(peers, wanted);
	if (!wanted->path && maybe)
		return base_err_set(err, -ETIMEDOUT,
		        "server %d does not answer within %u s: try again, or see what keeps it", (int)wanted->pid,
		        waited_ms / 1000);
	if (target[0] == '@')
		return base_err_set(
		        err, -ENOENT, "no ddpfs server has pid %s: `ddpfs ls` shows those there are", target + 1);
	/* Return before statfs(2), because that waits for a server that does not answer. */
	if (maybe)
		return silent(peers, target, waited_ms, err);
	/* For a dead server the kernel still answers stat(2), from its cache, but not statfs(2). */
	if (statfs(target, &fs) < 0 && errno == ENOTCONN)
		return base_err_set(err, -ENOTCONN, "'%s': the mount's server is dead: `ddpfs umount %s` cleans up",
		        target, target);
	if (stat(target, &st) < 0)
		return base_err_set(
		        err, -ENOENT, "'%s': %s: `ddpfs ls` shows the mounts there are", target, strerror(errno));
	return base_err_set(
	        err, -ENOENT, "'%s' is no mountpoint of your ddpfs mounts: `ddpfs ls` shows those there are", target);
}

/* Asks until the server of this mount has answered, or all have, or time is over.  The limit is BASE_CONTROL_SURVEY_MS,
 * or most_ms if a silent server may be the one that is wanted. */
static int ask_for(struct peers *peers, const struct target *target, unsigned most_ms, unsigned *ret_waited_ms)
{
	int64_t began_ms = base_now_ms();
	unsigned limit_ms = most_ms < BASE_CONTROL_SURVEY_MS ? most_ms : BASE_CONTROL_SURVEY_MS;
	size_t seen = 0;
	int best = 0;
	int rc = look_for_sockets(peers);
	while (rc == 0 && !(best == 2 && target->path)) {
		if (base_now_ms() - began_ms >= limit_ms) {
			if (best || limit_ms == most_ms || !may_be_silent(peers, target))
				break;
			limit_ms = most_ms;
		}
		bool over = ask_round(&peers->asked, began_ms + limit_ms);
		rc = take_answers(peers);
		for (; seen < peers->n; seen++) {
			int fit = match(&peers->list[seen], target);
			best = fit > best ? fit : best;
		}
		if (over)
			break;
	}
	*ret_waited_ms = limit_ms;
	return rc;
}

static int find_at_socket(const char *path, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer)
{
	cleanup_free char *reply = NULL;
	if (strlen(path) >= BASE_CONTROL_PATH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': a socket's path has at most %d bytes", path,
		        BASE_CONTROL_PATH_MAX - 1);
	int rc = base_control_request(path, info_request, limit_ms, err, &reply);
	if (rc < 0)
		return rc;
	rc = parse_peer(path, reply, ret_peer);
	return rc == 0 ? 0 : base_err_set(err, rc, "'%s': the answer is not that of a ddpfs server", path);
}

int base_control_find(const char *target, unsigned limit_ms, struct base_err *err, struct base_control_peer *ret_peer)
{
	struct peers peers = { .asked = { .request = info_request, .passed = -1 } };
	struct target wanted = { 0 };
	unsigned waited_ms;
	struct stat st;
	char pids[256] = "";
	int best = 0;
	size_t found = 0;
	size_t at = 0;

	bool by_pid = target[0] == '@' && base_parse_u64(target + 1, INT_MAX, &wanted.pid) == 0;
	cleanup_free char *path = by_pid ? NULL : realpath(target, NULL);
	if (!by_pid)
		wanted.path = path ? path : target;
	if (path && stat(path, &st) == 0) {
		if (S_ISSOCK(st.st_mode))
			return find_at_socket(target, limit_ms, err, ret_peer);
		wanted.dev = st.st_dev;
		wanted.root = is_root(path, &st);
	}
	int rc = ask_for(&peers, &wanted, limit_ms, &waited_ms);
	if (rc < 0) {
		peers_done(&peers);
		return base_err_set(err, rc, "%s", strerror(-rc));
	}
	if (peers.n > 1)
		qsort(peers.list, peers.n, sizeof(peers.list[0]), by_place);
	for (size_t i = 0; i < peers.n; i++) {
		int fit = match(&peers.list[i], &wanted);
		if (fit == 0 || fit < best)
			continue;
		if (fit > best) {
			found = 0;
			pids[0] = '\0';
		}
		best = fit;
		at = i;
		found++;
		size_t used = strlen(pids);
		snprintf(pids + used, sizeof(pids) - used, "%s@%d", used ? " " : "", (int)peers.list[i].pid);
	}
	if (found == 0) {
		rc = not_found(&peers, target, &wanted, waited_ms, err);
	} else if (found > 1) {
		rc = base_err_set(err, -ENOTUNIQ, "'%s' is mounted in several namespaces: name one by its server: %s",
		        target, pids);
	} else {
		*ret_peer = peers.list[at];
		peers.list[at] = (struct base_control_peer){ 0 };
	}
	peers_done(&peers);
	return rc;
}
