/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the progress bar; progress.h first. */
#include "tools/common/progress.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/units.h"

enum { REDRAW_NS = 100 * 1000 * 1000, COLUMNS_MAX = 200, BAR_MIN = 8, WAIT_TEXT_MAX = 101, WAIT_QUIET_S = 2 };

/* Guarded by lock. */
static struct {
	bool active;
	bool drawn; /* the bar is on the terminal now */
	const char *verb;
	uint64_t total_bytes, total_files;
	uint64_t bytes, files;
	uint64_t skipped_bytes;
	uint64_t start_ns, drawn_ns;
} bar;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Guarded by lock, except thread and active, which belong to the caller's thread. */
static struct {
	bool active;
	bool ended; /* tells the thread to end */
	char what[WAIT_TEXT_MAX];
	pthread_t thread;
} waits;
static pthread_cond_t wait_ended = PTHREAD_COND_INITIALIZER;

static unsigned columns(void)
{
	struct winsize ws = { 0 };
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) || ws.ws_col == 0)
		return 80;
	return ws.ws_col > COLUMNS_MAX ? COLUMNS_MAX : ws.ws_col;
}

static void format_left(double seconds, char buf[static 32])
{
	if (seconds > 99 * 3600.0)
		snprintf(buf, 32, "--:--");
	else if (seconds >= 3600)
		snprintf(buf, 32, "%u:%02u:%02u", (unsigned)seconds / 3600, (unsigned)seconds / 60 % 60,
		        (unsigned)seconds % 60);
	else
		snprintf(buf, 32, "%u:%02u", (unsigned)seconds / 60, (unsigned)seconds % 60);
}

static void draw(uint64_t now)
{
	double elapsed = (double)(now - bar.start_ns) / 1e9;
	double rate = elapsed > 0 ? (double)(bar.bytes - bar.skipped_bytes) / elapsed : 0;
	bool sized = bar.total_bytes > 0 || bar.bytes > 0;
	double share = bar.total_bytes   ? (double)bar.bytes / (double)bar.total_bytes
	               : bar.total_files ? (double)bar.files / (double)bar.total_files
	                                 : 0;
	if (share > 1)
		share = 1;
	char size[16], per_second[16], left[32] = "--:--", tail[160], line[COLUMNS_MAX + 8];
	if (rate > 0 && bar.total_bytes >= bar.bytes)
		format_left((double)(bar.total_bytes - bar.bytes) / rate, left);
	if (sized)
		snprintf(tail, sizeof(tail), " %3.0f%% %s, %s/s, %s left", share * 100,
		        base_format_size(bar.bytes, size), base_format_size((uint64_t)rate, per_second), left);
	else if (bar.total_files > 0)
		snprintf(tail, sizeof(tail), " %3.0f%% %" PRIu64 " of %" PRIu64, share * 100, bar.files,
		        bar.total_files);
	else
		snprintf(tail, sizeof(tail), " %" PRIu64, bar.files);

	unsigned width = columns() - 1; /* the last column would wrap on some terminals */
	size_t used = strlen(bar.verb) + strlen(tail) + 3;
	int n;
	if (used + BAR_MIN <= width) {
		char fill[COLUMNS_MAX + 1];
		size_t cells = width - used;
		memset(fill, ' ', cells);
		memset(fill, '=', (size_t)((double)cells * share));
		fill[cells] = '\0';
		n = snprintf(line, sizeof(line), "\r%s [%s]%s", bar.verb, fill, tail);
	} else {
		n = snprintf(line, sizeof(line), "\r%s%.*s\033[K", bar.verb, (int)width, tail);
	}
	if (n > 0 && (size_t)n < sizeof(line))
		fputs(line, stderr);
	bar.drawn = true;
	bar.drawn_ns = now;
}

static void wipe(void)
{
	if (bar.drawn)
		fputs("\r\033[K", stderr);
	bar.drawn = false;
}

static bool can_draw(void)
{
	const char *term = getenv("TERM");
	return isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
}

void progress_start(const char *verb, uint64_t total_bytes, uint64_t total_files)
{
	if (!can_draw())
		return;
	lock_for_scope(&lock);
	memset(&bar, 0, sizeof(bar));
	bar.active = true;
	bar.verb = verb;
	bar.total_bytes = total_bytes;
	bar.total_files = total_files;
	bar.start_ns = bar.drawn_ns = base_now_ns();
}

void progress_add(uint64_t bytes, uint64_t files)
{
	lock_for_scope(&lock);
	if (bar.active) {
		bar.bytes += bytes;
		bar.files += files;
		uint64_t now = base_now_ns();
		if (now - bar.drawn_ns >= REDRAW_NS)
			draw(now);
	}
}

void progress_skip(uint64_t bytes, uint64_t files)
{
	{
		lock_for_scope(&lock);
		bar.skipped_bytes += bytes;
	}
	progress_add(bytes, files);
}

void progress_clear(void)
{
	lock_for_scope(&lock);
	wipe();
}

void progress_done(void)
{
	lock_for_scope(&lock);
	wipe();
	bar.active = false;
}

static void *wait_main(void *arg)
{
	(void)arg;
	struct timespec next;
	uint64_t start_ns = base_now_ns();
	clock_gettime(CLOCK_REALTIME, &next);
	next.tv_sec += WAIT_QUIET_S;
	lock_for_scope(&lock);
	while (!waits.ended) {
		/* A clock that is set only changes how often the line is drawn. */
		if (pthread_cond_timedwait(&wait_ended, &lock, &next) == 0)
			continue;
		fprintf(stderr, "\r%.*s, %" PRIu64 " s\033[K", (int)columns() - 16, waits.what,
		        (base_now_ns() - start_ns) / 1000000000);
		bar.drawn = true;
		clock_gettime(CLOCK_REALTIME, &next);
		next.tv_sec++;
	}
	wipe();
	return NULL;
}

void progress_wait_start(const char *what)
{
	sigset_t all, old;
	if (!can_draw())
		return;
	{
		lock_for_scope(&lock);
		snprintf(waits.what, sizeof(waits.what), "%s", what);
		waits.ended = false;
	}
	if (waits.active)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	waits.active = pthread_create(&waits.thread, NULL, wait_main, NULL) == 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void progress_wait_done(void)
{
	if (!waits.active)
		return;
	{
		lock_for_scope(&lock);
		waits.ended = true;
		pthread_cond_signal(&wait_ended);
	}
	pthread_join(waits.thread, NULL);
	waits.active = false;
}
