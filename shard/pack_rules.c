/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a packing (which files are common or form a sample), and the record of them in the shards; shard/pack.h
 * first. */
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/pack.h"
#include "shard/tar.h"

enum { RECORD_VERSION = 1, RECORD_MAX = 64 * 1024 };

void shard_pack_rules_init(struct shard_pack_rules *rules)
{
	*rules = (struct shard_pack_rules){ .sample = SHARD_PACK_FILE };
}

void shard_pack_rules_done(struct shard_pack_rules *rules)
{
	if (rules->group)
		regfree(&rules->regex);
	free(rules->group);
	for (unsigned i = 0; i < rules->n_common; i++)
		free(rules->common[i]);
	shard_pack_rules_init(rules);
}

int shard_pack_rules_group(struct shard_pack_rules *rules, const char *expression, struct base_err *err)
{
	regex_t regex;
	int rc = regcomp(&regex, expression, REG_EXTENDED);
	if (rc) {
		char reason[128];
		regerror(rc, &regex, reason, sizeof(reason));
		return base_err_set(
		        err, -EINVAL, "'%s' is not a POSIX extended regular expression: %s", expression, reason);
	}
	if (regex.re_nsub < 1) {
		regfree(&regex);
		return base_err_set(err, -EINVAL,
		        "'%s' has no capture group; put parentheses around the part that names the sample", expression);
	}
	char *copy = strdup(expression);
	if (!copy) {
		regfree(&regex);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	if (rules->group)
		regfree(&rules->regex);
	free(rules->group);
	rules->group = copy;
	rules->regex = regex;
	rules->sample = SHARD_PACK_GROUP;
	return 0;
}

int shard_pack_rules_common(struct shard_pack_rules *rules, const char *glob, struct base_err *err)
{
	if (rules->n_common == SHARD_PACK_COMMON_MAX)
		return base_err_set(err, -E2BIG, "more than %d --common patterns", SHARD_PACK_COMMON_MAX);
	char *copy = strdup(glob);
	if (!copy)
		return base_err_set(err, -ENOMEM, "out of memory");
	rules->common[rules->n_common++] = copy;
	return 0;
}

int shard_pack_rules_common_default(struct shard_pack_rules *rules, struct base_err *err)
{
	static const char *const documents[] = { "[Rr][Ee][Aa][Dd][Mm][Ee]*", "LICEN[CS]E*", "COPYING*", "CITATION*",
		"NOTICE*", "CHANGELOG*", "*.md", "*.rst", "*SUMS", "*.md5", "*.sha1", "*.sha256", "*.sha512", ".*" };
	static const char *const labels[] = { "*.csv", "*.json", "*.jsonl", "*.txt", "*.TXT", "*.tsv", "*.yaml",
		"*.yml" };
	_Static_assert(sizeof(documents) / sizeof(documents[0]) == SHARD_PACK_DOCUMENTS, "pack.h says how many");
	int rc = 0;
	for (size_t i = 0; i < SHARD_PACK_DOCUMENTS && rc == 0; i++)
		rc = shard_pack_rules_common(rules, documents[i], err);
	for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]) && rc == 0; i++)
		rc = shard_pack_rules_common(rules, labels[i], err);
	return rc;
}

bool shard_pack_is_common(const struct shard_pack_rules *rules, const char *path)
{
	bool below = strchr(path, '/');
	for (unsigned i = 0; i < rules->n_common; i++)
		if ((!below || strchr(rules->common[i], '/')) && fnmatch(rules->common[i], path, FNM_PATHNAME) == 0)
			return true;
	return false;
}

/* The key as in WebDataset: everything up to the first dot of the last component.  A name without a dot, or with a dot
 * at its front, has no key. */
static bool webdataset_key(const char *path, size_t *ret_len)
{
	const char *name = strrchr(path, '/');
	name = name ? name + 1 : path;
	const char *dot = strchr(name, '.');
	if (!dot || dot == name)
		return false;
	*ret_len = (size_t)(dot - path);
	return true;
}

bool shard_pack_key(const struct shard_pack_rules *rules, const char *path, const char **ret_key, size_t *ret_len)
{
	if (rules->sample == SHARD_PACK_KEY) {
		if (!webdataset_key(path, ret_len))
			return false;
		*ret_key = path;
		return true;
	}
	if (rules->sample == SHARD_PACK_GROUP) {
		regmatch_t match[2];
		if (regexec(&rules->regex, path, 2, match, 0) || match[1].rm_so < 0)
			return false;
		*ret_key = path + match[1].rm_so;
		*ret_len = (size_t)(match[1].rm_eo - match[1].rm_so);
		return true;
	}
	return false;
}

/* ---- the record ---- */

static const char *sample_name(enum shard_pack_sample sample)
{
	switch (sample) {
	case SHARD_PACK_KEY:
		return "key";
	case SHARD_PACK_GROUP:
		return "group";
	case SHARD_PACK_FILE:
		break;
	}
	return "file";
}

int shard_pack_record_make(struct shard_pack_plan *plan, struct base_err *err)
{
	const struct shard_pack_rules *rules = plan->rules;
	char shards[16], seed[32];
	/* Numbers are text: `shards` has a fixed width, and `seed` needs all 64 bits. */
	snprintf(shards, sizeof(shards), "%08u", plan->n_shards);
	snprintf(seed, sizeof(seed), "%" PRIu64, plan->options.shuffle ? plan->options.seed : 0);
	json_t *common = json_array();
	for (unsigned i = 0; i < rules->n_common; i++)
		json_array_append_new(common, json_string(rules->common[i]));
	cleanup_json json_t *root = json_pack("{s:i s:s s:b s:s s:s s:o}", "ddpfs", RECORD_VERSION, "shards", shards,
	        "shuffle", (int)plan->options.shuffle, "seed", seed, "sample", sample_name(rules->sample), "common",
	        common);
	int bad = !root || json_array_size(common) != rules->n_common;
	if (root && rules->sample == SHARD_PACK_GROUP)
		bad |= json_object_set_new(root, "group", json_string(rules->group)) != 0;
	char *text = bad ? NULL : json_dumps(root, JSON_COMPACT);
	if (!text)
		return base_err_set(err, -EINVAL, "--group and --common must be UTF-8 text");
	free(plan->record);
	plan->record = text;
	return 0;
}

