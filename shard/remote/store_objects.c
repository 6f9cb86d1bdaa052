/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, writes, lists and removes objects; shard/remote/store_objects.h first.
 *
 * Source: Amazon S3 API Reference: PutObject, CreateMultipartUpload, UploadPart, CompleteMultipartUpload,
 * AbortMultipartUpload, ListMultipartUploads, ListObjectsV2, DeleteObject. */
#include "shard/remote/store_objects.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/remote/uri.h"
#include "shard/remote/xml.h"

enum {
	PARTS_MAX = 9000,     /* S3 allows 10,000 */
	SMALL_TIMEOUT_S = 60, /* for a request without a large body */
	PART_TIMEOUT_S = 900, /* for a part: 18 KB/s */
	PART_STALL_S = 60,    /* for a part of which no byte moves, and for the answer to it */
	MD5_TEXT = 25,        /* base64 of 16 bytes, and a NUL */
	MD5_ETAG = 34,        /* an ETag that is a MD5: 32 digits in quotes */
};

/* Writes the key of a path, and refuses stores that only read. */
static int key_to_write(struct remote_store *store, const char *path, struct base_err *err, char key[REMOTE_KEY_MAX])
{
	const struct remote_location *location = remote_store_location(store);
	if (!location->bucket)
		return base_err_set(err, -EROFS, "%s: only stores named s3:// can be written to", location->name);
	if (remote_location_key(location, path, key) < 0)
		return base_err_set(err, -ENAMETOOLONG, "%s: '%s' is too long a name", location->name, path);
	return 0;
}

/* Sends a request whose answer must be a success. */
static int ask(struct remote_store *store, const struct remote_request *request, unsigned timeout_s,
        struct base_err *err, struct remote_answer *ret_answer)
{
	struct remote_answer answer;
	int rc = remote_store_ask(store, request, timeout_s, err, &answer);
	if (rc < 0)
		return rc;
	if (answer.status >= 300) {
		rc = remote_store_refusal(store, request->key, &answer, err);
		remote_answer_done(&answer);
		return rc;
	}
	*ret_answer = answer;
	return 0;
}

/* The same for an answer that says nothing more. */
static int ask_only(
        struct remote_store *store, const struct remote_request *request, unsigned timeout_s, struct base_err *err)
{
	struct remote_answer answer;
	int rc = ask(store, request, timeout_s, err, &answer);
	if (rc == 0)
		remote_answer_done(&answer);
	return rc;
}

/* Takes an ETag without its quotes.  One that is too long, or that is no word, counts as none. */
static void take_etag(const char *from, char ret_etag[REMOTE_ETAG_MAX])
{
	from += strncmp(from, "W/", 2) == 0 ? 2 : 0;
	from += *from == '"';
	size_t len = strlen(from);
	len -= len && from[len - 1] == '"';
	for (size_t i = 0; i < len; i++)
		if (from[i] <= ' ' || from[i] > '~')
			len = 0;
	snprintf(ret_etag, REMOTE_ETAG_MAX, "%.*s", len < REMOTE_ETAG_MAX ? (int)len : 0, from);
}

/* ---- read ---- */

static int key_to_read(struct remote_store *store, const char *path, struct base_err *err, char key[REMOTE_KEY_MAX])
{
	if (remote_location_key(remote_store_location(store), path, key) < 0)
		return base_err_set(err, -ENAMETOOLONG, "%s: '%s' is too long a name", remote_store_name(store), path);
	return 0;
}

int remote_object_stat(struct remote_store *store, const char *path, struct base_err *err, uint64_t *ret_bytes,
        char ret_etag[REMOTE_ETAG_MAX])
{
	char key[REMOTE_KEY_MAX];
	struct remote_answer answer;
	int rc = key_to_read(store, path, err, key);
	if (rc == 0)
		rc = remote_store_head(store, key, SMALL_TIMEOUT_S, err, &answer);
	if (rc < 0)
		return rc;
	if (answer.status >= 300) {
		rc = remote_store_refusal(store, key, &answer, err);
	} else {
		*ret_bytes = answer.size;
		take_etag(answer.etag, ret_etag);
	}
	remote_answer_done(&answer);
	return rc;
}

int remote_object_size(struct remote_store *store, const char *path, struct base_err *err, uint64_t *ret_bytes)
{
	char etag[REMOTE_ETAG_MAX];
	return remote_object_stat(store, path, err, ret_bytes, etag);
}

