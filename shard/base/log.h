/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines of the long-lived programs: to stderr in front, to syslog (shard/base/syslog.h) once daemonised.
 * Never called in the read path (counters are for that); a message is one line and says what happens next.
 * Threads: any. */
#ifndef DDPFS_SHARD_BASE_LOG_H
#define DDPFS_SHARD_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum base_log_level { BASE_LOG_ERROR, BASE_LOG_WARNING, BASE_LOG_INFO, BASE_LOG_DEBUG };

/* Lines above `level` are dropped (default BASE_LOG_INFO).  `name` (static) stands in front of each line. */
void base_log_init(const char *name, enum base_log_level level, bool to_syslog);

void base_log(enum base_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* From now on lines for syslog go to `relay`, from the thread that logs: for a process that is to reach no socket.  Call before
 * there are threads.  `line` has neither name nor newline and is valid during the call. */
void base_log_relay(void (*relay)(enum base_log_level level, const char *line));

enum {
	BASE_LOG_KEPT = 8, /* the last errors and warnings of this process, whatever the level and wherever lines go */
	BASE_LOG_KEPT_BYTES = 480, /* of one, NUL included; longer ones are cut */
};

struct base_log_line {
	int64_t time_s;                 /* since 1970, UTC */
	char text[BASE_LOG_KEPT_BYTES]; /* "error: ..." or "warning: ..." */
};

/* Copies the kept lines, oldest first; returns how many.  For who asks a server without a log what went wrong. */
unsigned base_log_kept(struct base_log_line ret_lines[BASE_LOG_KEPT]);

#define log_error(...) base_log(BASE_LOG_ERROR, __VA_ARGS__)
#define log_warning(...) base_log(BASE_LOG_WARNING, __VA_ARGS__)
#define log_info(...) base_log(BASE_LOG_INFO, __VA_ARGS__)
#define log_debug(...) base_log(BASE_LOG_DEBUG, __VA_ARGS__)

#endif
