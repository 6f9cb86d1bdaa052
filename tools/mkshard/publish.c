/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, checks, renames and cleans the directories of a packing; publish.h first. */
#include "tools/mkshard/publish.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/format.h"
#include "shard/quarantine.h"
#include "shard/unfinished.h"
#include "tools/common/cli.h"
#include "tools/mkshard/interrupt.h"
#include "tools/mkshard/pack.h"

#define JOURNAL SHARD_UNFINISHED_JOURNAL
#define COMMAND SHARD_UNFINISHED_COMMAND
#define REPLACING "replacing" /* a file in the new dataset: it replaces an old one, which may be DATASET.replaced */
#define PROBE "probe-"        /* directories that are renamed to test whether that is possible */

enum { LOCK_TRIES = 1000 };

int pack_places_init(struct pack_places *places, const char *dataset, struct base_err *err)
{
	*places = (struct pack_places){ .lock = -1 };
	size_t len = strlen(dataset);
	while (len > 1 && dataset[len - 1] == '/')
		len--;
	const char *name = memrchr(dataset, '/', len);
	name = name ? name + 1 : dataset;
	size_t name_len = (size_t)(dataset + len - name);
	if (len == 0 || name_len == 0 || (name_len <= 2 && !strncmp(name, "..", name_len)))
		return base_err_set(err, -EINVAL, "'%s': not a name for a new dataset", dataset);
	if (asprintf(&places->dataset, "%.*s", (int)len, dataset) < 0 ||
	        asprintf(&places->partial, "%s.partial", places->dataset) < 0 ||
	        asprintf(&places->replaced, "%s.replaced", places->dataset) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	base_err_quote(places->dataset, places->quoted, sizeof(places->quoted));
	return 0;
}

void pack_places_done(struct pack_places *places)
{
	free(places->dataset);
	free(places->partial);
	free(places->replaced);
	if (places->lock >= 0)
		close(places->lock);
}

/* Files in a directory */

static bool join(char path[static PATH_MAX], const char *dir, const char *name)
{
	return snprintf(path, PATH_MAX, "%s/%s", dir, name) < PATH_MAX;
}

/* Returns 1 if it exists, 0 if not, or -errno if lstat(2) fails. */
static int exists(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0 ? 1 : errno == ENOENT ? 0 : -errno;
}

static int holds(const char *dir, const char *name)
{
	char path[PATH_MAX];
	return join(path, dir, name) ? exists(path) : -ENAMETOOLONG;
}

/* Whether this file tells the next run where this one ended. */
static bool state_file(const char *name)
{
	return !strcmp(name, JOURNAL) || !strcmp(name, COMMAND) || !strcmp(name, REPLACING);
}

/* Whether this file is needed only while packing. */
static bool working_file(const char *name)
{
	return state_file(name) || !strncmp(name, "unpacked-", 9) || !strncmp(name, PROBE, strlen(PROBE)) ||
	       !strncmp(
	               name, SHARD_INDEX_NAME ".", strlen(SHARD_INDEX_NAME ".")) || /* an index that is being written */
	       !strncmp(name, ".nfs", 4); /* on NFS: a file that was removed while it was open */
}

/* Whether mkshard itself puts this file into a dataset's directory. */
static bool own_file(const char *name)
{
	static const char prefix[] = "shard-";
	const char *end = name;
	if (!strncmp(name, prefix, strlen(prefix)))
		end += strlen(prefix) + strspn(name + strlen(prefix), "0123456789");
	if (end - name >= 12 && (!strcmp(end, ".tar") || !strcmp(end, ".bare")))
		return true;
	return !strcmp(name, SHARD_INDEX_NAME) || !strcmp(name, SHARD_QUARANTINE_NAME) || working_file(name);
}

static int remove_at(int dirfd, const char *name)
{
	int flags = strncmp(name, PROBE, strlen(PROBE)) ? 0 : AT_REMOVEDIR;
	return unlinkat(dirfd, name, flags) && errno != ENOENT ? -errno : 0;
}

static int sync_directory(const char *dir)
{
	cleanup_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Some file systems have no fsync(2) for directories, and report it. */
	return fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP) ? 0 : -errno;
}

