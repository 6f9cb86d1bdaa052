/* SPDX-License-Identifier: Apache-2.0 */
/* Reads many files at the same time, through io_uring or by threads; prefetch/bulk.h first. */
#include "prefetch/bulk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "prefetch/ring.h"
#include "shard/base/cleanup.h"
#include "shard/base/units.h"

/* The steps of a file, one at a time:
 *
 *   openat (ring) -> statx -> preadv2(RWF_NOWAIT): all cached? -> statx -> close -> done
 *                                 \-> O_DIRECT read (ring) ... ->/
 *
 * openat goes through the ring, because it blocks when the directory or the inode is not in memory.  After a scan
 * they are, and it does not block.  statx and close of an open local file do not block.  IORING_OP_STATX would always
 * wake a worker thread. */

enum {
	BOUNCE_BYTES = 256 * 1024, /* direct reads up to this size can go through a buffer of the object */
	READ_MAX = 8 << 20,        /* bytes of one read */
	FALLBACK_THREADS = 16,
	/* O_NONBLOCK, because the open of a FIFO in the place of a file would block. */
	OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
};

/* FREE -> OPENING -> READING -> DONE -> FREE; a cached file has no READING. */
enum entry_state { ENTRY_FREE, ENTRY_OPENING, ENTRY_READING, ENTRY_DONE };

/* An entry of the table of files that are being read. */
struct entry {
	struct prefetch_bulk_file *file;
	enum entry_state state;
	int fd;
	bool direct;        /* the descriptor has O_DIRECT set */
	bool bounced;       /* reads go to `bounce` */
	uint64_t done;      /* bytes of `want` that are in place */
	uint8_t *bounce;    /* BOUNCE_BYTES, aligned */
	struct entry *next; /* in the free or done list */
};

struct prefetch_bulk {
	struct io_uring ring;
	bool uring;
	uint32_t depth;
	uint32_t in_flight; /* submitted, not reaped */
	struct entry *entries;
	struct entry *free_entries, *done_entries;
	uint8_t *bounce_memory;
	/* Without io_uring; `lock` guards queue, done_entries and stop. */
	pthread_t threads[FALLBACK_THREADS];
	uint32_t n_threads;
	pthread_mutex_t lock;
	pthread_cond_t queued, finished;
	struct entry *queue;
	bool stop;
};

static void push(struct entry **list, struct entry *entry)
{
	entry->next = *list;
	*list = entry;
}

static struct entry *pop(struct entry **list)
{
	struct entry *entry = *list;
	if (entry)
		*list = entry->next;
	return entry;
}

/* Checks that this is still the file that was scanned.  *ret_mem_align, *ret_offset_align: alignment of direct reads;
 * 0: there are none.
 * Returns 0, -ESTALE or an error of statx(2). */
static int check_identity(
        const struct prefetch_bulk_file *file, int fd, uint32_t *ret_mem_align, uint32_t *ret_offset_align)
{
	struct statx stx;
	if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_INO | STATX_DIOALIGN, &stx))
		return -errno;
	int64_t mtime_ns = base_time_ns(stx.stx_mtime.tv_sec, stx.stx_mtime.tv_nsec);
	if (!S_ISREG(stx.stx_mode) || stx.stx_size != file->expect_size || mtime_ns != file->expect_mtime_ns ||
	        stx.stx_ino != file->expect_ino)
		return -ESTALE;
	bool known = stx.stx_mask & STATX_DIOALIGN;
	if (ret_mem_align)
		*ret_mem_align = known ? stx.stx_dio_mem_align : 0;
	if (ret_offset_align)
		*ret_offset_align = known ? stx.stx_dio_offset_align : 0;
	return 0;
}

static uint64_t round_up(uint64_t value, uint64_t align)
{
	return (value + align - 1) / align * align;
}

/* Decides whether a file is read with O_DIRECT, and into which buffer. */
static void choose_read(struct entry *entry, uint32_t mem_align, uint32_t offset_align)
{
	const struct prefetch_bulk_file *file = entry->file;
	if (!mem_align || !offset_align || mem_align > PREFETCH_BULK_ALIGN || offset_align > PREFETCH_BULK_ALIGN ||
	        file->offset % offset_align)
		return;
	uint64_t rounded = round_up(file->want, offset_align);
	bool in_place = (uintptr_t)file->buf % mem_align == 0 && rounded <= file->room;
	if (!in_place && rounded > BOUNCE_BYTES)
		return;
	if (fcntl(entry->fd, F_SETFL, O_RDONLY | O_DIRECT))
		return;
	entry->direct = true;
	entry->bounced = !in_place;
}

