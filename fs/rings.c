#include "fs/rings.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

#include "shard/base/log.h"

enum { LIBFUSE_MIN = 319 }; /* of fuse_version(), at run time */

#define MEMORY_BYTES (UINT64_C(64) << 20)

/* As the kernel's include/uapi/linux/fuse.h has it since 6.14; older headers do not. */
enum { HAS_RINGS_FLAGS2 = 1 << 9 };

struct fs_rings {
	struct fs_server *server;
	struct fuse_conn_info *conn; /* libfuse's, of the session */
	pthread_t replier;
	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	struct fs_rings_answer *answers;
	struct fs_rings_answer **tail;
	bool stopping;
};

void fs_rings_option(char ret_option[FS_RINGS_OPTION_BYTES])
{
	snprintf(ret_option, FS_RINGS_OPTION_BYTES, "-oio_uring,io_uring_q_depth=%d", FS_RINGS_DEPTH);
}

uint32_t fs_rings_request_bytes(unsigned processors)
{
	uint64_t each = MEMORY_BYTES / FS_RINGS_DEPTH / (processors ? processors : 1);
	uint32_t bytes = FS_READ_MAX;
	while (bytes > each && bytes > FS_RINGS_BYTES_MIN)
		bytes /= 2;
	return bytes;
}

bool fs_rings_offered(const uint8_t *init, uint32_t len)
{
	struct fuse_init_in in;
	const size_t at = sizeof(struct fuse_in_header);
	if (len < at + offsetof(struct fuse_init_in, flags2) + sizeof(in.flags2))
		return false;
	memcpy(&in, init + at, len - at < sizeof(in) ? len - at : sizeof(in));
	return (in.flags & FUSE_INIT_EXT) && (in.flags2 & HAS_RINGS_FLAGS2);
}

/* ---- the replier ---- */

static struct fs_rings_answer *take(struct fs_rings *rings)
{
	pthread_mutex_lock(&rings->lock);
	while (!rings->answers && !rings->stopping)
		pthread_cond_wait(&rings->wake, &rings->lock);
	struct fs_rings_answer *first = rings->answers;
	rings->answers = NULL;
	rings->tail = &rings->answers;
	pthread_mutex_unlock(&rings->lock);
	return first;
}

/* Sends, and waits for nothing else but the next ones: it may have a request to hand to its ring's thread at any time. */
static void *replier_run(void *arg)
{
	struct fs_rings *rings = arg;
	struct fs_rings_answer *answer;
	pthread_setname_np(pthread_self(), "replier");
	while ((answer = take(rings))) {
		while (answer) {
			struct fs_rings_answer *next = answer->next;
			answer->send(answer); /* it is gone then */
			answer = next;
		}
	}
	return NULL;
}

void fs_rings_send(struct fs_rings *rings, struct fs_rings_answer *answer)
{
	answer->next = NULL;
	pthread_mutex_lock(&rings->lock);
	if (!rings->answers)
		pthread_cond_signal(&rings->wake);
	*rings->tail = answer;
	rings->tail = &answer->next;
	pthread_mutex_unlock(&rings->lock);
}

/* ---- life ---- */

static const char *missing(const struct fs_server *server)
{
#ifdef DDPFS_RINGS
	struct prefetch_stats engine = { 0 };
	prefetch_stats_get(server->prefetch, &engine);
	if (!fs_rings_offered(server->mount.init, server->mount.init_len))
		return "this kernel does not offer it: Linux 6.14 can, once `echo 1 > "
		       "/sys/module/fuse/parameters/enable_uring` was said before the mount";
	if (fuse_version() < LIBFUSE_MIN)
		return "the libfuse that is installed loses answers: 3.19 does not";
	return engine.uring ? NULL : "this process may not use io_uring";
#else
	(void)server;
	return "this ddpfs was built without it: libfuse 3.19 can";
#endif
}

int fs_rings_new(struct fs_server *server, struct fs_rings **ret_rings)
{
	*ret_rings = NULL;
	if (!server->options.io_uring)
		return 0;
	const char *why = missing(server);
	if (why) {
		log_warning("io_uring: %s; the mount goes on without", why);
		return 0;
	}
	struct fs_rings *rings = calloc(1, sizeof(*rings));
	if (!rings)
		return -ENOMEM;
	rings->server = server;
	rings->tail = &rings->answers;
	pthread_mutex_init(&rings->lock, NULL);
	pthread_cond_init(&rings->wake, NULL);
	int rc = -pthread_create(&rings->replier, NULL, replier_run, rings);
	if (rc < 0) {
		pthread_cond_destroy(&rings->wake);
		pthread_mutex_destroy(&rings->lock);
		free(rings);
		return rc;
	}
	*ret_rings = rings;
	return 0;
}

void fs_rings_free(struct fs_rings *rings)
{
	if (!rings)
		return;
	pthread_mutex_lock(&rings->lock);
	rings->stopping = true;
	pthread_cond_signal(&rings->wake);
	pthread_mutex_unlock(&rings->lock);
	pthread_join(rings->replier, NULL);
	pthread_cond_destroy(&rings->wake);
	pthread_mutex_destroy(&rings->lock);
	free(rings);
}

void fs_rings_want(struct fs_rings *rings, struct fuse_conn_info *conn)
{
	if (rings) {
		rings->conn = conn;
		/* A ring's request has memory for the longest one that can be: of a write, though there is none. */
		conn->max_write = fs_rings_request_bytes((unsigned)get_nprocs_conf());
		return;
	}
#ifdef FUSE_CAP_OVER_IO_URING
	/* FUSE_URING_ENABLE in the environment makes libfuse want them, too, on a descriptor that is none of the kernel's. */
	conn->want &= ~(unsigned)FUSE_CAP_OVER_IO_URING;
#endif
}

#ifdef DDPFS_RINGS

bool fs_rings_started(struct fs_rings *rings)
{
	/* Not fuse_get_feature_flag, which says what the kernel can: what could not be started is wanted no longer. */
	bool started = rings->conn && (rings->conn->want_ext & FUSE_CAP_OVER_IO_URING);
	if (!started)
		log_warning("io_uring: libfuse cannot start the rings; the mount goes on without");
	return started;
}

bool fs_rings_brought(fuse_req_t req)
{
	return fuse_req_is_uring(req);
}

uint8_t *fs_rings_payload(fuse_req_t req, size_t size)
{
	char *payload;
	size_t room;
	if (!fuse_req_is_uring(req) || fuse_req_get_payload(req, &payload, &room, NULL) != 0 || room < size)
		return NULL;
	return (uint8_t *)payload;
}

#else

bool fs_rings_started(struct fs_rings *rings)
{
	(void)rings;
	return false;
}

bool fs_rings_brought(fuse_req_t req)
{
	(void)req;
	return false;
}

uint8_t *fs_rings_payload(fuse_req_t req, size_t size)
{
	(void)req;
	(void)size;
	return NULL;
}

#endif