/* Removes working files.  With `state_too` it removes the state files too, as the last ones. */
static int sweep_working(const char *dir, bool state_too)
{
	cleanup_closedir DIR *stream = opendir(dir);
	if (!stream)
		return -errno;
	struct dirent *de;
	int rc = 0;
	while (rc == 0 && (errno = 0, de = readdir(stream)))
		if (working_file(de->d_name) && !state_file(de->d_name))
			rc = remove_at(dirfd(stream), de->d_name);
	if (rc == 0 && errno)
		rc = -errno;
	static const char *const state[] = { REPLACING, COMMAND, JOURNAL };
	for (size_t i = 0; rc == 0 && state_too && i < sizeof(state) / sizeof(state[0]); i++)
		rc = remove_at(dirfd(stream), state[i]);
	return rc;
}

/* Checks that all files in a directory are mkshard's; with `remove` it unlinks them.  Returns 0, -ENOTEMPTY with a
 * sentence that names the first other file, or -errno. */
static int sweep(const char *dir, bool remove, struct base_err *err)
{
	cleanup_closedir DIR *stream = opendir(dir);
	const char *quoted = base_quoted(dir);
	if (!stream)
		return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
	struct dirent *de;
	while ((errno = 0, de = readdir(stream))) {
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		if (!own_file(de->d_name))
			return base_err_set(err, -ENOTEMPTY,
			        "'%s' holds '%s', which mkshard did not make; move it away first", quoted,
			        base_quoted(de->d_name));
		int rc = remove ? remove_at(dirfd(stream), de->d_name) : 0;
		if (rc)
			return base_err_set(err, rc, "'%s/%s': %s", quoted, de->d_name, strerror(-rc));
	}
	return errno ? base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno)) : 0;
}

/* Removes all files of a directory, if mkshard made all of them. */
static int empty_dataset(const char *dir, struct base_err *err)
{
	int rc = sweep(dir, false, err);
	return rc ? rc : sweep(dir, true, err);
}

static int remove_dataset(const char *dir, struct base_err *err)
{
	int rc = empty_dataset(dir, err);
	if (rc == 0 && rmdir(dir))
		rc = base_err_set(err, -errno, "'%s': %s", dir, strerror(errno));
	return rc;
}

/* Removes shards that are not in the plan: a run with other options left them, and was killed before one was
 * complete. */
static int sweep_strangers(const char *dir, const struct shard_pack_plan *plan)
{
	cleanup_closedir DIR *stream = opendir(dir);
	if (!stream)
		return -errno;
	struct dirent *de;
	while ((errno = 0, de = readdir(stream))) {
		char own[32];
		unsigned number;
		if (sscanf(de->d_name, "shard-%u.", &number) != 1)
			continue;
		if (number < plan->n_shards &&
		        !strcmp(de->d_name, shard_pack_shard_name(number, plan->options.container, own)))
			continue;
		int rc = remove_at(dirfd(stream), de->d_name);
		if (rc)
			return rc;
	}
	return -errno;
}

/* What an earlier run left */

/* Locks a directory against other runs.  Returns 0, also if the file system has no locks; -EBUSY with a sentence if
 * another run holds the lock. */