static int parse_fields(json_t *root, struct shard_pack_rules *rules, struct shard_pack_options *options,
        uint32_t *n_shards, struct base_err *err)
{
	int version, shuffle;
	const char *shards, *seed, *sample;
	json_t *common;
	if (json_unpack(root, "{s:i s:s s:b s:s s:s s:o}", "ddpfs", &version, "shards", &shards, "shuffle", &shuffle,
	            "seed", &seed, "sample", &sample, "common", &common) ||
	        !json_is_array(common))
		return base_err_set(err, -EUCLEAN, "a damaged options record");
	if (version != RECORD_VERSION)
		return base_err_set(err, -EPROTONOSUPPORT, "an options record of version %d; this program knows %d",
		        version, RECORD_VERSION);
	for (size_t i = 0; i < json_array_size(common); i++) {
		const char *glob = json_string_value(json_array_get(common, i));
		int rc = glob ? shard_pack_rules_common(rules, glob, err) : -EUCLEAN;
		if (rc)
			return base_err_set(err, rc, "a damaged options record");
	}
	if (!strcmp(sample, "group")) {
		const char *group = json_string_value(json_object_get(root, "group"));
		if (!group || shard_pack_rules_group(rules, group, err))
			return base_err_set(err, -EUCLEAN, "a damaged options record (group)");
	} else {
		rules->sample = strcmp(sample, "key") ? SHARD_PACK_FILE : SHARD_PACK_KEY;
	}
	options->shuffle = shuffle;
	options->seed = strtoull(seed, NULL, 10);
	*n_shards = (uint32_t)strtoul(shards, NULL, 10);
	return 0;
}

int shard_pack_record_parse(const char *json, struct shard_pack_rules *rules, struct shard_pack_options *ret_options,
        uint32_t *ret_n_shards, struct base_err *err)
{
	cleanup_json json_t *root = json_loads(json, 0, NULL);
	if (!root)
		return base_err_set(err, -EUCLEAN, "a damaged options record");
	struct shard_pack_options options = { 0 };
	uint32_t n_shards = 0;
	int rc = parse_fields(root, rules, &options, &n_shards, err);
	if (rc)
		return rc;
	*ret_options = options;
	*ret_n_shards = n_shards;
	return 0;
}

/* At the beginning of a tar shard, the record is the comment of a pax global header, which every reader of tar skips:
 *
 *   512 bytes: ustar header, type 'g' | "<len> comment=<json>\n", zero-padded to 512
 */

static size_t comment_size(size_t json_len)
{
	/* The number counts its own digits. */
	size_t body = json_len + strlen(" comment=\n"), digits = 1;
	for (size_t limit = 10; body + digits >= limit; limit *= 10)
		digits++;
	return body + digits;
}

size_t shard_pack_lead_size(const struct shard_pack_plan *plan, uint32_t shard)
{
	if (shard != 0 || plan->options.container == SHARD_BARE)
		return 0;
	size_t size = comment_size(strlen(plan->record));
	return SHARD_TAR_BLOCK + size + shard_tar_padding(size);
}

void shard_pack_lead(const struct shard_pack_plan *plan, uint8_t *buf)
{
	size_t size = comment_size(strlen(plan->record));
	memset(buf, 0, shard_pack_lead_size(plan, 0));
	char *header = (char *)buf;
	memcpy(header, "pax_global_header", 17);
	memcpy(header + 100, "0000644", 7);
	memcpy(header + 108, "0000000", 7);
	memcpy(header + 116, "0000000", 7);
	snprintf(header + 124, 12, "%011o", (unsigned)size);
	memcpy(header + 136, "00000000000", 11);
	header[156] = 'g';
	memcpy(header + 257, "ustar\00000", 8);
	memset(header + 148, ' ', 8);
	unsigned sum = 0;
	for (int i = 0; i < SHARD_TAR_BLOCK; i++)
		sum += buf[i];
	snprintf(header + 148, 8, "%06o", sum); /* six digits, NUL; the eighth byte stays a space */
	char *text = header + SHARD_TAR_BLOCK;
	int n = snprintf(text, size, "%zu comment=%s", size, plan->record);
	text[n] = '\n';
}

int shard_pack_lead_parse(const uint8_t *bytes, size_t len, char **ret_json)
{
	if (len < 2 * SHARD_TAR_BLOCK || bytes[156] != 'g' || memcmp(bytes, "pax_global_header", 18))
		return -ENOENT;
	char digits[13] = { 0 };
	memcpy(digits, bytes + 124, 12);
	size_t size = strtoul(digits, NULL, 8);
	if (size > RECORD_MAX || size > len - SHARD_TAR_BLOCK)
		return -ENOENT;
	const char *text = (const char *)bytes + SHARD_TAR_BLOCK;
	static const char key[] = " comment={\"ddpfs\":";
	const char *at = memmem(text, size < 32 ? size : 32, key, strlen(key));
	if (!at || size < 2 || text[size - 1] != '\n')
		return -ENOENT;
	at += strlen(" comment=");
	char *json = strndup(at, (size_t)(text + size - 1 - at));
	if (!json)
		return -ENOMEM;
	*ret_json = json;
	return 0;
}
