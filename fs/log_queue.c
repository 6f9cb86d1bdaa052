/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines that wait for the helper; fs/log_queue.h first. */
#include "fs/log_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/server.h"
#include "shard/base/cleanup.h"
#include "shard/base/err.h"
#include "shard/base/log.h"

enum {
	NOTES_MAX = 16,
	NOTE_BYTES = 512,
};

struct failure {
	uint32_t file;
	uint32_t block;
	int rc;
};

/* A file that has its line in the log already. */
struct told {
	uint32_t file;
	int rc;
};

struct fs_log_queue {
	const struct shard_index *index;
	struct fs_job_queue *queue;
	_Atomic bool knows_stale;
	/* The helper's own: */
	struct told told[FS_LOG_QUEUE_TOLD_MAX]; /* a ring of the latest files */
	uint64_t n_told;                         /* all files that ever were in the ring */
	struct {
		uint64_t second;
		uint32_t lines;
		uint64_t held_back;
	} budget;

	pthread_mutex_t lock; /* guards what follows */
	struct failure failures[FS_LOG_QUEUE_ERRORS_MAX];
	uint32_t n_failures;
	uint64_t unlogged; /* failures that found no room */
	bool stale;        /* the index is stale, and the log does not say so yet */
	char notes[NOTES_MAX][NOTE_BYTES];
	uint32_t n_notes;
};

int fs_log_queue_new(const struct shard_index *index, struct fs_job_queue *queue, struct fs_log_queue **ret_log)
{
	struct fs_log_queue *log = calloc(1, sizeof(*log));
	if (!log)
		return -ENOMEM;
	log->index = index;
	log->queue = queue;
	pthread_mutex_init(&log->lock, NULL);
	*ret_log = log;
	return 0;
}

void fs_log_queue_free(struct fs_log_queue *log)
{
	if (!log)
		return;
	pthread_mutex_destroy(&log->lock);
	free(log);
}

/* ---- any thread ---- */

void fs_log_queue_read_failed(struct fs_log_queue *log, uint32_t file, uint32_t block, int rc)
{
	if (rc == -ESTALE && shard_index_explain(log->index, NULL) < 0) {
		fs_log_queue_index_stale(log);
		return;
	}
	{
		lock_for_scope(&log->lock);
		struct failure *last = log->n_failures ? &log->failures[log->n_failures - 1] : NULL;
		if (last && last->file == file && last->block == block && last->rc == rc) {
			/* a reader that tries the same block again */
		} else if (log->n_failures < FS_LOG_QUEUE_ERRORS_MAX) {
			log->failures[log->n_failures++] = (struct failure){ .file = file, .block = block, .rc = rc };
		} else {
			log->unlogged++;
		}
	}
	fs_job_queue_wake(log->queue);
}

void fs_log_queue_index_stale(struct fs_log_queue *log)
{
	if (atomic_exchange(&log->knows_stale, true))
		return;
	{
		lock_for_scope(&log->lock);
		log->stale = true;
	}
	fs_job_queue_wake(log->queue);
}

void fs_log_queue_note(struct fs_log_queue *log, const char *fmt, ...)
{
	char text[NOTE_BYTES];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	{
		lock_for_scope(&log->lock);
		if (log->n_notes < NOTES_MAX)
			memcpy(log->notes[log->n_notes++], text, sizeof(text));
	}
	fs_job_queue_wake(log->queue);
}

/* ---- the helper ---- */

/* Names what fs_read_errno makes of it. */
static const char *reader_gets(int rc)
{
	return rc == -ESTALE ? "ESTALE" : rc == -ENOMEM ? "ENOMEM" : "EIO";
}

static const char *advice(int rc, bool store)
{
	if (store && rc == -EBADMSG) /* the first answer of an object is compared with its checksums only */
		return "the object is damaged, or was replaced after it was packed; `mkshard verify --quarantine` "
		       "lists every bad sample, for on_bad=skip or substitute";
	switch (rc) {
	case -EACCES:
	case -EPERM:
		return "whoever mounts must be allowed to read the shards";
	case -ENOENT:
	case -ESTALE:
		return "put the shard back that the index describes";
	case -ETIMEDOUT:
		return "it is read again when somebody asks for it; `ddpfs doctor MNT` looks whether the store answers";
	case -ENOMEM:
		return "it is read again when somebody asks for it; the host or its cgroup has no memory left";
	case -EKEYREJECTED:
		return "no file is bad: put the certificate right, or set AWS_CA_BUNDLE and mount again";
	default:
		return "`mkshard verify --quarantine` lists every bad sample, for on_bad=skip or substitute";
	}
}