static int lock_directory(const struct pack_places *places, const char *dir, int *ret_fd, struct base_err *err)
{
	cleanup_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return base_err_set(err, -errno, "'%s': %s", dir, strerror(errno));
	if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		return base_err_set(err, -EBUSY,
		        "'%s': another mkshard is packing this dataset; wait for it or stop it", places->quoted);
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* DATASET is the new dataset and still has its journal.  Removes the old one, which RENAME_EXCHANGE has put at
 * DATASET.partial. */
static int remove_replaced(const struct pack_places *places, struct base_err *err)
{
	int journal = holds(places->partial, JOURNAL), index = holds(places->partial, SHARD_INDEX_NAME);
	int rc = journal < 0 ? journal : index < 0 ? index : 0;
	if (rc == 0 && index && !journal && rename(places->partial, places->replaced))
		rc = -errno;
	int replaced = exists(places->replaced);
	if (rc == 0 && replaced < 0)
		rc = replaced;
	if (rc)
		return base_err_set(err, rc, "'%s': the old dataset stays: %s", places->partial, strerror(-rc));
	return replaced ? remove_dataset(places->replaced, err) : 0;
}

/* DATASET is the new dataset and still has its journal.  Removes the replaced dataset, then the journal. */
static int finish(const struct pack_places *places, struct base_err *err)
{
	int replacing = holds(places->dataset, REPLACING);
	int rc = replacing > 0 ? remove_replaced(places, err) : replacing;
	if (rc == 0)
		rc = sweep_working(places->dataset, true);
	return rc && !err->code ? base_err_set(err, rc, "'%s': %s", places->quoted, strerror(-rc)) : rc;
}

static int settle_earlier_run(const struct pack_places *places, struct base_err *err)
{
	cleanup_close int fd = -1;
	int journal = holds(places->dataset, JOURNAL), index = holds(places->dataset, SHARD_INDEX_NAME), rc;
	if (journal > 0 && index > 0) {
		rc = lock_directory(places, places->dataset, &fd, err);
		return rc ? rc : finish(places, err);
	}
	if (exists(places->dataset) || holds(places->partial, REPLACING) <= 0 || exists(places->replaced) <= 0)
		return 0;
	rc = lock_directory(places, places->partial, &fd, err);
	if (rc)
		return rc;
	if (rename(places->replaced, places->dataset))
		return base_err_set(err, -errno,
		        "'%s': the dataset that was to be replaced is here, and cannot be renamed: %s",
		        places->replaced, strerror(errno));
	cli_note("'%s': an earlier run ended while it replaced it; the old dataset has its name again", places->quoted);
	rc = base_fsync_parent(places->dataset);
	return rc ? base_err_set(err, rc, "'%s': %s", places->quoted, strerror(-rc)) : 0;
}

/* Whether DATASET can be made here: all checks that are possible before any work is done. */

static int check_mount_point(const struct pack_places *places, struct base_err *err)
{
	struct statx stx;
	if (statx(AT_FDCWD, places->dataset, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &stx) == 0 &&
	        (stx.stx_attributes & STATX_ATTR_MOUNT_ROOT))
		return base_err_set(err, -EBUSY,
		        "'%s' is a mount point, which a dataset cannot replace; name a directory below it",
		        places->quoted);
	return 0;
}

static int check_replaceable(const struct pack_places *places, const struct stat *st, struct base_err *err)
{
	if (holds(places->dataset, SHARD_INDEX_NAME) <= 0)
		return base_err_set(err, -EEXIST, "'%s' is no dataset; --force replaces datasets only", places->quoted);
	int rc = sweep(places->dataset, false, err);
	if (rc)
		return rc;
	char above[PATH_MAX];
	struct stat parent;
	if (join(above, places->dataset, "..") && stat(above, &parent) == 0 && (parent.st_mode & S_ISVTX) &&
	        geteuid() != 0 && parent.st_uid != geteuid() && st->st_uid != geteuid())
		return base_err_set(err, -EPERM,
		        "'%s' belongs to another user, and its directory lets only owners rename (sticky bit); choose "
		        "another name",
		        places->quoted);
	if (exists(places->replaced) && rmdir(places->replaced))
		return base_err_set(err, -EEXIST,
		        "'%s' is in the way: the old dataset passes through this name; move it away first",
		        places->replaced);
	return 0;
}

int pack_places_check(struct pack_places *places, bool force, struct base_err *err)
{
	struct stat st;
	int rc = settle_earlier_run(places, err);
	if (rc)
		return rc;
	if (lstat(places->dataset, &st))
		return errno == ENOENT ? 0 : base_err_set(err, -errno, "'%s': %s", places->quoted, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return base_err_set(err, -EEXIST, "'%s' exists and is no dataset; choose another name", places->quoted);
	rc = check_mount_point(places, err);
	if (rc || rmdir(places->dataset) == 0) /* an empty directory is no obstacle */
		return rc;
	if (errno != ENOTEMPTY && errno != EEXIST)
		return base_err_set(
		        err, -errno, "'%s' exists and cannot be replaced: %s", places->quoted, strerror(errno));
	if (!force)
		return base_err_set(err, -EEXIST, "'%s' exists already; give --force to replace it, or another name",
		        places->quoted);
	return check_replaceable(places, &st, err);
}

/* Tests whether a directory can be renamed here.  On object stores it cannot, and the packing would fail at its end. */
static int probe(const struct pack_places *places, struct base_err *err)
{
	char from[PATH_MAX], to[PATH_MAX];
	if (!join(from, places->partial, PROBE "0") || !join(to, places->partial, PROBE "1"))
		return base_err_set(err, -ENAMETOOLONG, "'%s': its name is too long", places->quoted);
	rmdir(from);
	rmdir(to);
	int rc = mkdir(from, 0755) ? -errno : 0;
	if (rc)
		return base_err_set(err, rc, "'%s': %s", places->partial, strerror(-rc));
	rc = rename(from, to) ? -errno : 0;
	rmdir(rc ? from : to);
	if (rc)
		return base_err_set(err, rc,
		        "'%s': a directory cannot be renamed here (%s), and a dataset gets its name so; pack to "
		        "another file system and copy the dataset",
		        places->quoted, strerror(-rc));
	return 0;
}

/* Writes the file "command", which messages about an unfinished packing show.  Packing works without it, so errors
 * are ignored. */
static void write_command(const struct pack_places *places, const char *command)
{
	char path[PATH_MAX], here[PATH_MAX];
	if (!command || !getcwd(here, sizeof(here)) || !join(path, places->partial, COMMAND))
		return;
	cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd >= 0 && dprintf(fd, "%s\n%s\n", here, command) < 0)
		unlink(path);
}

/* Checks DATASET.partial before this run: it may hold only mkshard's files, and must not be a finished dataset. */
static int check_partial(const struct pack_places *places, struct base_err *err)
{
	char path[PATH_MAX];
	if (holds(places->partial, SHARD_INDEX_NAME) && holds(places->partial, JOURNAL) == 0)
		return base_err_set(err, -EEXIST,
		        "'%s' is a dataset, and '%s' would be made in a directory of that name; move it away first",
		        places->partial, places->quoted);
	int rc = sweep(places->partial, false, err);
	if (rc == 0 && join(path, places->partial, REPLACING) && unlink(path) && errno != ENOENT)
		rc = base_err_set(err, -errno, "'%s': %s", path, strerror(errno));
	return rc;
}

int pack_places_lock(struct pack_places *places, const char *command, struct base_err *err)
{
	int rc = -ENOENT;
	for (int tries = 0; rc == -ENOENT && tries < LOCK_TRIES; tries++) {
		struct stat here, there;
		cleanup_close int fd = -1;
		if (mkdir(places->partial, 0755) && errno != EEXIST)
			return base_err_set(err, -errno, "'%s': %s", places->partial, strerror(errno));
		rc = lock_directory(places, places->partial, &fd, err);
		/* If another run has just ended, it has renamed or removed the directory that was locked here. */
		if (rc == 0 && (fstat(fd, &here) || stat(places->partial, &there) || here.st_ino != there.st_ino))
			rc = base_err_set(err, -ENOENT, "'%s': comes and goes", places->partial);
		if (rc == 0)
			places->lock = steal_fd(&fd);
	}
	if (rc)
		return rc;
	*err = (struct base_err){ 0 };
	rc = check_partial(places, err);
	if (rc)
		return rc;
	if (places->restarted)
		rc = empty_dataset(places->partial, err);
	if (rc == 0)
		rc = probe(places, err);
	if (rc)
		pack_places_tidy(places);
	else
		write_command(places, command);
	return rc;
}

int pack_places_drop_index(const struct pack_places *places, struct base_err *err)
{
	char path[PATH_MAX];
	if (!join(path, places->partial, SHARD_INDEX_NAME))
		return base_err_set(err, -ENAMETOOLONG, "'%s': its name is too long", places->quoted);
	int rc = unlink(path) ? -errno : sync_directory(places->partial);
	return rc && rc != -ENOENT ? base_err_set(err, rc, "'%s': %s", path, strerror(-rc)) : 0;
}

/* Publication */

/* Whether this error of renameat2(2) means that the file system has no flags. */
static bool without_flags(int rc)
{
	return rc == -EINVAL || rc == -ENOSYS || rc == -EOPNOTSUPP;
}

static int rename_to(const char *from, const char *to, unsigned flags)
{
	return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) ? -errno : 0;
}

