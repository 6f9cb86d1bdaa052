/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs tier`: what a tier holds; verifies and removes datasets in it; cache/tier.h first. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/cache.h"
#include "cache/tier.h"
#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "shard/index.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/common/progress.h"
#include "tools/ddpfs/ddpfs.h"

struct arguments {
	const char *dir;
	const char *verify;     /* a dataset; NULL: none */
	const char *remove;     /* a dataset, or its identity in hex; NULL: none */
	const char *index_file; /* of that dataset, if it does not lie with the shards; else NULL */
	bool json;
};

/* What `--verify` found. */
struct verified {
	uint64_t right, damaged, absent; /* blocks */
};

struct tier_list {
	struct cache_tier_dataset all[CACHE_TIER_DATASETS_MAX];
	uint32_t n;
	struct cache_tier_fill fill;
};

static int identity_of(
        const char *text, const char *index_file, struct base_err *err, uint8_t ret_identity[CACHE_TIER_IDENTITY])
{
	struct shard_index *index;
	uint8_t bytes[CACHE_TIER_IDENTITY];
	bool hex = strlen(text) == 2 * sizeof(bytes) && strspn(text, "0123456789abcdef") == strlen(text);
	for (size_t i = 0; hex && i < sizeof(bytes); i++) {
		const char digits[3] = { text[2 * i], text[2 * i + 1], '\0' };
		bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	int rc = hex ? 0 : cli_index_open(text, index_file, err, &index);
	if (rc < 0)
		return rc;
	if (!hex) {
		memcpy(bytes, shard_index_info(index)->identity, sizeof(bytes));
		shard_index_close(index);
	}
	memcpy(ret_identity, bytes, sizeof(bytes));
	return 0;
}

/* Reads each block of a file that the tier has. */
static int verify_file(struct cache_tier *tier, const struct shard_index *index, uint32_t file, uint8_t *data,
        struct verified *verified)
{
	struct shard_place place;
	int rc = shard_index_place(index, file, &place);
	for (uint32_t b = 0; rc == 0 && b < shard_blocks(place.length); b++) {
		struct cache_tier_block block = { .key = cache_block_key(file, b) };
		uint64_t offset;
		rc = shard_index_block(index, file, b, &offset, &block.len, &block.xxh3);
		if (rc < 0)
			break;
		rc = cache_tier_verify(tier, &block, data);
		verified->right += rc == 0;
		verified->absent += rc == -ENOENT;
		rc = rc == -ENOENT ? 0 : rc;
	}
	return rc;
}

static int verify_all(const char *dir, uint64_t size_bytes, const struct shard_index *index, struct base_err *err,
        struct verified *ret)
{
	struct verified verified = { 0 };
	struct cache_tier *tier;
	struct cache_tier_stats stats;
	const struct shard_info *info = shard_index_info(index);
	cleanup_free uint8_t *data = malloc(SHARD_BLOCK);
	if (!data)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = cache_tier_open(dir, size_bytes, info->identity, err, &tier);
	if (rc < 0)
		return rc;
	progress_start("verifying", 0, info->n_files);
	for (uint32_t file = 0; rc == 0 && file < info->n_files; file++) {
		rc = verify_file(tier, index, file, data, &verified);
		progress_add(0, 1);
	}
	progress_done();
	cache_tier_stats_get(tier, &stats);
	cache_tier_close(tier);
	if (rc < 0)
		return base_err_set(err, rc, "cannot read the tier in '%s': %s", base_quoted(dir), base_err_str(rc));
	verified.damaged = stats.bad;
	*ret = verified;
	return 0;
}

/* Verifies a dataset that the tier knows. */
static int verify(const struct arguments *a, const struct tier_list *list, struct base_err *err, struct verified *ret)
{
	struct shard_index *index;
	int rc = cli_index_open(a->verify, a->index_file, err, &index);
	if (rc < 0)
		return rc;
	bool known = false;
	for (uint32_t i = 0; i < list->n; i++)
		known = known ||
		        memcmp(list->all[i].identity, shard_index_info(index)->identity, CACHE_TIER_IDENTITY) == 0;
	rc = known ? verify_all(a->dir, list->fill.size_bytes, index, err, ret)
	           : base_err_set(err, -ESRCH, "the tier in '%s' does not know the dataset '%s'", base_quoted(a->dir),
	                     a->verify);
	shard_index_close(index);
	return rc;
}

static int print_json(const struct tier_list *list, const struct verified *verified)
{
	json_t *object = json_pack("{s:I, s:I, s:I}", "size_bytes", (json_int_t)list->fill.size_bytes, "room_bytes",
	        (json_int_t)list->fill.room_bytes, "used_bytes", (json_int_t)list->fill.used_bytes);
	json_t *datasets = json_array();
	for (uint32_t i = 0; i < list->n; i++) {
		char identity[2 * CACHE_TIER_IDENTITY + 1];
		base_format_hex(list->all[i].identity, CACHE_TIER_IDENTITY, identity);
		const char *name = list->all[i].name[0] ? remote_quoted(list->all[i].name) : NULL;
		json_array_append_new(datasets,
		        json_pack("{s:s, s:s?, s:I, s:I, s:I, s:b}", "identity", identity, "name", name, "bytes",
		                (json_int_t)list->all[i].bytes, "hits", (json_int_t)list->all[i].hits, "opened_s",
		                (json_int_t)(list->all[i].opened_ns / 1000000000), "in_use", (int)list->all[i].open));
	}
	json_object_set_new(object, "datasets", datasets);
	if (verified)
		json_object_set_new(object, "verified",
		        json_pack("{s:I, s:I, s:I}", "right", (json_int_t)verified->right, "damaged",
		                (json_int_t)verified->damaged, "absent", (json_int_t)verified->absent));
	int rc = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(object);
	putchar('\n');
	return rc < 0 ? cli_failf("cannot write to standard output") : CLI_DONE;
}

static void print_table(const struct tier_list *list, const struct verified *verified)
{
	char used[16], room[16], bytes[16];
	printf("%s of %s used\n", base_format_size(list->fill.used_bytes, used),
	        base_format_size(list->fill.room_bytes, room));
	if (list->n)
		printf("%-32s  %10s  %12s  %-16s  %-6s  %s\n", "DATASET", "SIZE", "HITS", "OPENED", "IN USE", "NAME");
	for (uint32_t i = 0; i < list->n; i++) {
		char identity[2 * CACHE_TIER_IDENTITY + 1], when[32] = "-";
		time_t opened_s = (time_t)(list->all[i].opened_ns / 1000000000);
		struct tm tm;
		if (localtime_r(&opened_s, &tm))
			strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
		base_format_hex(list->all[i].identity, CACHE_TIER_IDENTITY, identity);
		printf("%s  %10s  %12" PRIu64 "  %-16s  %-6s  %s\n", identity,
		        base_format_size(list->all[i].bytes, bytes), list->all[i].hits, when,
		        list->all[i].open ? "yes" : "no",
		        list->all[i].name[0] ? remote_quoted(list->all[i].name) : "-");
	}
	if (verified)
		printf("%" PRIu64 " blocks are right, %" PRIu64 " damaged ones were removed, %" PRIu64
		       " are not in the tier\n",
		        verified->right, verified->damaged, verified->absent);
}

int ddpfs_tier(int argc, char **argv)
{
	static const struct cli_line line = {
		.words_doc = "DIR",
		.doc = "Shows what the tier in DIR holds (mount option tier). `mkshard info --json` prints the "
		       "identity of a "
		       "dataset.",
		.options = { { "json", NULL, "Print a JSON object", CLI_FLAG(struct arguments, json) },
		        { "verify", "DATASET", "Read all blocks of this dataset in the tier, and remove damaged ones",
		                CLI_TEXT(struct arguments, verify) },
		        { "remove", "DATASET",
		                "Remove this dataset from the tier: its path, or its identity in hex digits",
		                CLI_TEXT(struct arguments, remove) },
		        { "index", "FILE", "The index of that dataset, if it does not lie with the shards",
		                CLI_TEXT(struct arguments, index_file) } },
		.words = { { "DIR", offsetof(struct arguments, dir), "the directory of a tier", false } },
	};
	struct arguments a = { 0 };
	struct base_err err = { 0 };
	struct verified verified;
	uint8_t identity[CACHE_TIER_IDENTITY];
	cli_parse(&line, argc, argv, &a);
	cleanup_free struct tier_list *list = calloc(1, sizeof(*list));
	if (!list)
		return cli_failf("out of memory");
	int rc = a.remove ? identity_of(a.remove, a.index_file, &err, identity) : 0;
	if (rc == 0 && a.remove)
		rc = cache_tier_remove(a.dir, identity, &err);
	if (rc == 0)
		rc = cache_tier_list(a.dir, &err, list->all, &list->n, &list->fill);
	if (rc == 0 && a.verify)
		rc = verify(&a, list, &err, &verified);
	if (rc == 0 && a.verify) /* without what was removed */
		rc = cache_tier_list(a.dir, &err, list->all, &list->n, &list->fill);
	if (rc < 0)
		return cli_fail(&err);
	if (a.json)
		return print_json(list, a.verify ? &verified : NULL);
	print_table(list, a.verify ? &verified : NULL);
	return CLI_DONE;
}
