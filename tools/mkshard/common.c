/* SPDX-License-Identifier: Apache-2.0 */
/* What several subcommands share: opens shards, reads and verifies files; mkshard.h first. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "shard/pack.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/reader.h"

uint32_t mkshard_jobs(uint64_t given)
{
	cpu_set_t set;
	if (given)
		return (uint32_t)given;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 2;
	return n < 1 ? 1 : n > 16 ? 16 : (uint32_t)n;
}

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

int mkshard_shard_find(const struct shard_index *index, uint32_t shard, struct base_err *err,
        struct shard_shard *ret_record, char *path)
{
	struct shard_shard *rec = ret_record;
	int rc = shard_index_shard(index, shard, rec);
	if (rc)
		return base_err_set(err, rc, "'%s': the index is damaged (shard %u): %s", shard_index_dataset(index),
		        shard, base_err_str(rc));
	const char *dataset = rec->path_len && rec->path[0] == '/' ? "" : shard_index_dataset(index);
	int n = snprintf(
	        path, MKSHARD_PATH_MAX, "%s%s%.*s", dataset, *dataset ? "/" : "", (int)rec->path_len, rec->path);
	if (n < 0 || n >= MKSHARD_PATH_MAX)
		return base_err_set(
		        err, -ENAMETOOLONG, "'%s': shard %u has too long a path", shard_index_dataset(index), shard);
	return 0;
}

int mkshard_shard_open(const struct shard_index *index, uint32_t shard, struct base_err *err, int *ret_fd)
{
	struct shard_shard rec;
	struct stat st;
	char path[MKSHARD_PATH_MAX];
	int rc = mkshard_shard_find(index, shard, err, &rec, path);
	if (rc < 0)
		return rc;
	const char *quoted = base_quoted(path);
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st)) {
		rc = -errno;
		return base_err_set(err, rc, "'%s': %s%s", quoted, strerror(-rc),
		        rc == -EACCES   ? "; whoever reads the dataset must be allowed to read its shards"
		        : rc == -ENOENT ? "; put the shard back where it was, or index the dataset again"
		                        : "");
	}
	int64_t mtime_ns = base_time_ns(st.st_mtim.tv_sec, (uint32_t)st.st_mtim.tv_nsec);
	if (!S_ISREG(st.st_mode))
		return base_err_set(err, -ESTALE, "'%s': not a regular file", quoted);
	if ((uint64_t)st.st_size != rec.size_bytes)
		return base_err_set(err, -ESTALE,
		        "'%s': %" PRIu64 " bytes, but %" PRIu64
		        " were indexed: replaced or cut off; index it again if that is right",
		        quoted, (uint64_t)st.st_size, rec.size_bytes);
	if (rec.mtime_ns && rec.mtime_ns != mtime_ns)
		return base_err_set(err, -ESTALE, "'%s': changed since it was indexed; index it again", quoted);
	*ret_fd = steal_fd(&fd);
	return 0;
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

int mkshard_read_file(const struct shard_index *index, uint32_t file, struct mkshard_reader *reader, uint8_t *buf,
        int (*put)(void *arg, uint64_t offset, const uint8_t *data, size_t len), void *arg, struct base_err *err)
{
	struct shard_file rec;
	int rc = shard_index_file(index, file, &rec);
	if (rc)
		return base_err_set(err, rc, "the index is damaged (file %u): %s", file, base_err_str(rc));
	uint32_t blocks = shard_blocks(rec.length);
	for (uint32_t b = 0; b < blocks; b++) {
		uint64_t offset, xxh3;
		uint32_t length;
		rc = shard_index_block(index, file, b, &offset, &length, &xxh3);
		if (rc)
			return base_err_set(err, rc, "the index is damaged (file %u): %s", file, base_err_str(rc));
		rc = mkshard_reader_read(reader, buf, length, offset, err);
		if (rc && !mkshard_reader_is_remote(reader))
			return base_err_set(err, rc, "shard %u cannot be read at byte %" PRIu64 ": %s", rec.shard,
			        offset, base_err_str(rc));
		if (rc)
			return base_err_prefix(err, "'%s'", base_quoted(mkshard_reader_name(reader)));
		rc = shard_index_check_err(index, err); /* offset and checksum came from an unchanged index */
		if (rc)
			return rc;
		bool wrong = shard_block_sum(buf, length) != xxh3;
		if (wrong && mkshard_reader_is_remote(reader)) {
			rc = mkshard_reader_read_again(reader, buf, length, offset, err);
			if (rc)
				return base_err_prefix(err, "'%s'", base_quoted(mkshard_reader_name(reader)));
			wrong = shard_block_sum(buf, length) != xxh3;
		}
		if (wrong)
			return base_err_set(err, -EBADMSG, "damaged in shard %u at byte %" PRIu64, rec.shard, offset);
		rc = put(arg, (uint64_t)b * SHARD_BLOCK, buf, length);
		if (rc)
			return rc;
	}
	return shard_index_check_err(index, err); /* so did the length */
}