static void go_buffered(struct entry *entry)
{
	entry->direct = entry->bounced = false;
	fcntl(entry->fd, F_SETFL, O_RDONLY);
}

/* Copies the range from the page cache.  Returns 1 when all of it was there. */
static int read_cached(struct entry *entry)
{
	struct prefetch_bulk_file *file = entry->file;
	if (file->want == 0)
		return 1;
	struct iovec iov = { .iov_base = file->buf, .iov_len = file->want };
	ssize_t n = preadv2(entry->fd, &iov, 1, (off_t)file->offset, RWF_NOWAIT);
	return n == (ssize_t)file->want;
}

/* The second step, after the open.  Returns 1 when the range is complete, 0 when it must be read, or -errno. */
static int opened(struct entry *entry)
{
	uint32_t mem_align, offset_align;
	int rc = check_identity(entry->file, entry->fd, &mem_align, &offset_align);
	if (rc)
		return rc;
	if (read_cached(entry))
		return 1;
	choose_read(entry, mem_align, offset_align);
	if (!entry->direct)
		go_buffered(entry); /* without O_NONBLOCK, because the ring would return -EAGAIN instead of waiting */
	return 0;
}

/* Gives the next read of a file: buffer, bytes and offset in the file. */
static void next_read(const struct entry *entry, uint8_t **ret_buf, uint32_t *ret_len, uint64_t *ret_offset)
{
	const struct prefetch_bulk_file *file = entry->file;
	uint64_t left = file->want - entry->done;
	uint64_t len = left > READ_MAX ? READ_MAX : left;
	if (entry->direct)
		len = round_up(len, PREFETCH_BULK_ALIGN) <= file->room - entry->done || entry->bounced
		              ? round_up(len, PREFETCH_BULK_ALIGN)
		              : round_up(len, 512);
	*ret_buf = (entry->bounced ? entry->bounce : file->buf) + entry->done;
	*ret_len = (uint32_t)len;
	*ret_offset = file->offset + entry->done;
}

/* Takes the result of a read.  Returns 1 when the range is complete, 0 to read on, or -errno. */
static int landed(struct entry *entry, int res)
{
	struct prefetch_bulk_file *file = entry->file;
	if (res == -EINTR || res == -EAGAIN)
		return 0;
	if (res == -EINVAL && entry->direct) {
		entry->done = 0;
		go_buffered(entry);
		return 0;
	}
	if (res < 0)
		return res;
	if (res == 0)
		return -ESTALE; /* the file is shorter than when it was scanned */
	entry->done += (uint64_t)res;
	if (entry->done >= file->want) {
		if (entry->bounced)
			memcpy(file->buf, entry->bounce, file->want);
		return 1;
	}
	/* After a short read that ends off the alignment, O_DIRECT cannot go on. */
	if (entry->direct && entry->done % PREFETCH_BULK_ALIGN) {
		if (entry->bounced)
			memcpy(file->buf, entry->bounce, entry->done);
		go_buffered(entry);
	}
	return 0;
}

/* The last step of a file: checks that it has not changed, and closes it. */
static void finish(struct entry *entry, int rc)
{
	if (rc == 0 && entry->fd >= 0)
		rc = check_identity(entry->file, entry->fd, NULL, NULL);
	if (entry->fd >= 0)
		close(entry->fd);
	entry->fd = -1;
	entry->file->rc = rc;
	entry->state = ENTRY_DONE;
}

/* io_uring */

/* Returns a submission queue entry (SQE).  The ring has one SQE for each file in flight, and a file has one operation
 * at a time, so an SQE is free after a submit. */
static struct io_uring_sqe *get_sqe(struct prefetch_bulk *bulk, struct entry *entry)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&bulk->ring);
	if (!sqe) {
		io_uring_submit(&bulk->ring);
		sqe = io_uring_get_sqe(&bulk->ring);
	}
	if (!sqe) {
		finish(entry, -EBUSY);
		push(&bulk->done_entries, entry);
	}
	return sqe;
}

