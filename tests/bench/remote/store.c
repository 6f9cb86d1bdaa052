/* SPDX-License-Identifier: Apache-2.0 */
/* store: an HTTP/1.1 server for the bench: ranges of files, with a latency, a bandwidth and faults.
 *
 *   store [-l MS] [-r BYTES_PER_S] [-e SHARE503] [-x SHARE_RESET] [-c SHARE_CUT] [-s SHARE_STALLED] DIRECTORY
 *
 * Prints its port on 127.0.0.1.  -l: ms before the first byte of each answer.  -r: all connections share this
 * bandwidth.  A reset closes the connection without an answer; a cut ends a body in the middle; a stalled body stops
 * there for 5 s.  GET /.stats gives "REQUESTS BYTES" of all answers so far.
 *
 * A thread serves a connection.  The link is a clock: each piece of a body is sent when the pieces before it have
 * passed, whichever connection has them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 64 << 10, REQUEST_MAX = 16 << 10, STALL_S = 5 };

static struct {
	double latency_s, rate, p503, reset, cut, stalled;
	const char *directory;
} opt;
static _Atomic uint64_t requests, bytes, seed = 1;
static pthread_mutex_t link_lock = PTHREAD_MUTEX_INITIALIZER;
static double link_free_s; /* when the link has sent what it was given */

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double at_s)
{
	struct timespec t = { .tv_sec = (time_t)at_s, .tv_nsec = (long)((at_s - (double)(time_t)at_s) * 1e9) };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
		;
}

/* Waits until the link has sent n more bytes. */
static void pass_link(size_t n)
{
	if (opt.rate <= 0)
		return;
	pthread_mutex_lock(&link_lock);
	double now = now_s();
	link_free_s = (link_free_s > now ? link_free_s : now) + (double)n / opt.rate;
	double at = link_free_s;
	pthread_mutex_unlock(&link_lock);
	sleep_until(at);
}

static bool chance(double share)
{
	uint64_t x = (atomic_fetch_add(&seed, 1) + 1) * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
	x ^= x >> 32;
	return (double)(x >> 11) / 9007199254740992.0 < share;
}

static bool send_all(int fd, const char *data, size_t len, int flags)
{
	while (len) {
		ssize_t n = send(fd, data, len, flags | MSG_NOSIGNAL);
		if (n <= 0)
			return false;
		data += n;
		len -= (size_t)n;
	}
	return true;
}

static bool answer_text(int fd, int status, const char *text)
{
	char head[512];
	int n = snprintf(
	        head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n%s", status, strlen(text), text);
	return send_all(fd, head, (size_t)n, 0);
}

static bool send_body(int fd, int file, off_t at, uint64_t left)
{
	uint64_t half = left / 2;
	bool cut = chance(opt.cut), stalled = chance(opt.stalled);
	while (left) {
		size_t n = left < PIECE ? (size_t)left : PIECE;
		if (left <= half && cut)
			return false;
		if (left <= half && stalled) {
			sleep_until(now_s() + STALL_S);
			stalled = false;
		}
		pass_link(n);
		for (size_t part = n; part;) {
			ssize_t sent = sendfile(fd, file, &at, part);
			if (sent <= 0)
				return false;
			part -= (size_t)sent;
		}
		atomic_fetch_add(&bytes, n);
		left -= n;
	}
	return true;
}

/* Answers one request, whose head is text.  Returns false: the connection ends. */
static bool answer(int fd, const char *text)
{
	char path[1024], name[2048], head[512];
	if (sscanf(text, "%*s %1023s", path) != 1 || strstr(path, ".."))
		return false;
	if (strcmp(path, "/.stats") == 0) {
		snprintf(head, sizeof(head), "%llu %llu\n", (unsigned long long)requests, (unsigned long long)bytes);
		return answer_text(fd, 200, head);
	}
	atomic_fetch_add(&requests, 1);
	sleep_until(now_s() + opt.latency_s);
	if (chance(opt.reset))
		return false;
	if (chance(opt.p503))
		return answer_text(fd, 503, "");
	path[strcspn(path, "?")] = 0;
	snprintf(name, sizeof(name), "%s%s", opt.directory, path);
	int file = open(name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode)) {
		if (file >= 0)
			close(file);
		return answer_text(fd, 404, "");
	}
	const char *range = strcasestr(text, "\r\nrange: bytes=");
	unsigned long long first = 0, last = (unsigned long long)st.st_size - 1;
	bool part = range && sscanf(range + 15, "%llu-%llu", &first, &last) >= 1;
	if (last >= (unsigned long long)st.st_size)
		last = (unsigned long long)st.st_size - 1;
	int n = snprintf(head, sizeof(head),
	        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nAccept-Ranges: bytes\r\nETag: \"%llx-%llx\"\r\n"
	        "Content-Range: bytes %llu-%llu/%llu\r\n\r\n",
	        part ? "206 Partial Content" : "200 OK", last + 1 - first, (unsigned long long)st.st_mtime,
	        (unsigned long long)st.st_size, first, last, (unsigned long long)st.st_size);
	bool ok = send_all(fd, head, (size_t)n, MSG_MORE);
	if (ok && strncmp(text, "HEAD", 4) != 0)
		ok = send_body(fd, file, (off_t)first, last + 1 - first);
	else
		ok = false;
	close(file);
	return ok;
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	char text[REQUEST_MAX + 1];
	size_t len = 0;
	for (;;) {
		ssize_t n = recv(fd, text + len, REQUEST_MAX - len, 0);
		if (n <= 0)
			break;
		len += (size_t)n;
		text[len] = 0;
		char *end = strstr(text, "\r\n\r\n");
		if (!end)
			continue;
		if (!answer(fd, text))
			break;
		len = 0; /* clients of the bench send no second request before the answer */
	}
	close(fd);
	return NULL;
}

int main(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "l:r:e:x:c:s:")) != -1;) {
		double value = atof(optarg ? optarg : "0");
		switch (c) {
		case 'l':
			opt.latency_s = value / 1e3;
			break;
		case 'r':
			opt.rate = value;
			break;
		case 'e':
			opt.p503 = value;
			break;
		case 'x':
			opt.reset = value;
			break;
		case 'c':
			opt.cut = value;
			break;
		case 's':
			opt.stalled = value;
			break;
		default:
			return 2;
		}
	}
	opt.directory = argv[optind];
	if (!opt.directory)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_IGN);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	if (bind(listener, (struct sockaddr *)&address, len) < 0 || listen(listener, 1024) < 0 ||
	        getsockname(listener, (struct sockaddr *)&address, &len) < 0)
		return 1;
	printf("%d\n", ntohs(address.sin_port));
	fflush(stdout);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 128 << 10);
	for (;;) {
		pthread_t thread;
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (pthread_create(&thread, &attr, serve, (void *)(intptr_t)fd) != 0)
			close(fd);
	}
}