int remote_object_read(struct remote_store *store, const char *path, size_t max_bytes, struct base_err *err,
        char **ret_data, size_t *ret_len)
{
	char key[REMOTE_KEY_MAX];
	struct remote_answer answer;
	int rc = key_to_read(store, path, err, key);
	if (rc == 0)
		rc = ask(store, &(struct remote_request){ .method = "GET", .key = key }, SMALL_TIMEOUT_S, err, &answer);
	if (rc < 0)
		return rc;
	if (answer.body_len > max_bytes) {
		remote_answer_done(&answer);
		return base_err_set(err, -EFBIG, "%s: '%s' is too large", remote_store_name(store), path);
	}
	char *data = malloc(answer.body_len + 1);
	if (data)
		memcpy(data, answer.body, answer.body_len + 1);
	*ret_len = answer.body_len;
	remote_answer_done(&answer);
	if (!data)
		return base_err_set(err, -ENOMEM, "out of memory");
	*ret_data = data;
	return 0;
}

/* ---- write ---- */

/* An upload: what its threads share. */
struct upload {
	struct remote_store *store;
	const char *key;
	int fd;
	uint64_t size_bytes, part_bytes;
	uint32_t n_parts;
	char *id; /* encoded; NULL: one request */
	_Atomic uint32_t next;
	pthread_mutex_t lock; /* guards rc and err */
	int rc;
	struct base_err err;
	char (*etags)[256];         /* of each part */
	char etag[REMOTE_ETAG_MAX]; /* of the object, when it is there */
};

/* The store compares the body with this sum, so that no byte changes on the way or in its memory. */
static int md5(const void *data, size_t len, char ret_text[MD5_TEXT])
{
	uint8_t hash[EVP_MAX_MD_SIZE];
	unsigned hash_len;
	if (!EVP_Digest(data, len, hash, &hash_len, EVP_md5(), NULL))
		return -EIO;
	EVP_EncodeBlock((unsigned char *)ret_text, hash, 16);
	return 0;
}

static int send_part(struct upload *u, uint32_t part, struct base_err *err)
{
	uint64_t offset = part * u->part_bytes, rest = u->size_bytes - offset;
	size_t len = (size_t)(rest < u->part_bytes ? rest : u->part_bytes);
	cleanup_free uint8_t *data = malloc(len ? len : 1);
	cleanup_free char *query = NULL;
	char sum[MD5_TEXT], header[64];
	if (!data || (u->id && asprintf(&query, "partNumber=%" PRIu32 "&uploadId=%s", part + 1, u->id) < 0))
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = base_pread_full(u->fd, data, len, offset);
	if (rc == 0)
		rc = md5(data, len, sum);
	if (rc < 0)
		return base_err_set(err, rc, "cannot read what is to be sent as '%s': %s", u->key, base_err_str(rc));
	snprintf(header, sizeof(header), "Content-MD5: %s", sum);
	const char *const headers[] = { header, "Content-Type: application/octet-stream", NULL };
	struct remote_answer answer;
	rc = ask(u->store,
	        &(struct remote_request){ .method = "PUT",
	                .key = u->key,
	                .query = query,
	                .headers = headers,
	                .body = data,
	                .body_len = len,
	                .stall_s = PART_STALL_S },
	        PART_TIMEOUT_S, err, &answer);
	if (rc < 0)
		return rc;
	memcpy(u->etags[part], answer.etag, sizeof(answer.etag));
	remote_answer_done(&answer);
	return 0;
}

static void *send_parts(void *arg)
{
	struct upload *u = arg;
	for (;;) {
		int rc;
		{
			lock_for_scope(&u->lock);
			rc = u->rc;
		}
		uint32_t part = atomic_fetch_add(&u->next, 1);
		if (rc < 0 || part >= u->n_parts)
			return NULL;
		struct base_err err = { 0 };
		rc = send_part(u, part, &err);
		lock_for_scope(&u->lock);
		if (rc < 0 && u->rc == 0) {
			u->rc = rc;
			u->err = err;
		}
	}
}

static int send_all(struct upload *u, struct base_err *err)
{
	pthread_t threads[REMOTE_PARTS - 1];
	unsigned n = 0;
	while (n < REMOTE_PARTS - 1 && n + 1 < u->n_parts && pthread_create(&threads[n], NULL, send_parts, u) == 0)
		n++;
	send_parts(u);
	while (n)
		pthread_join(threads[--n], NULL);
	if (u->rc < 0 && err)
		*err = u->err;
	return u->rc;
}

