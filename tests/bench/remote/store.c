/* SPDX-License-Identifier: Apache-2.0 */
/* store: an HTTP/1.1 server for the bench: ranges of files, with a latency, a bandwidth and faults.
 *
 *   store [-l MS] [-r BYTES_PER_S] [-e SHARE503] [-x SHARE_RESET] [-c SHARE_CUT] [-s SHARE_STALLED] DIRECTORY
 *
 * Prints its port on 127.0.0.1.  -l: ms before the first byte of each answer.  -r: all connections share this
 * bandwidth.  A reset closes the connection without an answer; a cut ends a body in the middle; a stalled body stops
 * there for 5 s.  GET /.stats gives "REQUESTS BYTES" of all answers so far.
 *
 * For clients of S3, a directory of DIRECTORY is a bucket: GET /BUCKET?prefix=P&delimiter=/ lists its keys, all in one
 * answer.  Signatures are not looked at.  Uploads, in one request or in parts, pass the link and are thrown away.
 *
 * A thread serves a connection.  The link is a clock: each piece of a body is sent when the pieces before it have
 * passed, whichever connection has them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
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
	size_t len = strlen(text);
	int n = snprintf(head, sizeof(head),
	        "HTTP/1.1 %d X\r\nContent-Type: application/xml\r\nContent-Length: %zu\r\n\r\n", status, len);
	return send_all(fd, head, (size_t)n, len ? MSG_MORE : 0) && send_all(fd, text, len, 0);
}

/* Writes what `directory` has of a list of keys.  dir: its keys begin so; start: then their names do. */
static void list_keys(FILE *out, const char *directory, const char *dir, const char *start, bool deep)
{
	char path[2048];
	struct dirent **names;
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", directory, dir);
	int n = scandir(path, &names, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		char key[1024];
		const char *name = names[i]->d_name;
		snprintf(key, sizeof(key), "%s%s", dir, name);
		snprintf(path, sizeof(path), "%s/%s", directory, key);
		bool wanted = name[0] != '.' && strncmp(name, start, strlen(start)) == 0 && stat(path, &st) == 0;
		if (wanted && S_ISREG(st.st_mode)) {
			fprintf(out,
			        "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
			        "<ETag>&quot;%llx-%llx&quot;</ETag><Size>%llu</Size><StorageClass>STANDARD</"
			        "StorageClass>"
			        "</Contents>",
			        key, (unsigned long long)st.st_mtime, (unsigned long long)st.st_size,
			        (unsigned long long)st.st_size);
		} else if (wanted && deep) {
			snprintf(key, sizeof(key), "%s%s/", dir, name);
			list_keys(out, directory, key, "", true);
		} else if (wanted) {
			fprintf(out, "<CommonPrefixes><Prefix>%s/</Prefix></CommonPrefixes>", key);
		}
		free(names[i]);
	}
	if (n >= 0)
		free(names);
}

/* Gives the decoded value of a query's parameter; "": it has none. */
static void parameter(const char *query, const char *name, char *room, size_t size)
{
	size_t len = strlen(name), n = 0;
	unsigned code;
	*room = 0;
	while (query && strncmp(query, name, len) != 0) {
		query = strchr(query, '&');
		query += query != NULL;
	}
	for (query = query ? query + len : ""; *query && *query != '&' && n + 1 < size; query++) {
		bool coded = *query == '%' && sscanf(query + 1, "%2x", &code) == 1;
		room[n++] = coded ? (char)code : *query;
		query += coded ? 2 : 0;
	}
	room[n] = 0;
}

