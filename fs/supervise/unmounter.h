/* SPDX-License-Identifier: Apache-2.0 */
/* Unmounts in a process of its own: umount(2) waits for the server, whose death the supervisor must be able to see.
 *
 * One process at a time.  A request that comes while one runs waits for its end.  A newer one takes the place of the one
 * that waits, for a server waits for the answer to its newest request only.
 *
 * Threads: the supervisor's only one. */
#ifndef DDPFS_FS_SUPERVISE_UNMOUNTER_H
#define DDPFS_FS_SUPERVISE_UNMOUNTER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct fs_unmount_request {
	uint32_t id;  /* of the server's message */
	pid_t server; /* who asked; 0: nobody */
	bool lazy;
};

struct fs_unmounter {
	/* Called in the new process, which has no descriptors but 0, 1 and 2.  Returns 0 or -errno, at least -255. */
	int (*unmount)(void *arg, bool lazy);
	/* Called once for each request that ran, or could not. */
	void (*answer)(void *arg, const struct fs_unmount_request *request, int rc);
	void *arg;
	pid_t pid; /* 0: none runs */
	struct fs_unmount_request running;
	struct fs_unmount_request next; /* server 0: none waits */
};

/* Starts the process, or lets the request wait for the one that runs. */
void fs_unmounter_ask(struct fs_unmounter *unmounter, const struct fs_unmount_request *request);

/* A child of the supervisor has ended, with waitpid(2)'s status.  False: it was another one. */
bool fs_unmounter_ended(struct fs_unmounter *unmounter, pid_t pid, int status);

#endif
