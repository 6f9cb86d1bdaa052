/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines of the programs: to stderr in the foreground, to syslog (shard/base/syslog.h) in the background.
 *
 * The read path does not log; it counts.  A message is one line and says what happens next.
 * Threads: any, unless a function says otherwise. */
#ifndef DDPFS_SHARD_BASE_LOG_H
#define DDPFS_SHARD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum base_log_level { BASE_LOG_ERROR, BASE_LOG_WARNING, BASE_LOG_INFO, BASE_LOG_DEBUG };

/* Sets the level, the name and the target of lines.  Lines above `level` are dropped; the default is BASE_LOG_INFO.
 * `name` is a static string that stands in front of each line. */
void base_log_init(const char *name, enum base_log_level level, bool to_syslog);

/* Writes one line.  Use the log_* macros below. */
void base_log(enum base_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sends lines for syslog to `relay` from now on, for a process that may not open sockets.  The thread that logs calls
 * it.  `line` has no name and no newline, and is valid during the call.  Call this function before threads start. */
void base_log_relay(void (*relay)(enum base_log_level level, const char *line));

enum {
	BASE_LOG_KEPT = 8,         /* last errors and warnings that a process keeps, independent of level and target */
	BASE_LOG_KEPT_BYTES = 480, /* bytes of one, NUL included; longer ones are cut */
};

struct base_log_line {
	int64_t time_s;                 /* since 1970, UTC */
	char text[BASE_LOG_KEPT_BYTES]; /* "error: ..." or "warning: ..." */
};

/* Copies the kept lines, oldest first.  Returns how many.  They show what went wrong in a server that has no log. */
unsigned base_log_kept(struct base_log_line ret_lines[BASE_LOG_KEPT]);

#define log_error(...) base_log(BASE_LOG_ERROR, __VA_ARGS__)
#define log_warning(...) base_log(BASE_LOG_WARNING, __VA_ARGS__)
#define log_info(...) base_log(BASE_LOG_INFO, __VA_ARGS__)
#define log_debug(...) base_log(BASE_LOG_DEBUG, __VA_ARGS__)

#endif
