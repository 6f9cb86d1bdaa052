/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: a dataset in a store; doctor.h first. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/base/clock.h"
#include "shard/block_sum.h"
#include "shard/index.h"
#include "shard/remote/credentials.h"
#include "shard/remote/index_copy.h"
#include "shard/remote/store_objects.h"
#include "tools/ddpfs/doctor.h"

enum {
	ASKED = 5,        /* requests whose latency is measured */
	SLOW_MS = 500,    /* the median of them */
	BLOCKS = 8,       /* blocks whose checksum is compared, at most */
	BLOCKS_MS = 2000, /* time for them */
	PLACES = 32,      /* in which they are looked for */
	STRIDE = 13,      /* from one place to the next; coprime with PLACES */
	TIMEOUT_S = 20,   /* of a request for a block */
};

/* Says which credentials are used, and never what they are. */
static void say_credentials(json_t *findings)
{
	struct base_err err = { 0 };
	struct remote_settings settings;
	struct remote_credentials *credentials;
	if (remote_settings_get(&err, &settings) < 0)
		return; /* remote_store_open says why */
	bool anonymous = settings.anonymous;
	remote_settings_done(&settings);
	if (anonymous) {
		doctor_say(findings, DOCTOR_OK, NULL, "requests are not signed (DDPFS_S3_ANONYMOUS)");
	} else if (remote_credentials_get(&err, &credentials) == 0) {
		if (credentials->expires)
			doctor_say(findings, DOCTOR_OK, NULL, "credentials come from %s and expire in %lld minutes",
			        credentials->provider, (long long)(credentials->expires - time(NULL)) / 60);
		else
			doctor_say(findings, DOCTOR_OK, NULL, "credentials come from %s", credentials->provider);
		remote_credentials_free(credentials);
	}
}

/* Fetches a block and compares its sum.  Returns 0; -EBADMSG: other bytes; or another -errno with a sentence. */
static int compare_block(struct remote_store *store, const struct shard_index *index, uint32_t file, uint32_t block,
        struct base_err *err)
{
	struct shard_place place;
	struct shard_shard record;
	char path[SHARD_PATH_MAX + 1], key[REMOTE_KEY_MAX], range[80];
	struct remote_answer answer;
	uint64_t offset, sum;
	uint32_t len;
	int rc = shard_index_place(index, file, &place);
	if (rc == 0)
		rc = shard_index_block(index, file, block, &offset, &len, &sum);
	if (rc == 0)
		rc = shard_index_shard(index, place.shard, &record);
	if (rc == 0 && record.path_len > SHARD_PATH_MAX)
		rc = -EUCLEAN;
	if (rc < 0)
		return base_err_set(err, rc, "the index cannot be used: %s", base_err_str(rc));
	memcpy(path, record.path, record.path_len);
	path[record.path_len] = '\0';
	if (remote_location_key(remote_store_location(store), path, key) < 0)
		return base_err_set(err, -ENAMETOOLONG, "'%.200s' is too long a name", base_quoted(path));
	snprintf(range, sizeof(range), "Range: bytes=%" PRIu64 "-%" PRIu64, offset, offset + len - 1);
	const char *headers[] = { range, NULL };
	const struct remote_request request = { .method = "GET", .key = key, .headers = headers };
	rc = remote_store_ask(store, &request, TIMEOUT_S, err, &answer);
	if (rc < 0)
		return rc;
	if (answer.status >= 300)
		rc = remote_store_refusal(store, key, &answer, err);
	else if (answer.body_len != len || shard_block_sum(answer.body, len) != sum)
		rc = base_err_set(err, -EBADMSG, "'%.200s' at byte %" PRIu64 ": %s", base_quoted(path), offset,
		        answer.body_len == len ? base_err_str(-EBADMSG) : "the store gives another range");
	remote_answer_done(&answer);
	return rc;
}

/* Opens the index as a mount does, and compares some blocks. */
static void look_into(
        struct remote_store *store, const char *name, const char *index_file, uint64_t index_bytes, json_t *findings)
{
	struct base_err err = { 0 };
	struct shard_index *index;
	unsigned compared = 0;
	int64_t end = base_now_ms() + BLOCKS_MS;
	if (index_bytes > DOCTOR_INDEX_WHOLE) {
		doctor_say(findings, DOCTOR_NOTE, "'mkshard verify' looks at all of it",
		        "the index is large, so it was not fetched to look at it");
		return;
	}
	int rc = shard_index_open_with(name, index_file, &err, &index);
	if (rc < 0) {
		doctor_say_index(findings, rc, err.text);
		return;
	}
	if (shard_index_check_shards(index, &err) < 0) {
		doctor_say(findings, DOCTOR_FAILURE, DOCTOR_ADVICE_SEPARATE, "%s", err.text);
		shard_index_close(index);
		return;
	}
	uint32_t n = shard_index_info(index)->n_files;
	rc = shard_index_verify(index, &err);
	if (rc < 0)
		doctor_say(findings, DOCTOR_FAILURE, shard_index_advice(index), "%s", err.text);
	for (uint32_t i = 0; rc == 0 && i < n && i < PLACES && compared < BLOCKS && base_now_ms() < end; i++) {
		/* Files at equal distances, far ones first; empty ones have no block. */
		uint32_t file = n <= PLACES ? i : (uint32_t)((uint64_t)(i * STRIDE % PLACES) * (n - 1) / (PLACES - 1));
		struct shard_place place;
		if (shard_index_place(index, file, &place) < 0 || place.length == 0)
			continue;
		rc = compare_block(store, index, file, 0, &err);
		compared++;
		if (rc < 0)
			doctor_say(findings, DOCTOR_FAILURE,
			        "run 'mkshard verify', and send the shard again, or pack the dataset again", "%s",
			        err.text);
	}
	if (rc == 0)
		doctor_say(findings, DOCTOR_OK, NULL, "the index is whole, and the checksums of %u blocks are right",
		        compared);
	shard_index_close(index);
}

