/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard info`, `ls` and `cat`: print what a dataset holds; mkshard.h and shard/index.h first. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "tools/common/cli.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/reader.h"

/* info */

struct info_args {
	const char *dataset;
	const char *index_file; /* the index, if it does not lie there; else NULL */
	bool json;
};

/* Totals that the header of the index does not hold. */
struct totals {
	uint64_t common_files;
	uint64_t shard_bytes;
	uint32_t tar_shards;
	uint64_t largest;
};

static int count(const struct shard_index *index, struct totals *totals)
{
	const struct shard_info *info = shard_index_info(index);
	for (uint32_t s = 0; s < info->n_shards; s++) {
		struct shard_shard shard;
		int rc = shard_index_shard(index, s, &shard);
		if (rc)
			return rc;
		totals->shard_bytes += shard.size_bytes;
		totals->tar_shards += shard.container == SHARD_TAR;
	}
	for (uint32_t f = 0; f < info->n_files; f++) {
		struct shard_file file;
		int rc = shard_index_file(index, f, &file);
		if (rc)
			return rc;
		totals->common_files += file.common;
		totals->largest = file.length > totals->largest ? file.length : totals->largest;
	}
	return 0;
}

static void hex(const uint8_t bytes[16], char text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static const char *container_name(const struct shard_info *info, const struct totals *totals)
{
	return totals->tar_shards == info->n_shards ? "tar" : totals->tar_shards ? "mixed" : "bare";
}

static void print_info_json(const struct shard_index *index, const struct totals *totals)
{
	const struct shard_info *info = shard_index_info(index);
	char identity[33];
	hex(info->identity, identity);
	printf("{\"dataset\": ");
	json_put_string(stdout, shard_index_dataset(index), strlen(shard_index_dataset(index)));
	printf(", \"identity\": \"%s\", \"format\": %u, \"files\": %u, \"samples\": %u, \"common_files\": %" PRIu64
	       ", \"directories\": %u, \"content_bytes\": %" PRIu64 ", \"largest_file_bytes\": %" PRIu64
	       ", \"shards\": %u, \"container\": \"%s\", \"shard_bytes\": %" PRIu64 ", \"index_bytes\": %" PRIu64
	       ", \"shuffled\": %s, \"pack_seed\": %" PRIu64 ", \"grouped\": %s}\n",
	        identity, info->version, info->n_files, info->n_samples, totals->common_files, info->n_dirs,
	        info->content_bytes, totals->largest, info->n_shards, container_name(info, totals), totals->shard_bytes,
	        info->index_bytes, info->shuffled ? "true" : "false", info->pack_seed,
	        info->grouped ? "true" : "false");
}

static void print_info(const struct shard_index *index, const struct totals *totals)
{
	const struct shard_info *info = shard_index_info(index);
	char identity[33], content[16], mean[16], largest[16], shards[16], index_size[16];
	hex(info->identity, identity);
	uint64_t n = info->n_files ? info->n_files : 1;
	printf("dataset      %s\n", base_quoted(shard_index_dataset(index)));
	printf("identity     %s\n", identity);
	printf("files        %u (%" PRIu64 " common) in %u directories\n", info->n_files, totals->common_files,
	        info->n_dirs);
	printf("samples      %u, %s\n", info->n_samples, info->grouped ? "grouped" : "one file each");
	printf("content      %s; mean %s, largest %s\n", base_format_size(info->content_bytes, content),
	        base_format_size(info->content_bytes / n, mean), base_format_size(totals->largest, largest));
	printf("shards       %u, %s, %s\n", info->n_shards, container_name(info, totals),
	        base_format_size(totals->shard_bytes, shards));
	printf("index        %s, %.1f bytes a file\n", base_format_size(info->index_bytes, index_size),
	        (double)info->index_bytes / (double)n);
	if (info->shuffled)
		printf("stored       shuffled with seed %" PRIu64 "\n", info->pack_seed);
	else
		printf("stored       not shuffled\n");
}

int mkshard_info(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET", "Say what a dataset holds.",
		.options = { { "json", NULL, "Print one JSON object", CLI_FLAG(struct info_args, json) },
		        MKSHARD_INDEX_OPTION(struct info_args) },
		.words = { { "DATASET", .at = offsetof(struct info_args, dataset) } } };
	struct info_args args = { 0 };
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	struct totals totals = { 0 };
	cli_parse(&line, argc, argv, &args);
	if (cli_index_open(args.dataset, args.index_file, &err, &index))
		return cli_fail(&err);
	int rc = count(index, &totals);
	if (shard_index_check_err(index, &err)) {
		rc = cli_fail(&err);
	} else if (rc) {
		cli_damaged(&err, args.dataset, rc);
		rc = cli_fail(&err);
	} else if (args.json)
		print_info_json(index, &totals);
	else
		print_info(index, &totals);
	shard_index_close(index);
	return rc ? CLI_FAILED : CLI_DONE;
}

/* ls */

struct ls_args {
	const char *dataset;
	const char *index_file; /* the index, if it does not lie there; else NULL */
	struct cli_rest paths;
	bool json, verbose, null;
	uint64_t timeout_s; /* of cat */
};

/* Builds the paths of files; the path of their directory is built once for all files in it. */
struct lister {
	const struct shard_index *index;
	const struct ls_args *args;
	uint32_t dir; /* the directory whose path is in buf; SHARD_NONE at first */
	size_t dir_len;
	char buf[SHARD_PATH_MAX + SHARD_NAME_MAX + 2];
};

static void print_long(const struct lister *lister, const struct shard_file *file)
{
	struct tm tm;
	time_t when = (time_t)file->mtime_s;
	char text[32] = "?";
	static const char bits[] = "rwxrwxrwx";
	char mode[11] = "----------";
	for (int i = 0; i < 9; i++)
		if (file->mode & (0400U >> i))
			mode[i + 1] = bits[i];
	if (gmtime_r(&when, &tm))
		strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
	printf("%s %12" PRIu64 " %s %6u %14" PRIu64 " %c ", mode, file->length, text, file->shard, file->offset,
	        file->common ? 'c' : '-');
	(void)lister;
}

static void print_json(const struct lister *lister, const struct shard_file *file, size_t len)
{
	printf("{\"path\": ");
	json_put_string(stdout, lister->buf, len);
	printf(", \"size\": %" PRIu64 ", \"mode\": \"%04o\", \"mtime\": %" PRId64
	       ", \"shard\": %u, \"offset\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64 "\", \"common\": %s, \"sample\": ",
	        file->length, file->mode, file->mtime_s, file->shard, file->offset, file->xxh3,
	        file->common ? "true" : "false");
	if (file->common)
		printf("null}\n");
	else
		printf("%u}\n", file->sample);
}

static int list_file(struct lister *lister, uint32_t id)
{
	struct shard_file file;
	int rc = shard_index_file(lister->index, id, &file);
	if (rc)
		return rc;
	if (file.dir != lister->dir) {
		rc = shard_index_dir_path(lister->index, file.dir, lister->buf, SHARD_PATH_MAX + 1);
		if (rc < 0)
			return rc;
		lister->dir_len = (size_t)rc;
		if (lister->dir_len)
			lister->buf[lister->dir_len++] = '/';
		lister->dir = file.dir;
	}
	if (file.name_len > SHARD_NAME_MAX)
		return -EUCLEAN;
	memcpy(lister->buf + lister->dir_len, file.name, file.name_len);
	size_t len = lister->dir_len + file.name_len;
	if (lister->args->json) {
		print_json(lister, &file, len);
		return 0;
	}
	if (lister->args->verbose)
		print_long(lister, &file);
	lister->buf[len] = '\0';
	if (lister->args->null)
		fputs(lister->buf, stdout);
	else
		cli_put_name(lister->buf);
	putchar(lister->args->null ? '\0' : '\n');
	return 0;
}

static int list_path(struct lister *lister, const char *path)
{
	enum shard_kind kind;
	uint32_t id, first, end;
	int rc = shard_index_find_path(lister->index, path, &kind, &id);
	if (rc)
		return rc;
	first = id;
	end = id + 1;
	if (kind == SHARD_KIND_DIR) {
		struct shard_dir dir;
		rc = shard_index_dir(lister->index, id, &dir);
		if (rc)
			return rc;
		first = dir.first_file;
		end = dir.end_file;
	}
	for (uint32_t f = first; f < end && rc == 0; f++)
		rc = list_file(lister, f);
	return rc;
}

static int fail_path(const char *dataset, const char *path, int rc)
{
	const char *quoted = base_quoted(path);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return cli_failf("'%s' holds no '%s'", dataset, quoted);
	struct base_err err = { 0 };
	cli_damaged(&err, dataset, rc);
	base_err_prefix(&err, "'%s'", quoted);
	return cli_fail(&err);
}

int mkshard_ls(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET [PATH...]",
		"List the files of a dataset, or those at and below each PATH.",
		.options = { { "long", NULL, "Mode, size, time, shard and offset too", 'l',
		                     CLI_FLAG(struct ls_args, verbose) },
		        { "null", NULL, "End each name with NUL instead of a newline", '0',
		                CLI_FLAG(struct ls_args, null) },
		        { "json", NULL, "Print one JSON object a line", CLI_FLAG(struct ls_args, json) },
		        MKSHARD_INDEX_OPTION(struct ls_args) },
		.words = { { "DATASET", .at = offsetof(struct ls_args, dataset) } }, .more = true,
		.rest = offsetof(struct ls_args, paths) };
	struct ls_args args = { 0 };
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	cli_parse(&line, argc, argv, &args);
	if (cli_index_open(args.dataset, args.index_file, &err, &index))
		return cli_fail(&err);
	struct lister *lister = calloc(1, sizeof(*lister));
	int status = lister ? CLI_DONE : cli_failf("out of memory");
	static char root[] = "";
	char *everything[] = { root };
	if (!args.paths.n)
		args.paths = (struct cli_rest){ everything, 1 };
	for (int i = 0; lister && i < args.paths.n; i++) {
		lister->index = index;
		lister->args = &args;
		lister->dir = SHARD_NONE;
		int rc = list_path(lister, args.paths.words[i]);
		if (rc)
			status = fail_path(args.dataset, args.paths.words[i], rc);
	}
	free(lister);
	if (shard_index_check_err(index, &err))
		status = cli_fail(&err);
	shard_index_close(index);
	return status;
}

/* cat */

static int put_stdout(void *arg, uint64_t offset, const uint8_t *data, size_t len)
{
	(void)offset;
	if (fwrite(data, 1, len, stdout) == len) {
		progress_add(len, 0);
		return 0;
	}
	return base_err_set(arg, errno ? -errno : -EIO, "cannot write to standard output: %s", strerror(errno));
}

/* Writes one file.  Returns an exit status.  *ret_stop: the store cannot be read. */
static int cat_path(
        const struct shard_index *index, const struct ls_args *args, const char *path, uint8_t *buf, bool *ret_stop)
{
	enum shard_kind kind;
	uint32_t id;
	struct shard_file file;
	struct base_err err = { 0 };
	struct mkshard_reader *reader;
	int rc = shard_index_find_path(index, path, &kind, &id);
	if (rc == 0 && kind == SHARD_KIND_DIR)
		return cli_failf("'%s' is a directory", base_quoted(path));
	if (rc == 0)
		rc = shard_index_file(index, id, &file);
	if (rc)
		return fail_path(args->dataset, path, rc);
	if (mkshard_reader_open(index, file.shard, args->timeout_s, &err, &reader))
		return cli_fail(&err);
	mkshard_reader_ahead(reader, file.offset, file.offset + file.length);
	if (!isatty(STDOUT_FILENO))
		progress_start("reading", file.length, 0);
	rc = mkshard_read_file(index, id, reader, buf, put_stdout, &err, &err);
	progress_done();
	*ret_stop = mkshard_reader_is_remote(reader) && mkshard_reader_is_of_store(rc);
	mkshard_reader_close(reader);
	if (rc == 0)
		return CLI_DONE;
	base_err_prefix(&err, "'%s'", base_quoted(path));
	return cli_fail(&err);
}

int mkshard_cat(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET PATH...",
		"Write files to standard output, each block verified before it is written.",
		.options = { MKSHARD_INDEX_OPTION(struct ls_args), MKSHARD_TIMEOUT_OPTION(struct ls_args) },
		.words = { { "DATASET", .at = offsetof(struct ls_args, dataset) } }, .more = true,
		.rest = offsetof(struct ls_args, paths) };
	struct ls_args args = { .timeout_s = MKSHARD_TIMEOUT_S };
	struct base_err err = { 0 };
	struct shard_index *index = NULL;
	bool stop = false;
	cli_parse(&line, argc, argv, &args);
	if (!args.paths.n)
		cli_usage("PATH is missing");
	if (cli_index_open(args.dataset, args.index_file, &err, &index))
		return cli_fail(&err);
	uint8_t *buf = malloc(SHARD_BLOCK);
	int status = buf ? CLI_DONE : cli_failf("out of memory");
	for (int i = 0; buf && i < args.paths.n && !stop; i++)
		if (cat_path(index, &args, args.paths.words[i], buf, &stop))
			status = CLI_FAILED;
	free(buf);
	shard_index_close(index);
	return status;
}