/* Whether DATASET is now the directory of this run.  On NFS a rename may succeed and still report an error, if the
 * answer was lost. */
static bool stands(const struct pack_places *places)
{
	struct stat here, there;
	return fstat(places->lock, &here) == 0 && lstat(places->dataset, &there) == 0 && here.st_dev == there.st_dev &&
	       here.st_ino == there.st_ino;
}

static int give_name(const struct pack_places *places)
{
	int rc = rename_to(places->partial, places->dataset, RENAME_NOREPLACE);
	if (without_flags(rc))
		rc = rename(places->partial, places->dataset) ? -errno : 0;
	return rc;
}

static int two_renames(const struct pack_places *places)
{
	if (rename(places->dataset, places->replaced))
		return -errno;
	int rc = rename(places->partial, places->dataset) ? -errno : 0;
	if (rc && !stands(places) && rename(places->replaced, places->dataset))
		cli_warn("'%s': the old dataset is now '%s' (%s); the next run gives it its name back", places->quoted,
		        places->replaced, strerror(errno));
	return rc;
}

static int replace(const struct pack_places *places)
{
	char mark[PATH_MAX];
	if (!join(mark, places->partial, REPLACING))
		return -ENAMETOOLONG;
	cleanup_close int fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	int rc = fd < 0 ? -errno : sync_directory(places->partial);
	if (rc == 0) {
		rc = rename_to(places->partial, places->dataset,
		        RENAME_EXCHANGE); /* open files of the old dataset stay valid */
		if (without_flags(rc))
			rc = two_renames(places);
	}
	if (rc && exists(places->dataset) == 1)
		unlink(mark); /* in DATASET.partial; after successful renames there is none */
	return rc;
}