static int begin_upload(struct upload *u, struct base_err *err)
{
	const char *const headers[] = { "Content-Type: application/octet-stream", NULL };
	struct remote_answer answer;
	int rc = ask(u->store,
	        &(struct remote_request){
	                .method = "POST", .key = u->key, .query = "uploads", .headers = headers, .body = "" },
	        SMALL_TIMEOUT_S, err, &answer);
	if (rc < 0)
		return rc;
	cleanup_free char *id = remote_xml_element(answer.body, "UploadId", NULL);
	remote_answer_done(&answer);
	u->id = id ? remote_uri_encode(id, strlen(id), false) : NULL;
	return u->id ? 0 : base_err_set(err, -EPROTO, "%s: the store began no upload", remote_store_name(u->store));
}

/* Writes the ETag that S3 gives an object of these parts: the MD5 of their MD5s, which are their ETags, and how many
 * they are.  Returns false if the store gives parts other ETags. */
static bool etag_of_parts(const struct upload *u, char ret_etag[64])
{
	uint8_t hash[EVP_MAX_MD_SIZE];
	unsigned hash_len = 0;
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	bool good = ctx && EVP_DigestInit_ex(ctx, EVP_md5(), NULL);
	for (uint32_t i = 0; good && i < u->n_parts; i++) {
		const char *hex = u->etags[i];
		good = strlen(hex) == MD5_ETAG && hex[0] == '"' && strspn(hex + 1, "0123456789abcdef") == MD5_ETAG - 2;
		for (unsigned k = 0; good && k < 16; k++) {
			const char byte[] = { hex[1 + 2 * k], hex[2 + 2 * k], 0 };
			hash[k] = (uint8_t)strtoul(byte, NULL, 16);
		}
		good = good && EVP_DigestUpdate(ctx, hash, 16);
	}
	good = good && EVP_DigestFinal_ex(ctx, hash, &hash_len);
	EVP_MD_CTX_free(ctx);
	for (unsigned i = 0; good && i < hash_len; i++)
		snprintf(ret_etag + 1 + 2 * (size_t)i, 3, "%02x", hash[i]);
	ret_etag[0] = '"';
	if (good)
		snprintf(ret_etag + MD5_ETAG - 1, 64 - MD5_ETAG, "-%" PRIu32 "\"", u->n_parts);
	return good;
}

/* Returns whether the object is there that this upload makes.  If the store has ETags as S3 has, they are compared,
 * else the size.  by_size: whether that is enough: an object may have been there before. */
static bool is_there(struct upload *u, bool by_size)
{
	char etag[64], suffix[24];
	struct remote_answer answer;
	if (remote_store_head(u->store, u->key, SMALL_TIMEOUT_S, NULL, &answer) < 0)
		return false;
	snprintf(suffix, sizeof(suffix), "-%" PRIu32 "\"", u->n_parts);
	const char *behind = strchr(answer.etag, '-');
	bool of_parts = etag_of_parts(u, etag) && behind && strcmp(behind, suffix) == 0;
	bool there = answer.status < 300 &&
	             (of_parts ? strcmp(answer.etag, etag) == 0 : by_size && answer.size == u->size_bytes);
	if (there)
		take_etag(answer.etag, u->etag);
	remote_answer_done(&answer);
	return there;
}

static void take_completed(struct upload *u, const char *xml)
{
	cleanup_free char *etag = remote_xml_element(xml, "ETag", NULL);
	if (etag)
		take_etag(etag, u->etag);
}

