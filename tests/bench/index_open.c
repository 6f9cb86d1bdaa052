/* SPDX-License-Identifier: Apache-2.0 */
/* Opens an index of N files in a fresh process and looks up one path and one slot; prints milliseconds and memory.
 *
 *   index_open [N [DIR]]     N: 1000000; DIR (a fast disk with 80 bytes a file free): a temporary directory
 *
 * The index is synthetic: N files in directories of 1,000, given to the builder in order.  Cold: the index was
 * dropped from
 * the page cache first.  Resident: what the process holds more than before, private memory and mapped pages. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/units.h"
#include "shard/build.h"
#include "shard/index.h"
#include "tests/bench/bar.h"

enum { PER_DIR = 1000, RUNS = 5 };

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void die(const char *what, const char *why)
{
	fprintf(stderr, "index_open: %s: %s\n", what, why);
	exit(1);
}

static void make_path(uint64_t i, char *path, size_t size)
{
	snprintf(path, size, "class_%07llu/%010llu.jpg", (unsigned long long)(i / PER_DIR), (unsigned long long)i);
}

static void build(const char *file, uint64_t n)
{
	struct shard_builder *b;
	struct base_err err;
	double begin = now_ms();
	if (shard_builder_new(&b) < 0 ||
	        shard_builder_add_shard(b, "shard-000000.tar", SHARD_TAR, n * 4096, 0, &err) < 0)
		die("build", "out of memory");
	for (uint64_t i = 0; i < n; i++) {
		char path[64];
		make_path(i, path, sizeof path);
		struct shard_build_file f = {
			.path = path, .offset = i * 4096, .length = 3000, .xxh3 = i, .mtime_s = 1, .mode = 0644
		};
		if (shard_builder_add_file(b, &f, &err) < 0)
			die("build", err.text);
	}
	double added = now_ms();
	if (shard_builder_finish(b, file, false, 0, &err) < 0)
		die("build", err.text);
	struct rusage usage;
	struct stat st;
	getrusage(RUSAGE_SELF, &usage);
	if (stat(file, &st) < 0)
		die(file, strerror(errno));
	printf("build  %llu files: %.1f s adding, %.1f s finishing, %.1f bytes of memory a file, %.1f bytes of index a "
	       "file\n",
	        (unsigned long long)n, (added - begin) / 1e3, (now_ms() - added) / 1e3,
	        (double)usage.ru_maxrss * 1024 / (double)n, (double)st.st_size / (double)n);
	uint64_t names = n * strlen("0000000000.jpg") + (n + PER_DIR - 1) / PER_DIR * strlen("class_0000000");
	bar_below("index besides names", (double)((uint64_t)st.st_size - names) / (double)n, 64, "B/file");
	shard_builder_free(b);
}

/* kB of a line of /proc/self/status */
static long status_kib(const char *key)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, key, strlen(key)) == 0)
			kib = atol(line + strlen(key) + 1);
	if (f)
		fclose(f);
	return kib;
}

/* In a process of its own: open, path -> file, slot -> sample -> file. */
static void probe(const char *dataset, uint64_t n)
{
	struct shard_index *index;
	struct base_err err;
	char path[64];
	enum shard_kind kind;
	uint32_t id, sample, first;
	struct shard_file f;
	make_path(n / 3, path, sizeof path);

	long rss = status_kib("VmRSS"), file = status_kib("RssFile");
	double t0 = now_ms();
	if (shard_index_open(dataset, &err, &index) < 0)
		die(dataset, err.text);
	double t1 = now_ms();
	if (shard_index_find_path(index, path, &kind, &id) < 0 || shard_index_file(index, id, &f) < 0 ||
	        f.xxh3 != n / 3)
		die(path, "not found");
	double t2 = now_ms();
	if (shard_index_slot_sample(index, (uint32_t)(n / 2), &sample) < 0 ||
	        shard_index_sample_first(index, sample, &first) < 0 || shard_index_file(index, first, &f) < 0 ||
	        f.slot != n / 2)
		die("slot", "not found");
	double t3 = now_ms();
	/* own memory and mapped file apart: the first mapping of a page counts the library's pages too */
	printf("%.3f %.3f %.3f %ld %ld\n", t1 - t0, t2 - t1, t3 - t2, status_kib("VmRSS") - rss,
	        status_kib("RssFile") - file);
	shard_index_close(index);
}

