/* SPDX-License-Identifier: Apache-2.0 */
/* Reads through io_uring, with registered files and landing memory; prefetch/io_backend.h first. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "prefetch/io_backend.h"
#include "prefetch/ring.h"

enum {
	RING_ENTRIES = 512,                  /* operations in one submission */
	RING_RESULTS = PREFETCH_OPS_MAX + 2, /* in flight: also the read of wake_fd, and liburing's time limit */
};

/* NEW: not used yet.  FIXED: registered with the ring.  PLAIN: registering it failed. */
enum segment_state { SEGMENT_NEW, SEGMENT_FIXED, SEGMENT_PLAIN };

struct uring_io {
	struct prefetch_io_backend base;
	struct io_uring ring;
	const struct cache_arena *arena;
	uint32_t files;     /* entries of the table of registered files; 0: it is not used */
	bool buffers;       /* the table of registered buffers exists */
	bool wake_armed;    /* a read of wake_fd is in the ring */
	int wake_fd;        /* eventfd */
	uint64_t wake_buf;  /* where that read lands */
	uint8_t segments[]; /* enum segment_state of each arena segment */
};

static struct uring_io *uring_of(struct prefetch_io_backend *io)
{
	return (struct uring_io *)io;
}

static struct io_uring_sqe *get_sqe(struct uring_io *u)
{
	struct io_uring_sqe *sqe;
	while (!(sqe = io_uring_get_sqe(&u->ring)))
		io_uring_submit(&u->ring); /* the queue is full; the kernel takes all its entries */
	return sqe;
}

/* Returns whether a segment is registered.  It registers the segment at its first use, because that pins its pages:
 * unused memory stays unpinned, and mounting stays quick.  All processes of a user share RLIMIT_MEMLOCK; when it is
 * spent, plain reads are used. */
static bool segment_fixed(struct uring_io *u, uint32_t segment)
{
	if (!u->buffers)
		return false;
	if (u->segments[segment] == SEGMENT_NEW) {
		struct iovec iov = {
			.iov_base = cache_arena_segment(u->arena, segment),
			.iov_len = CACHE_SEGMENT,
		};
		__u64 tag = 0;
		int rc = io_uring_register_buffers_update_tag(&u->ring, segment, &iov, &tag, 1);
		u->segments[segment] = rc == 1 ? SEGMENT_FIXED : SEGMENT_PLAIN;
	}
	return u->segments[segment] == SEGMENT_FIXED;
}

static void uring_submit(struct prefetch_io_backend *io, struct prefetch_op *op)
{
	struct uring_io *u = uring_of(io);
	bool fixed = segment_fixed(u, op->segment);
	struct io_uring_sqe *sqe = get_sqe(u);
	bool registered = op->entry < u->files;
	int fd = registered ? (int)op->entry : op->object->fd;
	if (fixed)
		io_uring_prep_read_fixed(sqe, fd, op->data, op->len, op->offset, (int)op->segment);
	else
		io_uring_prep_read(sqe, fd, op->data, op->len, op->offset);
	if (registered)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, op);
}

static void arm_wake(struct uring_io *u)
{
	struct io_uring_sqe *sqe = get_sqe(u);
	io_uring_prep_read(sqe, u->wake_fd, &u->wake_buf, sizeof(u->wake_buf), 0);
	io_uring_sqe_set_data(sqe, NULL);
	u->wake_armed = true;
}

static void uring_wait(struct prefetch_io_backend *io, int64_t timeout_ns, struct prefetch_op **ret_done)
{
	struct uring_io *u = uring_of(io);
	struct io_uring_cqe *cqe = NULL;
	if (!u->wake_armed)
		arm_wake(u);
	if (timeout_ns < 0) {
		io_uring_submit_and_wait(&u->ring, 1);
	} else if (timeout_ns == 0) {
		io_uring_submit_and_get_events(&u->ring);
	} else {
		struct __kernel_timespec ts = {
			.tv_sec = timeout_ns / 1000000000,
			.tv_nsec = timeout_ns % 1000000000,
		};
		io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &ts, NULL);
	}
	unsigned head, n = 0;
	struct prefetch_op *done = NULL, **tail = &done;
	io_uring_for_each_cqe(&u->ring, head, cqe)
	{
		n++;
		/* Without IORING_FEAT_EXT_ARG (before Linux 5.11), liburing submits its own operation for the time
		 * limit. */
		if (cqe->user_data == LIBURING_UDATA_TIMEOUT)
			continue;
		struct prefetch_op *op = io_uring_cqe_get_data(cqe);
		if (!op) {
			u->wake_armed = false;
			continue;
		}
		op->res = cqe->res;
		op->next = NULL;
		*tail = op;
		tail = &op->next;
	}
	io_uring_cq_advance(&u->ring, n);
	*ret_done = done;
}

