/* SPDX-License-Identifier: Apache-2.0 */
/* reader: the trainer's part of the benchmark.  Opens, fstats, reads whole and closes every file of a list or of a
 * directory's sorted listing; prints one JSON line a pass.
 *
 *   reader [-t THREADS] [-p PASSES] [-k] [-c] [-r BYTES_PER_S] [-b BATCH] [-x] (-l LIST | -d DIRECTORY)
 *   reader -D [-t THREADS] -l LIST
 *
 * -l  paths, one a line, read at the start.   -d  the directory is listed and sorted within each pass' time.
 * -k  with -d: list in the first pass only, read the same names in the later ones.
 * -c  the passes follow one another without waiting, the first one waits for a line on stdin; otherwise each does.
 * -r  demand this bandwidth: batches of BATCH files (64), each followed by computing that makes its total time
 *     bytes / rate when its reads need nothing but processor time; what they are blocked comes on top.  The
 * computing is
 *     a sleep, as it is for a trainer whose work is on a GPU.  A late batch delays all that follow; nothing is
 * caught up.
 * -x  prints the sum of the files' XXH3-64.
 * -D  reads the files one after another with O_DIRECT in 1 MiB pieces, one in flight a thread: what the device gives.
 *     Each piece counts as a file.
 *
 * Speaks with run: prints "ready" after loading.  Files are taken in order by whichever thread is free.  Times are
 * seconds, latencies (open to close) microseconds. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PIECE = 1 << 20, THREADS_MAX = 64, PASSES_MAX = 1000 };

static struct {
	int threads, passes, batch;
	bool keep, continuous, sum, direct;
	double rate;
	const char *list, *directory;
} opt = { .threads = 1, .passes = 1, .batch = 64 };

static char **paths;
static off_t *offsets; /* with -D: where the piece of paths[i] begins */
static size_t n_paths, room;
static double *latency_us;
static int64_t pass_start_ns;
static atomic_size_t next_file, total_bytes, failures;
static _Atomic uint64_t total_sum;
static _Atomic int64_t first_ns;

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static int64_t cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

static void fail(const char *what)
{
	fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* --- the files ------------------------------------------------------------------------------------------------- */

static void add_path(char *path)
{
	if (n_paths == room) {
		room = room ? room * 2 : 4096;
		paths = realloc(paths, room * sizeof(*paths));
		if (!paths)
			fail("memory");
	}
	if (!path)
		fail("memory");
	paths[n_paths++] = path;
}

/* Adds the pieces of a file. */
static void add_pieces(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		fail(path);
	for (off_t at = 0; at < st.st_size; at += PIECE) {
		add_path(strdup(path));
		offsets = realloc(offsets, room * sizeof(*offsets));
		if (!offsets)
			fail("memory");
		offsets[n_paths - 1] = at;
	}
}

static void load_list(const char *name)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;
	FILE *f = fopen(name, "r");

	if (!f)
		fail(name);
	while ((n = getline(&line, &cap, f)) > 0) {
		if (line[n - 1] == '\n')
			line[n - 1] = 0;
		if (opt.direct)
			add_pieces(line);
		else
			add_path(strdup(line));
	}
	free(line);
	fclose(f);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void load_directory(const char *name)
{
	DIR *dir = opendir(name);
	struct dirent *e;
	char *path;

	if (!dir)
		fail(name);
	for (size_t i = 0; i < n_paths; i++)
		free(paths[i]);
	n_paths = 0;
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		if (asprintf(&path, "%s/%s", name, e->d_name) < 0)
			path = NULL;
		add_path(path);
	}
	closedir(dir);
	qsort(paths, n_paths, sizeof(*paths), by_name);
}

/* --- reading ---------------------------------------------------------------------------------------------------- */

struct buffer {
	char *data;
	size_t cap;
};

static int64_t read_whole(const char *path, struct buffer *buf)
{
	struct stat st;
	size_t got = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) < 0)
		goto bad;
	if ((size_t)st.st_size > buf->cap) {
		char *bigger = realloc(buf->data, st.st_size);

		if (!bigger)
			goto bad;
		buf->data = bigger;
		buf->cap = st.st_size;
	}
	while (got < (size_t)st.st_size) {
		ssize_t n = read(fd, buf->data + got, st.st_size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			goto bad;
		got += n;
	}
	close(fd);
	if (opt.sum)
		atomic_fetch_add(&total_sum, XXH3_64bits(buf->data, got));
	return got;
bad:
	close(fd);
	return -1;
}

