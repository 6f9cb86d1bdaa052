/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to stderr or syslog, and the last ones kept in memory; shard/base/log.h first. */
#include "shard/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/syslog.h"

enum { LINE_MAX_BYTES = 4096 };

/* Set by base_log_init.  Atomics, because a server changes them when it goes to the background, while threads log. */
static _Atomic(const char *) log_name = "ddpfs";
static atomic_int log_level = BASE_LOG_INFO;
static atomic_bool log_to_syslog;
static void (*log_relay)(enum base_log_level level, const char *line); /* set before there are threads */

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct base_log_line kept[BASE_LOG_KEPT]; /* a ring; guarded by kept_lock */
static unsigned n_kept;                          /* lines kept since the start; guarded by kept_lock */

/* Keeps errors and warnings, because a background server in a container has no syslog. */
__attribute__((format(printf, 2, 0))) static void keep(const char *word, const char *fmt, va_list ap)
{
	struct base_log_line line = { .time_s = time(NULL) };
	size_t used = (size_t)snprintf(line.text, sizeof line.text, "%s", word);
	if (vsnprintf(line.text + used, sizeof line.text - used, fmt, ap) < 0)
		return;
	lock_for_scope(&kept_lock);
	kept[n_kept++ % BASE_LOG_KEPT] = line;
}

unsigned base_log_kept(struct base_log_line ret_lines[BASE_LOG_KEPT])
{
	lock_for_scope(&kept_lock);
	unsigned n = n_kept < BASE_LOG_KEPT ? n_kept : BASE_LOG_KEPT;
	for (unsigned i = 0; i < n; i++)
		ret_lines[i] = kept[(n_kept - n + i) % BASE_LOG_KEPT];
	return n;
}

void base_log_init(const char *name, enum base_log_level level, bool to_syslog)
{
	atomic_store(&log_name, name);
	atomic_store(&log_level, (int)level);
	atomic_store(&log_to_syslog, to_syslog);
}

void base_log_relay(void (*relay)(enum base_log_level level, const char *line))
{
	log_relay = relay;
}

void base_log(enum base_log_level level, const char *fmt, ...)
{
	static const int priority[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
	static const char *const word[] = { "error: ", "warning: ", "", "debug: " };

	va_list ap;
	if (level <= BASE_LOG_WARNING) {
		va_start(ap, fmt);
		keep(word[level], fmt, ap);
		va_end(ap);
	}
	if ((int)level > atomic_load(&log_level))
		return;

	char line[LINE_MAX_BYTES];
	bool to_syslog = atomic_load(&log_to_syslog);
	size_t used = 0;
	if (!to_syslog)
		used = (size_t)snprintf(line, sizeof line / 2, "%s: %s", atomic_load(&log_name), word[level]);
	if (used >= sizeof line / 2)
		used = sizeof line / 2 - 1;

	va_start(ap, fmt);
	int n = vsnprintf(line + used, sizeof line - used - 1, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;

	if (to_syslog && log_relay) {
		log_relay(level, line);
		return;
	}
	if (to_syslog) { /* a line that syslog does not take is lost, but errors and warnings are kept */
		(void)base_syslog(BASE_SYSLOG_PATH, atomic_load(&log_name), priority[level], line);
		return;
	}
	used = strlen(line);
	line[used++] = '\n';
	/* One write(2) a line, so that lines of several threads and processes do not mix.  A failure cannot be
	 * reported. */
	ssize_t written = write(STDERR_FILENO, line, used);
	(void)written;
}
