/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of the counters, taken by main and given out as JSON; fs/recorder.h first. */
#include "fs/recorder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fs/history.h"
#include "fs/job_queue.h"
#include "fs/server.h"
#include "fs/stats.h"
#include "fs/supervise/handover_memory.h"
#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"

enum { TEXT_SHOWN_MAX = 512 };

_Static_assert(sizeof(struct fs_history_memory) <= FS_HANDOVER_HISTORY_BYTES, "the history fits its memory");

struct fs_recorder {
	struct fs_server *server;
	struct fs_history_memory *history; /* in the handover memory */
};

/* A line of the log that waits for the helper. */
struct line {
	struct fs_job job;
	char *text;
};

/* From 1, so that 0 is before every reading. */
static uint64_t now_ms(const struct fs_recorder *recorder)
{
	return (base_now_ns() - recorder->server->started_ns) / 1000000 + 1;
}

int fs_recorder_new(struct fs_server *server, struct fs_recorder **ret_recorder)
{
	struct fs_recorder *recorder = calloc(1, sizeof(*recorder));
	if (!recorder)
		return -ENOMEM;
	recorder->server = server;
	recorder->history = fs_handover_history(server->handover);
	fs_history_check(recorder->history, now_ms(recorder));
	*ret_recorder = recorder;
	return 0;
}

void fs_recorder_free(struct fs_recorder *recorder)
{
	free(recorder);
}

/* ---- JSON ---- */

static json_t *text_value(const char *text)
{
	char quoted[TEXT_SHOWN_MAX];
	return json_string(base_err_quote(text, quoted, sizeof(quoted)));
}

/* JSON readers may take integers as signed. A larger value comes from damaged memory only. */
static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)(value <= INT64_MAX ? value : INT64_MAX));
}

/* Since 1970. Worked out anew each time, because the clock may be set. */
static uint64_t began_ms(const struct fs_recorder *recorder)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000 - now_ms(recorder);
}

static json_t *reading_json(const struct fs_history_reading *reading)
{
	json_t *values = json_array();
	for (int i = 0; i < FS_HISTORY_FIELDS; i++)
		json_array_append_new(values, number(reading->values[i]));
	return values;
}

static json_t *history_json(const struct fs_recorder *recorder, uint64_t after_ms, size_t n_max)
{
	const struct fs_server *server = recorder->server;
	const struct fs_history_memory *history = recorder->history;
	const struct fs_view *view = server->views[0];
	size_t from = fs_history_after(history, after_ms);
	size_t end = history->n - from > n_max ? from + n_max : history->n;
	json_t *object = json_object();
	json_object_set_new(object, "version", json_string(DDPFS_VERSION));
	json_object_set_new(object, "pid", number((uint64_t)server->channel->supervisor));
	json_object_set_new(object, "mountpoint", text_value(server->options.mountpoint));
	json_object_set_new(object, "dataset", text_value(shard_index_dataset(server->index)));
	json_object_set_new(object, "rank", number(view->options.rank));
	if (server->options.n_ranks > 0)
		json_object_set_new(object, "ranks", number(server->n_views));
	json_object_set_new(object, "world", number(view->options.world));
	json_object_set_new(object, "view", json_string(view->all ? "all" : "rank"));
	json_object_set_new(object, "began_ms", number(began_ms(recorder)));
	json_object_set_new(object, "files", number(server->info->n_files));
	json_object_set_new(object, "content_bytes", number(server->info->content_bytes));
	json_object_set_new(object, "interval_ms", number(history->interval_ms));
	json_t *names = json_array();
	for (int i = 0; i < FS_HISTORY_FIELDS; i++)
		json_array_append_new(names, json_string(fs_history_names[i]));
	json_object_set_new(object, "fields", names);
	json_t *readings = json_array();
	for (size_t i = from; i < end; i++)
		json_array_append_new(readings, reading_json(&history->readings[i]));
	json_object_set_new(object, "readings", readings);
	json_object_set_new(object, "more", json_boolean(end < history->n));
	return object;
}

json_t *fs_recorder_json(struct fs_recorder *recorder, uint64_t after_ms)
{
	return history_json(recorder, after_ms, FS_RECORDER_REPLY);
}

/* ---- the log ---- */

/* Whatever the level of the log is: the lines are for `ddpfs report`. One write(2), as base_log does it. */
static void write_line(struct fs_job *job, bool ending)
{
	struct line *line = (struct line *)job;
	(void)ending;
	ssize_t written = write(STDERR_FILENO, line->text, strlen(line->text));
	(void)written;
	free(line->text);
	free(line);
}

static size_t unlogged(const struct fs_recorder *recorder)
{
	return recorder->history->n - fs_history_after(recorder->history, recorder->history->logged_ms);
}

/* Makes a line of the oldest readings that are not in the log. NULL: out of memory. */
static struct line *make_line(const struct fs_recorder *recorder)
{
	struct fs_history_memory *history = recorder->history;
	cleanup_json json_t *object = history_json(recorder, history->logged_ms, FS_RECORDER_LINE);
	cleanup_free char *json = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	cleanup_free struct line *line = calloc(1, sizeof(*line));
	size_t n = json_array_size(json_object_get(object, "readings"));
	if (!json || !line || n == 0 || asprintf(&line->text, "ddpfs: history %s\n", json) < 0)
		return NULL;
	line->job.run = write_line;
	history->logged_ms = history->readings[fs_history_after(history, history->logged_ms) + n - 1].values[0];
	return steal_ptr(&line);
}

static void take(struct fs_recorder *recorder)
{
	struct fs_history_reading reading = { 0 };
	fs_stats_reading(recorder->server, &reading);
	reading.values[0] = now_ms(recorder);
	fs_history_add(recorder->history, &reading);
}

int fs_recorder_check(struct fs_recorder *recorder)
{
	uint64_t due_ms = fs_history_due_ms(recorder->history, now_ms(recorder));
	if (due_ms > 0)
		return (int)due_ms;
	take(recorder);
	bool log = recorder->server->options.log_history && unlogged(recorder) >= FS_RECORDER_LINE;
	struct line *line = log ? make_line(recorder) : NULL;
	if (line)
		fs_job_queue_add(recorder->server->jobs, &line->job);
	return (int)fs_history_due_ms(recorder->history, now_ms(recorder)) + 1;
}

void fs_recorder_end(struct fs_recorder *recorder)
{
	take(recorder);
	while (recorder->server->options.log_history && unlogged(recorder) > 0) {
		struct line *line = make_line(recorder);
		if (!line)
			return;
		write_line(&line->job, true);
	}
}