static void log_failure(const struct shard_index *index, const struct failure *failure)
{
	char path[SHARD_PATH_MAX + 1];
	char quoted[BASE_ERR_TEXT_MAX / 2];
	char shard_quoted[BASE_ERR_TEXT_MAX / 4];
	char shard_path[SHARD_PATH_MAX + 1] = "?";
	struct shard_file file;
	struct shard_shard shard;
	uint64_t offset = 0;
	uint64_t sum;
	uint32_t length;

	if (shard_index_file_path(index, failure->file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "file %u", failure->file);
	if (shard_index_file(index, failure->file, &file) == 0 && shard_index_shard(index, file.shard, &shard) == 0 &&
	        shard.path_len < sizeof(shard_path)) {
		memcpy(shard_path, shard.path, shard.path_len);
		shard_path[shard.path_len] = '\0';
	}
	(void)!shard_index_block(index, failure->file, failure->block, &offset, &length, &sum);
	log_error("'%s' in shard '%s' at byte %llu: %s: readers get %s; %s",
	        base_err_quote(path, quoted, sizeof(quoted)),
	        base_err_quote(shard_path, shard_quoted, sizeof(shard_quoted)), (unsigned long long)offset,
	        base_err_str(failure->rc), reader_gets(failure->rc),
	        advice(failure->rc, shard_index_store(index) != NULL));
}

static bool was_told(const struct fs_log_queue *log, const struct failure *failure)
{
	uint64_t n = log->n_told < FS_LOG_QUEUE_TOLD_MAX ? log->n_told : FS_LOG_QUEUE_TOLD_MAX;
	for (uint64_t i = 0; i < n; i++) {
		if (log->told[i].file == failure->file && log->told[i].rc == failure->rc)
			return true;
	}
	return false;
}

static void log_failures(struct fs_log_queue *log, const struct failure *failures, uint32_t n)
{
	uint64_t now = base_now_ns() / 1000000000;
	if (now != log->budget.second) {
		log->budget.second = now;
		log->budget.lines = 0;
	}
	uint32_t before = log->budget.lines;
	for (uint32_t i = 0; i < n; i++) {
		if (was_told(log, &failures[i]))
			continue;
		if (log->budget.lines == FS_LOG_QUEUE_LINES_PER_S) {
			log->budget.held_back++;
			continue;
		}
		log_failure(log->index, &failures[i]);
		log->budget.lines++;
		log->told[log->n_told++ % FS_LOG_QUEUE_TOLD_MAX] =
		        (struct told){ .file = failures[i].file, .rc = failures[i].rc };
	}
	if (log->budget.lines > before && log->budget.held_back > 0) {
		log_error("%llu more failed reads are not shown; the counters in stats.json have all",
		        (unsigned long long)log->budget.held_back);
		log->budget.held_back = 0;
	}
}

/* Takes what waits under the lock, and logs it without the lock. */
void fs_log_queue_write(struct fs_log_queue *log)
{
	struct failure failures[FS_LOG_QUEUE_ERRORS_MAX];
	char notes[NOTES_MAX][NOTE_BYTES];
	struct base_err err = { 0 };

	uint32_t n, n_notes;
	bool stale;
	{
		lock_for_scope(&log->lock);
		n = log->n_failures;
		stale = log->stale;
		log->stale = false;
		memcpy(failures, log->failures, n * sizeof(failures[0]));
		log->budget.held_back += log->unlogged;
		log->n_failures = 0;
		log->unlogged = 0;
		n_notes = log->n_notes;
		memcpy(notes, log->notes, n_notes * sizeof(notes[0]));
		log->n_notes = 0;
	}

	if (stale && shard_index_explain(log->index, &err) < 0)
		log_error("%s", err.text);
	/* One sentence for all files, because each file that is read from then on fails. */
	if (shard_index_explain(log->index, NULL) == 0)
		log_failures(log, failures, n);
	for (uint32_t i = 0; i < n_notes; i++)
		log_warning("%s", notes[i]);
}
