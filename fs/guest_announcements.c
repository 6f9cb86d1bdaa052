/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of guests' requests between the workers and main; fs/guest_announcements.h first. */
#include "fs/guest_announcements.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fs/control_server.h"
#include "shard/base/cleanup.h"

static const uint64_t TURN_NS = 2000000;   /* for which main answers guests before it looks at everything else */
static const uint64_t LONG_NS = 200000000; /* others than requests that make or look for a numbering take far less */
static const uint64_t PAUSE_NS = UINT64_C(30000000000); /* the longest pause; after a longer turn, as long as that */
enum { LONG_SHARE = 10 };                               /* such requests take this part of main's time, about */

struct waiting {
	fuse_req_t req;
	uint64_t ino;
	uid_t uid;
	char *bytes; /* owned; a NUL follows them */
	size_t len;
};

struct fs_guests {
	struct fs_server *server;
	int wake_fd;           /* eventfd: a request came */
	uint64_t not_until_ns; /* main's: until then it answers no guest */
	uid_t last;            /* main's: whom it answered last */
	pthread_mutex_t lock;  /* guards: */
	struct waiting queue[FS_GUEST_QUEUE];
	size_t n;
	bool ended;
};

int fs_guests_new(struct fs_server *server, struct fs_guests **ret_guests)
{
	struct fs_guests *guests = calloc(1, sizeof(*guests));
	if (!guests)
		return -ENOMEM;
	guests->server = server;
	guests->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (guests->wake_fd < 0) {
		int rc = -errno;
		free(guests);
		return rc;
	}
	pthread_mutex_init(&guests->lock, NULL);
	*ret_guests = guests;
	return 0;
}

void fs_guests_free(struct fs_guests *guests)
{
	if (!guests)
		return;
	close(guests->wake_fd);
	pthread_mutex_destroy(&guests->lock);
	free(guests);
}

/* Puts a request into the queue. Returns false if it is full, or full for this user. */
static bool put(struct fs_guests *guests, const struct waiting *request)
{
	size_t of_user = 0;
	lock_for_scope(&guests->lock);
	for (size_t i = 0; i < guests->n; i++)
		of_user += guests->queue[i].uid == request->uid;
	if (guests->ended || guests->n == FS_GUEST_QUEUE || of_user >= FS_GUEST_QUEUE_USER)
		return false;
	guests->queue[guests->n++] = *request;
	return true;
}

void fs_guests_take(struct fs_guests *guests, fuse_req_t req, uint64_t ino, const void *bytes, size_t len)
{
	struct waiting request = {
		.req = req, .ino = ino, .uid = fuse_req_ctx(req)->uid, .bytes = malloc(len + 1), .len = len
	};
	if (!request.bytes) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	memcpy(request.bytes, bytes, len);
	request.bytes[len] = '\0';
	if (!put(guests, &request)) {
		free(request.bytes);
		fuse_reply_err(req, EAGAIN);
		return;
	}
	uint64_t one = 1;
	(void)!write(guests->wake_fd, &one, sizeof(one)); /* it fails only if main has a wake-up already */
}

/* Takes the oldest request, of another user than the last one if there is one. Returns false if none waits. */
static bool get(struct fs_guests *guests, struct waiting *ret_request)
{
	size_t at = 0;
	lock_for_scope(&guests->lock);
	if (guests->n == 0)
		return false;
	while (at < guests->n && guests->queue[at].uid == guests->last)
		at++;
	if (at == guests->n)
		at = 0;
	*ret_request = guests->queue[at];
	guests->n--;
	memmove(&guests->queue[at], &guests->queue[at + 1], (guests->n - at) * sizeof(guests->queue[0]));
	return true;
}

static bool any(struct fs_guests *guests)
{
	lock_for_scope(&guests->lock);
	return guests->n > 0;
}

int fs_guests_poll(struct fs_guests *guests, struct pollfd *ret_poll)
{
	*ret_poll = (struct pollfd){ .fd = guests->wake_fd, .events = POLLIN };
	uint64_t now_ns = base_now_ns();
	if (!any(guests))
		return -1;
	if (now_ns >= guests->not_until_ns)
		return 0;
	return (int)((guests->not_until_ns - now_ns) / 1000000 + 1);
}

static void answer(struct fs_guests *guests, struct waiting *request)
{
	cleanup_free char *bytes = request->bytes;
	cleanup_free char *reply =
	        fs_control_answer_guest(guests->server, request->uid, request->ino, bytes, request->len);
	size_t len = reply ? strlen(reply) : 0;
	guests->last = request->uid;
	if (!reply)
		fuse_reply_err(request->req, ENOMEM);
	else if (len > BASE_ANNOUNCE_BYTES)
		fuse_reply_err(request->req, EOVERFLOW);
	else
		fuse_reply_ioctl(request->req, 0, reply, len);
}

/* Returns how long main answers no guest after a turn. */
static uint64_t pause_after(uint64_t turn_ns)
{
	uint64_t pause_ns = turn_ns * (LONG_SHARE - 1);
	if (turn_ns < LONG_NS || turn_ns > PAUSE_NS)
		return turn_ns;
	return pause_ns < PAUSE_NS ? pause_ns : PAUSE_NS;
}

void fs_guests_serve(struct fs_guests *guests)
{
	uint64_t events, began_ns = base_now_ns(), now_ns = began_ns;
	struct waiting request;
	(void)!read(
	        guests->wake_fd, &events, sizeof(events)); /* what waits is in the queue: fs_guests_poll looks there */
	if (began_ns < guests->not_until_ns)
		return;
	while (now_ns - began_ns < TURN_NS && get(guests, &request)) {
		answer(guests, &request);
		now_ns = base_now_ns();
	}
	if (now_ns - began_ns >= TURN_NS)
		guests->not_until_ns = now_ns + pause_after(now_ns - began_ns);
}

void fs_guests_end(struct fs_guests *guests)
{
	struct waiting request;
	if (!guests)
		return;
	{
		lock_for_scope(&guests->lock);
		guests->ended = true;
	}
	while (get(guests, &request)) {
		fuse_reply_err(request.req, EAGAIN);
		free(request.bytes);
	}
}
