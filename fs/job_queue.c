#include "fs/job_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/dir.h"
#include "fs/epoch_list.h"
#include "fs/node.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

enum {
	NOTES_MAX = 16,
	NOTE_BYTES = 512,
	SHARDS_LOOKED_AT = 256, /* when mounting: a stat of each costs a slow store up to milliseconds */
};

struct job {
	struct job *next;
	fuse_req_t req;
	bool opendir; /* else a request on a list */
	enum fs_epoch_list_op op;
	struct fs_node node;
	size_t size;
	off_t off;
	fuse_ino_t ino;
	struct fuse_file_info fi;
};

struct failure {
	uint32_t file;
	uint32_t block;
	int rc;
};

/* A file that has its line in the log. */
struct told {
	uint32_t file;
	int rc;
};

struct fs_job_queue {
	struct fs_server *server;
	struct fs_lists *lists; /* the thread's own */
	pthread_t thread;
	bool started;
	void (*ready)(void *arg);
	void *ready_arg;
	struct told told[FS_JOB_QUEUE_TOLD_MAX]; /* the thread's own: a ring of the latest */
	uint64_t n_told;                         /* all that ever were */
	_Atomic bool stopping;
	_Atomic bool knows_stale;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t wake;
	struct job *jobs;
	struct job **jobs_tail;
	struct failure failures[FS_JOB_QUEUE_ERRORS_MAX];
	uint32_t n_failures;
	uint64_t unlogged; /* failures that found no place */
	bool stale;        /* the index is, and nobody has said so yet */
	char notes[NOTES_MAX][NOTE_BYTES];
	uint32_t n_notes;
};

int fs_job_queue_new(struct fs_server *server, struct fs_job_queue **ret_helper)
{
	struct fs_job_queue *helper = calloc(1, sizeof(*helper));
	if (!helper)
		return -ENOMEM;
	helper->server = server;
	helper->jobs_tail = &helper->jobs;
	pthread_mutex_init(&helper->lock, NULL);
	pthread_cond_init(&helper->wake, NULL);
	if (fs_lists_new(server->index, &helper->lists) < 0) {
		fs_job_queue_free(helper);
		return -ENOMEM;
	}
	*ret_helper = helper;
	return 0;
}

void fs_job_queue_free(struct fs_job_queue *helper)
{
	if (!helper)
		return;
	fs_lists_free(helper->lists);
	pthread_cond_destroy(&helper->wake);
	pthread_mutex_destroy(&helper->lock);
	free(helper);
}

/* ---- queues ---- */

static void enqueue(struct fs_job_queue *helper, const struct job *filled)
{
	struct job *job = malloc(sizeof(*job));
	if (!job) {
		fuse_reply_err(filled->req, ENOMEM);
		return;
	}
	*job = *filled;
	pthread_mutex_lock(&helper->lock);
	bool refused = helper->stopping;
	if (!refused) {
		*helper->jobs_tail = job;
		helper->jobs_tail = &job->next;
		pthread_cond_signal(&helper->wake);
	}
	pthread_mutex_unlock(&helper->lock);
	if (refused) {
		fuse_reply_err(job->req, EIO);
		free(job);
	}
}

void fs_job_queue_list(struct fs_job_queue *helper, fuse_req_t req, enum fs_epoch_list_op op, struct fs_node node,
        size_t size, off_t off)
{
	enqueue(helper, &(struct job){ .req = req, .op = op, .node = node, .size = size, .off = off });
}

void fs_job_queue_opendir(struct fs_job_queue *helper, fuse_req_t req, fuse_ino_t ino, const struct fuse_file_info *fi)
{
	enqueue(helper, &(struct job){ .req = req, .opendir = true, .ino = ino, .fi = *fi });
}

void fs_job_queue_read_failed(struct fs_job_queue *helper, uint32_t file, uint32_t block, int rc)
{
	if (rc == -ESTALE && shard_index_explain(helper->server->index, NULL) < 0) {
		fs_job_queue_index_stale(helper);
		return;
	}
	pthread_mutex_lock(&helper->lock);
	struct failure *last = helper->n_failures ? &helper->failures[helper->n_failures - 1] : NULL;
	if (last && last->file == file && last->block == block && last->rc == rc) {
		/* a reader that tries again */
	} else if (helper->n_failures < FS_JOB_QUEUE_ERRORS_MAX) {
		helper->failures[helper->n_failures++] = (struct failure){ .file = file, .block = block, .rc = rc };
	} else {
		helper->unlogged++;
	}
	pthread_cond_signal(&helper->wake);
	pthread_mutex_unlock(&helper->lock);
}