static void queue_open(struct prefetch_bulk *bulk, struct entry *entry)
{
	struct io_uring_sqe *sqe = get_sqe(bulk, entry);
	if (!sqe)
		return;
	io_uring_prep_openat(sqe, entry->file->dirfd, entry->file->path, OPEN_FLAGS, 0);
	io_uring_sqe_set_data(sqe, entry);
	entry->state = ENTRY_OPENING;
}

static void queue_read(struct prefetch_bulk *bulk, struct entry *entry)
{
	uint8_t *buf;
	uint32_t len;
	uint64_t offset;
	next_read(entry, &buf, &len, &offset);
	struct io_uring_sqe *sqe = get_sqe(bulk, entry);
	if (!sqe)
		return;
	io_uring_prep_read(sqe, entry->fd, buf, len, offset);
	io_uring_sqe_set_data(sqe, entry);
	entry->state = ENTRY_READING;
}

static void completed(struct prefetch_bulk *bulk, struct entry *entry, int res)
{
	int rc;
	if (entry->state == ENTRY_OPENING) {
		if (res == -EINTR || res == -EAGAIN) {
			queue_open(bulk, entry);
			return;
		}
		entry->fd = res >= 0 ? res : -1;
		rc = res >= 0 ? opened(entry) : res;
	} else {
		rc = landed(entry, res);
	}
	if (rc == 0) {
		queue_read(bulk, entry);
		return;
	}
	finish(entry, rc > 0 ? 0 : rc);
	push(&bulk->done_entries, entry);
}

static int ring_reap(struct prefetch_bulk *bulk, bool wait)
{
	while (!bulk->done_entries) {
		int rc = io_uring_submit_and_wait(&bulk->ring, wait && bulk->in_flight ? 1 : 0);
		if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
			return rc;
		struct io_uring_cqe *cqe;
		unsigned n = 0;
		while (io_uring_peek_cqe(&bulk->ring, &cqe) == 0) {
			struct entry *entry = io_uring_cqe_get_data(cqe);
			int res = cqe->res;
			io_uring_cqe_seen(&bulk->ring, cqe);
			completed(bulk, entry, res);
			n++;
		}
		if (!wait || (n == 0 && bulk->in_flight == 0))
			break;
	}
	return 0;
}