static int end_upload(struct upload *u, struct base_err *err)
{
	cleanup_free char *text = NULL, *query = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	if (!out || asprintf(&query, "uploadId=%s", u->id) < 0) {
		if (out)
			fclose(out);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	fputs("<CompleteMultipartUpload>", out);
	for (uint32_t i = 0; i < u->n_parts; i++)
		fprintf(out, "<Part><PartNumber>%" PRIu32 "</PartNumber><ETag>%s</ETag></Part>", i + 1, u->etags[i]);
	fputs("</CompleteMultipartUpload>", out);
	if (fclose(out) != 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	struct remote_answer answer;
	const char *const headers[] = { "Content-Type: application/xml", NULL };
	int rc = remote_store_ask(u->store,
	        &(struct remote_request){ .method = "POST",
	                .key = u->key,
	                .query = query,
	                .headers = headers,
	                .body = text,
	                .body_len = len,
	                .late_errors = true },
	        PART_TIMEOUT_S, err, &answer);
	/* All answers may have got lost, or come from a proxy that did not wait for the store. */
	if (rc < 0)
		return is_there(u, false) ? 0 : rc;
	/* If an earlier try was done and its answer got lost, there is no such upload any more. */
	bool done = answer.status < 300 || (answer.status == 404 && answer.tries > 1 && is_there(u, true)) ||
	            (answer.status >= 500 && is_there(u, false));
	if (!done && answer.status == 404)
		rc = base_err_set(err, -EIO,
		        "%s: the upload of '%s' is gone before it was complete: somebody has aborted it",
		        remote_store_name(u->store), u->key);
	else if (!done)
		rc = remote_store_refusal(u->store, u->key, &answer, err);
	else if (answer.status < 300)
		take_completed(u, answer.body);
	remote_answer_done(&answer);
	return rc;
}

static int abort_upload(struct remote_store *store, const char *key, const char *id, struct base_err *err)
{
	cleanup_free char *query = NULL;
	if (asprintf(&query, "uploadId=%s", id) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = ask_only(store, &(struct remote_request){ .method = "DELETE", .key = key, .query = query },
	        SMALL_TIMEOUT_S, err);
	return rc == -ENOENT ? 0 : rc;
}

int remote_object_write(struct remote_store *store, const char *path, int fd, uint64_t size_bytes, struct base_err *err,
        char ret_etag[REMOTE_ETAG_MAX])
{
	char key[REMOTE_KEY_MAX];
	int rc = key_to_write(store, path, err, key);
	if (rc < 0)
		return rc;
	struct upload u = { .store = store, .key = key, .fd = fd, .size_bytes = size_bytes };
	u.part_bytes = size_bytes / PARTS_MAX + 1 > REMOTE_PART_BYTES ? size_bytes / PARTS_MAX + 1 : REMOTE_PART_BYTES;
	u.n_parts = size_bytes ? (uint32_t)((size_bytes + u.part_bytes - 1) / u.part_bytes) : 1;
	u.etags = calloc(u.n_parts, sizeof(*u.etags));
	if (!u.etags)
		return base_err_set(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&u.lock, NULL);
	if (u.n_parts > 1)
		rc = begin_upload(&u, err);
	if (rc == 0)
		rc = send_all(&u, err);
	if (rc == 0 && u.id)
		rc = end_upload(&u, err);
	else if (rc == 0)
		take_etag(u.etags[0], u.etag);
	if (rc < 0 && u.id)
		abort_upload(store, key, u.id, NULL);
	if (rc == 0 && ret_etag)
		memcpy(ret_etag, u.etag, REMOTE_ETAG_MAX);
	pthread_mutex_destroy(&u.lock);
	free(u.id);
	free(u.etags);
	return rc;
}

int remote_object_remove(struct remote_store *store, const char *path, struct base_err *err)
{
	char key[REMOTE_KEY_MAX];
	int rc = key_to_write(store, path, err, key);
	if (rc == 0)
		rc = ask_only(store, &(struct remote_request){ .method = "DELETE", .key = key }, SMALL_TIMEOUT_S, err);
	return rc == -ENOENT ? 0 : rc;
}

/* ---- lists ---- */

/* A list in pages: what tells the next page. */
struct page {
	char *query; /* of the first page; owned */
	char *token; /* encoded parameters of the next page; NULL: there is none; owned */
};

static int next_page(struct remote_store *store, struct page *page, struct base_err *err, struct remote_answer *answer)
{
	cleanup_free char *query = NULL;
	if (asprintf(&query, "%s%s%s", page->query, page->token ? "&" : "", page->token ? page->token : "") < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	free(page->token);
	page->token = NULL;
	return ask(store, &(struct remote_request){ .method = "GET", .query = query }, SMALL_TIMEOUT_S, err, answer);
}

/* Makes "NAME=VALUE" of an element, encoded, or an empty text. */
static char *parameter(const char *xml, const char *element, const char *name)
{
	cleanup_free char *value = remote_xml_element(xml, element, NULL);
	cleanup_free char *encoded = value ? remote_uri_encode(value, strlen(value), false) : NULL;
	char *text = NULL;
	return encoded && asprintf(&text, "%s=%s", name, encoded) >= 0 ? text : NULL;
}

/* Removes the dataset's prefix from a key; NULL: it is outside. */
static const char *path_of(const struct remote_location *location, const char *key)
{
	size_t len = strlen(location->prefix);
	if (strncmp(key, location->prefix, len) != 0 || (len && key[len] != '/'))
		return NULL;
	return key + len + (len ? 1 : 0);
}

static int begin_list(
        struct remote_store *store, const char *prefix, const char *what, struct base_err *err, struct page *ret_page)
{
	char key[REMOTE_KEY_MAX];
	int rc = key_to_write(store, prefix, err, key);
	if (rc < 0)
		return rc;
	cleanup_free char *encoded = remote_uri_encode(key, strlen(key), false);
	*ret_page = (struct page){ .query = NULL };
	if (!encoded || asprintf(&ret_page->query, "%s&prefix=%s", what, encoded) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return 0;
}

static int take_objects(struct remote_store *store, const char *xml,
        int (*found)(void *arg, const char *path, uint64_t bytes, const char *etag), void *arg)
{
	const char *at = xml;
	for (char *entry; (entry = remote_xml_outer(at, "Contents", &at));) {
		cleanup_free char *own = entry;
		cleanup_free char *key = remote_xml_element(own, "Key", NULL);
		cleanup_free char *size = remote_xml_element(own, "Size", NULL);
		cleanup_free char *quoted = remote_xml_element(own, "ETag", NULL);
		char etag[REMOTE_ETAG_MAX];
		take_etag(quoted ? quoted : "", etag);
		const char *path = key ? path_of(remote_store_location(store), key) : NULL;
		int rc = path && size ? found(arg, path, strtoull(size, NULL, 10), etag) : 0;
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* Finds the token of the page behind this one.  A store that only knows the first version of lists says that there is
 * more, and no token: what it lists must not pass for all. */
static int next_token(struct remote_store *store, const char *xml, struct page *page, struct base_err *err)
{
	cleanup_free char *more = remote_xml_element(xml, "IsTruncated", NULL);
	cleanup_free char *token = remote_xml_element(xml, "NextContinuationToken", NULL);
	bool named = token && *token;
	if (more ? strcmp(more, "true") != 0 : !named)
		return 0; /* some name an empty token then */
	if (named)
		page->token = parameter(xml, "NextContinuationToken", "continuation-token");
	return page->token ? 0
	                   : base_err_set(err, -EPROTO, "%s: the store lists only a part of the objects",
	                             remote_store_name(store));
}

int remote_object_list(struct remote_store *store, const char *prefix,
        int (*found)(void *arg, const char *path, uint64_t bytes, const char *etag), void *arg, struct base_err *err)
{
	struct page page = { .query = NULL };
	int rc = begin_list(store, prefix, "list-type=2", err, &page);
	do {
		struct remote_answer answer;
		if (rc == 0)
			rc = next_page(store, &page, err, &answer);
		if (rc < 0)
			break;
		rc = take_objects(store, answer.body, found, arg);
		if (rc == 0)
			rc = next_token(store, answer.body, &page, err);
		remote_answer_done(&answer);
	} while (rc == 0 && page.token);
	free(page.query);
	free(page.token);
	return rc;
}

static int abort_found(
        struct remote_store *store, const char *xml, bool (*wanted)(const char *path), struct base_err *err)
{
	const char *at = xml;
	for (char *entry; (entry = remote_xml_outer(at, "Upload", &at));) {
		cleanup_free char *own = entry;
		cleanup_free char *key = remote_xml_element(own, "Key", NULL);
		cleanup_free char *id = remote_xml_element(own, "UploadId", NULL);
		cleanup_free char *encoded = id ? remote_uri_encode(id, strlen(id), false) : NULL;
		const char *path = key ? path_of(remote_store_location(store), key) : NULL;
		int rc = path && encoded && wanted(path) ? abort_upload(store, key, encoded, err) : 0;
		if (rc < 0)
			return rc;
	}
	return 0;
}

int remote_object_abort_uploads(
        struct remote_store *store, const char *prefix, bool (*wanted)(const char *path), struct base_err *err)
{
	struct page page = { .query = NULL };
	int rc = begin_list(store, prefix, "uploads", err, &page);
	do {
		struct remote_answer answer;
		if (rc == 0)
			rc = next_page(store, &page, err, &answer);
		if (rc < 0)
			break;
		rc = abort_found(store, answer.body, wanted, err);
		cleanup_free char *key = parameter(answer.body, "NextKeyMarker", "key-marker");
		cleanup_free char *id = parameter(answer.body, "NextUploadIdMarker", "upload-id-marker");
		bool more = strstr(answer.body, "<IsTruncated>true") && key && id;
		if (more && asprintf(&page.token, "%s&%s", key, id) < 0)
			page.token = NULL;
		remote_answer_done(&answer);
	} while (rc == 0 && page.token);
	free(page.query);
	free(page.token);
	return rc;
}
