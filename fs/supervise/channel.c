/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between a server and its supervisor, sent and received; fs/supervise/channel.h first. */
#include "fs/supervise/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shard/base/clock.h"

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int send_plain(int channel, const struct fs_channel_message *message, int flags)
{
	ssize_t n;
	do /* the filter forbids sendmsg(2), with which a confined server could send descriptors */
		n = send(channel, message, sizeof(*message), MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	if (n >= 0)
		return 0;
	return errno == ECONNRESET ? -EPIPE : -errno;
}

static int send_with(int channel, const struct fs_channel_message *message, int fd)
{
	union control control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	*cmsg = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fd)) };
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
	ssize_t n;
	do
		n = sendmsg(channel, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int fs_channel_send(int channel, const struct fs_channel_message *message, int fd)
{
	return fd >= 0 ? send_with(channel, message, fd) : send_plain(channel, message, 0);
}

static void fill(struct fs_channel_message *message, enum fs_channel_kind kind, uint32_t id, int code, const char *text)
{
	*message = (struct fs_channel_message){ .kind = kind, .id = id, .code = code };
	memset(message->text, 0, sizeof(message->text));
	if (text)
		snprintf(message->text, sizeof(message->text), "%s", text);
}

int fs_channel_say(int channel, enum fs_channel_kind kind, int code, const char *text)
{
	struct fs_channel_message message;
	fill(&message, kind, 0, code, text);
	return send_plain(channel, &message, 0);
}

int fs_channel_try(int channel, enum fs_channel_kind kind, int code, const char *text)
{
	struct fs_channel_message message;
	fill(&message, kind, 0, code, text);
	return send_plain(channel, &message, MSG_DONTWAIT);
}

int fs_channel_receive(int channel, int flags, struct fs_channel_message *ret_message, int *ret_fd)
{
	union control control;
	struct iovec iov = { .iov_base = ret_message, .iov_len = sizeof(*ret_message) };
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = CMSG_LEN(sizeof(int)) /* room for one descriptor */
	};
	ssize_t n;
	*ret_fd = -1;
	/* ECONNRESET comes once, when the other side has ended with unread messages.  What it sent comes after that. */
	do
		n = recvmsg(channel, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || errno == ECONNRESET));
	if (n < 0)
		return -errno;
	if (n == 0)
		return -EPIPE;
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	if (cmsg && cmsg->cmsg_type == SCM_RIGHTS && cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(ret_fd, CMSG_DATA(cmsg), sizeof(int));
	bool whole = n == sizeof(*ret_message) && !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
	if (whole && ret_message->kind == FS_CHANNEL_MOUNTED)
		whole = *ret_fd >= 0 && ret_message->mount.init_len <= FS_INIT_BYTES_MAX;
	else if (whole)
		whole = memchr(ret_message->text, '\0', sizeof(ret_message->text)) != NULL;
	if (whole)
		return 0;
	if (*ret_fd >= 0)
		close(*ret_fd);
	*ret_fd = -1;
	return -EPROTO;
}

int fs_channel_answer(int channel, uint32_t id, int code, const char *text)
{
	struct fs_channel_message message;
	fill(&message, FS_CHANNEL_ANSWER, id, code, text);
	return send_plain(channel, &message, MSG_DONTWAIT);
}

/* Waits until a message can be received.  0: look for one; -ETIMEDOUT: timeout_ms after begin_ms. */
static int wait_for_message(int channel, int timeout_ms, int64_t begin_ms)
{
	struct pollfd p = { .fd = channel, .events = POLLIN };
	int left_ms = -1;
	if (timeout_ms >= 0) {
		int64_t passed_ms = base_now_ms() - begin_ms;
		left_ms = passed_ms < timeout_ms ? timeout_ms - (int)passed_ms : 0;
	}
	int n = poll(&p, 1, left_ms);
	if (n == 0)
		return -ETIMEDOUT;
	return n < 0 && errno != EINTR ? -errno : 0;
}

int fs_channel_ask(int channel, enum fs_channel_kind kind, int code, const char *text, int timeout_ms, bool *ret_stop,
        struct fs_channel_message *ret_answer)
{
	static uint32_t last_id; /* main only */
	struct fs_channel_message message;
	int64_t begin_ms = base_now_ms();
	uint32_t id = ++last_id ? last_id : ++last_id;
	fill(&message, kind, id, code, text);
	int rc = send_plain(channel, &message, 0);
	while (rc == 0) {
		int fd = -1;
		rc = wait_for_message(channel, timeout_ms, begin_ms);
		if (rc == 0)
			rc = fs_channel_receive(channel, MSG_DONTWAIT, ret_answer, &fd);
		if (fd >= 0)
			close(fd);
		if (rc == 0 && ret_answer->kind == FS_CHANNEL_ANSWER && ret_answer->id == id)
			return 0;
		if (rc == 0 && ret_answer->kind == FS_CHANNEL_STOP)
			*ret_stop = true;
		if (rc == -EAGAIN)
			rc = 0;
	}
	return rc;
}
