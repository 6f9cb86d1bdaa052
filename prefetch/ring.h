/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, restricts and ends rings of io_uring, and tells ThreadSanitizer about them.
 *
 * liburing maps and unmaps a ring by its own system calls, which the sanitizer does not see.  If one thread's ring
 * ends and another thread's ring gets the same address, their writes look like a race on one ring.  But the kernel
 * orders the munmap before the mmap that reuses the address: PREFETCH_RING_MAPPED and PREFETCH_RING_UNMAPPING tell it
 * to the sanitizer.
 *
 * Threads: a ring belongs to one thread. */
#ifndef DDPFS_PREFETCH_RING_H
#define DDPFS_PREFETCH_RING_H

#include <errno.h>
#include <liburing.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

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
/* Any address serves that is the same for all rings of the process. */
#define PREFETCH_RING_MAPPED() __tsan_acquire((void *)(uintptr_t)io_uring_queue_exit)
#define PREFETCH_RING_UNMAPPING() __tsan_release((void *)(uintptr_t)io_uring_queue_exit)
#else
#define PREFETCH_RING_MAPPED() ((void)0)
#define PREFETCH_RING_UNMAPPING() ((void)0)
#endif

/* Returns 0 when the ring can be entered, or -errno.  A seccomp filter can allow io_uring_setup(2) and refuse
 * io_uring_enter(2); a call that submits nothing shows it.  EBADFD is the kernel's answer for a ring that was made with
 * IORING_SETUP_R_DISABLED. */
static inline int prefetch_ring_probe(const struct io_uring *ring)
{
	long rc = syscall(SYS_io_uring_enter, ring->ring_fd, 0, 0, 0, NULL, (size_t)0);
	return rc < 0 && errno != EBADFD ? -errno : 0;
}

/* Makes a ring, and checks that it can be entered.  It has room for the results of `results` operations, or, if that is
 * 0, of twice `entries`.
 * Returns 0, -EPERM, -EACCES or -ENOSYS (making or entering a ring is refused here), or another error of
 * io_uring_setup(2). */
static inline int prefetch_ring_init(struct io_uring *ring, unsigned entries, unsigned results, unsigned flags)
{
	struct io_uring_params params = {
		.flags = flags | (results ? IORING_SETUP_CQSIZE : 0),
		.cq_entries = results,
	};
	int rc = io_uring_queue_init_params(entries, ring, &params);
	if (rc < 0)
		return rc;
	PREFETCH_RING_MAPPED();
	rc = prefetch_ring_probe(ring);
	if (rc < 0) {
		PREFETCH_RING_UNMAPPING();
		io_uring_queue_exit(ring);
	}
	return rc;
}

/* Enables a ring that was made with IORING_SETUP_R_DISABLED, for reads and updates of its tables only.  This is needed
 * because a seccomp filter does not see what goes through a ring.
 * Returns 0 or -errno; then the ring cannot be used. */
static inline int prefetch_ring_restrict(struct io_uring *ring)
{
	struct io_uring_restriction only[] = {
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_READ_FIXED },
		{ .opcode = IORING_RESTRICTION_SQE_OP,
		        .sqe_op = IORING_OP_TIMEOUT }, /* liburing's, before Linux 5.11 */
		{ .opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED, .sqe_flags = IOSQE_FIXED_FILE },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_FILES_UPDATE },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_BUFFERS_UPDATE },
	};
	/* liburing 2.3 does not export its functions for these. */
	if (syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_RESTRICTIONS, only,
	            sizeof(only) / sizeof(only[0])) < 0 ||
	        syscall(SYS_io_uring_register, ring->ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
		return -errno;
	return 0;
}

/* Ends a ring. */
static inline void prefetch_ring_exit(struct io_uring *ring)
{
	PREFETCH_RING_UNMAPPING();
	io_uring_queue_exit(ring);
}

#endif