struct figures {
	double open_ms, path_ms, slot_ms;
	long rss_kib, file_kib;
};

static int by_total(const void *pa, const void *pb)
{
	const struct figures *a = pa, *b = pb;
	double x = a->open_ms + a->path_ms + a->slot_ms, y = b->open_ms + b->path_ms + b->slot_ms;
	return (x > y) - (x < y);
}

static void measure(const char *self, const char *dataset, const char *file, const char *n, bool cold)
{
	struct figures runs[RUNS];
	for (int i = 0; i < RUNS; i++) {
		if (cold) {
			int fd = open(file, O_RDONLY | O_CLOEXEC);
			if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
				die(file, "cannot drop it from the page cache");
			close(fd);
		}
		char command[9000];
		snprintf(command, sizeof command, "'%s' --probe '%s' %s", self, dataset, n);
		FILE *p = popen(command, "r");
		if (!p || fscanf(p, "%lf %lf %lf %ld %ld", &runs[i].open_ms, &runs[i].path_ms, &runs[i].slot_ms,
		                  &runs[i].rss_kib, &runs[i].file_kib) != 5)
			die("probe", "failed");
		pclose(p);
	}
	qsort(runs, RUNS, sizeof runs[0], by_total);
	const struct figures *m = &runs[RUNS / 2];
	printf("%s  %s files: open %.2f ms, path %.2f ms, slot %.2f ms, together %.2f ms; resident %ld KiB, of it "
	       "mapped %ld KiB "
	       "(median of %d)\n",
	        cold ? "cold " : "warm ", n, m->open_ms, m->path_ms, m->slot_ms, m->open_ms + m->path_ms + m->slot_ms,
	        m->rss_kib, m->file_kib, RUNS);
	double together = m->open_ms + m->path_ms + m->slot_ms;
	if (atoll(n) >= 100000000) {
		bar_below(cold ? "open and look-ups of 10^8, cold" : "open and look-ups of 10^8, warm", together, 50,
		        "ms");
		bar_below("resident", (double)m->rss_kib / 1024, 16, "MiB");
	} else {
		bar_below(cold ? "open and look-ups, cold" : "open and look-ups, warm", together, 5, "ms");
	}
}

int main(int argc, char **argv)
{
	uint64_t n = 1000000;
	if (argc == 4 && strcmp(argv[1], "--probe") == 0) {
		if (base_parse_u64(argv[3], SHARD_FILES_MAX, &n) < 0)
			return 2;
		probe(argv[2], n);
		return 0;
	}
	if (argc > 3 || (argc > 1 && (base_parse_u64(argv[1], SHARD_FILES_MAX, &n) < 0 || n == 0))) {
		fprintf(stderr, "usage: index_open [N [DIR]]\n");
		return 2;
	}

	char base[4096], dir[4200], file[4300], self[4096], text[24];
	snprintf(base, sizeof base, "%s", argc > 2 ? argv[2] : getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	snprintf(dir, sizeof dir, "%s/index_open.XXXXXX", base);
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	if (len < 0 || !mkdtemp(dir))
		die(dir, strerror(errno));
	self[len] = '\0';
	snprintf(file, sizeof file, "%s/%s", dir, SHARD_INDEX_NAME);
	snprintf(text, sizeof text, "%llu", (unsigned long long)n);

	fflush(stdout);
	pid_t pid = fork(); /* the builder's memory is not the reader's */
	if (pid == 0) {
		build(file, n);
		fflush(stdout);
		_exit(0);
	}
	int status = 0;
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0) {
		unlink(file);
		rmdir(dir);
		die("build", "failed");
	}
	measure(self, dir, file, text, true);
	measure(self, dir, file, text, false);
	unlink(file);
	rmdir(dir);
	return 0;
}
