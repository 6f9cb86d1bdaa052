/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches an index to the local disk; shard/remote/index_copy.h first. */
#include "shard/remote/index_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/base/log.h"
#include "shard/remote/client.h"
#include "shard/remote/start_directory.h"

enum {
	CHUNK_BYTES = 4 << 20, /* of one request */
	CHUNKS = 8,            /* at the same time */
	HEAD_TIMEOUT_S = 20,
	FETCH_TIMEOUT_S = 60, /* without a byte */
	OTHER_TIMEOUT_S = 60, /* for another process that fetches it */
	HEADER_BYTES = 4096,  /* of an index (shard/FORMAT.md) */
};

/* ---- where ---- */

static bool is_absolute(const char *path)
{
	return path && path[0] == '/';
}

static char *directory(void)
{
	const char *set = getenv("DDPFS_INDEX_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char *path = NULL;
	int rc;
	if (set && *set)
		return remote_setting_path(set);
	if (geteuid() == 0)
		return strdup("/var/cache/ddpfs");
	if (is_absolute(cache))
		rc = asprintf(&path, "%s/ddpfs", cache);
	else if (is_absolute(home))
		rc = asprintf(&path, "%s/.cache/ddpfs", home);
	else
		rc = asprintf(&path, "/tmp/ddpfs-%u", geteuid());
	return rc < 0 ? NULL : path;
}

/* Makes the directory and its parent.  Nobody else may be able to write there. */
static int make_directory(char *path, struct base_err *err)
{
	struct stat st;
	char *slash = strrchr(path, '/');
	if (slash && slash != path) {
		*slash = 0;
		mkdir(path, 0700); /* an error shows at the next call */
		*slash = '/';
	}
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return base_err_set(err, -errno,
		        "'%s': cannot make the directory for copies of indexes: %s; set "
		        "DDPFS_INDEX_DIR",
		        path, base_err_str(-errno));
	if (stat(path, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 022))
		return base_err_set(err, -EACCES,
		        "'%s': copies of indexes go there, so it must belong to the user and nobody else may write; "
		        "set "
		        "DDPFS_INDEX_DIR",
		        path);
	return 0;
}

int remote_index_directory(struct base_err *err, char **ret_path)
{
	cleanup_free char *dir = directory();
	int rc = dir ? make_directory(dir, err) : base_err_set(err, -ENOMEM, "out of memory");
	if (rc == 0)
		*ret_path = steal_ptr(&dir);
	return rc;
}

static uint64_t hash_text(const char *text, uint64_t seed)
{
	return XXH3_64bits_withSeed(text, strlen(text), seed);
}

/* Writes the first part of the copies' names.  It is of the URL, because the same bucket's name is another bucket at
 * another endpoint.  Returns 0 or -ENOMEM. */
static int name_of(const struct remote_store *store, const char *key, char room[32])
{
	cleanup_free char *url = remote_store_url(store, key);
	if (!url)
		return -ENOMEM;
	snprintf(room, 32, "%016" PRIx64 "-", hash_text(url, 0));
	return 0;
}

/* ---- fetch ---- */

static int write_done(struct remote_client *client, int fd, const struct remote_read *done, struct base_err *err)
{
	if (done->res < 0) {
		struct remote_stats stats;
		remote_client_stats_get(client, &stats);
		return base_err_set(err, done->res, "%s: the index cannot be fetched: %s", done->object->key,
		        stats.error[0] ? stats.error : base_err_str(done->res));
	}
	int rc = base_pwrite_full(fd, done->data, done->len, done->offset);
	return rc < 0 ? base_err_set(err, rc, "the local copy of the index: %s", base_err_str(rc)) : 0;
}

/* Copies an object of `size` bytes into a file, CHUNKS ranges at the same time. */
static int copy(struct remote_client *client, struct remote_object *object, uint64_t size, int fd, struct base_err *err)
{
	cleanup_free uint8_t *room = malloc((size_t)CHUNKS * CHUNK_BYTES);
	struct remote_read reads[CHUNKS];
	uint64_t next = 0;
	unsigned running = 0;
	int rc = room ? 0 : base_err_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < CHUNKS && room; i++) {
		reads[i] = (struct remote_read){ .object = object, .data = room + (size_t)i * CHUNK_BYTES };
		reads[i].res = 1; /* it rests */
	}
	while (rc == 0 || running) {
		for (unsigned i = 0; i < CHUNKS && rc == 0; i++) {
			if (reads[i].res == 0 || next == size)
				continue;
			reads[i].offset = next;
			reads[i].len = (uint32_t)(size - next < CHUNK_BYTES ? size - next : CHUNK_BYTES);
			reads[i].res = 0;
			next += reads[i].len;
			running++;
			remote_client_submit(client, &reads[i]);
		}
		if (!running)
			break;
		struct remote_read *done;
		remote_client_wait(client, -1, &done);
		for (struct remote_read *following; done; done = following) {
			following = done->next;
			running--;
			rc = rc < 0 ? rc : write_done(client, fd, done, err);
			done->res = 1;
		}
	}
	return rc;
}