static int refuse(const struct pack_places *places, int rc, struct base_err *err)
{
	const char *partial = base_quoted(places->partial);
	if (rc == -EEXIST || rc == -ENOTEMPTY || rc == -ENOTDIR)
		return base_err_set(err, rc,
		        "'%s' has been made by somebody else meanwhile; the packing is complete and kept: give "
		        "--force to replace it, or move '%s' to another name",
		        places->quoted, partial);
	return base_err_set(err, rc,
	        "'%s' cannot get its name: %s; the packing is complete and kept: run the same command again%s, or "
	        "move '%s' there",
	        places->quoted, strerror(-rc), places->restarted ? " without --restart" : "", partial);
}

int pack_publish(struct pack_places *places, bool force, const struct shard_pack_plan *plan, struct base_err *err)
{
	char path[PATH_MAX];
	int rc = sweep_working(places->partial, false);
	if (rc == 0)
		rc = sweep_strangers(places->partial, plan);
	if (rc == 0 && join(path, places->partial, COMMAND) && unlink(path) && errno != ENOENT)
		rc = -errno;
	if (rc == 0)
		rc = sync_directory(places->partial);
	if (rc == 0) {
		bool there = exists(places->dataset) == 1;
		rc = force && there ? replace(places) : give_name(places);
	}
	if (rc && !stands(places))
		return refuse(places, rc, err);
	places->published = true;
	pack_interrupt_end(); /* a signal now interrupts no packing */
	rc = base_fsync_parent(places->dataset);
	if (rc)
		return base_err_set(err, rc,
		        "'%s' is complete, but nothing says that the disk has its name: %s; run 'sync' and look",
		        places->quoted, strerror(-rc));
	return 0;
}

void pack_publish_finish(struct pack_places *places)
{
	struct base_err err = { 0 };
	if (finish(places, &err))
		cli_warn("%s; '%s' is complete: the next 'mkshard pack' of this name tidies up", err.text,
		        places->quoted);
}

void pack_places_tidy(const struct pack_places *places)
{
	if (places->published)
		return;
	if (pack_journal_holds_shards(places->partial))
		sweep_working(places->partial, false);
	else
		remove_dataset(places->partial, NULL);
}

void pack_places_sweep(const struct pack_places *places)
{
	if (!places->published)
		sweep_working(places->partial, true);
}
