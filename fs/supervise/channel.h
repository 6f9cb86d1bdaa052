/* SPDX-License-Identifier: Apache-2.0 */
/* The channel between a server and its supervisor: the descriptors that the supervisor hands over, and a socket for
 * messages.
 *
 * When a server ends, its supervisor still holds: /dev/fuse, the kernel's INIT, the inotify descriptor with its
 * watches and unread events, the control socket, and the handover memory (fs/supervise/handover_memory.h).
 *
 * The socket is SOCK_SEQPACKET: one message is one packet.  When the socket ends, the server has ended, because
 * threads that can outlive the others in the kernel have closed their copy (fs/detached_thread.h).  When the
 * supervisor ends, the server stops.  Each side checks the lengths, kinds and texts of the other's messages as if a
 * stranger had sent them.
 *
 * Threads: each function says which may call it.  A detached thread (fs/detached_thread.h) has no channel. */
#ifndef DDPFS_FS_SUPERVISE_CHANNEL_H
#define DDPFS_FS_SUPERVISE_CHANNEL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { FS_INIT_BYTES_MAX = 256, FS_IDENTITY_BYTES = 16 };

/* What the first server knows once it has mounted.  Every successor goes on with it. */
struct fs_channel_mount {
	uint64_t dev;                        /* st_dev of the mount */
	uint64_t memory_bytes;               /* the budget that the first server began with */
	uint8_t identity[FS_IDENTITY_BYTES]; /* of the dataset: a successor must find the same */
	uint32_t init_len;                   /* bytes of `init`, at most FS_INIT_BYTES_MAX */
	uint8_t init[FS_INIT_BYTES_MAX];     /* the kernel's INIT request */
	bool fusermount;                     /* mounted through the set-uid fusermount3 */
	bool resends;                        /* the kernel can resend requests that a dead server took (Linux 6.9) */
	bool cloned; /* each server has a clone of the descriptor; its requests end with the clone */
};

/* What a server gets from its supervisor. */
struct fs_channel {
	pid_t supervisor;
	int channel;              /* the server's end of the socket */
	int handover_fd;          /* memfd of the handover memory (fs/supervise/handover_memory.h) */
	int inotify_fd;           /* -1: the kernel gave none */
	int control_fd;           /* the control socket; it listens */
	const char *control_path; /* for messages; not owned */
	int fuse_fd;              /* -1: this is the first server, which mounts */
	struct fs_channel_mount mount;
	uint64_t started_ns; /* of the mount, CLOCK_MONOTONIC */
	uint32_t restarts;   /* servers before this one */
	uint32_t beat_ms;    /* a server that is well beats this often; 0: never */
	uint32_t hang_ms;    /* a request that takes this long hangs; 0: none does */
};

enum fs_channel_kind {
	/* server to supervisor */
	FS_CHANNEL_MOUNTED = 1, /* `mount`, with /dev/fuse */
	FS_CHANNEL_READY,       /* the mount answers */
	FS_CHANNEL_FAILED,      /* code, text: `serve` failed, so the server ends */
	FS_CHANNEL_CRASHED,     /* code: the signal; the server ends soon, but may write a core first */
	FS_CHANNEL_ENDING,      /* the server unmounts, or was unmounted: start no successor */
	FS_CHANNEL_UNMOUNT,     /* code 1: lazily.  The answer's code is what fs_unmount returned */
	FS_CHANNEL_RESTART,     /* text: the program that shall take over.  Answered with code and text */
	FS_CHANNEL_GO,          /* let that program take over now */
	FS_CHANNEL_GREET,       /* tell the other mounts of this one again (fs/host_sharing.h) */
	FS_CHANNEL_LOG,         /* code: the level (shard/base/log.h), text: one line of the server's log */
	/* supervisor to server */
	FS_CHANNEL_STOP,   /* unmount and end */
	FS_CHANNEL_ANSWER, /* code, text */
};

struct fs_channel_message {
	uint32_t kind; /* enum fs_channel_kind */
	uint32_t id;   /* the same in a question and its answer; else 0 */
	int32_t code;
	union {
		struct fs_channel_mount mount; /* FS_CHANNEL_MOUNTED */
		char text[PATH_MAX];           /* every other kind; ends with NUL */
	};
};

/* Sends a message, and the descriptor `fd` with it (-1: none).  Waits until the socket has room.
 * Returns 0; -EPIPE: the other side has ended; another -errno of sendmsg(2).  Any thread. */
int fs_channel_send(int channel, const struct fs_channel_message *message, int fd);

/* Sends a message with this kind, code and text (may be NULL; cut to PATH_MAX - 1 bytes).
 * Waits and returns as fs_channel_send.  Any thread. */
int fs_channel_say(int channel, enum fs_channel_kind kind, int code, const char *text);

/* As fs_channel_say, but never waits.  -EAGAIN: the other side does not read, so the socket is full.  Any thread. */
int fs_channel_try(int channel, enum fs_channel_kind kind, int code, const char *text);

/* Sends a question to the supervisor and waits for its answer, at most timeout_ms in all (-1: without limit).  Drops
 * answers to earlier questions.  If FS_CHANNEL_STOP comes meanwhile, sets *ret_stop and goes on waiting, because the
 * supervisor still answers.
 * Returns 0; -ETIMEDOUT; -EPIPE: the supervisor has ended; another -errno.  The server's main thread. */
int fs_channel_ask(int channel, enum fs_channel_kind kind, int code, const char *text, int timeout_ms, bool *ret_stop,
        struct fs_channel_message *ret_answer);

/* Answers the question `id` with code and text (may be NULL).  Returns as fs_channel_try.  The supervisor. */
int fs_channel_answer(int channel, uint32_t id, int code, const char *text);

/* Receives one message, also what the other side sent before it ended.  flags: of recvmsg(2).  *ret_fd is the
 * descriptor that came with it (close-on-exec), or -1; the caller closes it.  Returns 0; -EPIPE: the other side has
 * ended; -EAGAIN: there is no message (with MSG_DONTWAIT); -EPROTO: the packet is not a valid message; another -errno.
 * Main of either process. */
int fs_channel_receive(int channel, int flags, struct fs_channel_message *ret_message, int *ret_fd);

#endif
