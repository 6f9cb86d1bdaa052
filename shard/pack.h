/* SPDX-License-Identifier: Apache-2.0 */
/* Planning a packing: which file goes where.  Pure: no file is opened, so the place of every byte is known before the
 * first one is read, and the same input and options give the same shards however many threads read.
 *
 *   items (any order) -> sorted by path -> samples (files that travel together) -> shuffled -> shards
 *
 *   shard 0:     [options record] common files, samples ...      shard k: samples ...      last shard: ..., directories
 *
 * Directories stand behind everything, so that plain `tar xf` of the shards in turn sets their times last.
 *
 * Threads: an object belongs to its caller; a finished plan may be read by many. */
#ifndef DDPFS_SHARD_PACK_H
#define DDPFS_SHARD_PACK_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

/* Rules: what a path alone decides. */

enum shard_pack_sample {
	SHARD_PACK_FILE,  /* every file is a sample */
	SHARD_PACK_KEY,   /* WebDataset: the path up to the first dot of the file's name */
	SHARD_PACK_GROUP, /* the first capture group of a POSIX extended regular expression matched against the path */
};

enum {
	SHARD_PACK_COMMON_MAX = 64,
	SHARD_PACK_DOCUMENTS = 14, /* of the default patterns: those of documents */
};

struct shard_pack_rules {
	enum shard_pack_sample sample;
	char *group;                         /* SHARD_PACK_GROUP: the expression; owned */
	regex_t regex;                       /* its compiled form */
	char *common[SHARD_PACK_COMMON_MAX]; /* globs: '*' does not cross '/'; owned */
	unsigned n_common;
};

void shard_pack_rules_init(struct shard_pack_rules *rules); /* samples are files, nothing is common */
void shard_pack_rules_done(struct shard_pack_rules *rules);

/* -EINVAL with a sentence: not an expression, or one without a capture group. */
int shard_pack_rules_group(struct shard_pack_rules *rules, const char *expression, struct base_err *err);
/* Adds a glob.  -E2BIG, -ENOMEM. */
int shard_pack_rules_common(struct shard_pack_rules *rules, const char *glob, struct base_err *err);
/* The default, all for files at the root.  First what tells of the dataset (SHARD_PACK_DOCUMENTS patterns): README,
 * LICENSE and the like, md and rst, lists of checksums, hidden files.  Then labels and lists of classes: csv, json,
 * jsonl, txt, tsv, yaml, yml. */
int shard_pack_rules_common_default(struct shard_pack_rules *rules, struct base_err *err);

bool shard_pack_is_common(const struct shard_pack_rules *rules, const char *path);
/* The key of the sample that a path belongs to, as a part of the path; false: a sample of its own. */
bool shard_pack_key(const struct shard_pack_rules *rules, const char *path, const char **ret_key, size_t *ret_len);

/* ImageFolder's order: component by component, by byte; a directory's files before its subdirectories.  `a` and `b` are
 * paths of files (or of directories when the flag says so).  <0, 0, >0. */
int shard_pack_compare(const char *a, bool a_dir, const char *b, bool b_dir);

/* Rewrites a path as found ("./a//b/") to the form stored ("a/b"), in place.  "" when only the root is left.
 * -EINVAL with a sentence: absolute, '..', a component or path over the limit.  (-ENAMETOOLONG for the latter.) */
int shard_pack_normalise(char *path, struct base_err *err);

/* The plan. */

struct shard_pack_item {
	const char *path; /* normalised; the caller's, lives as long as the plan */
	uint64_t length;
	int64_t mtime_s;
	uint32_t mode; /* permission bits */
	bool directory;
	bool common;      /* set by the plan */
	int32_t left_out; /* -errno when it is not to be packed (layout without it); 0 = packed */
	/* Where the bytes come from; not looked at here, but for mtime_ns, which is part of the fingerprint. */
	uint32_t source;
	uint32_t mtime_nsec;
	uint64_t source_ino;
	uint64_t source_offset;
	/* Where they go; set by the plan. */
	uint32_t sample; /* number in path order; SHARD_NONE for common files and directories */
	uint32_t shard;
	uint64_t offset; /* of the content in the shard; the header stands directly before it */
};