static int64_t read_piece(const char *path, off_t offset, struct buffer *buf)
{
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);

	if (fd < 0)
		return -1;
	n = pread(fd, buf->data, PIECE, offset);
	close(fd);
	return n;
}

/* Reads file i and keeps the account.  Returns its bytes. */
static size_t read_one(size_t i, struct buffer *buf)
{
	int64_t t0 = now_ns(), none = 0, t1;
	int64_t n = opt.direct ? read_piece(paths[i], offsets[i], buf) : read_whole(paths[i], buf);

	t1 = now_ns();
	latency_us[i] = (t1 - t0) / 1e3;
	if (n < 0 && atomic_fetch_add(&failures, 1) == 0)
		fprintf(stderr, "reader: %s: %s\n", paths[i], strerror(errno));
	atomic_compare_exchange_strong(&first_ns, &none, t1 - pass_start_ns);
	return n < 0 ? 0 : n;
}

static struct buffer buffer_new(void)
{
	struct buffer buf = { .cap = PIECE };

	buf.data = aligned_alloc(4096, buf.cap);
	if (!buf.data)
		fail("memory");
	return buf;
}

static void *worker(void *arg)
{
	struct buffer buf = buffer_new();
	size_t i, bytes = 0;

	while ((i = atomic_fetch_add(&next_file, 1)) < n_paths)
		bytes += read_one(i, &buf);
	atomic_fetch_add(&total_bytes, bytes);
	free(buf.data);
	return arg;
}

static void read_all(void)
{
	pthread_t tid[THREADS_MAX];

	for (int t = 0; t < opt.threads; t++)
		if (pthread_create(&tid[t], NULL, worker, NULL))
			fail("pthread_create");
	for (int t = 0; t < opt.threads; t++)
		pthread_join(tid[t], NULL);
}

/* --- a demanded bandwidth ---------------------------------------------------------------------------------------- */

