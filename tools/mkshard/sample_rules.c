/* SPDX-License-Identifier: Apache-2.0 */
/* Which files form a sample: options and keys; sample_rules.h first. */
#include "tools/mkshard/sample_rules.h"

#include <errno.h>
#include <string.h>

int mkshard_take_sample(void *at, char *arg, struct base_err *err)
{
	struct mkshard_rules *r = at;
	r->automatic = r->knows_auto && !strcmp(arg, "auto");
	if (!r->automatic && strcmp(arg, "file") && strcmp(arg, "key"))
		return base_err_set(
		        err, -EINVAL, "--sample: '%s' is not one of: %sfile, key", arg, r->knows_auto ? "auto, " : "");
	r->sample_given |= !r->automatic;
	if (r->rules.sample != SHARD_PACK_GROUP)
		r->rules.sample = strcmp(arg, "key") ? SHARD_PACK_FILE : SHARD_PACK_KEY;
	return 0;
}

int mkshard_take_group(void *at, char *arg, struct base_err *err)
{
	struct mkshard_rules *r = at;
	r->group_given = true;
	r->automatic = false;
	int rc = shard_pack_rules_group(&r->rules, arg, err);
	return rc ? base_err_prefix(err, "--group") : 0;
}

int mkshard_take_common(void *at, char *arg, struct base_err *err)
{
	struct mkshard_rules *r = at;
	r->common_given = true;
	int rc = *arg ? shard_pack_rules_common(&r->rules, arg, err) : 0;
	return rc ? base_err_prefix(err, "--common") : 0;
}

bool mkshard_keys_see(struct mkshard_keys *keys, const char *path)
{
	static const struct shard_pack_rules rules = { .sample = SHARD_PACK_KEY };
	const char *key;
	size_t len;
	if (!shard_pack_key(&rules, path, &key, &len)) {
		keys->last = NULL;
		return false;
	}
	bool same = keys->last && len == keys->last_len && memcmp(key, keys->last, len) == 0;
	bool second = same && !keys->counted;
	keys->keys += !same;
	keys->several += second;
	keys->counted = same;
	keys->last = key;
	keys->last_len = len;
	return second;
}

bool mkshard_keys_paired(const struct mkshard_keys *keys)
{
	return keys->several > 0 && keys->several * 2 >= keys->keys;
}