static bool answer_list(int fd, const char *directory, const char *query)
{
	char prefix[1024], delimiter[8], *text = NULL;
	size_t len;
	parameter(query, "prefix=", prefix, sizeof(prefix));
	parameter(query, "delimiter=", delimiter, sizeof(delimiter));
	FILE *out = open_memstream(&text, &len);
	if (!out || strstr(prefix, ".."))
		return false;
	fprintf(out,
	        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>"
	        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bench</Name>"
	        "<Prefix>%s</Prefix><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>",
	        prefix);
	char *slash = strrchr(prefix, '/'), start[1024];
	snprintf(start, sizeof(start), "%s", slash ? slash + 1 : prefix);
	*(slash ? slash + 1 : prefix) = 0;
	list_keys(out, directory, prefix, start, !delimiter[0]);
	fputs("</ListBucketResult>", out);
	bool ok = fclose(out) == 0 && answer_text(fd, 200, text);
	free(text);
	return ok;
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

/* Takes the body of a request, of which `got` bytes have come. */
static bool drop_body(int fd, const char *text, size_t got)
{
	static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
	const char *length = strcasestr(text, "\r\ncontent-length:");
	uint64_t left = length ? strtoull(length + 17, NULL, 10) : 0;
	char data[PIECE];
	if (strcasestr(text, "\r\nexpect: 100-continue") && !send_all(fd, go_on, sizeof(go_on) - 1, 0))
		return false;
	for (size_t n = got; left;) {
		if (n > left)
			return false;
		pass_link(n);
		atomic_fetch_add(&bytes, n);
		left -= n;
		ssize_t more = left ? recv(fd, data, left < PIECE ? (size_t)left : PIECE, 0) : 0;
		if (more < 0 || (left && more == 0))
			return false;
		n = (size_t)more;
	}
	return true;
}

/* Answers PUT, POST and DELETE, as S3 does. */
static bool answer_upload(int fd, const char *text, const char *query, size_t got)
{
	static const char put[] = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\n\r\n";
	static const char gone[] = "HTTP/1.1 204 No Content\r\n\r\n";
	if (!drop_body(fd, text, got))
		return false;
	if (strncmp(text, "PUT", 3) == 0)
		return send_all(fd, put, sizeof(put) - 1, 0);
	if (strncmp(text, "DELETE", 6) == 0)
		return send_all(fd, gone, sizeof(gone) - 1, 0);
	return answer_text(
	        fd, 200, query && strncmp(query, "uploads", 7) == 0 ? "<X><UploadId>1</UploadId></X>" : "<X/>");
}

/* Answers one request, whose head is text; `got` bytes of its body have come.  Returns false: the connection ends. */
static bool answer(int fd, const char *text, size_t got)
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
	char *query = strchr(path, '?');
	if (query)
		*query++ = 0;
	if (strncmp(text, "GET", 3) != 0 && strncmp(text, "HEAD", 4) != 0)
		return answer_upload(fd, text, query, got);
	bool head_only = strncmp(text, "HEAD", 4) == 0;
	snprintf(name, sizeof(name), "%s%s", opt.directory, path);
	const char *slash = strchr(path + 1, '/');
	bool bucket = path[1] && (!slash || !slash[1]);
	int file = open(name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (file < 0 || fstat(file, &st) < 0 || !S_ISREG(st.st_mode)) {
		bucket = bucket && file >= 0;
		if (file >= 0)
			close(file);
		if (bucket && !head_only)
			return answer_list(fd, name, query);
		return answer_text(fd, bucket ? 200 : 404, "");
	}
	const char *range = strcasestr(text, "\r\nrange: bytes=");
	unsigned long long first = 0, last = (unsigned long long)st.st_size - 1;
	bool part = range && sscanf(range + 15, "%llu-%llu", &first, &last) >= 1;
	if (last >= (unsigned long long)st.st_size)
		last = (unsigned long long)st.st_size - 1;
	char modified[64], part_of[96] = "";
	struct tm tm;
	strftime(modified, sizeof(modified), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&st.st_mtime, &tm));
	if (part)
		snprintf(part_of, sizeof(part_of), "Content-Range: bytes %llu-%llu/%llu\r\n", first, last,
		        (unsigned long long)st.st_size);
	int n = snprintf(head, sizeof(head),
	        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nAccept-Ranges: bytes\r\nETag: \"%llx-%llx\"\r\n"
	        "Last-Modified: %s\r\n%s\r\n",
	        part ? "206 Partial Content" : "200 OK", last + 1 - first, (unsigned long long)st.st_mtime,
	        (unsigned long long)st.st_size, modified, part_of);
	bool ok = send_all(fd, head, (size_t)n, head_only ? 0 : MSG_MORE) &&
	          (head_only || send_body(fd, file, (off_t)first, last + 1 - first));
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
		if (!answer(fd, text, len - (size_t)(end + 4 - text)))
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
