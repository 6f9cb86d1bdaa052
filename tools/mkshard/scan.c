/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the files of directories (with several threads) and of lists, for `mkshard pack`; pack.h first.
 *
 * It calls statx(2) on a directory's entries in the order of their inode numbers.  On ext4 and similar file systems
 * that is the order of the inode tables on disk, so a cold scan reads sequentially. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/build.h"
#include "tools/mkshard/pack.h"
#include "tools/common/progress.h"

enum { SCAN_THREADS = 4, LIST_NAME_MAX = SHARD_PATH_MAX * 2, PATH_CHUNK = 1 << 20 };

void pack_input_init(struct pack_input *input, bool keep_going)
{
	*input = (struct pack_input){ .keep_going = keep_going };
	pthread_mutex_init(&input->lock, NULL);
}

void pack_input_done(struct pack_input *input)
{
	for (size_t i = 0; i < input->n_chunks; i++)
		free(input->chunks[i]);
	free(input->chunks);
	free(input->items);
	for (uint32_t i = 0; i < input->n_sources; i++) {
		free(input->sources[i].name);
		free(input->sources[i].blob);
		if (input->sources[i].dirfd >= 0)
			close(input->sources[i].dirfd);
	}
	free(input->sources);
	for (uint64_t i = 0; i < input->n_left_out; i++)
		free(input->left_out[i].text);
	free(input->left_out);
	pthread_mutex_destroy(&input->lock);
}

int64_t pack_input_source(struct pack_input *input, const char *name, int dirfd, char *blob)
{
	struct pack_source *grown = realloc(input->sources, (input->n_sources + 1) * sizeof(*grown));
	char *copy = strdup(name);
	if (grown)
		input->sources = grown;
	if (!grown || !copy) {
		free(copy);
		free(blob);
		if (dirfd >= 0)
			close(dirfd);
		return -ENOMEM;
	}
	input->sources[input->n_sources] = (struct pack_source){ .name = copy, .dirfd = dirfd, .blob = blob };
	return input->n_sources++;
}

/* Copies a path into a chunk of memory: millions of paths must not need one malloc each.  Returns NULL without
 * memory. */
static char *keep_path(struct pack_input *input, const char *path)
{
	size_t len = strlen(path) + 1;
	if (len > input->chunk_size - input->chunk_used) {
		size_t size = len > PATH_CHUNK ? len : PATH_CHUNK;
		char **grown = realloc(input->chunks, (input->n_chunks + 1) * sizeof(*grown));
		if (!grown)
			return NULL;
		input->chunks = grown;
		char *chunk = malloc(size);
		if (!chunk)
			return NULL;
		input->chunks[input->n_chunks++] = chunk;
		input->chunk_size = size;
		input->chunk_used = 0;
	}
	char *kept = input->chunks[input->n_chunks - 1] + input->chunk_used;
	memcpy(kept, path, len);
	input->chunk_used += len;
	return kept;
}

