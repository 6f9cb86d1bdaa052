/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the ranks of a job by TCP; peers.h first. */
#include "gpu_stage/examples/peers.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29401, TRIES = 600, TRY_NS = 100000000 }; /* rank 0 has a minute to start */

static const struct {
	const char *rank, *world, *local;
} launchers[] = {
	{ "RANK", "WORLD_SIZE", "LOCAL_RANK" },
	{ "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID" },
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK" },
	{ "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID" },
};

static void read_environment(struct peers *p)
{
	*p = (struct peers){ .world = 1 };
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const char *rank = getenv(launchers[i].rank), *world = getenv(launchers[i].world);
		const char *local = getenv(launchers[i].local);
		if (!rank || !world)
			continue;
		p->rank = (uint32_t)strtoul(rank, NULL, 10);
		p->world = (uint32_t)strtoul(world, NULL, 10);
		p->local_rank = local ? (uint32_t)strtoul(local, NULL, 10) : p->rank;
		return;
	}
}

static bool complain(const char *what)
{
	fprintf(stderr, "digits_mlp: %s: %s\n", what, strerror(errno));
	return false;
}

static void port_of(char text[static 8])
{
	const char *own = getenv("TRAIN_PORT"), *master = getenv("MASTER_PORT");
	unsigned long port = own ? strtoul(own, NULL, 10) : master ? strtoul(master, NULL, 10) + 1 : DEFAULT_PORT;
	snprintf(text, 8, "%u", (unsigned)(port & 0xffff));
}

static struct addrinfo *resolve(const char *host, int flags)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags }, *found = NULL;
	char port[8];
	port_of(port);
	int rc = getaddrinfo(host, port, &hints, &found);
	if (rc != 0) {
		fprintf(stderr, "digits_mlp: MASTER_ADDR '%s': %s\n", host ? host : "", gai_strerror(rc));
		return NULL;
	}
	return found;
}

static void quick(int fd)
{
	int one = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static bool transfer(int fd, void *data, size_t bytes, bool out)
{
	uint8_t *at = data;
	while (bytes) {
		ssize_t n = out ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = ECONNRESET;
		if (n <= 0)
			return complain("another rank is gone");
		at += n;
		bytes -= (size_t)n;
	}
	return true;
}

/* Rank 0: takes a connection of every other rank, which says its rank first. */
static bool accept_all(struct peers *p, int listener)
{
	for (uint32_t i = 1; i < p->world; i++) {
		uint32_t rank;
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			return complain("accept");
		if (!transfer(fd, &rank, sizeof(rank), false) || rank == 0 || rank >= p->world ||
		        p->sockets[rank] >= 0) {
			close(fd);
			fprintf(stderr, "digits_mlp: somebody called who is no rank of this job\n");
			return false;
		}
		quick(fd);
		p->sockets[rank] = fd;
	}
	return true;
}

static bool listen_for_all(struct peers *p)
{
	const char *master = getenv("MASTER_ADDR");
	struct addrinfo *a = resolve(master ? master : "127.0.0.1", AI_PASSIVE);
	int one = 1;
	if (!a)
		return false;
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
	            bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, (int)p->world) == 0;
	if (!good)
		complain("rank 0 cannot listen (set TRAIN_PORT to a free port)");
	freeaddrinfo(a);
	good = good && accept_all(p, fd);
	if (fd >= 0)
		close(fd);
	return good;
}

static bool call_rank_0(struct peers *p)
{
	const char *master = getenv("MASTER_ADDR");
	struct addrinfo *a = resolve(master ? master : "127.0.0.1", 0);
	if (!a)
		return false;
	for (unsigned i = 0; p->sockets[0] < 0 && i < TRIES; i++) {
		int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
			p->sockets[0] = fd;
			break;
		}
		if (fd >= 0)
			close(fd);
		nanosleep(&(struct timespec){ .tv_nsec = TRY_NS }, NULL); /* rank 0 may not have started yet */
	}
	freeaddrinfo(a);
	if (p->sockets[0] < 0)
		return complain("rank 0 cannot be reached (MASTER_ADDR, TRAIN_PORT)");
	quick(p->sockets[0]);
	return transfer(p->sockets[0], &p->rank, sizeof(p->rank), true);
}

bool peers_open(struct peers *p)
{
	read_environment(p);
	if (p->world == 0 || p->world > 1024 || p->rank >= p->world) {
		fprintf(stderr, "digits_mlp: rank %u of %u: the launcher's variables are wrong\n", p->rank, p->world);
		return false;
	}
	if (p->world == 1)
		return true;
	p->sockets = malloc(p->world * sizeof(int));
	if (!p->sockets)
		return complain("memory");
	for (uint32_t i = 0; i < p->world; i++)
		p->sockets[i] = -1;
	if (p->rank == 0 ? listen_for_all(p) : call_rank_0(p))
		return true;
	peers_close(p);
	return false;
}

void peers_close(struct peers *p)
{
	for (uint32_t i = 0; p->sockets && i < p->world; i++) {
		if (p->sockets[i] >= 0)
			close(p->sockets[i]);
	}
	free(p->sockets);
	free(p->part);
	p->sockets = NULL;
	p->part = NULL;
}

bool peers_share(struct peers *p, void *data, size_t bytes)
{
	if (p->world == 1)
		return true;
	if (p->rank)
		return transfer(p->sockets[0], data, bytes, false);
	for (uint32_t i = 1; i < p->world; i++) {
		if (!transfer(p->sockets[i], data, bytes, true))
			return false;
	}
	return true;
}

bool peers_sum(struct peers *p, float *data, size_t n)
{
	if (p->world == 1)
		return true;
	if (p->rank)
		return transfer(p->sockets[0], data, n * sizeof(float), true) &&
		       peers_share(p, data, n * sizeof(float));
	if (p->part_room < n) {
		float *room = realloc(p->part, n * sizeof(float));
		if (!room)
			return complain("memory");
		p->part = room;
		p->part_room = n;
	}
	for (uint32_t i = 1; i < p->world; i++) { /* in the order of ranks, so that sums are the same in every run */
		if (!transfer(p->sockets[i], p->part, n * sizeof(float), false))
			return false;
		for (size_t k = 0; k < n; k++)
			data[k] += p->part[k];
	}
	return peers_share(p, data, n * sizeof(float));
}
