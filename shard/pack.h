/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a packing: which file goes to which place in which shard.
 *
 * Planning opens no file.  So the place of every byte is known before the first byte is read.  The same input and
 * options give the same shards, however many threads read.
 *
 *   items (any order) -> sorted by path -> samples (files that belong together) -> shuffled -> shards
 *
 *   shard 0:     [options record] common files, samples ...      shard k: samples ...      last shard: ..., directories
 *
 * Directories come last, so that `tar xf` of the shards, one after the other, sets their times last.
 *
 * Threads: an object belongs to its caller; any number of threads may read a finished plan. */
#ifndef DDPFS_SHARD_PACK_H
#define DDPFS_SHARD_PACK_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/format.h"

/* ---- Rules: what follows from a path alone ---- */

enum shard_pack_sample {
	SHARD_PACK_FILE,  /* every file is a sample */
	SHARD_PACK_KEY,   /* as WebDataset: files whose paths are equal up to the first dot of the name */
	SHARD_PACK_GROUP, /* files for which the first capture group of a POSIX extended regular expression is equal */
};

enum {
	SHARD_PACK_COMMON_MAX = 64, /* patterns */
	SHARD_PACK_DOCUMENTS = 14,  /* the first patterns of the default: those of documents */
};

struct shard_pack_rules {
	enum shard_pack_sample sample;
	char *group;                         /* SHARD_PACK_GROUP: the expression; owned */
	regex_t regex;                       /* the expression, compiled */
	char *common[SHARD_PACK_COMMON_MAX]; /* globs: '*' does not match '/'; without '/': root files only; owned */
	unsigned n_common;                   /* entries of common */
};

void shard_pack_rules_init(struct shard_pack_rules *rules); /* every file is a sample, no file is common */
void shard_pack_rules_done(struct shard_pack_rules *rules); /* frees what the rules own */

/* Sets the regular expression of SHARD_PACK_GROUP; copied.
 * Returns 0; -EINVAL with a sentence: not an expression, or it has no capture group; -ENOMEM. */
int shard_pack_rules_group(struct shard_pack_rules *rules, const char *expression, struct base_err *err);
/* Adds a glob for common files; copied.  Returns 0; -E2BIG: over SHARD_PACK_COMMON_MAX; -ENOMEM. */
int shard_pack_rules_common(struct shard_pack_rules *rules, const char *glob, struct base_err *err);
/* Adds the default globs, all for files at the root.  First documents (SHARD_PACK_DOCUMENTS patterns): README, LICENSE
 * and the like, md and rst, lists of checksums, hidden files.  Then labels and lists of classes: csv, json, jsonl, txt,
 * tsv, yaml, yml.  Errors as shard_pack_rules_common. */
int shard_pack_rules_common_default(struct shard_pack_rules *rules, struct base_err *err);

/* Says whether a file is common. */
bool shard_pack_is_common(const struct shard_pack_rules *rules, const char *path);
/* Returns true and the key of the sample of a file, a part of `path`; false: the file is a sample of its own. */
bool shard_pack_key(const struct shard_pack_rules *rules, const char *path, const char **ret_key, size_t *ret_len);

/* Compares two paths in the order of ImageFolder: component by component, by byte, the files of a directory before its
 * subdirectories.  The flags say which path is a directory's.  Returns <0, 0 or >0. */
int shard_pack_compare(const char *a, bool a_dir, const char *b, bool b_dir);

/* Rewrites a path as found ("./a//b/") to the form that is stored ("a/b"), in place.  The root becomes "".
 * Returns 0, or an error with a sentence; -EINVAL: absolute, or contains '..'; -ENAMETOOLONG: a component or the path
 * is too long. */
int shard_pack_normalise(char *path, struct base_err *err);

/* ---- The plan ---- */

/* A file or directory to pack. */
struct shard_pack_item {
	const char *path; /* normalised; the caller's; outlives the plan */
	uint64_t length;  /* bytes */
	int64_t mtime_s;  /* since 1970 */
	uint32_t mode;    /* permission bits */
	bool directory;
	bool common;      /* set by the plan */
	int32_t left_out; /* 0: packed; -errno: not packed, the layout has no room for it */
	/* Where the bytes come from.  The caller gives these numbers their meaning. */
	uint32_t source;        /* of equal paths the lower source comes first */
	uint32_t mtime_nsec;    /* part of the fingerprint */
	uint64_t source_ino;    /* not used here */
	uint64_t source_offset; /* of equal source the lower offset comes first; part of the fingerprint */
	/* Where the bytes go.  Set by the plan. */
	uint32_t sample; /* number in path order; SHARD_NONE for common files and directories */
	uint32_t shard;  /* number */
	uint64_t offset; /* of the content in the shard; its header ends there */
};

