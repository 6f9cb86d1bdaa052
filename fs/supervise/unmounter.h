/* SPDX-License-Identifier: Apache-2.0 */
/* The unmounter: a process of its own that unmounts, because umount(2) waits for the server, and the supervisor must
 * see the server's death meanwhile.
 *
 * One such process runs at a time.  A request that comes meanwhile waits for its end.  A newer request replaces the
 * one that waits, because a server waits for the answer to its newest request only.
 *
 * Threads: main of the supervisor. */
#ifndef DDPFS_FS_SUPERVISE_UNMOUNTER_H
#define DDPFS_FS_SUPERVISE_UNMOUNTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fs_unmount_request {
	uint32_t id;  /* of the server's message */
	pid_t server; /* who asked; 0: nobody */
	bool lazy;    /* detach the mount if it is busy */
};

/* The caller sets unmount, answer and arg; the rest is 0 at first and belongs to the unmounter. */
struct fs_unmounter {
	/* Unmounts.  Runs in the new process, which has only the descriptors 0, 1 and 2.  Returns 0 or -errno, at
	 * least -255. */
	int (*unmount)(void *arg, bool lazy);
	/* Called once for each request whose process ended (rc: what `unmount` returned; -EIO: a signal killed it),
	 * or could not be started (rc: -errno of fork(2)).  Never called for a request that a newer one replaced. */
	void (*answer)(void *arg, const struct fs_unmount_request *request, int rc);
	void *arg;
	pid_t pid;                         /* of the process; 0: none runs */
	struct fs_unmount_request running; /* what `pid` does */
	struct fs_unmount_request next;    /* waits for the end of `pid`; server 0: none waits */
};

/* Starts the process for this request.  If one runs already, the request waits for its end. */
void fs_unmounter_ask(struct fs_unmounter *unmounter, const struct fs_unmount_request *request);

/* Takes in that the child `pid` of the supervisor has ended with waitpid(2)'s `status`.  Answers its request and
 * starts the one that waits.  Returns false if `pid` is not the unmounter's process. */
bool fs_unmounter_ended(struct fs_unmounter *unmounter, pid_t pid, int status);

#endif
