/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs warm`: fills a tier from a dataset, without a mount; prefetch/tier_fill.h first. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/tier.h"
#include "prefetch/tier_fill.h"
#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ddpfs.h"

/* The options of a mount that choose samples. */
enum {
	CHOOSING = VIEW_OPTIONS_SET_RANK | VIEW_OPTIONS_SET_WORLD | SHARD_STATE_SET_GROUPS | SHARD_STATE_SET_SUBDIR,
};

struct arguments {
	struct options options; /* as for a mount, so that a mount's -o text works unchanged */
	const char *dataset;
	bool json;
};

/* Ends the program, as the signal would do without it.  What is stored stays, and the claims of this process end. */
static void on_signal(int number)
{
	static const char line[] = "ddpfs: interrupted: what the tier has stays; the same command goes on\n";
	int error = errno;
	if (isatty(STDERR_FILENO) && write(STDERR_FILENO, "\r\033[K", 4) < 0) {
		/* nothing can be done */
	}
	if (write(STDERR_FILENO, line, sizeof(line) - 1) < 0) {
		/* the same */
	}
	errno = error;
	raise(number); /* with SA_RESETHAND this ends the program when the handler returns */
}

static void catch_signals(void)
{
	static const int signals[] = { SIGINT, SIGTERM };
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, before;
		sigaction(signals[i], NULL, &before);
		if (before.sa_handler != SIG_IGN)
			sigaction(signals[i], &action, NULL);
	}
}

/* Tells the tier the name as a mount of the dataset does: a path from the root, or that in a store. */
static void tell_name(struct cache_tier *tier, const char *dataset)
{
	char path[PATH_MAX];
	const char *name = !remote_is_url(dataset) && realpath(dataset, path) ? path : dataset;
	cache_tier_tell_name(tier, name, remote_public_len(name));
}

/* Gives the size of the tier: the option, or that of a tier that is there. */
static int size_of(const struct fs_options *fs, struct base_err *err, uint64_t *ret_bytes)
{
	cleanup_free struct cache_tier_dataset *all = calloc(CACHE_TIER_DATASETS_MAX, sizeof(*all));
	struct cache_tier_fill fill;
	uint32_t n;
	if (fs->tier_bytes) {
		*ret_bytes = fs->tier_bytes;
		return 0;
	}
	int rc = all ? cache_tier_list(fs->tier_dir, err, all, &n, &fill) : base_err_set(err, -ENOMEM, "out of memory");
	if (rc == -ENOENT)
		return base_err_set(err, rc, "there is no tier in '%s' yet: add tier_size=SIZE to make one",
		        base_quoted(fs->tier_dir));
	if (rc == 0)
		*ret_bytes = fill.size_bytes;
	return rc;
}

static void add_progress(void *arg, uint64_t bytes)
{
	(void)arg;
	progress_add(bytes, 0);
}

static int run(const struct arguments *a, struct base_err *err, uint64_t *ret_bytes, struct prefetch_tier_filled *ret)
{
	const struct fs_options *fs = &a->options.fs;
	struct shard_index *index = NULL;
	struct cache_tier *tier = NULL;
	uint64_t size_bytes = 0;
	int rc = size_of(fs, err, &size_bytes);
	if (rc == 0)
		rc = cli_index_open(a->dataset, fs->index_file, err, &index);
	if (rc == 0)
		rc = cache_tier_open(fs->tier_dir, size_bytes, shard_index_info(index)->identity, err, &tier);
	if (rc == 0 && cache_tier_emptied(tier)) {
		char now[16], then[16];
		cli_warn("the tier in '%s' had %s, so it begins empty with tier_size=%s: all mounts should give the "
		         "same tier_size=",
		        base_quoted(fs->tier_dir), base_format_size(cache_tier_emptied(tier), then),
		        base_format_size(size_bytes, now));
	}
	if (rc == 0) {
		tell_name(tier, a->dataset);
		const struct prefetch_tier_fill_options options = {
			.index = index,
			.tier = tier,
			.timeout_ns = fs->timeout_set ? fs->timeout_s * UINT64_C(1000000000) : 0,
			.progress = add_progress,
		};
		*ret_bytes = shard_index_info(index)->content_bytes;
		progress_start("warming", *ret_bytes, 0);
		rc = prefetch_tier_fill(&options, err, ret);
		progress_done();
		if (shard_index_check_err(index, err) < 0)
			rc = err->code;
		if (rc == 0 && ret->bad_blocks) {
			char path[SHARD_PATH_MAX + 1] = "";
			shard_index_file_path(index, ret->bad_file, path, sizeof(path));
			rc = base_err_set(err, -EBADMSG,
			        "%" PRIu64
			        " blocks have a wrong checksum, the first in '%s'; 'mkshard verify' names all",
			        ret->bad_blocks, base_quoted(path));
		}
	}
	cache_tier_close(tier);
	shard_index_close(index);
	return rc;
}

static int print_json(uint64_t bytes, const struct prefetch_tier_filled *done)
{
	json_t *object = json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "dataset_bytes", (json_int_t)bytes, "held_bytes",
	        (json_int_t)done->held_bytes, "fetched_bytes", (json_int_t)done->fetched_bytes, "stored_bytes",
	        (json_int_t)done->stored_bytes, "bad_blocks", (json_int_t)done->bad_blocks, "full",
	        (int)(done->full || done->no_entry));
	int rc = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(object);
	putchar('\n');
	return rc;
}

/* Says what was done.  Returns an exit status. */
static int report(const struct arguments *a, uint64_t bytes, const struct prefetch_tier_filled *done)
{
	char held[16], all[16], fetched[16];
	if (a->json && print_json(bytes, done) < 0)
		return cli_failf("cannot write to standard output");
	if (!a->json)
		printf("the tier has %s of %s; %s were fetched\n", base_format_size(done->held_bytes, held),
		        base_format_size(bytes, all), base_format_size(done->fetched_bytes, fetched));
	if (done->full)
		cli_note("the tier is full: a larger tier_size holds more");
	else if (done->no_entry)
		cli_note("the tier has no entry left for some blocks (one for each 2 KiB of tier_size): a larger "
		         "tier_size, or a dataset with larger files, holds more");
	else if (done->held_bytes < bytes)
		return cli_failf("some blocks are not in the tier, because its disk is slow or another process held "
		                 "its lock: run the same command again");
	return CLI_DONE;
}

int ddpfs_warm(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET",
		"Fills a tier (mount option tier) from a dataset, without a mount. What the tier has is not fetched "
		"again. Mounts can use the tier meanwhile.",
		.options = { { "options", "OPTIONS",
		                     "Options as for a mount: tier=DIR, tier_size=SIZE, timeout, s3_profile, ...; a "
		                     "tier "
		                     "that is there needs no tier_size",
		                     'o', CLI_CALL(struct arguments, options, options_take) },
		        { "json", NULL, "Print a JSON object", CLI_FLAG(struct arguments, json) } },
		.words = { { "DATASET", .at = offsetof(struct arguments, dataset) } } };
	struct arguments a = { 0 };
	struct base_err err = { 0 };
	struct prefetch_tier_filled done = { 0 };
	uint64_t bytes = 0;
	options_init(&a.options);
	cli_parse(&line, argc, argv, &a);
	if (!a.options.fs.tier_dir)
		cli_usage("option tier is missing: add -o tier=DIR, a directory on a local disk");
	if (a.options.view.set & CHOOSING)
		cli_note("the tier is filled with the whole dataset: rank, world, groups and subdir have no effect");
	catch_signals();
	int rc = run(&a, &err, &bytes, &done);
	options_done(&a.options);
	if (rc < 0)
		return cli_fail(&err);
	return report(&a, bytes, &done);
}