void fs_job_queue_index_stale(struct fs_job_queue *helper)
{
	if (atomic_exchange(&helper->knows_stale, true))
		return;
	pthread_mutex_lock(&helper->lock);
	helper->stale = true;
	pthread_cond_signal(&helper->wake);
	pthread_mutex_unlock(&helper->lock);
}

void fs_job_queue_note(struct fs_job_queue *helper, const char *fmt, ...)
{
	char text[NOTE_BYTES];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	pthread_mutex_lock(&helper->lock);
	if (helper->n_notes < NOTES_MAX) {
		memcpy(helper->notes[helper->n_notes++], text, sizeof(text));
		pthread_cond_signal(&helper->wake);
	}
	pthread_mutex_unlock(&helper->lock);
}

/* ---- lists ---- */

static void reply_list_attr(struct fs_job_queue *helper, const struct job *job, uint64_t bytes)
{
	struct fuse_entry_param e = { .ino = fs_ino(job->node) };
	int rc = fs_node_attr(helper->server, job->node, &e.attr, &e.attr_timeout);
	if (rc < 0) {
		fuse_reply_err(job->req, -fs_errno(rc));
		return;
	}
	e.attr.st_size = (off_t)bytes;
	e.attr.st_blocks = (blkcnt_t)((bytes + 511) / 512);
	e.entry_timeout = FS_FOREVER;
	if (job->op == FS_EPOCH_LIST_LOOKUP)
		fuse_reply_entry(job->req, &e);
	else
		fuse_reply_attr(job->req, &e.attr, e.attr_timeout);
}

static void do_list(struct fs_job_queue *helper, const struct job *job)
{
	struct fs_view *view = fs_server_view(helper->server, job->node);
	uint64_t bytes;
	int rc;
	if (!view) {
		fuse_reply_err(job->req, ESTALE);
		return;
	}
	if (job->op != FS_EPOCH_LIST_READ) {
		rc = fs_epoch_list_size(helper->lists, view, job->node.id, &helper->stopping, &bytes);
		rc = fs_index_check(helper->server, rc);
		if (rc == 0)
			reply_list_attr(helper, job, bytes);
		else
			fuse_reply_err(job->req, -fs_errno(rc));
		return;
	}
	size_t size = job->size > FS_READ_MAX ? FS_READ_MAX : job->size;
	size_t len = 0;
	cleanup_free char *buf = malloc(size + 1);
	rc = !buf ? -ENOMEM : job->off < 0 ? -EINVAL : 0;
	if (rc == 0)
		rc = fs_epoch_list_read(helper->lists, view, job->node.id,
		        job->node.kind == FS_EPOCH_LIST0 ? '\0' : '\n', &helper->stopping, (uint64_t)job->off, buf,
		        size, &len);
	rc = fs_index_check(helper->server, rc);
	if (rc < 0)
		fuse_reply_err(job->req, -fs_errno(rc));
	else
		fuse_reply_buf(job->req, buf, len);
}

/* ---- log lines ---- */

static const char *advice(int rc)
{
	switch (rc) {
	case -EACCES:
	case -EPERM:
		return "whoever mounts must be allowed to read the shards";
	case -ENOENT:
	case -ESTALE:
		return "put the shard back that the index describes";
	default:
		return "`mkshard verify --quarantine` lists every bad sample, for on_bad=skip or substitute";
	}
}

static void log_failure(struct fs_job_queue *helper, const struct failure *failure)
{
	const struct shard_index *index = helper->server->index;
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
	log_error("'%s' in shard '%s' at byte %llu: %s: readers get EIO; %s",
	        base_err_quote(path, quoted, sizeof(quoted)),
	        base_err_quote(shard_path, shard_quoted, sizeof(shard_quoted)), (unsigned long long)offset,
	        base_err_str(failure->rc), advice(failure->rc));
}

