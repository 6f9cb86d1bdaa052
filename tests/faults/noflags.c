/* SPDX-License-Identifier: Apache-2.0 */
/* noflags SOURCE MOUNTPOINT [FUSE OPTIONS]: a directory passed through, by a file system that has no flags of
 * renameat2(2) and no fallocate(2), as NFS, 9p and some FUSE file systems. */
#define FUSE_USE_VERSION 312
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int root;

static const char *below(const char *path)
{
	return path[1] ? path + 1 : ".";
}

static int result(long n)
{
	return n < 0 ? -errno : (int)n;
}

static int get_attributes(const char *path, struct stat *st, struct fuse_file_info *info)
{
	return result(info ? fstat((int)info->fh, st) : fstatat(root, below(path), st, AT_SYMLINK_NOFOLLOW));
}

static int read_directory(const char *path, void *buf, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
        enum fuse_readdir_flags flags)
{
	(void)offset, (void)info, (void)flags;
	int fd = openat(root, below(path), O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return -errno;
	for (const struct dirent *entry; (entry = readdir(dir));)
		fill(buf, entry->d_name, NULL, 0, 0);
	closedir(dir);
	return 0;
}

static int make_directory(const char *path, mode_t mode)
{
	return result(mkdirat(root, below(path), mode));
}

static int remove_directory(const char *path)
{
	return result(unlinkat(root, below(path), AT_REMOVEDIR));
}

static int remove_file(const char *path)
{
	return result(unlinkat(root, below(path), 0));
}

static int rename_file(const char *from, const char *to, unsigned flags)
{
	return flags ? -EINVAL : result(renameat(root, below(from), root, below(to)));
}

static int change_mode(const char *path, mode_t mode, struct fuse_file_info *info)
{
	(void)info;
	return result(fchmodat(root, below(path), mode, 0));
}

static int change_size(const char *path, off_t size, struct fuse_file_info *info)
{
	if (info)
		return result(ftruncate((int)info->fh, size));
	int fd = openat(root, below(path), O_WRONLY);
	if (fd < 0)
		return -errno;
	int rc = result(ftruncate(fd, size));
	close(fd);
	return rc;
}

static int change_times(const char *path, const struct timespec times[2], struct fuse_file_info *info)
{
	(void)info;
	return result(utimensat(root, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int open_file(const char *path, struct fuse_file_info *info)
{
	int fd = openat(root, below(path), info->flags & ~O_DIRECT); /* what libfuse hands on is not aligned */
	info->fh = (uint64_t)fd;
	return fd < 0 ? -errno : 0;
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *info)
{
	int fd = openat(root, below(path), (info->flags & ~O_DIRECT) | O_CREAT, mode);
	info->fh = (uint64_t)fd;
	return fd < 0 ? -errno : 0;
}

static int read_file(const char *path, char *buf, size_t size, off_t offset, struct fuse_file_info *info)
{
	(void)path;
	return result(pread((int)info->fh, buf, size, offset));
}

static int write_file(const char *path, const char *buf, size_t size, off_t offset, struct fuse_file_info *info)
{
	(void)path;
	return result(pwrite((int)info->fh, buf, size, offset));
}

static int sync_file(const char *path, int data_only, struct fuse_file_info *info)
{
	(void)path, (void)data_only;
	return result(fsync((int)info->fh));
}

static int release_file(const char *path, struct fuse_file_info *info)
{
	(void)path;
	return result(close((int)info->fh));
}

static int get_size(const char *path, struct statvfs *vfs)
{
	(void)path;
	return result(fstatvfs(root, vfs));
}

/* Inodes as they are below, so that a directory is known by them; nothing is remembered. */
static void *start(struct fuse_conn_info *connection, struct fuse_config *config)
{
	(void)connection;
	config->use_ino = 1;
	config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
	return NULL;
}

int main(int argc, char **argv)
{
	static const struct fuse_operations operations = {
		.init = start,
		.getattr = get_attributes,
		.readdir = read_directory,
		.mkdir = make_directory,
		.rmdir = remove_directory,
		.unlink = remove_file,
		.rename = rename_file,
		.chmod = change_mode,
		.truncate = change_size,
		.utimens = change_times,
		.open = open_file,
		.create = create_file,
		.read = read_file,
		.write = write_file,
		.fsync = sync_file,
		.release = release_file,
		.statfs = get_size,
	};
	if (argc < 3)
		return 2;
	root = open(argv[1], O_RDONLY | O_DIRECTORY);
	if (root < 0) {
		perror(argv[1]);
		return 1;
	}
	argv[1] = argv[0];
	return fuse_main(argc - 1, argv + 1, &operations, NULL);
}