static int fetch(
        struct remote_store *store, const char *object, const struct remote_answer *head, int fd, struct base_err *err)
{
	struct remote_client *client = NULL;
	struct remote_object *made = NULL;
	int rc = remote_client_new(store, (uint64_t)FETCH_TIMEOUT_S * 1000000000, &client);
	if (rc == 0)
		rc = remote_object_new(store, object, head->size, &made);
	if (rc < 0)
		base_err_set(err, rc, "%s: cannot fetch the index: %s", remote_store_name(store), base_err_str(rc));
	/* Where a redirect leads, another server may answer the next request. */
	if (rc == 0 && !head->redirected) {
		memcpy(made->etag, head->etag, sizeof(made->etag));
		memcpy(made->modified, head->modified, sizeof(made->modified));
	}
	if (rc == 0)
		rc = copy(client, made, head->size, fd, err);
	remote_client_free(client);
	remote_object_free(made);
	return rc;
}

/* ---- copies ---- */

static int open_locked(const char *path, int *ret_fd)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return -errno;
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int cannot_make(const char *path, int rc, struct base_err *err)
{
	return base_err_set(err, rc, "'%s': cannot make the local copy of the index: %s", path, base_err_str(rc));
}

/* Opens a copy.  One that is damaged is removed: it counts as one that was not there.
 * Returns 0; -EAGAIN: it was removed; or another -errno. */
static int open_copy(const char *path, const struct remote_index_want *want, int *ret_fd)
{
	cleanup_close int fd = -1;
	int rc = open_locked(path, &fd);
	if (rc == 0)
		rc = want->check(fd, path, false, NULL);
	if (rc == 0)
		*ret_fd = steal_fd(&fd);
	if ((rc == -EUCLEAN || rc == -EBADMSG) && unlink(path) == 0) {
		log_warning("'%s': the copy of the index on this host was damaged (%s), and is removed", path,
		        base_err_str(rc));
		rc = -EAGAIN;
	}
	return rc;
}

/* Removes the copies of a name that nobody has open, but for one. */
static void remove_others(const char *dir, const char *name, const char *keep)
{
	cleanup_closedir DIR *d = opendir(dir);
	struct dirent *entry;
	while (d && (entry = readdir(d))) {
		if (strncmp(entry->d_name, name, strlen(name)) != 0 || strcmp(entry->d_name, keep) == 0)
			continue;
		cleanup_close int fd = openat(dirfd(d), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(d), entry->d_name, 0);
	}
}

/* Finds the latest copy of a name.  Returns its path, or NULL. */
static char *latest(const char *dir, const char *name)
{
	cleanup_closedir DIR *d = opendir(dir);
	struct dirent *entry;
	struct timespec best = { 0 };
	char *path = NULL;
	while (d && (entry = readdir(d))) {
		struct stat st;
		size_t len = strlen(entry->d_name);
		if (strncmp(entry->d_name, name, strlen(name)) != 0 || len < 6 ||
		        strcmp(entry->d_name + len - 6, ".index") != 0 || fstatat(dirfd(d), entry->d_name, &st, 0) < 0)
			continue;
		if (path && (st.st_mtim.tv_sec < best.tv_sec ||
		                    (st.st_mtim.tv_sec == best.tv_sec && st.st_mtim.tv_nsec < best.tv_nsec)))
			continue;
		free(path);
		path = NULL;
		best = st.st_mtim;
		if (asprintf(&path, "%s/%s", dir, entry->d_name) < 0)
			path = NULL;
	}
	return path;
}

