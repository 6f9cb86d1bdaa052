/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of the kernel, and the file that answers each one; fs/server.h first. Extended attributes are answered
 * here. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fs/dir.h"
#include "fs/stats_files.h"
#include "fs/lookup_readahead.h"
#include "fs/guest_announcements.h"
#include "fs/hang_injection.h"
#include "fs/epoch_list_reply.h"
#include "fs/errors.h"
#include "fs/node.h"
#include "fs/ranks.h"
#include "fs/read.h"
#include "fs/server.h"
#include "fs/worker_reads.h"
#include "shard/base/control_client.h"

static void do_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	/* Data goes from the server's memory. A pipe between would cost one more copy, and system calls that are not
	 * allowed here (fs/supervise/confine.c). */
	conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_HANDLE_KILLPRIV | FUSE_CAP_ATOMIC_O_TRUNC |
	                          FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
	conn->want |= conn->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_NO_OPEN_SUPPORT | FUSE_CAP_AUTO_INVAL_DATA |
	                                      FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_EXPORT_SUPPORT | FUSE_CAP_ASYNC_READ |
	                                      FUSE_CAP_ASYNC_DIO);
	conn->max_background = 256; /* 12 by default, so the read-ahead of many readers would wait in the kernel */
	conn->congestion_threshold = 192;
#ifdef FUSE_CAP_OVER_IO_URING
	/* With FUSE_URING_ENABLE in the environment libfuse asks for rings on the session's descriptor, but that is a
	 * socket during INIT (fs/server_life.c). */
	conn->want &= ~(unsigned)FUSE_CAP_OVER_IO_URING;
#endif
}

/* ---- lookup and attributes ---- */

static void reply_negative(fuse_req_t req)
{
	/* A name that does not exist never will, so the kernel may remember that, too. */
	struct fuse_entry_param e = { .ino = 0, .entry_timeout = FS_FOREVER };
	fuse_reply_entry(req, &e);
}

/* "." and "..": only NFS and open_by_handle_at ask for them. */
static int lookup_dots(struct fs_server *server, struct fs_node node, const char *name, struct fs_node *ret_node)
{
	if (name[1] == '\0') {
		*ret_node = node;
		return 0;
	}
	return fs_node_parent(server, node, ret_node);
}

/* After the reply, which would wait for it otherwise: who looks a file up may read it next (fs/lookup_readahead.h).
 * @pid: who looked it up. */
static void guess_read(struct fs_server *server, pid_t pid, uint32_t file)
{
	pid_t lister = atomic_load(&server->lister);
	if (lister != 0 && pid == lister)
		return;
	if (!prefetch_hint(server->prefetch, file, false, NULL))
		return;
	bool read = fs_lookup_readahead_is_read(server->lookup_readahead);
	fs_lookup_readahead_looked_up(server->lookup_readahead, file); /* first, because its READ may come meanwhile */
	if (!read)
		return;
	_Atomic bool *reading = fs_worker_reads_begin(server);
	prefetch_hint(server->prefetch, file, true, reading);
	fs_worker_reads_end(server, reading);
}

