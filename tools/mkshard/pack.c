/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard pack`: options, rules for the found files, the run, the index; pack.h and publish.h first. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/build.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/interrupt.h"
#include "tools/mkshard/pack.h"
#include "tools/mkshard/publish.h"
#include "tools/mkshard/sample_rules.h"
#include "tools/mkshard/shards.h"
#include "tools/common/progress.h"
#include "tools/mkshard/upload.h"

enum { COMMON_GUESS_MAX = 64 }; /* if more files at the root match, they are samples, not labels or documents */

/* 256 MiB take a quarter of a second to read.  So verifying, fetching and resuming are cheap for one shard, and a
 * dataset of 100 TB still has only 400,000 shards. */
#define SHARD_SIZE_DEFAULT (256 * BASE_MIB)
/* A small dataset gets smaller shards, because each thread writes one shard at a time and all should have work. */
#define SHARD_SIZE_SMALL (16 * BASE_MIB)
enum { SHARDS_WANTED = 8 };
#define MEMORY_DEFAULT (512 * BASE_MIB)

struct pack_args {
	struct cli_rest sources; /* the words of the command line without the last one, the dataset */
	const char *dataset;
	const char *directory; /* names in a list are relative to it */
	struct mkshard_rules given;
	struct shard_pack_options options;
	uint64_t jobs, memory_bytes, unpack_limit;
	bool no_shuffle, keep_going, force, restart, hidden;
	const char *command;        /* this command line for a shell, or NULL */
	const char *staging;        /* where shards for a store are made; NULL: the default */
	struct pack_upload *upload; /* DATASET is in a store; else NULL */
};

static int take_container(void *at, char *arg, struct base_err *err)
{
	if (strcmp(arg, "tar") && strcmp(arg, "bare"))
		return base_err_set(err, -EINVAL, "--container: '%s' is not one of: tar, bare", arg);
	*(enum shard_container *)at = strcmp(arg, "bare") ? SHARD_TAR : SHARD_BARE;
	return 0;
}

static const struct cli_line line = { "SOURCE... DATASET",
	"Pack files into shards.\v"
	"A SOURCE is a directory, an archive (tar, tar.gz, tar.zst, zip; through a pipe as /dev/stdin), or '-' for "
	"NUL-separated names on standard input.  DATASET must not exist.  An interrupted run is resumed by giving the "
	"same command again.\n\n"
	"Example: mkshard pack --sample=key images/ labels.tar.gz train.ddpfs",
	.options = { { "shard-size", "SIZE", "Close a shard before it grows past SIZE (default 256M; less under 2G)",
	                     .group = 1,
	                     CLI_SIZE(struct pack_args, options.shard_bytes, SHARD_PAGE, SHARD_FILE_BYTES_MAX / 2) },
	        { "container", "KIND", "tar (default), or bare: no headers, for tiny files", .group = 1,
	                CLI_CALL(struct pack_args, options.container, take_container) },
	        { "shuffle-seed", "N", "Seed of the stored order (default 0)", .group = 2,
	                CLI_NUMBER(struct pack_args, options.seed, 0, UINT64_MAX) },
	        { "no-shuffle", NULL, "Store in the order of the paths", .group = 2,
	                CLI_FLAG(struct pack_args, no_shuffle) },
	        { "sample", "WHAT",
	                "A sample is a file (default), or with 'key' all files whose names are equal up to the first "
	                "dot",
	                .group = 2, CLI_CALL(struct pack_args, given, mkshard_take_sample) },
	        { "group", "REGEX",
	                "Files for which the first parentheses of this POSIX extended regular expression match the "
	                "same text form one sample",
	                .group = 2, CLI_CALL(struct pack_args, given, mkshard_take_group) },
	        { "common", "GLOB",
	                "Files shown on every rank, never dealt (may be repeated; '' for none; default, at the root: "
	                "README, LICENSE and the like, md, checksums, hidden files, csv, json, txt, tsv, yaml)",
	                .group = 2, CLI_CALL(struct pack_args, given, mkshard_take_common) },
	        { "hidden", NULL, "Pack hidden directories at the root too (.git, .cache)", .group = 2,
	                CLI_FLAG(struct pack_args, hidden) },
	        { "directory", "DIR", "Names in a list are relative to DIR", 'C', 3,
	                CLI_TEXT(struct pack_args, directory) },
	        { "unpack-limit", "SIZE",
	                "Refuse a compressed archive that unpacks to more (default 200 times its size, at least 1G)",
	                .group = 3, CLI_SIZE(struct pack_args, unpack_limit, 1, SHARD_FILE_BYTES_MAX) },
	        { "keep-going", NULL, "Leave out what cannot be packed, list it, and exit with 1", .group = 4,
	                CLI_FLAG(struct pack_args, keep_going) },
	        { "force", NULL, "Replace DATASET once the new one is complete", .group = 4,
	                CLI_FLAG(struct pack_args, force) },
	        { "restart", NULL, "Drop what an interrupted run has left", .group = 4,
	                CLI_FLAG(struct pack_args, restart) },
	        { "staging", "DIR",
	                "Where shards for a store are made before they are sent (default: where copies of indexes are)",
	                .group = 5, CLI_TEXT(struct pack_args, staging) },
	        { "jobs", "N", "Shards written at once (default: processors + 2)", 'j', 5,
	                CLI_NUMBER(struct pack_args, jobs, 1, MKSHARD_JOBS_MAX) },
	        { "memory", "SIZE", "Memory for shards being written (default 512M)", .group = 5,
	                CLI_SIZE(struct pack_args, memory_bytes, BASE_MIB, BASE_GIB * 1024) } },
	.more = true, .rest = offsetof(struct pack_args, sources) };

/* Notes the directory in which DATASET is made; a scan fails if it finds that directory inside a source. */
static int note_parent(struct pack_input *input, const struct pack_places *places, struct base_err *err)
{
	cleanup_free char *copy = strdup(places->dataset);
	struct stat st;
	if (!copy)
		return base_err_set(err, -ENOMEM, "out of memory");
	char *slash = strrchr(copy, '/');
	if (slash)
		slash[slash == copy] = '\0';
	if (stat(slash ? copy : ".", &st))
		return base_err_set(err, -errno, "'%s': %s", slash ? copy : ".", strerror(errno));
	input->dataset_dev = st.st_dev;
	input->dataset_ino = st.st_ino;
	return 0;
}

/* Warns if a source is a dataset: its shards would be packed as files, but the user may mean the files in them.
 * Returns whether it is one. */
static bool warn_of_dataset(const char *source, const char *target)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof(path), "%s/" SHARD_INDEX_NAME, source) >= (int)sizeof(path) || access(path, F_OK) < 0)
		return false;
	const char *quoted = base_quoted(source);
	cli_warn(
	        "'%s' is a dataset itself: its index and shards are packed as samples; to join datasets, name their "
	        "shards: 'mkshard index %s %s/shard-*.tar ...' where they lie, or 'mkshard pack %s/shard-*.tar ... %s'",
	        quoted, target, quoted, quoted, target);
	return true;
}

static int scan_sources(
        const struct pack_args *args, const struct pack_places *places, struct pack_input *input, struct base_err *err)
{
	int rc = 0;
	bool warned = false;
	for (int i = 0; i < args->sources.n && rc == 0; i++) {
		struct stat st;
		const char *source = args->sources.words[i];
		if (remote_is_url(source)) {
			rc = base_err_set(err, -EINVAL,
			        "'%s': a source is a directory, an archive or a list of this host: fetch it first",
			        remote_quoted(source));
		} else if (!strcmp(source, "-")) {
			rc = pack_scan_list(input, STDIN_FILENO, args->directory ? args->directory : ".", err);
		} else if (stat(source, &st) == 0 && S_ISDIR(st.st_mode)) {
			warned = warned || warn_of_dataset(source, places->quoted);
			rc = pack_scan_directory(input, source, err);
		} else {
			rc = pack_scan_archive(input, source, places->partial, args->unpack_limit, err);
		}
	}
	if (input->hidden[0])
		cli_note("hidden directories at the root, such as '%s', are left out: give --hidden to pack them",
		        input->hidden);
	return rc;
}

/* Whether the default patterns of one kind (README.md, or labels.csv and classes.txt at the root) match only common
 * files.  They do not apply if they match samples, as in a flat directory of texts, or with captions beside images.
 * `rules` has the patterns of the kind; files that are common by `others` do not count. */
static bool default_common_fits(
        const struct shard_pack_rules *rules, const struct shard_pack_rules *others, const struct pack_input *input)
{
	const char *common[COMMON_GUESS_MAX];
	size_t n = 0;
	uint64_t files = 0;
	for (uint64_t i = 0; i < input->n_items; i++) {
		const struct shard_pack_item *item = &input->items[i];
		if (item->directory || shard_pack_is_common(others, item->path))
			continue;
		files++;
		if (!shard_pack_is_common(rules, item->path))
			continue;
		if (n == COMMON_GUESS_MAX)
			return false;
		common[n++] = item->path;
	}
	if (n && n == files)
		return false;
	for (uint64_t i = 0; n && rules->sample != SHARD_PACK_FILE && i < input->n_items; i++) {
		const char *key, *other;
		size_t len, other_len;
		const char *path = input->items[i].path;
		if (input->items[i].directory || !shard_pack_key(rules, path, &key, &len))
			continue;
		for (size_t c = 0; c < n; c++)
			if (common[c] != path && shard_pack_key(rules, common[c], &other, &other_len) &&
			        len == other_len && !memcmp(key, other, len))
				return false;
	}
	return true;
}

/* Returns the rules with only the patterns [first, end); the texts still belong to `rules`. */
static struct shard_pack_rules some_common(const struct shard_pack_rules *rules, unsigned first, unsigned end)
{
	struct shard_pack_rules some = *rules;
	some.n_common = end - first;
	memmove(some.common, some.common + first, some.n_common * sizeof(some.common[0]));
	return some;
}

static void settle_common(struct pack_args *args, const struct pack_input *input)
{
	struct shard_pack_rules *rules = &args->given.rules;
	if (args->given.common_given)
		return;
	struct shard_pack_rules none = some_common(rules, 0, 0);
	struct shard_pack_rules documents = some_common(rules, 0, SHARD_PACK_DOCUMENTS);
	struct shard_pack_rules labels = some_common(rules, SHARD_PACK_DOCUMENTS, rules->n_common);
	bool keep_documents = default_common_fits(&documents, &none, input);
	bool keep_labels = default_common_fits(&labels, keep_documents ? &documents : &none, input);
	unsigned kept = 0;
	for (unsigned i = 0; i < rules->n_common; i++) {
		if (i < SHARD_PACK_DOCUMENTS ? keep_documents : keep_labels)
			rules->common[kept++] = rules->common[i];
		else
			free(rules->common[i]);
	}
	rules->n_common = kept;
	if (!keep_documents || !keep_labels)
		cli_note("files at the root that could be labels or texts are taken as samples; give --common to say "
		         "otherwise");
}

/* Warns if files seem to belong together, as in WebDataset, but each would be a sample.  Items are sorted by path. */
static void warn_of_pairs(const struct pack_args *args, const struct shard_pack_plan *plan)
{
	struct mkshard_keys keys = { 0 };
	const struct shard_pack_item *last = NULL, *pair[2] = { NULL, NULL };
	if (args->given.sample_given || args->given.rules.sample != SHARD_PACK_FILE)
		return;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		const struct shard_pack_item *item = &plan->items[i];
		if (item->directory || item->common)
			continue;
		if (mkshard_keys_see(&keys, item->path) && !pair[0]) {
			pair[0] = last;
			pair[1] = item;
		}
		last = item;
	}
	if (pair[0] && mkshard_keys_paired(&keys))
		cli_warn("'%s' and '%s' have the same name but are two samples (so are others). --sample=key makes one "
		         "sample of them; --sample=file keeps this and is silent",
		        base_quoted(pair[0]->path), base_quoted(pair[1]->path));
}

/* Warns of rules that match no file: they are probably mistyped. */
static void warn_of_idle_rules(const struct pack_args *args, const struct shard_pack_plan *plan)
{
	static const char *const option[] = { "", "--sample=key", "--group" };
	uint64_t common = 0;
	bool keyed = false;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		const char *key;
		size_t len;
		common += plan->items[i].common;
		keyed |= !plan->items[i].directory &&
		         shard_pack_key(&args->given.rules, plan->items[i].path, &key, &len);
	}
	if (args->given.rules.sample != SHARD_PACK_FILE && !keyed)
		cli_warn("%s fits no file: each is a sample of its own", option[args->given.rules.sample]);
	if (args->given.common_given && args->given.rules.n_common && common == 0)
		cli_warn("--common fits no file; a pattern without '/' fits files at the root only");
	if (plan->n_samples == 0)
		cli_warn("every file is common: ranks are dealt nothing");
}

static void settle_shard_size(struct pack_args *args, const struct pack_input *input)
{
	uint64_t total = 0;
	for (uint64_t i = 0; i < input->n_items; i++)
		total += input->items[i].length;
	uint64_t share = total / SHARDS_WANTED / BASE_MIB * BASE_MIB;
	if (args->options.shard_bytes == 0)
		args->options.shard_bytes = share < SHARD_SIZE_SMALL     ? SHARD_SIZE_SMALL
		                            : share > SHARD_SIZE_DEFAULT ? SHARD_SIZE_DEFAULT
		                                                         : share;
}

/* The index */

static int add_item(struct shard_builder *builder, const struct shard_pack_plan *plan,
        const struct shard_pack_item *item, uint64_t xxh3, const uint64_t *blocks, struct base_err *err)
{
	char group[16];
	if (item->directory)
		return shard_builder_add_dir(builder, item->path, item->mode, item->mtime_s, err);
	snprintf(group, sizeof(group), "%u", item->sample);
	struct shard_build_file file = {
		.path = item->path,
		.shard = item->shard,
		.offset = item->offset,
		.length = item->length,
		.xxh3 = xxh3,
		.block_sums = item->length > SHARD_BLOCK ? blocks : NULL,
		.mtime_s = item->mtime_s,
		.mode = item->mode,
		.common = item->common,
		.group = plan->rules->sample != SHARD_PACK_FILE && !item->common ? group : NULL,
	};
	return shard_builder_add_file(builder, &file, err);
}

static int build_index(const struct shard_pack_plan *plan, const struct pack_shard_sums *sums,
        const struct pack_places *places, struct base_err *err)
{
	struct shard_builder *builder = NULL;
	int rc = shard_builder_new(&builder);
	if (rc)
		return base_err_set(err, rc, "out of memory");
	for (uint32_t s = 0; s < plan->n_shards && rc == 0; s++) {
		char name[32];
		rc = shard_builder_add_shard(builder, shard_pack_shard_name(s, plan->options.container, name),
		        plan->options.container, sums[s].size_bytes, 0, err);
		uint64_t block = 0;
		for (uint64_t k = plan->first[s]; k < plan->first[s + 1] && rc == 0; k++) {
			const struct shard_pack_item *item = &plan->items[plan->stored[k]];
			if (item->left_out)
				continue;
			rc = add_item(
			        builder, plan, item, sums[s].xxh3[k - plan->first[s]], sums[s].blocks + block, err);
			if (item->length > SHARD_BLOCK)
				block += (item->length + SHARD_BLOCK - 1) / SHARD_BLOCK;
		}
	}
	char *path = NULL;
	if (rc == 0 && asprintf(&path, "%s/" SHARD_INDEX_NAME, places->partial) < 0)
		rc = base_err_set(err, -ENOMEM, "out of memory");
	if (rc == 0)
		rc = shard_builder_finish(
		        builder, path, plan->options.shuffle, plan->options.shuffle ? plan->options.seed : 0, err);
	free(path);
	shard_builder_free(builder);
	return rc;
}

/* Reports two files that clash, with their sources; with --keep-going the first one is packed. */
static int on_clash(
        void *arg, const struct shard_pack_item *item, const struct shard_pack_item *kept, struct base_err *err)
{
	struct pack_input *input = arg;
	const char *path = base_quoted(item->path);
	const char *other = base_quoted(kept->path);
	const char *here = base_quoted(input->sources[item->source].name);
	const char *there = base_quoted(input->sources[kept->source].name);
	if (err->code == -EEXIST && item->source == kept->source)
		base_err_set(err, -EEXIST, "'%s' comes twice in '%s'; give each file once", path, here);
	else if (err->code == -EEXIST)
		base_err_set(err, -EEXIST,
		        "'%s' comes twice: in '%s' and in '%s'; give each file once, or pack the sources from a common "
		        "parent",
		        path, there, here);
	else
		base_err_set(err, -ENOTDIR,
		        "'%s' of '%s' and '%s' of '%s': one is a file where the other needs a directory; rename one of "
		        "them or pack them apart",
		        path, here, other, there);
	return pack_input_refuse(input, err);
}

/* The run */

static int compare_left_out(const void *pa, const void *pb)
{
	const struct pack_left_out *a = pa, *b = pb;
	return strcmp(a->text, b->text);
}

static void list_left_out(struct pack_input *input)
{
	if (input->n_left_out)
		qsort(input->left_out, input->n_left_out, sizeof(*input->left_out), compare_left_out);
	for (uint64_t i = 0; i < input->n_left_out; i++)
		cli_note("left out %s", input->left_out[i].text);
}

/* Makes the error of a run without --keep-going: it names a single file itself, and lists several files before it. */
static int refused(struct pack_input *input, struct base_err *err)
{
	if (input->n_refused == 1)
		return base_err_set(err, -EINVAL, "%s", input->left_out[0].text);
	qsort(input->left_out, input->n_left_out, sizeof(*input->left_out), compare_left_out);
	for (uint64_t i = 0; i < input->n_left_out; i++)
		cli_note("%s", input->left_out[i].text);
	return base_err_set(err, -EINVAL,
	        "%" PRIu64 " files cannot be packed%s; mend them, or give --keep-going to leave them out",
	        input->n_refused, input->n_refused > input->n_left_out ? ", and some of them are named above" : "");
}

static void report(const struct shard_pack_plan *plan, const struct pack_input *input, const struct pack_places *places)
{
	uint64_t files = 0, common = 0, bytes = 0;
	char content[16];
	for (uint64_t i = 0; i < plan->n_items; i++) {
		files += !plan->items[i].directory && !plan->items[i].left_out;
		common += plan->items[i].common && !plan->items[i].left_out;
		bytes += plan->items[i].left_out ? 0 : plan->items[i].length;
	}
	printf("%s: %" PRIu64 " file%s, %s, in %u shard%s", places->quoted, files, files == 1 ? "" : "s",
	        base_format_size(bytes, content), plan->n_shards, plan->n_shards == 1 ? "" : "s");
	if (common)
		printf("; %" PRIu64 " of them common: on every rank, never dealt", common);
	if (input->n_left_out)
		printf("; %" PRIu64 " left out", input->n_left_out);
	printf("\n");
}

/* Takes over the items that an earlier run left out of complete shards. */
static int recall_left_out(struct shard_pack_plan *plan, struct pack_input *input, struct pack_shard_sums *sums)
{
	for (uint32_t s = 0; s < plan->n_shards; s++) {
		if (!sums[s].complete)
			continue;
		bool any = false;
		for (uint64_t k = plan->first[s]; k < plan->first[s + 1]; k++)
			any |= sums[s].left_out[k - plan->first[s]] != 0;
		if (any && !input->keep_going) {
			sums[s].complete = false; /* write the shard again */
			continue;
		}
		for (uint64_t k = plan->first[s]; any && k < plan->first[s + 1]; k++) {
			struct shard_pack_item *item = &plan->items[plan->stored[k]];
			struct base_err err;
			item->left_out = sums[s].left_out[k - plan->first[s]];
			if (!item->left_out)
				continue;
			base_err_set(&err, item->left_out, "'%s': %s (in an earlier run)", base_quoted(item->path),
			        base_err_str(item->left_out));
			int rc = pack_input_refuse(input, &err);
			if (rc)
				return rc;
		}
		if (any)
			shard_pack_plan_relay(plan, s);
	}
	return 0;
}

static void warn_if_full(const struct shard_pack_plan *plan, const struct pack_shard_sums *sums, const char *dir)
{
	struct statvfs vfs;
	uint64_t need = 0;
	char need_text[16], free_text[16];
	for (uint32_t s = 0; s < plan->n_shards; s++)
		need += sums[s].complete ? 0 : plan->size_bytes[s];
	if (statvfs(dir, &vfs))
		return;
	uint64_t available = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	if (need > available)
		cli_warn("'%s' needs %s more, %s are free; shards that fit are kept, and a later run goes on from them",
		        dir, base_format_size(need, need_text), base_format_size(available, free_text));
}

static int send_index(struct pack_upload *upload, const struct pack_places *places, const struct shard_pack_plan *plan,
        struct base_err *err)
{
	cleanup_free char *path = NULL;
	if (asprintf(&path, "%s/" SHARD_INDEX_NAME, places->partial) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return pack_upload_index(upload, path, plan->n_shards, plan->options.container, err);
}

static int write_dataset(const struct pack_args *args, struct pack_places *places, struct pack_input *input,
        struct shard_pack_plan *plan, struct base_err *err)
{
	struct pack_shard_sums *sums = calloc(plan->n_shards, sizeof(*sums));
	struct pack_journal *journal = NULL;
	uint32_t complete = 0;
	if (!sums)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = args->upload ? pack_upload_begin(args->upload, err) : 0;
	if (rc == 0)
		rc = pack_journal_open(places->partial, args->upload ? pack_upload_has : NULL, args->upload, plan, sums,
		        err, &journal);
	bool ours = rc == 0; /* the journal is locked, so DATASET.partial belongs to this run */
	if (rc == 0)
		rc = recall_left_out(plan, input, sums);
	for (uint32_t s = 0; s < plan->n_shards; s++)
		complete += sums[s].complete;
	if (rc == 0 && complete < plan->n_shards)
		rc = pack_places_drop_index(places, err);
	if (rc == 0 && complete < plan->n_shards && args->upload)
		rc = pack_upload_drop_index(args->upload, err);
	if (rc == 0) {
		if (complete)
			cli_note("going on: %u of %u shards are complete", complete, plan->n_shards);
		pack_interrupt_total(plan->n_shards);
		pack_interrupt_add(complete);
		if (!args->upload)
			warn_if_full(plan, sums, places->partial);
		struct pack_write_options options = {
			.dir = places->partial,
			.jobs = args->jobs ? (uint32_t)args->jobs : mkshard_jobs(0) + 2,
			.memory_bytes = args->memory_bytes,
			.keep_going = args->keep_going,
			.upload = args->upload,
		};
		progress_start("packing", plan->total_bytes, plan->n_files);
		for (uint32_t s = 0; s < plan->n_shards; s++)
			if (sums[s].complete)
				progress_skip(plan->size_bytes[s], plan->first[s + 1] - plan->first[s]);
		rc = pack_write(plan, input, &options, journal, sums, err);
		progress_done();
	}
	if (rc && input->n_refused && !args->keep_going)
		pack_check_rest(plan, input, sums);
	if (rc == 0)
		rc = build_index(plan, sums, places, err);
	if (rc == 0 && args->upload)
		rc = send_index(args->upload, places, plan, err);
	if (rc == 0)
		rc = pack_publish(places, args->force, plan, err);
	bool any = false;
	for (uint32_t s = 0; s < plan->n_shards; s++) {
		any |= sums[s].complete;
		free(sums[s].xxh3);
		free(sums[s].left_out);
		free(sums[s].blocks);
	}
	free(sums);
	if (rc && ours && !any) /* no complete shard: a rerun has nothing to go on from */
		pack_places_sweep(places);
	pack_journal_close(journal);
	if (rc == 0)
		pack_publish_finish(places);
	if (rc == 0 && args->upload)
		pack_upload_finish(args->upload);
	return rc;
}

/* Whether a source comes through standard input; a rerun then needs the same input. */
static bool reads_standard_input(const struct pack_args *args)
{
	bool piped = false;
	for (int i = 0; i < args->sources.n; i++)
		piped |= !strcmp(args->sources.words[i], "-") || !strcmp(args->sources.words[i], "/dev/stdin");
	return piped;
}

static int run_pack(struct pack_args *args, struct pack_places *places, struct base_err *err)
{
	struct pack_input input;
	struct shard_pack_plan plan = { 0 };
	pack_input_init(&input, args->keep_going);
	input.with_hidden = args->hidden;
	int rc = pack_places_check(places, args->force, err);
	if (rc == 0)
		rc = note_parent(&input, places, err);
	places->restarted = args->restart;
	if (rc == 0)
		rc = pack_places_lock(places, args->command, err);
	if (rc == 0)
		pack_interrupt_begin(places->partial, args->upload ? pack_upload_name(args->upload) : NULL,
		        args->command, reads_standard_input(args));
	if (rc == 0) {
		progress_start("reading names", 0, 0);
		rc = scan_sources(args, places, &input, err);
		progress_done();
		if (rc == 0) {
			settle_common(args, &input);
			settle_shard_size(args, &input);
			args->options.clash = on_clash;
			args->options.clash_arg = &input;
			rc = shard_pack_plan_init(
			        &plan, input.items, input.n_items, &args->given.rules, &args->options, err);
			bool bad = input.n_refused && !args->keep_going && (rc == 0 || rc == -ENOENT);
			if (bad) {
				if (rc == 0)
					pack_check_rest(&plan, &input, NULL);
				rc = refused(&input, err);
			} else if (rc == 0) {
				warn_of_idle_rules(args, &plan);
				warn_of_pairs(args, &plan);
				rc = write_dataset(args, places, &input, &plan, err);
				if (rc && input.n_refused && !args->keep_going)
					rc = refused(&input, err);
			} else if (rc == -ENOENT && !input.n_left_out && args->sources.n == 1) {
				base_err_set(
				        err, rc, "'%s': holds no files to pack", base_quoted(args->sources.words[0]));
			} else if (rc == -ENOENT && input.n_left_out) {
				list_left_out(&input);
				base_err_set(err, rc, "nothing is left to pack: every file was left out");
			}
		}
		if (rc && rc != -EBUSY)
			pack_places_tidy(places);
		pack_interrupt_end();
	}
	int status = rc ? CLI_FAILED : CLI_DONE;
	if (rc == 0) {
		list_left_out(&input);
		report(&plan, &input, places);
		status = input.n_left_out ? CLI_FAILED : CLI_DONE;
	}
	shard_pack_plan_done(&plan);
	pack_input_done(&input);
	return status;
}

/* A directory can be called "gs:", and the dataset be made in it. */
static int check_kind(const char *dataset, struct base_err *err)
{
	cleanup_free char *path = strdup(dataset);
	return path && access(dirname(path), F_OK) < 0 ? remote_check_kind(dataset, err) : 0;
}

int mkshard_pack(int argc, char **argv)
{
	struct pack_args args = {
		.options = { .container = SHARD_TAR },
		.memory_bytes = MEMORY_DEFAULT,
	};
	struct pack_places places = { .lock = -1 };
	struct base_err err = { 0 };
	char *command = pack_command_line(argc, argv); /* before argp reorders argv */
	args.command = command;
	shard_pack_rules_init(&args.given.rules);
	cli_parse(&line, argc, argv, &args);
	if (args.sources.n < 2)
		cli_usage("give at least one SOURCE, and the DATASET to make");
	args.dataset = args.sources.words[--args.sources.n];
	args.options.shuffle = !args.no_shuffle;
	int rc = args.given.common_given ? 0 : shard_pack_rules_common_default(&args.given.rules, &err);
	if (rc == 0 && remote_is_url(args.dataset))
		rc = pack_upload_open(args.dataset, args.staging, args.force, args.restart, &err, &args.upload);
	if (rc == 0 && !args.upload)
		rc = check_kind(args.dataset, &err);
	if (rc == 0)
		rc = pack_places_init(&places, args.upload ? pack_upload_place(args.upload) : args.dataset, &err);
	if (rc == 0 && args.upload)
		base_err_quote(pack_upload_name(args.upload), places.quoted, sizeof(places.quoted));
	int status = rc ? CLI_FAILED : run_pack(&args, &places, &err);
	if (err.code)
		status = cli_fail(&err);
	pack_upload_close(args.upload);
	pack_places_done(&places);
	free(command);
	shard_pack_rules_done(&args.given.rules);
	return status;
}