/* Writes the fetched file to the disk, and opens it for reading, locked. */
static int seal(const char *temp, int written, const char *path, struct base_err *err, int *ret_fd)
{
	int rc = base_io->fsync(written) < 0 ? -errno : 0;
	/* Shared in place of exclusive, so that the new descriptor can be locked before this one is closed. */
	if (rc == 0 && flock(written, LOCK_SH | LOCK_NB) < 0)
		rc = -errno;
	if (rc == 0)
		rc = open_locked(temp, ret_fd);
	return rc < 0 ? cannot_make(path, rc, err) : 0;
}

/* Fetches an index beside `path`, and renames it only if it is an index.  So a page of a server under maintenance does
 * not take the place of a copy.  Returns 0 and a descriptor, locked. */
static int make_copy(struct remote_store *store, const struct remote_index_want *want, const struct remote_answer *head,
        const char *path, struct base_err *err, int *ret_fd)
{
	char name[REMOTE_NAME_MAX + BASE_QUOTED_MAX + 1];
	cleanup_free char *temp = NULL;
	cleanup_close int written = -1, fd = -1;
	int rc = base_temp_open(path, 0600, &temp, &written);
	if (rc < 0)
		return cannot_make(path, rc, err);
	snprintf(name, sizeof(name), "%s/%s", remote_store_name(store), base_quoted(want->object));
	rc = fetch(store, want->object, head, written, err);
	if (rc == 0)
		rc = seal(temp, written, path, err, &fd);
	if (rc == 0)
		rc = want->check(fd, name, true, err);
	if (rc == 0 && base_io->rename(temp, path) < 0)
		rc = cannot_make(path, -errno, err);
	if (rc < 0) {
		unlink(temp);
		return rc;
	}
	rc = base_fsync_parent(path);
	if (rc < 0)
		return cannot_make(path, rc, err);
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* Waits until no other process of this host fetches an index of that name.  The wait has an end, because the other
 * process may have been stopped.  Returns a descriptor with the lock, or -1: go on without. */
static int lock_name(const char *dir, const char *name)
{
	cleanup_free char *path = NULL;
	if (asprintf(&path, "%s/%.16s.lock", dir, name) < 0) {
		path = NULL;
		return -1;
	}
	cleanup_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	uint64_t start_ns = base_now_ns();
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if ((errno != EWOULDBLOCK && errno != EINTR) ||
		        base_now_ns() - start_ns >= (uint64_t)OTHER_TIMEOUT_S * 1000000000)
			return -1;
		nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	}
	return steal_fd(&fd);
}

/* Opens the copy of this version, and fetches it first unless it is there or another process fetches it. */
static int open_version(struct remote_store *store, const struct remote_index_want *want,
        const struct remote_answer *head, const char *dir, const char *name, const char *path, struct base_err *err,
        int *ret_fd)
{
	if (open_copy(path, want, ret_fd) == 0)
		return 0;
	cleanup_close int lock = lock_name(dir, name);
	(void)lock; /* held to the end */
	if (open_copy(path, want, ret_fd) == 0)
		return 0;
	int rc = make_copy(store, want, head, path, err, ret_fd);
	if (rc == 0)
		remove_others(dir, name, strrchr(path, '/') + 1);
	return rc;
}

/* The store gave no index; rc and err say why.  Takes what is there. */
static int take_latest(const char *dir, const char *name, const struct remote_index_want *want, int rc,
        struct base_err *err, char **ret_path, int *ret_fd)
{
	int opened;
	do {
		cleanup_free char *path = latest(dir, name);
		opened = path ? open_copy(path, want, ret_fd) : -ENOENT;
		if (opened == 0)
			*ret_path = steal_ptr(&path);
	} while (opened == -EAGAIN); /* that one was removed */
	if (opened < 0)
		return rc;
	log_warning("%s; the copy of the index that is on this host is used", err ? err->text : "the store is away");
	return 0;
}