static void sleep_until(int64_t t)
{
	struct timespec ts = { .tv_sec = t / 1000000000, .tv_nsec = t % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

struct paced {
	int64_t free_ns; /* when the computing before ended: the next batch is wanted from then on */
	int64_t gap_ns;  /* from there to the end of the pass' first batch, the listing included */
};

static void read_paced(struct paced *p)
{
	struct buffer buf = buffer_new();
	int64_t asked_ns = p->free_ns;
	size_t i = 0;

	p->free_ns = now_ns(); /* the listing has taken its time */
	while (i < n_paths) {
		int64_t t0 = now_ns(), cpu0 = cpu_ns(), t1, blocked;
		size_t bytes = 0;

		for (int k = 0; k < opt.batch && i < n_paths; k++)
			bytes += read_one(i++, &buf);
		t1 = now_ns();
		blocked = t1 - t0 - (cpu_ns() - cpu0);
		if (i <= (size_t)opt.batch)
			p->gap_ns = t1 - asked_ns;
		/* From the planned time, not from t0: that a timer woke us late is no waiting. */
		p->free_ns += (int64_t)(bytes / opt.rate * 1e9) + (blocked > 0 ? blocked : 0);
		if (p->free_ns < t1)
			p->free_ns = t1;
		sleep_until(p->free_ns);
		total_bytes += bytes;
	}
	free(buf.data);
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

struct pass {
	size_t files, bytes, failures;
	uint64_t sum;
	double sec, list_s, *latency_us;
	int64_t first_ns, gap_ns;
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(const struct pass *p)
{
	qsort(p->latency_us, p->files, sizeof(*p->latency_us), by_value);
	printf("{\"files\": %zu, \"bytes\": %zu, \"sec\": %.6f, \"list_s\": %.6f, \"first_s\": %.6f, \"failures\": "
	       "%zu, "
	       "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f",
	        p->files, p->bytes, p->sec, p->list_s, p->first_ns / 1e9, p->failures, p->latency_us[p->files / 2],
	        p->latency_us[p->files * 99 / 100], p->latency_us[p->files - 1]);
	if (opt.rate > 0)
		printf(", \"ideal_s\": %.6f, \"gap_ms\": %.3f, \"batch_ms\": %.3f", p->bytes / opt.rate,
		        p->gap_ns / 1e6, 1e3 * p->bytes / opt.rate / ((double)p->files / opt.batch));
	if (opt.sum)
		printf(", \"sum\": %llu", (unsigned long long)p->sum);
	puts("}");
	fflush(stdout);
	free(p->latency_us);
}

/* Reads everything once.  The time runs from *pace.free_ns, or from now where nothing came before. */
static struct pass one_pass(struct paced *pace, bool list)
{
	struct pass p = { .list_s = 0 };

	next_file = total_bytes = failures = 0;
	total_sum = 0;
	first_ns = 0;
	pass_start_ns = opt.continuous && pace->free_ns ? pace->free_ns : now_ns();
	pace->free_ns = pass_start_ns;
	if (list) {
		int64_t t0 = now_ns();

		load_directory(opt.directory);
		p.list_s = (now_ns() - t0) / 1e9;
	}
	if (n_paths == 0) {
		fprintf(stderr, "reader: nothing to read\n");
		exit(1);
	}
	latency_us = malloc(n_paths * sizeof(*latency_us));
	if (!latency_us)
		fail("memory");
	if (opt.rate > 0)
		read_paced(pace);
	else
		read_all();
	if (opt.rate <= 0)
		pace->free_ns = now_ns();
	p.sec = (pace->free_ns - pass_start_ns) / 1e9;
	p.files = n_paths;
	p.bytes = total_bytes;
	p.failures = failures;
	p.sum = total_sum;
	p.first_ns = first_ns;
	p.gap_ns = pace->gap_ns;
	p.latency_us = latency_us;
	return p;
}

/* Passes that follow one another are reported when all are done: sorting latencies is no part of a boundary. */
static size_t run_passes(void)
{
	static struct pass passes[PASSES_MAX];
	struct paced pace = { .free_ns = 0 };
	size_t bad = 0;
	char line[64];
	int i;

	for (i = 0; i < opt.passes; i++) {
		if ((i == 0 || !opt.continuous) && !fgets(line, sizeof(line), stdin))
			break;
		passes[i] = one_pass(&pace, opt.directory && (i == 0 || !opt.keep));
		bad += passes[i].failures;
		if (!opt.continuous)
			report(&passes[i]);
	}
	if (i == 0)
		fprintf(stderr, "reader: standard input has no line that starts the first pass: nothing is read\n");
	for (int done = 0; opt.continuous && done < i; done++)
		report(&passes[done]);
	return bad;
}

int main(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "t:p:kcr:b:xDl:d:")) != -1) {
		switch (c) {
		case 't':
			opt.threads = atoi(optarg);
			break;
		case 'p':
			opt.passes = atoi(optarg);
			break;
		case 'k':
			opt.keep = true;
			break;
		case 'c':
			opt.continuous = true;
			break;
		case 'r':
			opt.rate = atof(optarg);
			break;
		case 'b':
			opt.batch = atoi(optarg);
			break;
		case 'x':
			opt.sum = true;
			break;
		case 'D':
			opt.direct = true;
			break;
		case 'l':
			opt.list = optarg;
			break;
		case 'd':
			opt.directory = optarg;
			break;
		default:
			return 2;
		}
	}
	if (!opt.list == !opt.directory || opt.threads < 1 || opt.threads > THREADS_MAX || opt.batch < 1 ||
	        opt.passes < 1 || opt.passes > PASSES_MAX || (opt.rate > 0 && opt.threads != 1) || optind != argc) {
		fprintf(stderr, "usage: reader [-t THREADS] [-p PASSES] [-k] [-c] [-r RATE] [-b BATCH] [-x] [-D] (-l "
		                "LIST | -d DIR)\n");
		return 2;
	}
	prctl(PR_SET_TIMERSLACK, 1); /* the default 50 us would be a tenth of a batch of small files */
	if (opt.list)
		load_list(opt.list);
	puts("ready");
	fflush(stdout);
	return run_passes() ? 1 : 0;
}