/* Says what is not there, the bucket or the object: an answer to HEAD has no body, which would say it. */
static void tell_missing(struct remote_store *store, const char *object, struct base_err *err)
{
	char key[REMOTE_KEY_MAX];
	struct remote_answer answer;
	struct base_err own = { 0 };
	const char *headers[] = { "Range: bytes=0-0", NULL };
	if (remote_location_key(remote_store_location(store), object, key) < 0)
		return;
	const struct remote_request request = { .method = "GET", .key = key, .headers = headers };
	if (remote_store_ask(store, &request, TIMEOUT_S, &own, &answer) < 0)
		return;
	if (answer.status == 404)
		remote_store_refusal(store, key, &answer, err);
	remote_answer_done(&answer);
}

/* Gives the object whose size is asked for: the index, or a shard if the index does not lie there. */
static int object_to_ask(const char *name, const char *index_file, struct base_err *err, char path[SHARD_PATH_MAX + 1],
        uint64_t *ret_index_bytes)
{
	struct shard_index *index;
	struct shard_shard record;
	snprintf(path, SHARD_PATH_MAX + 1, "index.ddpfs");
	if (!index_file)
		return 0;
	int rc = shard_index_open_with(name, index_file, err, &index);
	if (rc < 0)
		return rc;
	*ret_index_bytes = shard_index_info(index)->index_bytes;
	if (shard_index_shard(index, 0, &record) == 0 && record.path_len <= SHARD_PATH_MAX)
		snprintf(path, SHARD_PATH_MAX + 1, "%.*s", (int)record.path_len, record.path);
	shard_index_close(index);
	return 0;
}

void doctor_store(const char *name, const char *index_file, json_t *findings)
{
	char object[SHARD_PATH_MAX + 1];
	uint64_t index_bytes = 0;
	struct base_err err = { 0 };
	struct remote_store *store;
	uint64_t times[ASKED];
	uint64_t bytes;
	char *copies;
	int rc = remote_store_open(name, &err, &store);
	if (rc < 0) {
		doctor_say(findings, DOCTOR_FAILURE,
		        rc == -EINVAL ? "write the name as s3://BUCKET/PREFIX, https://HOST/PATH or http://HOST/PATH"
		                      : "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
		                        "DDPFS_S3_ANONYMOUS=1 for a public bucket",
		        "%s", err.text);
		return;
	}
	if (remote_store_location(store)->bucket)
		say_credentials(findings);
	rc = object_to_ask(name, index_file, &err, object, &index_bytes);
	if (rc < 0) {
		doctor_say_index(findings, rc, err.text);
		remote_store_close(store);
		return;
	}
	for (unsigned i = 0; rc == 0 && i < ASKED; i++) {
		uint64_t begin = base_now_ns();
		rc = remote_object_size(store, object, &err, &bytes);
		times[i] = base_now_ns() - begin;
	}
	if (rc == -ENOENT && remote_store_location(store)->bucket)
		tell_missing(store, object, &err);
	if (rc < 0) {
		doctor_say(findings, DOCTOR_FAILURE,
		        rc == -EACCES   ? "look at the credentials, the region and the bucket's policy"
		        : rc == -ENOENT ? "name the place to which 'mkshard pack' packed; 'mkshard ls' of it must work"
		                        : "look at the network, the proxy and the endpoint (AWS_ENDPOINT_URL)",
		        "%s", err.text);
	} else {
		double median_ms = (double)doctor_median(times, ASKED) / 1e6;
		if (median_ms >= SLOW_MS)
			doctor_say(findings, DOCTOR_WARNING,
			        "use a bucket in the region of the job, and look at the proxy and the network",
			        "the store answers after %.0f ms", median_ms);
		else
			doctor_say(findings, DOCTOR_OK, NULL, "the store answers after %.0f ms", median_ms);
	}
	if (rc == 0)
		look_into(store, name, index_file, index_file ? index_bytes : bytes, findings);
	remote_store_close(store);
	if (index_file)
		return; /* no copy is kept of it */
	if (remote_index_directory(&err, &copies) < 0) {
		doctor_say(
		        findings, DOCTOR_FAILURE, "make that directory yours, or set DDPFS_INDEX_DIR", "%s", err.text);
	} else {
		doctor_disk(copies, findings);
		free(copies);
	}
}