struct shard_pack_options {
	enum shard_container container;
	uint64_t shard_bytes; /* a shard is closed before it would grow past this; one sample may be larger */
	bool shuffle;
	uint64_t seed;
	/* Asked for each item that cannot stand beside `kept`, which came first (by source, then source_offset): the same file
	 * twice (err->code -EEXIST), or a file where the other needs a directory (-ENOTDIR).  It words err anew, and returns 0
	 * to leave the item out, or an -errno to end the planning.  NULL: every clash ends it. */
	int (*clash)(void *arg, const struct shard_pack_item *item, const struct shard_pack_item *kept,
	        struct base_err *err);
	void *clash_arg;
};

struct shard_pack_plan {
	struct shard_pack_options options;
	const struct shard_pack_rules *rules;
	struct shard_pack_item *items; /* the caller's; ascending by path (files and directories) */
	uint64_t n_items;
	uint32_t *stored;     /* item numbers in storage order */
	uint64_t *first;      /* shard s holds stored[first[s] .. first[s + 1]) */
	uint64_t *size_bytes; /* of each shard */
	uint32_t n_shards;
	uint32_t n_samples;
	uint64_t n_files;
	uint64_t content_bytes;
	uint64_t total_bytes;    /* of all shards */
	char *record;            /* JSON: what rebuilding the index from the shards needs; owned */
	uint8_t fingerprint[16]; /* over options, rules and all items: equal for equal input */
};

/* Sorts items by path.  A directory that comes twice becomes one, the first source's; what options->clash leaves out is
 * dropped; *n_items is how many stay.  -EEXIST (a file twice), -ENOTDIR (a file where others need a directory), -ENOMEM. */
int shard_pack_sort(const struct shard_pack_options *options, struct shard_pack_item *items, uint64_t *n_items,
        struct base_err *err);

/* Sorts `items` in place (they stay the caller's and outlive the plan), drops directories that come twice and what
 * options->clash leaves out, and lays everything out.
 * -EEXIST (a path twice), -ENOTDIR (a file where others need a directory), -ENOENT (no files), -E2BIG (limits:
 * files of one sample, files of a dataset, shards), -ENOMEM. */
int shard_pack_plan_init(struct shard_pack_plan *plan, struct shard_pack_item *items, uint64_t n_items,
        const struct shard_pack_rules *rules, const struct shard_pack_options *options, struct base_err *err);
void shard_pack_plan_done(struct shard_pack_plan *plan);

/* Lays one shard out again after left_out was set on some of its items; other shards keep their places. */
void shard_pack_plan_relay(struct shard_pack_plan *plan, uint32_t shard);

/* Bytes of the header in front of an item's content (0 in a bare shard). */
size_t shard_pack_header_size(const struct shard_pack_plan *plan, const struct shard_pack_item *item);
/* Fills plan->record from options, rules and n_shards.  -EINVAL (text that is not UTF-8), -ENOMEM. */
int shard_pack_record_make(struct shard_pack_plan *plan, struct base_err *err);
/* Bytes in front of a shard's first item: the options record of shard 0. */
size_t shard_pack_lead_size(const struct shard_pack_plan *plan, uint32_t shard);
void shard_pack_lead(const struct shard_pack_plan *plan, uint8_t *buf);

/* The options record again: finds it at the head of a tar shard.  *ret_json is malloc'd.  -ENOENT when the bytes do not
 * start with one. */
int shard_pack_lead_parse(const uint8_t *bytes, size_t len, char **ret_json);
/* Rules and options from a record.  -EUCLEAN with a sentence. */
int shard_pack_record_parse(const char *json, struct shard_pack_rules *rules, struct shard_pack_options *ret_options,
        uint32_t *ret_n_shards, struct base_err *err);

/* "shard-000042.tar"; returns buf. */
const char *shard_pack_shard_name(uint32_t shard, enum shard_container container, char buf[static 32]);

#endif
