/* SPDX-License-Identifier: Apache-2.0 */
/* Reads NUL-terminated paths, builds an index of them in the order given and prints the paths in the order of file
 * ids. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/build.h"
#include "shard/index.h"

static void check(int r, const struct base_err *err)
{
	if (r >= 0)
		return;
	fprintf(stderr, "list_ids: %s\n", err->text);
	exit(1);
}

int main(void)
{
	char file[] = "/tmp/ddpfs-ids.XXXXXX", *line = NULL, path[SHARD_PATH_MAX + 1];
	size_t size = 0;
	struct shard_builder *b;
	struct shard_index *index;
	struct base_err err = { .text = "out of memory" };
	int fd = mkstemp(file);
	if (fd < 0)
		return 1;
	close(fd);
	check(shard_builder_new(&b), &err);
	check(shard_builder_add_shard(b, "s", SHARD_BARE, 0, 0, &err), &err);
	while (getdelim(&line, &size, '\0', stdin) > 0)
		check(shard_builder_add_file(b, &(struct shard_build_file){ .path = line }, &err), &err);
	free(line);
	int r = shard_builder_finish(b, file, false, 0, &err);
	shard_builder_free(b);
	if (r == 0)
		r = shard_index_open(file, &err, &index);
	unlink(file);
	check(r, &err);
	for (uint32_t id = 0; id < shard_index_info(index)->n_files; id++) {
		int len = shard_index_file_path(index, id, path, sizeof path);
		check(len, &err);
		fwrite(path, 1, (size_t)len + 1, stdout);
	}
	shard_index_close(index);
	return 0;
}
