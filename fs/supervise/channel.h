/* SPDX-License-Identifier: Apache-2.0 */
/* What ties a server to its supervisor (fs/supervise/supervisor.h): the things it is handed, and a socket for a few messages.
 *
 * A server that dies leaves nothing behind but what its supervisor keeps: /dev/fuse, the kernel's INIT, the inotify
 * descriptors with the watches and the events not yet read, the control socket, and the memory of fs/estate.h.
 *
 * The socket is SOCK_SEQPACKET: one message, one packet.  Its end is the death of the server: threads that can outlive the
 * others in the kernel have closed their copy (fs/detached_thread.h).  Each side takes the other's messages for a stranger's: lengths,
 * kinds and texts are checked.
 *
 * Threads: main of either process. */
#ifndef DDPFS_FS_SUPERVISE_CHANNEL_H
#define DDPFS_FS_SUPERVISE_CHANNEL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { FS_INIT_BYTES_MAX = 256, FS_IDENTITY_BYTES = 16 };

/* What stands once it is mounted, and every successor goes on with. */
struct fs_channel_mount {
	uint64_t dev;                        /* st_dev */
	uint64_t memory_bytes;               /* the budget that the first server began with */
	uint8_t identity[FS_IDENTITY_BYTES]; /* of the dataset: a successor must find the same */
	uint32_t init_len;
	uint8_t init[FS_INIT_BYTES_MAX]; /* the kernel's INIT request */
	bool fusermount;                 /* mounted through the set-uid helper */
	bool resends;                    /* the kernel hands out again what a dead server had (6.9) */
	bool cloned;                     /* each server has a clone of the descriptor, whose end ends its requests */
};

/* What a server gets. */
struct fs_channel {
	pid_t supervisor;
	int channel;              /* the socket's server end */
	int estate_fd;            /* memfd of fs/supervise/handover_memory.h */
	int inotify_fd;           /* or -1: there is none to be had */
	int control_fd;           /* listens */
	const char *control_path; /* for messages; not owned */
	int fuse_fd;              /* -1: the first server, which mounts */
	struct fs_channel_mount mount;
	uint64_t started_ns; /* of the mount, CLOCK_MONOTONIC */
	uint32_t restarts;   /* servers before this one */
	uint32_t beat_ms;    /* how often to say that all is well; 0: never */
	uint32_t hang_ms;    /* a request that takes so long hangs */
};

enum fs_channel_kind {
	/* to the supervisor */
	FS_CHANNEL_MOUNTED = 1, /* mount, with /dev/fuse */
	FS_CHANNEL_READY,       /* the mount answers */
	FS_CHANNEL_FAILED,      /* code, text: it ends without having served */
	FS_CHANNEL_CRASHED,     /* code: the signal; its end is near, but a core may come first */
	FS_CHANNEL_ENDING,      /* it unmounts, or was unmounted: no successor */
	FS_CHANNEL_UNMOUNT,     /* code: 1: lazily; answered: what fs_unmount returned */
	FS_CHANNEL_RESTART,     /* text: the program that is to go on; answered */
	FS_CHANNEL_GO,          /* ... and now do it */
	FS_CHANNEL_GREET,       /* the other mounts are to be told of this one anew (fs/host_sharing.h) */
	FS_CHANNEL_LOG,         /* code: the level (shard/base/log.h), text: a line of its log */
	/* to the server */
	FS_CHANNEL_STOP,   /* unmount and end */
	FS_CHANNEL_ANSWER, /* code, text */
};

struct fs_channel_message {
	uint32_t kind;
	uint32_t id; /* of a request that is answered, and of its answer; else 0 */
	int32_t code;
	union {
		struct fs_channel_mount mount;
		char text[PATH_MAX];
	};
};

/* fd: a descriptor that goes along, or -1.  -EPIPE, ... */
int fs_channel_send(int channel, const struct fs_channel_message *message, int fd);
int fs_channel_say(int channel, enum fs_channel_kind kind, int code, const char *text); /* text may be NULL */
/* The same, but never waits: -EAGAIN when the other side does not read. */
int fs_channel_try(int channel, enum fs_channel_kind kind, int code, const char *text);

/* Asks the supervisor and waits for the answer to this question, timeout_ms in all (-1: without end).  Answers to
 * earlier questions are dropped.  *ret_stop becomes true when FS_CHANNEL_STOP comes meanwhile; the wait goes on, because the
 * supervisor answers all the same.  -ETIMEDOUT; -EPIPE: the supervisor is gone; -errno.  The server's main thread. */
int fs_channel_ask(int channel, enum fs_channel_kind kind, int code, const char *text, int timeout_ms, bool *ret_stop,
        struct fs_channel_message *ret_answer);
/* What the supervisor says to that. */
int fs_channel_answer(int channel, uint32_t id, int code, const char *text); /* text may be NULL */

/* *ret_fd is the descriptor that came along, close-on-exec, or -1.  -EPIPE: the other side is gone; -EAGAIN (with MSG_DONTWAIT
 * in flags); -EPROTO: no message of ours. */
int fs_channel_receive(int channel, int flags, struct fs_channel_message *ret_message, int *ret_fd);

#endif