static int grow_items(struct pack_input *input)
{
	if (input->n_items < input->items_capacity)
		return 0;
	uint64_t capacity = input->items_capacity ? input->items_capacity * 2 : 1024;
	struct shard_pack_item *grown = realloc(input->items, capacity * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	input->items = grown;
	input->items_capacity = capacity;
	return 0;
}

int pack_input_add(struct pack_input *input, const struct shard_pack_item *item)
{
	lock_for_scope(&input->lock);
	int rc = grow_items(input);
	const char *path = rc == 0 ? keep_path(input, item->path) : NULL;
	if (path) {
		input->items[input->n_items] = *item;
		input->items[input->n_items++].path = path;
	} else {
		rc = -ENOMEM;
	}
	return rc;
}

bool pack_input_hides(struct pack_input *input, const char *path, bool directory)
{
	size_t len = strcspn(path, "/");
	if (input->with_hidden || path[0] != '.' || (!path[len] && !directory) || len > SHARD_NAME_MAX)
		return false;
	char name[SHARD_NAME_MAX + 1];
	memcpy(name, path, len);
	name[len] = '\0';
	lock_for_scope(&input->lock);
	if (!input->hidden[0])
		base_err_quote(name, input->hidden, sizeof(input->hidden));
	return true;
}

int pack_input_refuse(struct pack_input *input, struct base_err *err)
{
	char *text = strdup(err->text);
	if (!text || err->code == -ENOMEM) {
		free(text);
		return -ENOMEM;
	}
	int rc = 0;
	lock_for_scope(&input->lock);
	if (!input->keep_going && input->n_left_out == PACK_REFUSED_SHOWN) {
		input->n_refused++;
		free(text);
		return 0;
	}
	struct pack_left_out *grown = realloc(input->left_out, (input->n_left_out + 1) * sizeof(*grown));
	if (grown) {
		input->left_out = grown;
		input->left_out[input->n_left_out++].text = text;
		input->n_refused++;
	} else {
		free(text);
		rc = -ENOMEM;
	}
	return rc;
}

/* Makes an item of a file or directory. */
static struct shard_pack_item make_item(const char *path, const struct statx *stx, uint32_t source)
{
	bool directory = S_ISDIR(stx->stx_mode);
	return (struct shard_pack_item){
		.path = path,
		.length = directory ? 0 : stx->stx_size,
		.mtime_s = stx->stx_mtime.tv_sec,
		.mtime_nsec = stx->stx_mtime.tv_nsec,
		.mode = stx->stx_mode & 01777,
		.directory = directory,
		.source = source,
		.source_ino = stx->stx_ino,
	};
}

/* Directories */

/* A directory to list.  It stays until the end of the scan, because its children point to it for the check of loops. */
struct dir_node {
	struct dir_node *parent;
	struct dir_node *next; /* in `queue`, later in `listed` */
	uint64_t dev, ino;
	char path[]; /* relative to the source; "" is the source itself */
};

struct scan {
	struct pack_input *input;
	uint32_t source;
	int rootfd;
	const char *name; /* of the source, for messages */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Guarded by lock. */
	struct dir_node *queue, *listed;
	uint32_t busy; /* threads that list a directory now */
	int rc;        /* the first error; it stops all threads */
	struct base_err err;
};

static int is_entry(const struct dirent *de)
{
	return strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0;
}

static int compare_inodes(const struct dirent **a, const struct dirent **b)
{
	return (*a)->d_ino < (*b)->d_ino ? -1 : (*a)->d_ino > (*b)->d_ino;
}

static const char *quote_in(const struct scan *scan, const char *path, char buf[static 1024])
{
	char *full = NULL;
	const char *slash = *path ? "/" : "";
	if (asprintf(&full, "%s%s%s", scan->name, slash, path) < 0)
		return base_err_quote(path, buf, 1024);
	base_err_quote(full, buf, 1024);
	free(full);
	return buf;
}

/* Keeps the first error for the caller of the scan.  Returns its code. */
static int end_scan(struct scan *scan, const struct base_err *err)
{
	lock_for_scope(&scan->lock);
	if (!scan->rc)
		scan->err = *err;
	return err->code;
}

static int enqueue(struct scan *scan, struct dir_node *parent, const char *path, const struct statx *stx)
{
	size_t size = strlen(path) + 1;
	struct dir_node *node = malloc(sizeof(*node) + size);
	if (!node)
		return -ENOMEM;
	node->parent = parent;
	node->dev = makedev(stx->stx_dev_major, stx->stx_dev_minor);
	node->ino = stx->stx_ino;
	memcpy(node->path, path, size);
	lock_for_scope(&scan->lock);
	node->next = scan->queue;
	scan->queue = node;
	pthread_cond_signal(&scan->changed);
	return 0;
}

/* Checks that a directory does not lead back to itself, and is not the one in which the dataset is made. */
static int check_directory(
        struct scan *scan, struct dir_node *parent, const char *path, const struct statx *stx, struct base_err *err)
{
	char quoted[1024];
	uint64_t dev = makedev(stx->stx_dev_major, stx->stx_dev_minor);
	if (dev == scan->input->dataset_dev && stx->stx_ino == scan->input->dataset_ino)
		return base_err_set(err, -EINVAL,
		        "'%s': the dataset would be written inside its own source; choose a place outside of it",
		        quote_in(scan, path, quoted));
	unsigned depth = 1;
	for (struct dir_node *up = parent; up; up = up->parent, depth++)
		if (up->dev == dev && up->ino == stx->stx_ino)
			return base_err_set(err, -ELOOP,
			        "'%s': a symbolic link that leads back to a directory above it; remove the link, or "
			        "give --keep-going to leave it out",
			        quote_in(scan, path, quoted));
	if (depth > SHARD_DEPTH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': more than %d directories deep",
		        quote_in(scan, path, quoted), SHARD_DEPTH_MAX);
	return 0;
}

static int take_entry(struct scan *scan, struct dir_node *dir, int fd, const char *name)
{
	struct base_err err = { 0 };
	char path[SHARD_PATH_MAX + SHARD_NAME_MAX + 2], quoted[1024];
	struct statx stx;
	snprintf(path, sizeof(path), "%s%s%s", dir->path, *dir->path ? "/" : "", name);
	if (statx(fd, name, 0, STATX_BASIC_STATS, &stx)) {
		int code = -errno;
		struct stat link;
		bool dangling = code == -ENOENT && fstatat(fd, name, &link, AT_SYMLINK_NOFOLLOW) == 0;
		base_err_set(&err, code, "'%s': %s", quote_in(scan, path, quoted),
		        dangling ? "a symbolic link that leads nowhere; mend or remove it, or give --keep-going to "
		                   "leave it out"
		        : code == -ELOOP ? "a symbolic link that leads to itself; remove it, or give --keep-going to "
		                           "leave it out"
		                         : strerror(-code));
	} else if (shard_path_check(path, &err)) {
		base_err_prefix(&err, "'%s'", quote_in(scan, "", quoted));
	} else if (!S_ISREG(stx.stx_mode) && !S_ISDIR(stx.stx_mode)) {
		base_err_set(&err, -EINVAL, "'%s': neither a file nor a directory (a device, fifo or socket)",
		        quote_in(scan, path, quoted));
	} else if (S_ISDIR(stx.stx_mode)) {
		if (pack_input_hides(scan->input, path, true))
			return 0;
		if (check_directory(scan, dir, path, &stx, &err) == 0) {
			struct shard_pack_item item = make_item(path, &stx, scan->source);
			int rc = pack_input_add(scan->input, &item);
			return rc ? rc : enqueue(scan, dir, path, &stx);
		}
		if (err.code == -EINVAL) /* the dataset lies inside its own source: end the run */
			return end_scan(scan, &err);
	} else {
		struct shard_pack_item item = make_item(path, &stx, scan->source);
		return pack_input_add(scan->input, &item);
	}
	return pack_input_refuse(scan->input, &err) == 0 ? 0 : end_scan(scan, &err);
}

static int list_directory(struct scan *scan, struct dir_node *dir)
{
	struct base_err err = { 0 };
	char quoted[1024];
	struct dirent **entries = NULL;
	cleanup_close int fd = openat(scan->rootfd, *dir->path ? dir->path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int n = fd < 0 ? -1 : scandirat(fd, ".", &entries, is_entry, compare_inodes), rc = 0;
	if (n < 0) {
		base_err_set(&err, -errno, "'%s': %s", quote_in(scan, dir->path, quoted), strerror(errno));
		return fd < 0 && pack_input_refuse(scan->input, &err) == 0 ? 0 : end_scan(scan, &err);
	}
	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = take_entry(scan, dir, fd, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return rc;
}

static void *scan_thread(void *arg)
{
	struct scan *scan = arg;
	pthread_mutex_lock(&scan->lock);
	for (;;) {
		struct dir_node *dir = scan->queue;
		if (scan->rc || (!dir && !scan->busy))
			break;
		if (!dir) {
			pthread_cond_wait(&scan->changed, &scan->lock);
			continue;
		}
		scan->queue = dir->next;
		dir->next = scan->listed;
		scan->listed = dir;
		scan->busy++;
		pthread_mutex_unlock(&scan->lock);
		int rc = list_directory(scan, dir);
		pthread_mutex_lock(&scan->lock);
		scan->busy--;
		if (rc && !scan->rc)
			scan->rc = rc;
		if (scan->rc || (!scan->queue && !scan->busy))
			pthread_cond_broadcast(&scan->changed);
	}
	pthread_mutex_unlock(&scan->lock);
	return NULL;
}

static void run_threads(struct scan *scan)
{
	pthread_t threads[SCAN_THREADS];
	unsigned n = 0;
	while (n < SCAN_THREADS - 1 && pthread_create(&threads[n], NULL, scan_thread, scan) == 0)
		pthread_setname_np(threads[n++], "scan");
	scan_thread(scan);
	while (n > 0)
		pthread_join(threads[--n], NULL);
}

static void free_nodes(struct dir_node *node)
{
	while (node) {
		struct dir_node *next = node->next;
		free(node);
		node = next;
	}
}

int pack_scan_directory(struct pack_input *input, const char *path, struct base_err *err)
{
	struct statx stx;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx)) {
		int code = -errno;
		if (fd >= 0)
			close(fd);
		return base_err_set(err, code, "'%s': %s", base_quoted(path), strerror(-code));
	}
	int64_t source = pack_input_source(input, path, fd, NULL);
	if (source < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	struct scan scan = { .input = input, .source = (uint32_t)source, .rootfd = fd, .name = path };
	pthread_mutex_init(&scan.lock, NULL);
	pthread_cond_init(&scan.changed, NULL);
	int rc = check_directory(&scan, NULL, "", &stx, err);
	if (rc == 0)
		rc = enqueue(&scan, NULL, "", &stx);
	if (rc == 0) {
		run_threads(&scan);
		rc = scan.rc;
		if (rc && scan.err.code)
			*err = scan.err;
		else if (rc)
			base_err_set(err, rc, "'%s': %s", base_quoted(path), strerror(-rc));
	}
	free_nodes(scan.queue);
	free_nodes(scan.listed);
	pthread_cond_destroy(&scan.changed);
	pthread_mutex_destroy(&scan.lock);
	return rc;
}

/* Lists */

/* Turns a listed name into the path to store.  An absolute name must lie below the directory, whose path is cut off. */
static int list_path(char *name, const char *directory, struct base_err *err)
{
	size_t len = strlen(directory);
	while (len > 1 && directory[len - 1] == '/')
		len--;
	if (name[0] == '/' && directory[0] == '/' && !strncmp(name, directory, len) && (name[len] == '/' || len == 1)) {
		char *rest = name + len;
		while (*rest == '/')
			rest++;
		memmove(name, rest, strlen(rest) + 1);
	}
	if (name[0] == '/') {
		return base_err_set(err, -EINVAL,
		        "'%s': an absolute name in the list; give --directory=DIR to pack names below DIR",
		        base_quoted(name));
	}
	int rc = shard_pack_normalise(name, err);
	return rc == 0 && *name ? shard_path_check(name, err) : rc;
}

static int take_listed(struct pack_input *input, uint32_t source, int dirfd, const char *directory, char *name,
        struct base_err *ret_err)
{
	struct base_err err = { 0 };
	struct statx stx;
	if (list_path(name, directory, &err) == 0) {
		if (!*name)
			return 0; /* "." */
		if (statx(dirfd, name, 0, STATX_BASIC_STATS, &stx))
			base_err_set(&err, -errno, "'%s': %s%s", base_quoted(name), strerror(errno),
			        strchr(name, '\n') ? "; names must be separated by NUL (find -print0)" : "");
		else if (!S_ISREG(stx.stx_mode) && !S_ISDIR(stx.stx_mode))
			base_err_set(&err, -EINVAL, "'%s': neither a file nor a directory (a device, fifo or socket)",
			        base_quoted(name));
	}
	if (err.code == 0) {
		struct shard_pack_item item = make_item(name, &stx, source);
		int rc = pack_input_add(input, &item);
		if (rc == 0)
			return 0;
		base_err_set(&err, rc, "out of memory");
	}
	int rc = pack_input_refuse(input, &err);
	if (rc)
		*ret_err = err;
	return rc;
}

/* Reads one NUL-terminated name.  Returns 1, 0 at the end of the list, or -errno. */
static int next_name(FILE *list, char name[static LIST_NAME_MAX + 1], struct base_err *err)
{
	size_t len = 0;
	int c;
	while ((c = getc_unlocked(list)) != EOF && c != '\0') {
		if (len == LIST_NAME_MAX)
			return base_err_set(err, -ENAMETOOLONG,
			        "standard input: a name over %d bytes; names must be separated by NUL (find -print0)",
			        LIST_NAME_MAX);
		name[len++] = (char)c;
	}
	if (ferror(list))
		return base_err_set(err, -EIO, "standard input: %s", strerror(errno));
	name[len] = '\0';
	return c != EOF || len > 0;
}

int pack_scan_list(struct pack_input *input, int fd, const char *directory, struct base_err *err)
{
	int dirfd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirfd < 0)
		return base_err_set(err, -errno, "'%s': %s", base_quoted(directory), strerror(errno));
	int64_t source = pack_input_source(input, "-", dirfd, NULL);
	if (source < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	cleanup_fclose FILE *list = fdopen(dup(fd), "r");
	if (!list)
		return base_err_set(err, -errno, "standard input: %s", strerror(errno));
	char name[LIST_NAME_MAX + 1];
	int rc;
	while ((rc = next_name(list, name, err)) > 0) {
		if (name[0])
			rc = take_listed(input, (uint32_t)source, dirfd, directory, name, err);
		if (rc < 0)
			break;
	}
	return rc;
}
