/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup attributes: a variable with one releases its object at the end of its scope, also at a return or a break.
 *
 * steal_* takes the object out of the variable, so that the scope does not release it.
 * lock_for_scope(&x->lock) locks a mutex until the end of the scope.  Where a lock ends before its scope does, use a
 * pair of braces, or the calls of pthread.
 * JSON objects: shard/base/cleanup_json.h.
 * Threads: any. */
#ifndef DDPFS_SHARD_BASE_CLEANUP_H
#define DDPFS_SHARD_BASE_CLEANUP_H

#include <dirent.h>
#include <pthread.h>
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

/* A mutex that is held; NULL: none. */
struct base_lock {
	pthread_mutex_t *mutex;
};

static inline void base_cleanup_unlock(const struct base_lock *lock)
{
	if (lock->mutex)
		pthread_mutex_unlock(lock->mutex);
}

static inline struct base_lock base_locked(pthread_mutex_t *mutex)
{
	if (mutex)
		pthread_mutex_lock(mutex);
	return (struct base_lock){ .mutex = mutex };
}

#define cleanup_free __attribute__((cleanup(base_cleanup_free)))
#define cleanup_close __attribute__((cleanup(base_cleanup_close)))
#define cleanup_fclose __attribute__((cleanup(base_cleanup_fclose)))
#define cleanup_closedir __attribute__((cleanup(base_cleanup_closedir)))
#define cleanup_unlock __attribute__((cleanup(base_cleanup_unlock)))

/* Locks a mutex, and unlocks it at the end of the current scope.  NULL: does nothing.  Variables with cleanup
 * attributes that are declared after it are released first, so under the lock; those declared before it are released
 * without it. */
#define lock_for_scope(mutex) BASE_LOCK_AS(mutex, __COUNTER__)
#define BASE_LOCK_AS(mutex, n) BASE_LOCK_NAMED(mutex, n)
#define BASE_LOCK_NAMED(mutex, n)                                                                                      \
	cleanup_unlock __attribute__((unused)) struct base_lock base_lock_of_scope_##n = base_locked(mutex)

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
