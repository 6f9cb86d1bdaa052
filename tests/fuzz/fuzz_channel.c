/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any packet, with or without a descriptor (by the first byte), from the other end of the link. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/supervise/channel.h"
#include "tests/fuzz/fuzz.h"

static void pass(int pair[2], const void *data, size_t len, bool with_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)data, .iov_len = len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct fs_channel_message message;
	int fd;
	if (with_fd) {
		msg.msg_control = control.bytes;
		msg.msg_controllen = sizeof(control.bytes);
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		*cmsg = (struct cmsghdr){
			.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))
		};
		memcpy(CMSG_DATA(cmsg), &pair[0], sizeof(int));
	}
	if (sendmsg(pair[0], &msg, MSG_NOSIGNAL) < 0)
		abort();
	int rc = fs_channel_receive(pair[1], MSG_DONTWAIT, &message, &fd);
	assert(rc == 0 || fd == -1);
	if (rc == 0 && message.kind == FS_CHANNEL_MOUNTED)
		assert(fd >= 0 && message.mount.init_len <= FS_INIT_BYTES_MAX);
	else if (rc == 0)
		assert(strnlen(message.text, sizeof(message.text)) < sizeof(message.text));
	if (fd >= 0)
		close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fs_channel_message whole = { 0 };
	int pair[2];
	if (size < 2 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return 0;
	pass(pair, data + 1, size - 1, data[0] & 1);
	memcpy(&whole, data + 1, size - 1 < sizeof(whole) ? size - 1 : sizeof(whole)); /* ... and of the right length */
	pass(pair, &whole, sizeof(whole), data[0] & 1);
	close(pair[0]);
	close(pair[1]);
	return 0;
}