static int ring_init(struct prefetch_bulk *bulk)
{
	/* Completions are handled only when this thread asks for them, so they do not interrupt it while it hashes. */
	int rc = prefetch_ring_init(
	        &bulk->ring, bulk->depth, 0, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	return rc == -EINVAL ? prefetch_ring_init(&bulk->ring, bulk->depth, 0, 0) : rc; /* older than 6.1 */
}

/* Threads instead */

static void read_blocking(struct entry *entry)
{
	struct prefetch_bulk_file *file = entry->file;
	int rc;
	entry->fd = openat(file->dirfd, file->path, OPEN_FLAGS);
	rc = entry->fd >= 0 ? opened(entry) : -errno;
	while (rc == 0) {
		uint8_t *buf;
		uint32_t len;
		uint64_t offset;
		next_read(entry, &buf, &len, &offset);
		ssize_t n = pread(entry->fd, buf, len, (off_t)offset);
		rc = landed(entry, n < 0 ? -errno : (int)n);
	}
	finish(entry, rc > 0 ? 0 : rc);
}

static void *fallback_thread(void *arg)
{
	struct prefetch_bulk *bulk = arg;
	pthread_mutex_lock(&bulk->lock);
	for (;;) {
		struct entry *entry = pop(&bulk->queue);
		if (!entry) {
			if (bulk->stop)
				break;
			pthread_cond_wait(&bulk->queued, &bulk->lock);
			continue;
		}
		pthread_mutex_unlock(&bulk->lock);
		read_blocking(entry);
		pthread_mutex_lock(&bulk->lock);
		push(&bulk->done_entries, entry);
		pthread_cond_signal(&bulk->finished);
	}
	pthread_mutex_unlock(&bulk->lock);
	return NULL;
}

static int threads_init(struct prefetch_bulk *bulk)
{
	for (uint32_t i = 0; i < FALLBACK_THREADS && i < bulk->depth; i++) {
		int rc = pthread_create(&bulk->threads[i], NULL, fallback_thread, bulk);
		if (rc)
			return i ? 0 : -rc;
		pthread_setname_np(bulk->threads[i], "bulk");
		bulk->n_threads = i + 1;
	}
	return 0;
}

/* Both */

int prefetch_bulk_new(uint32_t depth, unsigned flags, struct prefetch_bulk **ret_bulk)
{
	if (depth == 0 || depth > PREFETCH_BULK_DEPTH_MAX)
		return -EINVAL;
	struct prefetch_bulk *bulk = calloc(1, sizeof(*bulk));
	if (!bulk)
		return -ENOMEM;
	bulk->depth = depth;
	pthread_mutex_init(&bulk->lock, NULL);
	pthread_cond_init(&bulk->queued, NULL);
	pthread_cond_init(&bulk->finished, NULL);
	bulk->entries = calloc(depth, sizeof(*bulk->entries));
	bulk->bounce_memory = aligned_alloc(PREFETCH_BULK_ALIGN, (size_t)depth * BOUNCE_BYTES);
	if (!bulk->entries || !bulk->bounce_memory) {
		prefetch_bulk_free(bulk);
		return -ENOMEM;
	}
	for (uint32_t i = depth; i-- > 0;) {
		bulk->entries[i].fd = -1;
		bulk->entries[i].bounce = bulk->bounce_memory + (size_t)i * BOUNCE_BYTES;
		push(&bulk->free_entries, &bulk->entries[i]);
	}
	bulk->uring = !(flags & PREFETCH_BULK_THREADS) && ring_init(bulk) == 0;
	int rc = bulk->uring ? 0 : threads_init(bulk);
	if (rc) {
		prefetch_bulk_free(bulk);
		return rc;
	}
	*ret_bulk = bulk;
	return 0;
}

void prefetch_bulk_free(struct prefetch_bulk *bulk)
{
	if (!bulk)
		return;
	struct prefetch_bulk_file *file;
	while (bulk->in_flight && prefetch_bulk_reap(bulk, true, &file) > 0)
		;
	if (bulk->uring)
		prefetch_ring_exit(&bulk->ring);
	{
		lock_for_scope(&bulk->lock);
		bulk->stop = true;
		pthread_cond_broadcast(&bulk->queued);
	}
	for (uint32_t i = 0; i < bulk->n_threads; i++)
		pthread_join(bulk->threads[i], NULL);
	pthread_cond_destroy(&bulk->finished);
	pthread_cond_destroy(&bulk->queued);
	pthread_mutex_destroy(&bulk->lock);
	free(bulk->bounce_memory);
	free(bulk->entries);
	free(bulk);
}

int prefetch_bulk_submit(struct prefetch_bulk *bulk, struct prefetch_bulk_file *file)
{
	struct entry *entry = pop(&bulk->free_entries);
	if (!entry)
		return -EAGAIN;
	entry->file = file;
	entry->state = ENTRY_OPENING;
	entry->direct = entry->bounced = false;
	entry->done = 0;
	bulk->in_flight++;
	if (bulk->uring) {
		queue_open(bulk, entry);
		return 0;
	}
	lock_for_scope(&bulk->lock);
	push(&bulk->queue, entry);
	pthread_cond_signal(&bulk->queued);
	return 0;
}

int prefetch_bulk_reap(struct prefetch_bulk *bulk, bool wait, struct prefetch_bulk_file **ret_file)
{
	struct entry *entry;
	if (bulk->uring) {
		int rc = ring_reap(bulk, wait);
		if (rc)
			return rc;
		entry = pop(&bulk->done_entries);
	} else {
		lock_for_scope(&bulk->lock);
		while (!bulk->done_entries && wait && bulk->in_flight)
			pthread_cond_wait(&bulk->finished, &bulk->lock);
		entry = pop(&bulk->done_entries);
	}
	if (!entry)
		return 0;
	*ret_file = entry->file;
	entry->state = ENTRY_FREE;
	bulk->in_flight--;
	push(&bulk->free_entries, entry);
	return 1;
}
