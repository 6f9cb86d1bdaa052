/* SPDX-License-Identifier: Apache-2.0 */
/* Shards as local files, read with O_DIRECT if possible; prefetch/source.h first. */
#include "prefetch/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"

struct local_source {
	struct prefetch_source base;
	const struct shard_index *index;
	enum prefetch_io io;
	int dirfd;
	int64_t opened_ns; /* CLOCK_REALTIME of its start; at most a tick ahead of times of files */
};

static struct local_source *local_of(struct prefetch_source *source)
{
	return (struct local_source *)source;
}

static int64_t mtime_ns(const struct statx *st)
{
	return base_time_ns(st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec);
}

/* Returns 0 when the file is the shard that the index describes, or -ESTALE. */
static int compare(const struct shard_shard *shard, const struct statx *st)
{
	if (!S_ISREG(st->stx_mode) || st->stx_size != shard->size_bytes)
		return -ESTALE;
	if (shard->mtime_ns && mtime_ns(st) != shard->mtime_ns)
		return -ESTALE;
	return 0;
}

static int stat_fd(int fd, struct statx *st)
{
	memset(st, 0, sizeof(*st));
	return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_CTIME | STATX_DIOALIGN, st) <
	                       0
	               ? -errno
	               : 0;
}

/* Returns the alignment for O_DIRECT on this file.  If the file system does not tell it, this is 4096.  0: the file
 * system has no O_DIRECT for this file, or needs an alignment that is too large. */
static uint32_t direct_align(const struct statx *st)
{
	if (!(st->stx_mask & STATX_DIOALIGN))
		return 4096;
	uint32_t align = st->stx_dio_offset_align;
	if (!align || align > PREFETCH_ALIGN_MAX || (align & (align - 1)) || st->stx_dio_mem_align > 4096)
		return 0;
	return align;
}

static int local_open(struct prefetch_source *source, uint32_t shard, struct prefetch_object *ret_object)
{
	struct local_source *local = local_of(source);
	struct shard_shard s;
	int rc = shard_index_shard(local->index, shard, &s);
	if (rc < 0)
		return rc;
	char path[SHARD_PATH_MAX + 1];
	if (s.path_len > SHARD_PATH_MAX || memchr(s.path, 0, s.path_len))
		return -EUCLEAN;
	memcpy(path, s.path, s.path_len);
	path[s.path_len] = 0;

	bool direct = local->io != PREFETCH_IO_BUFFERED;
	/* O_NONBLOCK, because the open of a FIFO in the place of the shard would block the engine. */
	const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	cleanup_close int fd = openat(local->dirfd, path, flags | (direct ? O_DIRECT : 0));
	if (fd < 0 && errno == EINVAL && direct) {
		direct = false;
		fd = openat(local->dirfd, path, flags);
	}
	if (fd < 0)
		return -errno;
	struct statx st;
	rc = stat_fd(fd, &st);
	if (rc == 0)
		rc = compare(&s, &st);
	if (rc < 0)
		return rc;
	uint32_t align = direct ? direct_align(&st) : 1;
	if (!align) {
		direct = false;
		align = 1;
	}
	/* Without O_NONBLOCK, because the ring would return -EAGAIN instead of waiting. */
	if (fcntl(fd, F_SETFL, O_RDONLY | (direct ? O_DIRECT : 0)) < 0)
		return -errno;
	*ret_object = (struct prefetch_object){ .fd = steal_fd(&fd), .align = align, .direct = direct };
	return 0;
}

static void local_close(struct prefetch_source *source, struct prefetch_object *object)
{
	(void)source;
	close(object->fd);
	object->fd = -1;
}

static int local_check(struct prefetch_source *source, uint32_t shard, const struct prefetch_object *object, bool wrong)
{
	struct shard_shard s;
	struct statx st;
	int rc = shard_index_shard(local_of(source)->index, shard, &s);
	if (rc == 0)
		rc = stat_fd(object->fd, &st);
	if (rc == 0)
		rc = compare(&s, &st);
	/* The file was changed since the source was made, even if its mtime was set back. */
	if (rc == 0 && wrong && base_time_ns(st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec) > local_of(source)->opened_ns)
		rc = -ESTALE;
	return rc;
}

static void local_free(struct prefetch_source *source)
{
	close(local_of(source)->dirfd);
	free(source);
}

static const struct prefetch_source_ops local_ops = {
	.open = local_open,
	.close = local_close,
	.check = local_check,
	.free = local_free,
};

int prefetch_source_local(
        const struct shard_index *index, enum prefetch_io io, struct base_err *err, struct prefetch_source **ret_source)
{
	const char *dataset = shard_index_dataset(index);
	struct local_source *local = calloc(1, sizeof(*local));
	if (!local)
		return base_err_set(err, -ENOMEM, "out of memory");
	local->dirfd = open(dataset, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (local->dirfd < 0) {
		int rc = -errno;
		char quoted[512];
		free(local);
		return base_err_set(err, rc, "%s: cannot open the dataset's directory: %s",
		        base_err_quote(dataset, quoted, sizeof(quoted)), base_err_str(rc));
	}
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	local->opened_ns = base_time_ns(now.tv_sec, (uint32_t)now.tv_nsec);
	local->base = (struct prefetch_source){ .ops = &local_ops };
	local->index = index;
	local->io = io;
	*ret_source = &local->base;
	return 0;
}
