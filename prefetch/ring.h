/* Setting up and taking down rings, so that ThreadSanitizer understands it.
 *
 * liburing maps and unmaps a ring by system calls of its own, which the sanitizer does not see.  When one thread's ring ends
 * and another thread's gets the same address, their writes look like a race on one ring.  The kernel puts the munmap before
 * the mmap that reuses the place; these two say so.
 *
 * Threads: any; a ring belongs to one. */
#ifndef DDPFS_PREFETCH_RING_H
#define DDPFS_PREFETCH_RING_H

#include <liburing.h>
#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define PREFETCH_RING_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PREFETCH_RING_TSAN 1
#endif
#endif

#ifdef PREFETCH_RING_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
/* Any address will do that all rings of the process share. */
#define PREFETCH_RING_MAPPED() __tsan_acquire((void *)(uintptr_t)io_uring_queue_exit)
#define PREFETCH_RING_UNMAPPING() __tsan_release((void *)(uintptr_t)io_uring_queue_exit)
#else
#define PREFETCH_RING_MAPPED() ((void)0)
#define PREFETCH_RING_UNMAPPING() ((void)0)
#endif

/* io_uring_queue_init. */
static inline int prefetch_ring_init(struct io_uring *ring, unsigned entries, unsigned flags)
{
	int rc = io_uring_queue_init(entries, ring, flags);
	if (rc == 0)
		PREFETCH_RING_MAPPED();
	return rc;
}

/* io_uring_queue_exit. */
static inline void prefetch_ring_exit(struct io_uring *ring)
{
	PREFETCH_RING_UNMAPPING();
	io_uring_queue_exit(ring);
}

#endif
