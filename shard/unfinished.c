/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises an unfinished packing and reads its command; shard/unfinished.h first. */
#include "shard/unfinished.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/format.h"

enum { COMMAND_SHOWN = 600 }; /* bytes of a command, so that a sentence with it fits struct base_err */

/* Opens a regular file in a directory.  Returns -1 if there is none. */
static int open_regular(const char *dir, const char *name, struct stat *ret_st)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
		return -1;
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, ret_st) < 0 || !S_ISREG(ret_st->st_mode))
		return -1;
	return steal_fd(&fd);
}

/* Says whether the directory has a journal.  An empty one is that of a run that was killed at its first step. */
static bool has_journal(const char *dir)
{
	char magic[sizeof SHARD_UNFINISHED_MAGIC];
	struct stat st;
	cleanup_close int fd = open_regular(dir, SHARD_UNFINISHED_JOURNAL, &st);
	return fd >= 0 && (st.st_size == 0 || (base_pread_full(fd, magic, sizeof magic, 0) == 0 &&
	                                              !memcmp(magic, SHARD_UNFINISHED_MAGIC, sizeof magic)));
}

/* Reads the command that continues the packing, and its directory, both printable.  A reader of the message will run
 * the command, so it must have been written by this user or by root. */
static bool read_command(const char *dir, char command[static COMMAND_SHOWN], char where[static COMMAND_SHOWN])
{
	char text[2 * COMMAND_SHOWN], here[PATH_MAX];
	struct stat st;
	cleanup_close int fd = open_regular(dir, SHARD_UNFINISHED_COMMAND, &st);
	if (fd < 0 || (st.st_uid != geteuid() && st.st_uid != 0) || st.st_size < 1 ||
	        st.st_size >= (off_t)sizeof text || base_pread_full(fd, text, (size_t)st.st_size, 0) < 0)
		return false;
	text[st.st_size] = '\0';
	char *line = strchr(text, '\n');
	if (!line || text[st.st_size - 1] != '\n')
		return false;
	*line++ = '\0';
	size_t len = strlen(line);
	if (len < 2 || len > COMMAND_SHOWN / 2 || strlen(text) > COMMAND_SHOWN / 2)
		return false;
	line[len - 1] = '\0';
	base_err_printable(line, command, COMMAND_SHOWN);
	where[0] = '\0';
	if (!getcwd(here, sizeof here) || strcmp(here, text))
		base_err_printable(text, where, COMMAND_SHOWN);
	return true;
}

int shard_unfinished_check(const char *dir, struct base_err *err)
{
	char quoted[256], path[PATH_MAX], command[COMMAND_SHOWN], where[COMMAND_SHOWN];
	bool fits = snprintf(path, sizeof path, "%s/%s", dir, SHARD_INDEX_NAME) < (int)sizeof path;
	if (!fits || access(path, F_OK) == 0 || !has_journal(dir))
		return 0;
	base_err_quote(dir, quoted, sizeof quoted);
	if (!read_command(dir, command, where))
		return base_err_set(err, -ENOENT,
		        "'%s' is an unfinished packing, not a dataset; go on by giving the same 'mkshard pack' command "
		        "again",
		        quoted);
	return base_err_set(err, -ENOENT, "'%s' is an unfinished packing, not a dataset; go on with: %s%s%s%s", quoted,
	        command, *where ? " (in '" : "", where, *where ? "')" : "");
}