struct log_budget {
	uint64_t second;
	uint32_t lines;
	uint64_t held_back;
};

static bool was_told(const struct fs_job_queue *helper, const struct failure *failure)
{
	uint64_t n = helper->n_told < FS_JOB_QUEUE_TOLD_MAX ? helper->n_told : FS_JOB_QUEUE_TOLD_MAX;
	for (uint64_t i = 0; i < n; i++) {
		if (helper->told[i].file == failure->file && helper->told[i].rc == failure->rc)
			return true;
	}
	return false;
}

static void log_failures(
        struct fs_job_queue *helper, struct log_budget *budget, const struct failure *failures, uint32_t n)
{
	uint64_t now = fs_now_ns() / 1000000000;
	if (now != budget->second) {
		budget->second = now;
		budget->lines = 0;
	}
	uint32_t before = budget->lines;
	for (uint32_t i = 0; i < n; i++) {
		if (was_told(helper, &failures[i]))
			continue;
		if (budget->lines == FS_JOB_QUEUE_LINES_PER_S) {
			budget->held_back++;
			continue;
		}
		log_failure(helper, &failures[i]);
		budget->lines++;
		helper->told[helper->n_told++ % FS_JOB_QUEUE_TOLD_MAX] =
		        (struct told){ .file = failures[i].file, .rc = failures[i].rc };
	}
	if (budget->lines > before && budget->held_back > 0) {
		log_error("%llu more failed reads are not shown; the counters in stats.json have all",
		        (unsigned long long)budget->held_back);
		budget->held_back = 0;
	}
}

/* Takes what waits and logs it without the lock. */
static void log_waiting(struct fs_job_queue *helper, struct log_budget *budget)
{
	struct failure failures[FS_JOB_QUEUE_ERRORS_MAX];
	char notes[NOTES_MAX][NOTE_BYTES];
	struct base_err err = { 0 };

	pthread_mutex_lock(&helper->lock);
	uint32_t n = helper->n_failures;
	bool stale = helper->stale;
	helper->stale = false;
	memcpy(failures, helper->failures, n * sizeof(failures[0]));
	budget->held_back += helper->unlogged;
	helper->n_failures = 0;
	helper->unlogged = 0;
	uint32_t n_notes = helper->n_notes;
	memcpy(notes, helper->notes, n_notes * sizeof(notes[0]));
	helper->n_notes = 0;
	pthread_mutex_unlock(&helper->lock);

	if (stale && shard_index_explain(helper->server->index, &err) < 0)
		log_error("%s", err.text);
	/* One sentence for all: each file that is read from then on fails. */
	if (shard_index_explain(helper->server->index, NULL) == 0)
		log_failures(helper, budget, failures, n);
	for (uint32_t i = 0; i < n_notes; i++)
		log_warning("%s", notes[i]);
}

/* ---- the thread ---- */

/* A shard that is not there, may not be read, or has another size than the index says: a dataset that was copied by half. */
static bool shard_is_wrong(const struct shard_index *index, int dir, uint32_t shard, char *text, size_t size)
{
	struct shard_shard rec;
	struct stat st;
	if (shard_index_shard(index, shard, &rec) < 0 || rec.path_len > SHARD_PATH_MAX)
		return false; /* said when it is read */
	char path[SHARD_PATH_MAX + 1];
	memcpy(path, rec.path, rec.path_len);
	path[rec.path_len] = '\0';
	cleanup_close int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		snprintf(text, size, "'%.200s': %s", path, strerror(errno));
	else if ((uint64_t)st.st_size != rec.size_bytes)
		snprintf(text, size, "'%.200s' has %llu bytes and should have %llu", path,
		        (unsigned long long)st.st_size, (unsigned long long)rec.size_bytes);
	else
		return false;
	return true;
}