struct shard_pack_options {
	enum shard_container container;
	uint64_t shard_bytes; /* a shard does not grow past this, unless one sample alone does */
	bool shuffle;         /* shuffle the samples before they are stored */
	uint64_t seed;        /* of the shuffle */
	/* Called for each item that clashes with `kept`, which came first (by source, then source_offset): the same
	 * file twice (err->code is -EEXIST), or a file where the other needs a directory (-ENOTDIR).  It writes a new
	 * sentence into err.  It returns 0 to leave the item out, or -errno to end the planning.  NULL: every clash
	 * ends it. */
	int (*clash)(void *arg, const struct shard_pack_item *item, const struct shard_pack_item *kept,
	        struct base_err *err);
	void *clash_arg; /* first argument of clash */
};

struct shard_pack_plan {
	struct shard_pack_options options;
	const struct shard_pack_rules *rules; /* the caller's; outlives the plan */
	struct shard_pack_item *items;        /* the caller's; ascending by path (files and directories) */
	uint64_t n_items;
	uint32_t *stored;     /* item numbers in storage order; owned */
	uint64_t *first;      /* shard s holds stored[first[s] .. first[s + 1]); owned */
	uint64_t *size_bytes; /* of each shard; owned */
	uint32_t n_shards;
	uint32_t n_samples;
	uint64_t n_files; /* items that are no directories */
	uint64_t content_bytes;
	uint64_t total_bytes;    /* of all shards */
	char *record;            /* JSON: the options that are needed to make the index from the shards again; owned */
	uint8_t fingerprint[16]; /* hash of options, rules and all items: equal for equal input */
};

/* Sorts items by path.  Of equal directories it keeps that of the first source.  It drops the items that options->clash
 * leaves out.  *n_items is the number of items, before and after.
 * Returns 0; -EEXIST: a file comes twice; -ENOTDIR: a file is where others need a directory; -ENOMEM; errors of
 * clash. */
int shard_pack_sort(const struct shard_pack_options *options, struct shard_pack_item *items, uint64_t *n_items,
        struct base_err *err);

/* Sorts `items` in place, as shard_pack_sort does, and gives each its sample, shard and offset.  The items stay the
 * caller's and outlive the plan.  Call shard_pack_plan_done also after a failure.
 * Returns 0; errors as shard_pack_sort; -ENOENT: no files; -E2BIG: too many files of one sample, files of the dataset,
 * or shards; -EFBIG: over 2^48 bytes; -EINVAL: --group or --common is not UTF-8. */
int shard_pack_plan_init(struct shard_pack_plan *plan, struct shard_pack_item *items, uint64_t n_items,
        const struct shard_pack_rules *rules, const struct shard_pack_options *options, struct base_err *err);
void shard_pack_plan_done(struct shard_pack_plan *plan);

/* Computes the places in one shard again, after left_out was set on some of its items.  Other shards do not change. */
void shard_pack_plan_relay(struct shard_pack_plan *plan, uint32_t shard);

/* Returns the bytes of the header before an item's content; 0 in a bare shard. */
size_t shard_pack_header_size(const struct shard_pack_plan *plan, const struct shard_pack_item *item);
/* Makes plan->record from options, rules and n_shards.  Returns 0; -EINVAL: a rule is not UTF-8, or out of memory. */
int shard_pack_record_make(struct shard_pack_plan *plan, struct base_err *err);
/* Returns the bytes before the first item of a shard: the options record of shard 0, else 0. */
size_t shard_pack_lead_size(const struct shard_pack_plan *plan, uint32_t shard);
/* Writes these bytes into buf of shard_pack_lead_size(plan, 0) bytes. */
void shard_pack_lead(const struct shard_pack_plan *plan, uint8_t *buf);

/* Finds the options record at the beginning of a tar shard, in len bytes of it.  The caller frees *ret_json.
 * Returns 0; -ENOENT: the bytes do not begin with a record; -ENOMEM. */
int shard_pack_lead_parse(const uint8_t *bytes, size_t len, char **ret_json);
/* Reads rules, shuffle, seed and the number of shards from a record.  `rules` were initialised by the caller.
 * Returns 0; -EUCLEAN with a sentence: damaged; -EPROTONOSUPPORT: unknown version. */
int shard_pack_record_parse(const char *json, struct shard_pack_rules *rules, struct shard_pack_options *ret_options,
        uint32_t *ret_n_shards, struct base_err *err);

/* Writes "shard-000042.tar", or ".bare", into buf.  Returns buf. */
const char *shard_pack_shard_name(uint32_t shard, enum shard_container container, char buf[static 32]);

#endif