/* Who looks up a file of a rank opens it next, perhaps without a listing. The server's own thread does it, too. */
static void begin_rank(struct fs_server *server, struct fs_node dir, struct fs_node node, pid_t pid)
{
	if (server->options.n_ranks > 0 && node.kind == FS_FILE && (dir.kind == FS_ROOT || dir.kind == FS_TREE_DIR) &&
	        pid != atomic_load(&server->lister))
		fs_ranks_begin_one(server, fs_server_view(server, dir));
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_server *server = fs_server_of(req);
	struct fuse_entry_param e = { .entry_timeout = FS_FOREVER };
	struct fs_node dir;
	struct fs_node node;
	fs_count(&server->counters.lookups, 1);

	int rc = strlen(name) > SHARD_NAME_MAX ? -ENAMETOOLONG : fs_server_node(server, parent, &dir);
	if (rc == 0 && (strcmp(name, ".") == 0 || strcmp(name, "..") == 0))
		rc = lookup_dots(server, dir, name, &node);
	else if (rc == 0)
		rc = fs_node_lookup(server, dir, name, &node);
	if (rc == -ENOENT)
		rc = fs_index_check(server, rc);
	if (rc == -ENOENT) {
		reply_negative(req);
		return;
	}
	if (rc == 0 && fs_node_is_list(node)) {
		fs_epoch_list_reply(req, &(struct fs_epoch_list_request){ .op = FS_EPOCH_LIST_LOOKUP, .node = node });
		return;
	}
	if (rc == 0)
		rc = fs_node_attr(server, node, &e.attr, &e.attr_timeout);
	rc = fs_index_check(server, rc);
	if (rc < 0) {
		fuse_reply_err(req, -fs_errno(rc));
		return;
	}
	e.ino = e.attr.st_ino;
	pid_t pid = fuse_req_ctx(req)->pid; /* the reply frees the request */
	begin_rank(server, dir, node, pid);
	fuse_reply_entry(req, &e);
	if (node.kind == FS_FILE)
		guess_read(server, pid, (uint32_t)node.id);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_server *server = fs_server_of(req);
	struct fs_node node;
	struct stat st;
	double timeout_s;
	(void)fi;
	fs_count(&server->counters.getattrs, 1);
	int rc = fs_server_node(server, ino, &node);
	if (rc == 0 && fs_node_is_list(node)) {
		fs_epoch_list_reply(req, &(struct fs_epoch_list_request){ .op = FS_EPOCH_LIST_GETATTR, .node = node });
		return;
	}
	if (rc == 0)
		rc = fs_node_attr(server, node, &st, &timeout_s);
	rc = fs_index_check(server, rc);
	if (rc < 0)
		fuse_reply_err(req, -fs_errno(rc));
	else
		fuse_reply_attr(req, &st, timeout_s);
}

static void do_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct fs_server *server = fs_server_of(req);
	struct statvfs st = {
		.f_bsize = 4096,
		.f_frsize = 4096,
		.f_blocks = (server->info->content_bytes + 4095) / 4096,
		.f_files = server->info->n_files,
		.f_namemax = SHARD_NAME_MAX,
		.f_flag = ST_RDONLY | ST_NOSUID,
	};
	(void)ino;
	fuse_reply_statfs(req, &st);
}

/* ---- reading ---- */

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	/* ENOSYS: the kernel stops sending OPEN, and keeps the pages of every file from one open to the next. */
	fuse_reply_err(req, ENOSYS);
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct fs_node node;
	int rc = fs_server_node(fs_server_of(req), ino, &node);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else if (node.kind == FS_FILE)
		fs_read(req, (uint32_t)node.id, size, off, fi->flags & O_DIRECT);
	else if (fs_node_is_list(node))
		fs_epoch_list_reply(req, &(struct fs_epoch_list_request){
		                                 .op = FS_EPOCH_LIST_READ, .node = node, .size = size, .off = off });
	else if (fs_node_is_dir(node))
		fuse_reply_err(req, EISDIR);
	else
		fs_stats_files_read(req, node, size, off);
}

/* What the kernel has of `cookie` bytes that the sink asked it for (fs/sink.c). */
static void do_retrieve_reply(fuse_req_t req, void *cookie, fuse_ino_t ino, off_t offset, struct fuse_bufvec *bufv)
{
	struct fs_server *server = fs_server_of(req);
	struct fs_node node;
	if (fs_server_node(server, ino, &node) == 0 && node.kind == FS_FILE)
		prefetch_looked(server->prefetch, (uint32_t)node.id, (uint64_t)offset,
		        fuse_buf_size(bufv) >= (uintptr_t)cookie);
	fuse_reply_none(req);
}

static void do_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg, struct fuse_file_info *fi,
        unsigned flags, const void *in_buf, size_t in_bufsz, size_t out_bufsz)
{
	struct fs_server *server = fs_server_of(req);
	(void)arg;
	(void)fi;
	if (cmd == BASE_ANNOUNCE_IOCTL && (flags & FUSE_IOCTL_DIR) && in_bufsz == BASE_ANNOUNCE_BYTES &&
	        out_bufsz == BASE_ANNOUNCE_BYTES)
		fs_guests_take(server->guests, req, ino, in_buf, in_bufsz);
	else
		fuse_reply_err(req, ENOTTY);
}

/* ---- extended attributes ---- */

#define XATTR_PREFIX "user.ddpfs."

static int xattr_path(struct fs_server *server, struct fs_node node, char *buf, size_t size)
{
	return shard_index_file_path(server->index, (uint32_t)node.id, buf, size);
}

/* The global step of the file in the current epoch: the P of its flat name. A file is one inode in all ranks, so if
 * their readers are in different epochs, nothing tells which one is meant. */