/* Says now what would else be found out in the middle of an epoch.  Of many shards evenly chosen ones are looked at. */
static void look_at_shards(const struct fs_server *server)
{
	uint32_t n = server->info->n_shards, looked = n < SHARDS_LOOKED_AT ? n : SHARDS_LOOKED_AT, wrong = 0;
	char first[NOTE_BYTES] = "", text[NOTE_BYTES];
	cleanup_close int dir = open(shard_index_dataset(server->index), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (uint32_t i = 0; i < looked && dir >= 0; i++) {
		uint32_t shard = looked < 2 ? 0 : (uint32_t)((uint64_t)i * (n - 1) / (looked - 1));
		if (shard_is_wrong(server->index, dir, shard, text, sizeof(text)) && wrong++ == 0)
			memcpy(first, text, sizeof(first));
	}
	if (wrong)
		log_warning("%u of %u shards looked at are not as the index says, first %s; reads of their files will "
		            "fail ('mkshard verify' names all that is wrong)",
		        wrong, looked, first);
}

/* More ranks than samples, or nearly so. */
static void tell_if_few(const struct fs_server *server)
{
	for (uint32_t i = 0; i < server->n_views; i++) {
		struct fs_view *view = server->views[i];
		struct fs_view_progress progress;
		fs_view_progress(view, &progress);
		uint64_t samples = shard_view_samples(view->order);
		if (view->all)
			continue;
		if (samples == 0)
			log_warning(
			        "there is no sample to deal: every file is common, shown on every rank (`mkshard pack "
			        "--common=''` deals them)");
		else if (progress.turns == 0)
			log_warning("rank %u of %u has no sample: the order deals %llu, tail=%s: its mount holds no "
			            "more than common files; take fewer ranks, or tail=pad",
			        view->options.rank, view->options.world, (unsigned long long)samples,
			        shard_tail_name(view->options.tail));
		else if (view->options.world > samples && view->options.tail == SHARD_TAIL_PAD)
			log_warning("world=%u is more than the samples that are dealt, %llu: with tail=pad ranks "
			            "repeat samples of others; take at most %llu ranks to see each once an epoch",
			        view->options.world, (unsigned long long)samples, (unsigned long long)samples);
	}
}

static void wait_ready(struct fs_job_queue *helper)
{
	int rc = fs_watch_wait_ready(helper->server->watch);
	if (rc == 0) {
		tell_if_few(helper->server);
		look_at_shards(helper->server);
	}
	if (rc == 0 && helper->ready)
		helper->ready(helper->ready_arg);
	else if (rc < 0 && rc != -ECANCELED)
		log_error("'%s' does not answer: %s", helper->server->options.mountpoint, strerror(-rc));
}

static void *helper_run(void *arg)
{
	struct fs_job_queue *helper = arg;
	struct log_budget budget = { 0 };
	pthread_setname_np(pthread_self(), "helper");
	wait_ready(helper);

	pthread_mutex_lock(&helper->lock);
	while (!helper->stopping) {
		struct job *job = helper->jobs;
		if (!job && !helper->n_failures && !helper->n_notes && !helper->stale) {
			pthread_cond_wait(&helper->wake, &helper->lock);
			continue;
		}
		if (job) {
			helper->jobs = job->next;
			if (!helper->jobs)
				helper->jobs_tail = &helper->jobs;
		}
		pthread_mutex_unlock(&helper->lock);
		if (job && job->opendir)
			fs_dir_opendir_waited(job->req, job->ino, &job->fi);
		else if (job)
			do_list(helper, job);
		free(job);
		log_waiting(helper, &budget);
		pthread_mutex_lock(&helper->lock);
	}
	pthread_mutex_unlock(&helper->lock);
	log_waiting(helper, &budget);
	return NULL;
}

int fs_job_queue_start(struct fs_job_queue *helper, void (*ready)(void *arg), void *arg)
{
	helper->ready = ready;
	helper->ready_arg = arg;
	int rc = -pthread_create(&helper->thread, NULL, helper_run, helper);
	helper->started = rc == 0;
	return rc;
}

void fs_job_queue_stop(struct fs_job_queue *helper)
{
	if (!helper)
		return;
	pthread_mutex_lock(&helper->lock);
	helper->stopping = true;
	pthread_cond_signal(&helper->wake);
	pthread_mutex_unlock(&helper->lock);
	if (helper->started)
		pthread_join(helper->thread, NULL);
	helper->started = false;
	while (helper->jobs) {
		struct job *job = helper->jobs;
		helper->jobs = job->next;
		fuse_reply_err(job->req, EIO);
		free(job);
	}
	helper->jobs_tail = &helper->jobs;
}
