/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for libnccl.so.2 on the stand-in driver: ranks are processes of one machine, joined by a Unix socket to
 * rank 0, which
 * adds up.  It is not NCCL.  A rank that is gone ends the process, so that no test hangs. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "gpu_stage/examples/nccl.h"

#define EXPORT __attribute__((visibility("default")))

enum { RANKS_MAX = 64, INVALID = 4 };

struct ncclComm {
	int world, rank;
	int sockets[RANKS_MAX]; /* rank 0: of each other; others: [0] */
};

/* What a collective needs when its turn in the stream comes. */
struct sum {
	struct ncclComm *comm;
	float *data;
	size_t n;
};

static int listener = -1; /* of the process that made an id */

extern unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *arg), void *arg);

static void die(const char *what)
{
	fprintf(stderr, "stand-in NCCL: %s\n", what);
	_exit(1);
}

static void transfer(int fd, void *data, size_t bytes, int out)
{
	char *at = data;
	while (bytes) {
		ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
		if (n <= 0)
			die("a rank is gone");
		at += n;
		bytes -= (size_t)n;
	}
}

static socklen_t address(const struct nccl_id *id, struct sockaddr_un *ret_address)
{
	*ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	memcpy(ret_address->sun_path, id->internal, sizeof(ret_address->sun_path));
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(id->internal + 1));
}

EXPORT unsigned ncclGetUniqueId(struct nccl_id *ret_id);
EXPORT unsigned ncclGetUniqueId(struct nccl_id *ret_id)
{
	struct sockaddr_un a;
	struct timespec now;
	struct nccl_id id = { { 0 } };
	clock_gettime(CLOCK_MONOTONIC, &now);
	/* An abstract name: it goes with the process. */
	snprintf(id.internal + 1, sizeof(id.internal) - 1, "standin-nccl-%d-%ld", (int)getpid(), now.tv_nsec);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t len = address(&id, &a);
	if (listener < 0 || bind(listener, (struct sockaddr *)&a, len) < 0 || listen(listener, RANKS_MAX) < 0)
		die("cannot listen");
	*ret_id = id;
	return NCCL_OK;
}

EXPORT unsigned ncclCommInitRank(struct ncclComm **ret_comm, int world, struct nccl_id id, int rank);
EXPORT unsigned ncclCommInitRank(struct ncclComm **ret_comm, int world, struct nccl_id id, int rank)
{
	struct sockaddr_un a;
	if (world < 1 || world > RANKS_MAX || rank < 0 || rank >= world)
		return INVALID;
	struct ncclComm *comm = calloc(1, sizeof(*comm));
	if (!comm)
		die("memory");
	comm->world = world;
	comm->rank = rank;
	for (int i = 1; rank == 0 && i < world; i++) {
		int other = 0, fd = accept(listener, NULL, NULL);
		if (fd < 0)
			die("cannot accept");
		transfer(fd, &other, sizeof(other), 0);
		comm->sockets[other] = fd;
	}
	if (rank) {
		socklen_t len = address(&id, &a);
		comm->sockets[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(comm->sockets[0], (struct sockaddr *)&a, len) < 0)
			die("cannot connect");
		transfer(comm->sockets[0], &rank, sizeof(rank), 1);
	} else {
		close(listener);
	}
	*ret_comm = comm;
	return NCCL_OK;
}

static void sum_now(void *arg)
{
	struct sum *s = arg;
	size_t bytes = s->n * sizeof(float);
	float *part = malloc(bytes);
	if (!part)
		die("memory");
	for (int i = 1; s->comm->rank == 0 && i < s->comm->world; i++) {
		transfer(s->comm->sockets[i], part, bytes, 0);
		for (size_t k = 0; k < s->n; k++)
			s->data[k] += part[k];
	}
	for (int i = 1; s->comm->rank == 0 && i < s->comm->world; i++)
		transfer(s->comm->sockets[i], s->data, bytes, 1);
	if (s->comm->rank) {
		transfer(s->comm->sockets[0], s->data, bytes, 1);
		transfer(s->comm->sockets[0], s->data, bytes, 0);
	}
	free(part);
	free(s);
}

EXPORT unsigned ncclAllReduce(const void *from, void *to, size_t n, unsigned type, unsigned op, struct ncclComm *comm,
        struct CUstream_st *stream);
EXPORT unsigned ncclAllReduce(const void *from, void *to, size_t n, unsigned type, unsigned op, struct ncclComm *comm,
        struct CUstream_st *stream)
{
	if (from != to || type != NCCL_FLOAT32 || op != NCCL_SUM)
		return INVALID;
	struct sum *s = malloc(sizeof(*s));
	if (!s)
		die("memory");
	*s = (struct sum){ comm, to, n };
	return cuLaunchHostFunc(stream, sum_now, s) == 0 ? (unsigned)NCCL_OK : (unsigned)INVALID;
}

EXPORT unsigned ncclCommDestroy(struct ncclComm *comm);
EXPORT unsigned ncclCommDestroy(struct ncclComm *comm)
{
	for (int i = 0; i < comm->world; i++) {
		if (i != comm->rank && (comm->rank == 0 || i == 0))
			close(comm->sockets[i]);
	}
	free(comm);
	return NCCL_OK;
}

EXPORT unsigned ncclCommAbort(struct ncclComm *comm);
EXPORT unsigned ncclCommAbort(struct ncclComm *comm)
{
	return ncclCommDestroy(comm);
}

EXPORT const char *ncclGetErrorString(unsigned result);
EXPORT const char *ncclGetErrorString(unsigned result)
{
	return result == NCCL_OK ? "no error" : "an error of the stand-in";
}
