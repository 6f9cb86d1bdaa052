/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup attributes: a variable with one releases its object at the end of its scope.
 *
 * steal_* takes the object out of the variable, so that the scope does not release it.
 * Threads: any. */
#ifndef DDPFS_SHARD_BASE_CLEANUP_H
#define DDPFS_SHARD_BASE_CLEANUP_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void base_cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void base_cleanup_close(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void base_cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void base_cleanup_closedir(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define cleanup_free __attribute__((cleanup(base_cleanup_free)))
#define cleanup_close __attribute__((cleanup(base_cleanup_close)))
#define cleanup_fclose __attribute__((cleanup(base_cleanup_fclose)))
#define cleanup_closedir __attribute__((cleanup(base_cleanup_closedir)))

/* Returns the value of a cleanup variable, and leaves the empty value in it. */
static inline int steal_fd(int *fd)
{
	int taken = *fd;
	*fd = -1;
	return taken;
}

static inline void *steal_ptr_raw(void *pp)
{
	void *taken = *(void **)pp;
	*(void **)pp = NULL;
	return taken;
}
#define steal_ptr(pp) ((__typeof__(*(pp)))steal_ptr_raw(pp))

#endif
