/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seed inputs of the fuzz targets: indexes of small random trees, archives, footers.
 *
 *   seeds DIRECTORY     fills DIRECTORY/index, DIRECTORY/tar, DIRECTORY/bare
 *
 * Made when they are needed, by the code that writes the real ones: no binary files to keep in step with the format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "shard/bare.h"
#include "shard/tar.h"
#include "tests/shard/tree.h"

static void write_out(const char *path, const void *data, size_t len)
{
	FILE *f = fopen(path, "w");
	if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
		fprintf(stderr, "seeds: %s: cannot write it\n", path);
		exit(1);
	}
}

static void write_tar(const struct tree *t, const char *path)
{
	uint8_t *bytes = NULL;
	size_t len = 0;
	for (uint32_t i = 0; i < t->n_files; i++) {
		const struct tree_file *f = &t->files[i];
		uint64_t content = f->length % 600; /* a fuzzer wants headers, not contents */
		struct shard_tar_meta meta = { f->path, content, f->mtime_s, f->mode, f->length == 0 };
		if (meta.directory)
			meta.length = content = 0;
		size_t header = shard_tar_header_size(&meta), body = content + shard_tar_padding(content);
		bytes = realloc(bytes, len + header + body + 1024);
		shard_tar_header(&meta, bytes + len);
		memset(bytes + len + header, 0, body + 1024);
		len += header + body;
	}
	bytes = realloc(bytes, len + 1024);
	memset(bytes + len, 0, 1024);
	write_out(path, bytes, len + 1024);
	free(bytes);
}

static void write_bare(const struct tree *t, const char *path)
{
	struct shard_bare_writer *w;
	const uint8_t *tail;
	size_t len;
	uint64_t at = 0;
	assert_int_equal(shard_bare_writer_new(&w), 0);
	for (uint32_t i = 0; i < t->n_files; i++) {
		const struct tree_file *f = &t->files[i];
		struct shard_bare_entry e = { .path = f->path,
			.group = f->group,
			.offset = at,
			.length = f->length % 100,
			.xxh3 = f->xxh3,
			.mtime_s = f->mtime_s,
			.mode = f->mode,
			.common = f->common };
		assert_int_equal(shard_bare_writer_add(w, &e), 0);
		at += f->length % 100;
	}
	assert_int_equal(shard_bare_writer_finish(
	                         w, at, &(struct shard_bare_dataset){ .shuffled = true, .pack_seed = 1 }, &tail, &len),
	        0);
	uint8_t *bytes = calloc(1, at + len);
	memcpy(bytes + at, tail, len);
	write_out(path, bytes, at + len);
	free(bytes);
	shard_bare_writer_free(w);
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "index", "tar", "bare" };
	char path[4300];
	if (argc != 2)
		return 2;
	mkdir(argv[1], 0777);
	for (int k = 0; k < 3; k++) {
		snprintf(path, sizeof path, "%s/%s", argv[1], kinds[k]);
		mkdir(path, 0777);
	}
	for (uint64_t seed = 0; seed < 12; seed++) {
		struct tree t;
		struct tree_options o = { .seed = seed,
			.n_files = 4 + (uint32_t)seed * 2,
			.exact = true,
			.groups = seed & 1,
			.commons = seed & 2,
			.big = seed & 4 };
		tree_random(&o, &t);
		snprintf(path, sizeof path, "%s/index/%02u", argv[1], (unsigned)seed);
		tree_build(&t, NULL, seed & 8, path);
		snprintf(path, sizeof path, "%s/tar/%02u", argv[1], (unsigned)seed);
		write_tar(&t, path);
		snprintf(path, sizeof path, "%s/bare/%02u", argv[1], (unsigned)seed);
		write_bare(&t, path);
		tree_done(&t);
	}
	return 0;
}