/* Asks for the header of an index.  Returns 0 (whatever the status is), or an error of remote_store_ask. */
static int ask_header(
        struct remote_store *store, const char *key, bool hurry, struct base_err *err, struct remote_answer *ret_answer)
{
	char range[32];
	snprintf(range, sizeof(range), "Range: bytes=0-%d", HEADER_BYTES - 1);
	const char *const headers[] = { range, NULL };
	return remote_store_ask(store,
	        &(struct remote_request){ .method = "GET", .key = key, .headers = headers, .hurry = hurry },
	        HEAD_TIMEOUT_S, err, ret_answer);
}

/* Asks for the version of the index in the store: a hash of its size and ETag.  If there is no ETag, of its header,
 * which has a sum over all of it.  Two indexes can have the same size, and the same second of Last-Modified.
 * Returns 0 (whatever the status is; if it is 300 or more, there is no version), or an error of remote_store_ask. */
static int ask_version(struct remote_store *store, const char *key, bool hurry, struct base_err *err,
        struct remote_answer *ret_head, uint64_t *ret_version)
{
	struct remote_answer header;
	int rc = hurry ? remote_store_head_in_hurry(store, key, HEAD_TIMEOUT_S, err, ret_head)
	               : remote_store_head(store, key, HEAD_TIMEOUT_S, err, ret_head);
	if (rc < 0 || ret_head->status >= 300)
		return rc;
	*ret_version = hash_text(ret_head->etag, ret_head->size);
	if (ret_head->etag[0])
		return 0;
	rc = ask_header(store, key, hurry, err, &header);
	if (rc == 0 && header.status < 300) {
		size_t len = header.body_len < HEADER_BYTES ? header.body_len : HEADER_BYTES;
		*ret_version = XXH3_64bits_withSeed(header.body, len, ret_head->size);
		remote_answer_done(&header);
		return 0;
	}
	remote_answer_done(ret_head);
	if (rc == 0)
		*ret_head = header;
	return rc;
}

/* Returns whether an error of remote_store_ask says that the store cannot be reached now.  Of others, as of a
 * certificate that is not trusted, somebody must learn. */
static bool is_away(int rc)
{
	return rc == -ETIMEDOUT || rc == -ECONNREFUSED || rc == -EHOSTUNREACH || rc == -EIO;
}

/* Opens the copy of what is in the store now.  *ret_away: that failed because the store is away. */
static int open_current(struct remote_store *store, const struct remote_index_want *want, const char *key,
        const char *dir, const char *name, struct base_err *err, char **ret_path, int *ret_fd, bool *ret_away)
{
	struct remote_answer head;
	uint64_t version = 0;
	cleanup_free char *copy = want->again ? latest(dir, name) : NULL; /* to go on with */
	int rc = ask_version(store, key, copy != NULL, err, &head, &version);
	*ret_away = rc < 0 ? is_away(rc) : head.status >= 500;
	if (rc < 0)
		return rc;
	cleanup_free char *path = NULL;
	if (head.status >= 300) {
		rc = remote_store_refusal(store, key, &head, err);
	} else if (asprintf(&path, "%s/%s%016" PRIx64 ".index", dir, name, version) < 0) {
		path = NULL;
		rc = base_err_set(err, -ENOMEM, "out of memory");
	}
	if (rc == 0)
		rc = open_version(store, want, &head, dir, name, path, err, ret_fd);
	remote_answer_done(&head);
	if (rc == 0)
		*ret_path = steal_ptr(&path);
	return rc;
}

int remote_index_open(struct remote_store *store, const struct remote_index_want *want, struct base_err *err,
        char **ret_path, int *ret_fd)
{
	char key[REMOTE_KEY_MAX], name[32];
	cleanup_free char *dir = NULL;
	bool away = false;
	int rc = remote_index_directory(err, &dir);
	if (rc < 0)
		return rc;
	if (remote_location_key(remote_store_location(store), want->object, key) < 0)
		return base_err_set(err, -ENAMETOOLONG, "%s: the name is too long", remote_store_name(store));
	if (name_of(store, key, name) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	rc = open_current(store, want, key, dir, name, err, ret_path, ret_fd, &away);
	return rc < 0 && (away || want->again) ? take_latest(dir, name, want, rc, err, ret_path, ret_fd) : rc;
}
