/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one large file from front to back (prefetch_bulk_stream); prefetch/bulk.h first.
 *
 *   piece:   0    1    2    3    4    5 ...        each STREAM_PIECE bytes, buffer = piece % STREAM_DEPTH
 *            ^deliver            ^submitted
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "prefetch/bulk.h"
#include "prefetch/ring.h"
#include "shard/base/cleanup.h"
#include "shard/base/io.h"

/* The caller works on one piece while the next one is read.  More are not needed, because callers run several streams
 * at the same time.  With many long reads in flight a device is slower: 8 pieces give 0.75 of its sequential rate, 2
 * give all of it. */
enum { STREAM_PIECE = 1 << 20, STREAM_DEPTH = 2 };

struct piece_buffer {
	uint8_t *buf;
	uint32_t len;   /* bytes of the file in this piece */
	uint32_t reads; /* bytes asked for: len, rounded up for direct reads */
	bool busy;
	int rc; /* 0 or -errno; -EAGAIN: read it again, blocking and buffered */
};

struct stream {
	int fd;     /* reads through the page cache */
	int direct; /* reads with O_DIRECT; -1: none */
	struct io_uring ring;
	bool uring;
	uint8_t *memory;
	struct piece_buffer buffers[STREAM_DEPTH];
	uint64_t start, end;
};

static uint64_t piece_offset(const struct stream *stream, uint64_t piece)
{
	return stream->start + piece * STREAM_PIECE;
}

static void stream_done(struct stream *stream)
{
	if (stream->uring)
		prefetch_ring_exit(&stream->ring);
	if (stream->direct >= 0)
		close(stream->direct);
	if (stream->fd >= 0)
		close(stream->fd);
	free(stream->memory);
}

static int stream_init(struct stream *stream, const char *path)
{
	stream->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (stream->fd < 0)
		return -errno;
	struct stat st;
	if (fstat(stream->fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	fcntl(stream->fd, F_SETFL, O_RDONLY); /* without O_NONBLOCK: the ring would return -EAGAIN */
	stream->memory = aligned_alloc(PREFETCH_BULK_ALIGN, (size_t)STREAM_DEPTH * STREAM_PIECE);
	if (!stream->memory)
		return -ENOMEM;
	for (unsigned i = 0; i < STREAM_DEPTH; i++)
		stream->buffers[i].buf = stream->memory + (size_t)i * STREAM_PIECE;
	if (stream->start % PREFETCH_BULK_ALIGN == 0)
		stream->direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT | O_NOCTTY);
	stream->uring = prefetch_ring_init(&stream->ring, STREAM_DEPTH, 0, 0) == 0;
	if (!stream->uring)
		posix_fadvise(stream->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return 0;
}

/* Starts the read of a piece: from the page cache at once, else through the ring. */
static void submit(struct stream *stream, uint64_t piece)
{
	struct piece_buffer *buffer = &stream->buffers[piece % STREAM_DEPTH];
	uint64_t offset = piece_offset(stream, piece);
	buffer->len = (uint32_t)(stream->end - offset < STREAM_PIECE ? stream->end - offset : STREAM_PIECE);
	buffer->rc = -EAGAIN;
	buffer->busy = false;
	struct iovec iov = { .iov_base = buffer->buf, .iov_len = buffer->len };
	if (preadv2(stream->fd, &iov, 1, (off_t)offset, RWF_NOWAIT) == (ssize_t)buffer->len) {
		buffer->rc = 0;
		return;
	}
	struct io_uring_sqe *sqe = stream->uring ? io_uring_get_sqe(&stream->ring) : NULL;
	if (!sqe)
		return; /* read when it is due */
	bool direct = stream->direct >= 0;
	buffer->reads = direct ? (buffer->len + PREFETCH_BULK_ALIGN - 1) / PREFETCH_BULK_ALIGN * PREFETCH_BULK_ALIGN
	                       : buffer->len;
	io_uring_prep_read(sqe, direct ? stream->direct : stream->fd, buffer->buf, buffer->reads, offset);
	io_uring_sqe_set_data(sqe, buffer);
	buffer->busy = true;
	io_uring_submit(&stream->ring);
}

static int wait_for(struct stream *stream, struct piece_buffer *buffer)
{
	while (buffer->busy) {
		struct io_uring_cqe *cqe;
		int rc = io_uring_wait_cqe(&stream->ring, &cqe);
		if (rc == -EINTR)
			continue;
		if (rc)
			return rc;
		struct piece_buffer *done = io_uring_cqe_get_data(cqe);
		/* A short or failed read is done again with pread, which tells what is wrong. */
		done->rc = cqe->res >= 0 && (uint32_t)cqe->res >= done->len ? 0 : -EAGAIN;
		done->busy = false;
		io_uring_cqe_seen(&stream->ring, cqe);
	}
	return 0;
}

static void drain(struct stream *stream)
{
	for (unsigned i = 0; i < STREAM_DEPTH; i++)
		if (wait_for(stream, &stream->buffers[i]))
			return;
}

int prefetch_bulk_stream(const char *path, uint64_t offset, uint64_t len,
        int (*chunk)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, uint64_t *ret_offset)
{
	struct stream stream = { .fd = -1, .direct = -1, .start = offset, .end = offset + len };
	uint64_t at = offset;
	int rc = stream_init(&stream, path);
	uint64_t n_pieces = (len + STREAM_PIECE - 1) / STREAM_PIECE, submitted = 0;
	for (uint64_t piece = 0; rc == 0 && piece < n_pieces; piece++) {
		for (; submitted < n_pieces && submitted < piece + STREAM_DEPTH; submitted++)
			submit(&stream, submitted);
		struct piece_buffer *buffer = &stream.buffers[piece % STREAM_DEPTH];
		at = piece_offset(&stream, piece);
		rc = wait_for(&stream, buffer);
		if (rc == 0 && buffer->rc == -EAGAIN)
			buffer->rc = base_pread_full(stream.fd, buffer->buf, buffer->len, at);
		if (rc == 0)
			rc = buffer->rc;
		if (rc == 0)
			rc = chunk(arg, at, buffer->buf, buffer->len);
	}
	if (rc == 0)
		at = stream.end;
	drain(&stream);
	stream_done(&stream);
	if (ret_offset)
		*ret_offset = at;
	return rc;
}