static void uring_wake(struct prefetch_io_backend *io)
{
	uint64_t one = 1;
	while (write(uring_of(io)->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static void uring_set_file(struct prefetch_io_backend *io, uint32_t entry, int fd)
{
	struct uring_io *u = uring_of(io);
	/* After an update that failed the table is not reliable, so it is not used from then on. */
	if (entry < u->files && io_uring_register_files_update(&u->ring, entry, &fd, 1) != 1)
		u->files = 0;
}

static void uring_free(struct prefetch_io_backend *io)
{
	struct uring_io *u = uring_of(io);
	/* Closing the ring cancels the read of the eventfd. */
	prefetch_ring_exit(&u->ring);
	close(u->wake_fd);
	free(u);
}

static const struct prefetch_io_ops uring_ops = {
	.submit = uring_submit,
	.wait = uring_wait,
	.wake = uring_wake,
	.set_file = uring_set_file,
	.free = uring_free,
};

/* Makes a ring with the cheapest flags that this kernel knows: DEFER_TASKRUN needs 6.1, COOP_TASKRUN 5.19, R_DISABLED
 * 5.10. */
static int init_ring(struct io_uring *ring)
{
	static const unsigned flags[] = {
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_R_DISABLED | IORING_SETUP_COOP_TASKRUN,
		IORING_SETUP_R_DISABLED,
		0,
	};
	int rc = -EINVAL;
	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]) && rc == -EINVAL; i++) {
		memset(ring, 0, sizeof(*ring));
		rc = prefetch_ring_init(ring, RING_ENTRIES, RING_RESULTS, flags[i] | IORING_SETUP_CLAMP);
	}
	return rc;
}

int prefetch_io_uring_probe(uint64_t *ret_segment_bytes, int *ret_register)
{
	struct io_uring ring;
	int rc = init_ring(&ring);
	if (rc < 0)
		return rc;
	void *segment = mmap(NULL, CACHE_SEGMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (segment == MAP_FAILED)
		rc = -errno;
	struct iovec iov = { .iov_base = segment, .iov_len = CACHE_SEGMENT };
	int registered = rc == 0 ? io_uring_register_buffers(&ring, &iov, 1) : 0;
	prefetch_ring_exit(&ring);
	if (segment != MAP_FAILED)
		munmap(segment, CACHE_SEGMENT);
	if (rc < 0)
		return rc;
	*ret_segment_bytes = CACHE_SEGMENT;
	*ret_register = registered;
	return 0;
}

int prefetch_io_uring(uint32_t files, const struct cache_arena *arena, struct prefetch_io_backend **ret_io)
{
	uint32_t n = cache_arena_segments(arena);
	struct uring_io *u = calloc(1, sizeof(*u) + n);
	if (!u)
		return -ENOMEM;
	u->base = (struct prefetch_io_backend){ .ops = &uring_ops, .uring = true };
	u->arena = arena;
	u->wake_fd = eventfd(0, EFD_CLOEXEC);
	int rc = u->wake_fd < 0 ? -errno : init_ring(&u->ring);
	if (rc < 0) {
		if (u->wake_fd >= 0)
			close(u->wake_fd);
		free(u);
		return rc;
	}
	if (io_uring_register_files_sparse(&u->ring, files) == 0)
		u->files = files;
	u->buffers = n <= 1U << 14 && io_uring_register_buffers_sparse(&u->ring, n) == 0;
	rc = u->ring.flags & IORING_SETUP_R_DISABLED ? prefetch_ring_restrict(&u->ring) : 0;
	if (rc < 0) {
		uring_free(&u->base);
		return rc;
	}
	*ret_io = &u->base;
	return 0;
}
