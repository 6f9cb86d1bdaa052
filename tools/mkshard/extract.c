/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard extract`: writes files with their bytes, mode and time; mkshard.h and shards.h first.
 *
 * It opens every path below OUT with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS).  So neither a name of the
 * dataset nor a link in OUT leads out of OUT.
 *
 * Each file has a temporary name (TEMP) in its directory until it is complete.  If a file exists, the program
 * compares it with size and checksums of the index.  It keeps an equal file, so that a rerun completes a killed run.
 * It keeps and names a different file, or replaces it with --force.
 *
 * Each run holds a shared lock (flock) of OUT.  A run that first gets the lock exclusively removes the temporary
 * files of killed runs. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <dirent.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shard/base/bits.h"
#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "tools/common/cli.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/reader.h"
#include "tools/mkshard/shards.h"
#include "tools/common/progress.h"

enum {
	EXISTING_MAX = 10, /* existing files that are named singly */
	GAP_MAX = 1 << 20, /* bytes between two files that are read at one go from a store, though nobody wants them */
};

#define TEMP ".mkshard-extract-" /* TEMP_DIGITS hexadecimal digits follow */
enum { TEMP_DIGITS = 32 };

struct extract_args {
	const char *dataset, *out;
	const char *index_file; /* the index, if it does not lie there; else NULL */
	struct cli_rest paths;
	bool force;
	uint64_t jobs, timeout_s;
};

struct extract {
	const struct shard_index *index;
	const struct extract_args *args;
	int out;
	bool alone;             /* no other run works in OUT, so all temporary files there belong to killed runs */
	uint64_t *files, *dirs; /* a bit for each one to extract (shard/base/bits.h) */
	struct shard_files by_shard;
	uint64_t run;            /* a random number: the first part of the names of temporary files */
	_Atomic uint64_t n_temp; /* a counter: the second part */
	_Atomic uint64_t written, equal;
	_Atomic uint64_t failed;
	_Atomic bool stopped;       /* the store cannot be read; this was said */
	_Atomic uint64_t differing; /* part of `failed`: files that exist and differ from the dataset's */
};

/* Counts and prints a failure; the run goes on with the other files. */
static void fail(struct extract *extract, const char *path, const char *reason)
{
	cli_failf("'%s': %s", base_quoted(path), reason);
	atomic_fetch_add(&extract->failed, 1);
}

static int open_below(const struct extract *extract, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};
	int fd;
	do
		fd = (int)syscall(SYS_openat2, extract->out, path, &how, sizeof(how));
	while (fd < 0 && errno == EAGAIN); /* openat2(2): a rename elsewhere in the tree raced with the lookup */
	return fd < 0 ? -errno : fd;
}

/* Opens the directory that holds `path`.  *ret_name is its last component. */
static int open_parent(const struct extract *extract, char *path, const char **ret_name)
{
	char *slash = strrchr(path, '/');
	*ret_name = slash ? slash + 1 : path;
	if (!slash)
		return open_below(extract, ".", O_RDONLY | O_DIRECTORY, 0);
	*slash = '\0';
	int fd = open_below(extract, path, O_RDONLY | O_DIRECTORY, 0);
	*slash = '/';
	return fd;
}

/* Choosing */

static int choose_parents(struct extract *extract, uint32_t dir)
{
	for (unsigned depth = 0; dir != SHARD_NONE && depth <= SHARD_DEPTH_MAX + 1; depth++) {
		struct shard_dir rec;
		int rc = shard_index_dir(extract->index, dir, &rec);
		if (rc)
			return rc;
		bit_set(extract->dirs, dir);
		dir = rec.parent;
	}
	return 0;
}

static int choose(struct extract *extract, const char *path)
{
	enum shard_kind kind;
	uint32_t id;
	int rc = shard_index_find_path(extract->index, path, &kind, &id);
	if (rc)
		return rc;
	if (kind == SHARD_KIND_FILE) {
		struct shard_file file;
		rc = shard_index_file(extract->index, id, &file);
		if (rc)
			return rc;
		bit_set(extract->files, id);
		return choose_parents(extract, file.dir);
	}
	const struct shard_info *info = shard_index_info(extract->index);
	struct shard_dir dir;
	rc = shard_index_dir(extract->index, id, &dir);
	if (rc)
		return rc;
	for (uint32_t f = dir.first_file; f < dir.end_file && f < info->n_files; f++)
		bit_set(extract->files, f);
	for (uint32_t d = id; d < dir.end_dir && d < info->n_dirs; d++)
		bit_set(extract->dirs, d);
	return choose_parents(extract, id);
}

/* Directories: made first, with permissions for this process.  Modes and times are set last, the deepest first. */

/* Removes the temporary files of killed runs. */
static void sweep(const struct extract *extract, int dirfd)
{
	if (!extract->alone)
		return;
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup_closedir DIR *dir = fd < 0 ? NULL : fdopendir(fd); /* fd is dir's now */
	if (!dir) {
		if (fd >= 0)
			close(fd);
		return;
	}
	struct dirent *de;
	while ((de = readdir(dir))) {
		const char *digits = de->d_name + strlen(TEMP);
		if (!strncmp(de->d_name, TEMP, strlen(TEMP)) && strlen(digits) == TEMP_DIGITS &&
		        strspn(digits, "0123456789abcdef") == TEMP_DIGITS)
			unlinkat(dirfd, de->d_name, 0);
	}
}

/* Leaves out everything below a directory that cannot be entered, with one message. */
static void leave_out_dir(struct extract *extract, uint32_t id, const char *path, int rc)
{
	const struct shard_info *info = shard_index_info(extract->index);
	struct shard_dir dir;
	char reason[256];
	uint64_t files = 0;
	if (shard_index_dir(extract->index, id, &dir) == 0) {
		for (uint32_t f = dir.first_file; f < dir.end_file && f < info->n_files; f++) {
			files += bit_get(extract->files, f);
			bit_clear(extract->files, f);
		}
		for (uint32_t d = id; d < dir.end_dir && d < info->n_dirs; d++)
			bit_clear(extract->dirs, d);
	}
	snprintf(reason, sizeof(reason), "%s; %" PRIu64 " file%s below it %s left out",
	        rc == -ELOOP     ? "is a symbolic link, which is not followed: move it away"
	        : rc == -ENOTDIR ? "is no directory: move it away"
	                         : strerror(-rc),
	        files, files == 1 ? "" : "s", files == 1 ? "is" : "are");
	fail(extract, path, reason);
}

/* Gives this process all permissions of its own directory that an earlier run has finished; finish_dir sets the mode
 * again. */
static int unlock_dir(const struct extract *extract, const char *path)
{
	struct stat st;
	char link[64];
	cleanup_close int fd = open_below(extract, path, O_PATH | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st))
		return -errno;
	if ((st.st_mode & S_IRWXU) == S_IRWXU || st.st_uid != geteuid())
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* fchmod(2) takes no O_PATH */
	return chmod(link, (st.st_mode & 07777) | S_IRWXU) ? -errno : 0;
}

static void make_dir(struct extract *extract, uint32_t id)
{
	char path[SHARD_PATH_MAX + 1];
	const char *name;
	int rc = shard_index_dir_path(extract->index, id, path, sizeof(path));
	if (rc < 0) {
		fail(extract, "a directory", base_err_str(rc));
		return;
	}
	cleanup_close int parent = open_parent(extract, path, &name);
	rc = parent < 0 ? parent : mkdirat(parent, name, 0700) ? -errno : 0;
	if (rc == -EEXIST) {
		rc = unlock_dir(extract, path);
		cleanup_close int there = rc ? rc : open_below(extract, path, O_RDONLY | O_DIRECTORY, 0);
		rc = there < 0 ? there : 0;
		if (there >= 0)
			sweep(extract, there);
	}
	if (rc)
		leave_out_dir(extract, id, path, rc);
}

static void finish_dir(struct extract *extract, uint32_t id)
{
	struct shard_dir dir;
	char path[SHARD_PATH_MAX + 1];
	int rc = shard_index_dir(extract->index, id, &dir);
	if (rc == 0)
		rc = shard_index_dir_path(extract->index, id, path, sizeof(path));
	if (rc < 0) {
		fail(extract, "a directory", base_err_str(rc));
		return;
	}
	cleanup_close int fd = open_below(extract, path, O_RDONLY | O_DIRECTORY, 0);
	struct timespec times[2] = { { .tv_sec = dir.mtime_s }, { .tv_sec = dir.mtime_s } };
	if (fd < 0)
		fail(extract, path, strerror(-fd));
	else if (fchmod(fd, dir.mode) || futimens(fd, times))
		fail(extract, path, strerror(errno));
}

/* Files */

struct target {
	int fd;
	struct base_err *err;
};

static int put_file(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	struct target *target = arg;
	int rc = base_pwrite_full(target->fd, data, len, offset);
	progress_add(len, 0);
	return rc ? base_err_set(target->err, rc, "%s", strerror(-rc)) : 0;
}

/* Compares an existing file with the dataset's.  Returns 1 if it is equal, and sets its mode and time; 0 if it
 * differs; -ENOENT if there is none. */
static int compare(const struct extract *extract, uint32_t id, const struct shard_file *file, int parent,
        const char *name, uint8_t *buf)
{
	struct stat st;
	cleanup_close int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ENOENT : 0;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != file->length)
		return 0;
	uint32_t blocks = shard_blocks(file->length);
	for (uint32_t b = 0; b < blocks; b++) {
		uint64_t offset, xxh3;
		uint32_t length;
		if (shard_index_block(extract->index, id, b, &offset, &length, &xxh3) ||
		        base_pread_full(fd, buf, length, (uint64_t)b * SHARD_BLOCK) ||
		        shard_block_sum(buf, length) != xxh3)
			return 0;
	}
	struct timespec times[2] = { { .tv_sec = file->mtime_s }, { .tv_sec = file->mtime_s } };
	bool as_it_was = (st.st_mode & 07777) == file->mode && st.st_mtim.tv_sec == file->mtime_s;
	return as_it_was || (fchmod(fd, file->mode) == 0 && futimens(fd, times) == 0);
}

/* Writes bytes, mode and time of a file under a temporary name. */
static int write_file(struct extract *extract, uint32_t id, const struct shard_file *file, int parent, const char *temp,
        struct mkshard_reader *reader, uint8_t *buf, struct base_err *err)
{
	struct timespec times[2] = { { .tv_sec = file->mtime_s }, { .tv_sec = file->mtime_s } };
	cleanup_close int fd = openat(parent, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return base_err_set(err, -errno, "%s", strerror(errno));
	struct target target = { .fd = fd, .err = err };
	int rc = mkshard_read_file(extract->index, id, reader, buf, put_file, &target, err);
	if (rc == 0 && (fchmod(fd, file->mode) || futimens(fd, times)))
		rc = base_err_set(err, -errno, "%s", strerror(errno));
	if (close(steal_fd(&fd)) && rc == 0) /* a network file system may report here that it is full */
		rc = base_err_set(err, -errno, "%s", strerror(errno));
	return rc;
}

static int give_name(const struct extract *extract, int parent, const char *temp, const char *name)
{
	struct stat st;
	if (extract->args->force)
		return renameat(parent, temp, parent, name) ? -errno : 0;
	int rc = renameat2(parent, temp, parent, name, RENAME_NOREPLACE) ? -errno : 0;
	if (rc != -EINVAL && rc != -ENOSYS && rc != -EOPNOTSUPP)
		return rc;
	/* This file system has no RENAME_NOREPLACE. */
	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	return renameat(parent, temp, parent, name) ? -errno : 0;
}

static int extract_file(struct extract *extract, uint32_t id, struct mkshard_reader *reader, uint8_t *buf)
{
	struct shard_file file;
	struct base_err err = { 0 };
	char path[SHARD_PATH_MAX + 1], temp[sizeof(TEMP) + TEMP_DIGITS];
	const char *name;
	int rc = shard_index_file(extract->index, id, &file);
	if (rc == 0)
		rc = shard_index_file_path(extract->index, id, path, sizeof(path));
	if (rc < 0) {
		fail(extract, "a file", base_err_str(rc));
		return 0;
	}
	cleanup_close int parent = open_parent(extract, path, &name);
	if (parent < 0) {
		fail(extract, path, strerror(-parent));
		return 0;
	}
	int there = compare(extract, id, &file, parent, name, buf);
	if (there == 1) {
		atomic_fetch_add(&extract->equal, 1);
		progress_skip(file.length, 1);
		return 0;
	}
	rc = there == 0 && !extract->args->force ? -EEXIST : 0;
	if (rc == 0) {
		snprintf(temp, sizeof(temp), TEMP "%016" PRIx64 "%016" PRIx64, extract->run,
		        atomic_fetch_add(&extract->n_temp, 1));
		rc = write_file(extract, id, &file, parent, temp, reader, buf, &err);
		if (rc == 0) {
			rc = give_name(extract, parent, temp, name);
			base_err_set(&err, rc, "%s", strerror(-rc));
		}
		if (rc)
			unlinkat(parent, temp, 0); /* leave no incomplete or damaged file */
	}
	if (rc == 0) {
		atomic_fetch_add(&extract->written, 1);
		return 0;
	}
	if (mkshard_reader_failed(reader, &err))
		return 0; /* extract_shard says it */
	if (rc != -EEXIST)
		fail(extract, path, err.text);
	else if (atomic_fetch_add(&extract->differing, 1) < EXISTING_MAX)
		fail(extract, path, "exists already and is not the dataset's file; give --force to replace it");
	return rc == -ENOSPC || rc == -EDQUOT || rc == -EROFS ? rc : 0;
}

/* Finds the range of files that lie near each other, from extents[i] on.  Returns the number of the next file. */
static uint64_t find_range(const struct shard_extent *extents, uint64_t i, uint64_t n, uint64_t *ret_to)
{
	uint64_t to = extents[i].offset + extents[i].length;
	for (i++; i < n && (extents[i].offset <= to || extents[i].offset - to <= GAP_MAX); i++) {
		uint64_t end = extents[i].offset + extents[i].length;
		to = end > to ? end : to;
	}
	*ret_to = to;
	return i;
}

/* Says that an object cannot be read any more.  Returns 0, or what ends the run. */
static int give_up_shard(
        struct extract *extract, const struct mkshard_reader *reader, uint64_t files, struct base_err *why)
{
	bool of_store = mkshard_reader_is_of_store(why->code);
	atomic_fetch_add(&extract->failed, 1);
	if (of_store && atomic_exchange(&extract->stopped, true))
		return why->code; /* other threads' reads of the same store */
	if (of_store)
		cli_failf("'%s': %s", base_quoted(mkshard_reader_name(reader)), why->text);
	else
		cli_failf("'%s': %s; %" PRIu64 " file%s in it %s left out", base_quoted(mkshard_reader_name(reader)),
		        why->text, files, files == 1 ? "" : "s", files == 1 ? "is" : "are");
	return of_store ? why->code : 0;
}

static int extract_shard(void *arg, uint32_t shard)
{
	struct extract *extract = arg;
	struct base_err err = { 0 };
	struct mkshard_reader *reader;
	cleanup_free struct shard_extent *extents = NULL;
	cleanup_free uint8_t *buf = NULL;
	uint64_t n = 0, range_end = 0, to;
	if (extract->by_shard.first[shard] == extract->by_shard.first[shard + 1])
		return 0;
	if (mkshard_reader_open(extract->index, shard, extract->args->timeout_s, &err, &reader)) {
		cli_fail(&err);
		atomic_fetch_add(&extract->failed, 1);
		return 0;
	}
	int rc = shard_files_extents(&extract->by_shard, extract->index, shard, &extents, &n);
	if (rc == 0 && !(buf = malloc(SHARD_BLOCK)))
		rc = -ENOMEM;
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		if (i == range_end) {
			range_end = find_range(extents, i, n, &to);
			mkshard_reader_ahead(reader, extents[i].offset, to);
		}
		rc = extract_file(extract, extents[i].file, reader, buf);
		if (mkshard_reader_failed(reader, &err)) {
			rc = give_up_shard(extract, reader, n - i, &err);
			break;
		}
	}
	mkshard_reader_close(reader);
	return rc;
}

static void bad_record(void *arg, uint32_t file, int rc)
{
	char name[32];
	snprintf(name, sizeof(name), "file %u", file);
	fail(arg, name, base_err_str(rc));
}

static bool is_dataset(const struct extract *extract)
{
	struct stat out, dataset;
	return fstat(extract->out, &out) == 0 && stat(shard_index_dataset(extract->index), &dataset) == 0 &&
	       out.st_dev == dataset.st_dev && out.st_ino == dataset.st_ino;
}

/* Finds out whether another run extracts to OUT.  If so, or if the file system has no locks, no temporary file is
 * removed. */
static void lock(struct extract *extract)
{
	extract->alone = flock(extract->out, LOCK_EX | LOCK_NB) == 0;
	if (!extract->alone)
		flock(extract->out, LOCK_SH); /* waits while another run removes temporary files */
	if (getrandom(&extract->run, sizeof(extract->run), 0) != sizeof(extract->run))
		extract->run = (uint64_t)getpid();
}

static int run_extract(struct extract *extract)
{
	const struct shard_info *info = shard_index_info(extract->index);
	const struct extract_args *args = extract->args;
	static char root[] = "";
	char *everything[] = { root };
	struct cli_rest paths = args->paths.n ? args->paths : (struct cli_rest){ everything, 1 };
	extract->files = bits_new(info->n_files);
	extract->dirs = bits_new(info->n_dirs);
	if (!extract->files || !extract->dirs)
		return cli_failf("out of memory");
	for (int i = 0; i < paths.n; i++) {
		char quoted[1024];
		int rc = choose(extract, paths.words[i]);
		if (rc)
			return cli_failf("'%s': '%s': %s", args->dataset,
			        base_err_quote(paths.words[i], quoted, sizeof(quoted)),
			        rc == -ENOENT || rc == -ENOTDIR ? "no such file in the dataset" : base_err_str(rc));
	}
	lock(extract);
	sweep(extract, extract->out);
	for (uint32_t d = 1; d < info->n_dirs; d++)
		if (bit_get(extract->dirs, d))
			make_dir(extract, d);
	flock(extract->out, LOCK_SH); /* temporary files are removed: other runs may start */
	int rc = shard_files_init(&extract->by_shard, extract->index, extract->files, bad_record, extract);
	if (rc == 0) {
		progress_start("extracting", extract->by_shard.bytes, extract->by_shard.n);
		rc = shard_run(info->n_shards, mkshard_jobs(args->jobs), "extract", extract_shard, extract);
		progress_done();
	}
	for (uint32_t d = info->n_dirs; d-- > 1;)
		if (bit_get(extract->dirs, d))
			finish_dir(extract, d);
	char quoted[1024];
	base_err_quote(args->out, quoted, sizeof(quoted));
	if (extract->equal)
		printf("%s: %" PRIu64 " of the files existed already, equal by size and checksum; %" PRIu64
		       " written\n",
		        quoted, extract->equal, extract->written);
	if (extract->differing > EXISTING_MAX)
		cli_failf("'%s': %" PRIu64
		          " files existed already, are not the dataset's and were kept, the first %d of them "
		          "are named above; give --force to replace them",
		        quoted, extract->differing, EXISTING_MAX);
	if (extract->stopped)
		return CLI_FAILED;
	if (rc)
		return cli_failf("'%s': %s", args->out, base_err_str(rc));
	return extract->failed ? CLI_FAILED : CLI_DONE;
}

int mkshard_extract(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET OUT [PATH...]",
		"Write the files of a dataset, or those at and below each PATH, to the directory OUT as they were: "
		"bytes, mode, time.",
		.options = { { "force", NULL, "Replace files that exist and differ",
		                     CLI_FLAG(struct extract_args, force) },
		        { "jobs", "N", "Shards read at once (default: processors)", 'j',
		                CLI_NUMBER(struct extract_args, jobs, 1, MKSHARD_JOBS_MAX) },
		        MKSHARD_INDEX_OPTION(struct extract_args), MKSHARD_TIMEOUT_OPTION(struct extract_args) },
		.words = { { "DATASET", .at = offsetof(struct extract_args, dataset) },
		        { "OUT", .at = offsetof(struct extract_args, out), "the directory to write to" } },
		.more = true, .rest = offsetof(struct extract_args, paths) };
	struct extract_args args = { .timeout_s = MKSHARD_TIMEOUT_S };
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	cli_parse(&line, argc, argv, &args);
	if (cli_index_open(args.dataset, args.index_file, &err, &index))
		return cli_fail(&err);
	struct extract extract = { .index = index, .args = &args, .out = -1 };
	int status;
	bool made = mkdir(args.out, 0777) == 0 || errno == EEXIST;
	if (made)
		extract.out = open(args.out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (extract.out < 0)
		status = cli_failf("'%s': %s", base_quoted(args.out), strerror(errno));
	else if (is_dataset(&extract))
		status = cli_failf(
		        "'%s' is the dataset itself: choose another directory for its files", base_quoted(args.out));
	else
		status = run_extract(&extract);
	if (extract.out >= 0)
		close(extract.out);
	shard_files_done(&extract.by_shard);
	free(extract.files);
	free(extract.dirs);
	shard_index_close(index);
	return status;
}