static int xattr_position(struct fs_server *server, struct fs_node node, char *buf, size_t size)
{
	struct shard_file file;
	uint64_t step;
	uint64_t turn;
	uint32_t rank;
	int rc = shard_index_file(server->index, (uint32_t)node.id, &file);
	if (rc < 0)
		return rc;
	if (file.sample == SHARD_NONE || (server->n_views > 1 && server->lowest_epoch != server->highest_epoch))
		return -ENODATA;
	struct shard_epoch *epoch = fs_view_epoch(fs_server_first_reader(server));
	rc = shard_epoch_find(epoch, file.sample, &step, &rank, &turn);
	shard_epoch_put(epoch);
	if (rc < 0)
		return rc == -ENOENT ? -ENODATA : rc;
	return snprintf(buf, size, "%llu", (unsigned long long)step);
}

static int xattr_xxh3(struct fs_server *server, struct fs_node node, char *buf, size_t size)
{
	struct shard_file file;
	int rc = shard_index_file(server->index, (uint32_t)node.id, &file);
	return rc < 0 ? rc : snprintf(buf, size, "%016llx", (unsigned long long)file.xxh3);
}

static int xattr_view(struct fs_server *server, struct fs_node node, char *buf, size_t size)
{
	struct fs_view *view = fs_server_view(server, node);
	char hex[33];
	if (!view)
		return -ESTALE;
	shard_view_identity(view->order, hex);
	return snprintf(buf, size, "%s", hex);
}

static const struct {
	const char *name;
	enum fs_kind kind;
	int (*get)(struct fs_server *server, struct fs_node node, char *buf, size_t size);
} xattrs[] = {
	{ XATTR_PREFIX "path", FS_FILE, xattr_path },
	{ XATTR_PREFIX "position", FS_FILE, xattr_position },
	{ XATTR_PREFIX "xxh3", FS_FILE, xattr_xxh3 },
	{ XATTR_PREFIX "view", FS_ROOT, xattr_view },
};
enum { N_XATTRS = sizeof(xattrs) / sizeof(xattrs[0]) };

static void reply_xattr(fuse_req_t req, const char *value, int len, size_t size)
{
	if (len < 0)
		fuse_reply_err(req, -(len == -ENODATA ? -ENODATA : fs_errno(len)));
	else if (size == 0)
		fuse_reply_xattr(req, (size_t)len);
	else if ((size_t)len > size)
		fuse_reply_err(req, ERANGE);
	else
		fuse_reply_buf(req, value, (size_t)len);
}

static void do_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	struct fs_server *server = fs_server_of(req);
	char value[SHARD_PATH_MAX + 1];
	struct fs_node node;
	fs_hang_here(server, FS_HANG_WORKER);
	/* ls and tar ask for security.* and system.posix_acl_* of every file, so the first byte decides. */
	int len = name[0] != 'u' ? -ENODATA : fs_server_node(server, ino, &node);
	if (len == 0 && !fs_server_view(server, node))
		len = -ESTALE;
	if (len == 0) {
		len = -ENODATA;
		for (size_t i = 0; i < N_XATTRS; i++) {
			if (xattrs[i].kind == node.kind && strcmp(name, xattrs[i].name) == 0) {
				len = xattrs[i].get(server, node, value, sizeof(value));
				break;
			}
		}
	}
	if (len != -ENODATA)
		len = fs_index_check(server, len);
	reply_xattr(req, value, len, size);
}

static void do_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	struct fs_server *server = fs_server_of(req);
	char names[256];
	char value[SHARD_PATH_MAX + 1];
	struct fs_node node;
	int len = 0;
	int rc = fs_server_node(server, ino, &node);
	if (rc == 0 && !fs_server_view(server, node))
		rc = -ESTALE;
	for (size_t i = 0; rc == 0 && i < N_XATTRS; i++) {
		if (xattrs[i].kind != node.kind || xattrs[i].get(server, node, value, sizeof(value)) < 0)
			continue;
		size_t n = strlen(xattrs[i].name) + 1;
		memcpy(names + len, xattrs[i].name, n);
		len += (int)n;
	}
	reply_xattr(req, names, fs_index_check(server, rc < 0 ? rc : len), size);
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = do_init,
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
	.opendir = fs_dir_opendir,
	.readdir = fs_dir_readdir,
	.readdirplus = fs_dir_readdirplus,
	.statfs = do_statfs,
	.getxattr = do_getxattr,
	.listxattr = do_listxattr,
	.ioctl = do_ioctl,
	.retrieve_reply = do_retrieve_reply,
};
