/* SPDX-License-Identifier: Apache-2.0 */
/* Signs requests to S3; shard/remote/sigv4.h first. */
#include "shard/remote/sigv4.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"

enum { HASH_BYTES = SHA256_DIGEST_LENGTH, QUERY_FIELDS_MAX = 64, NAMES_MAX = 512 };

void remote_sigv4_date(time_t now, char ret_date[REMOTE_SIGV4_DATE_SIZE])
{
	struct tm tm;
	gmtime_r(&now, &tm);
	strftime(ret_date, REMOTE_SIGV4_DATE_SIZE, "%Y%m%dT%H%M%SZ", &tm);
}

static void hex(const uint8_t hash[HASH_BYTES], char ret_hash[REMOTE_SIGV4_HASH_SIZE])
{
	for (int i = 0; i < HASH_BYTES; i++)
		snprintf(ret_hash + (size_t)2 * i, 3, "%02x", hash[i]);
}

void remote_sigv4_hash(const void *data, size_t len, char ret_hash[REMOTE_SIGV4_HASH_SIZE])
{
	uint8_t hash[HASH_BYTES];
	SHA256(data, len, hash);
	hex(hash, ret_hash);
}

static int compare_headers(const void *a, const void *b)
{
	return strcmp(((const struct remote_header *)a)->name, ((const struct remote_header *)b)->name);
}

/* By name, then by value: a field "a=b" ends its name at '=', which is greater than some characters of names. */
static int compare_fields(const void *a, const void *b)
{
	const char *x = *(const char *const *)a, *y = *(const char *const *)b;
	size_t x_len = strcspn(x, "="), y_len = strcspn(y, "=");
	int order = memcmp(x, y, x_len < y_len ? x_len : y_len);
	if (order)
		return order;
	return x_len != y_len ? (x_len < y_len ? -1 : 1) : strcmp(x, y);
}

static void feed(EVP_MD_CTX *digest, const char *text)
{
	EVP_DigestUpdate(digest, text, strlen(text));
}

/* Feeds the fields of a query in order; a field without '=' gets one. */
static int feed_query(EVP_MD_CTX *digest, const char *query)
{
	cleanup_free char *copy = strdup(query ? query : "");
	if (!copy)
		return -ENOMEM;
	char *fields[QUERY_FIELDS_MAX], *save = NULL;
	size_t n = 0;
	for (char *field = strtok_r(copy, "&", &save); field; field = strtok_r(NULL, "&", &save)) {
		if (n == QUERY_FIELDS_MAX)
			return -EINVAL;
		fields[n++] = field;
	}
	qsort(fields, n, sizeof(fields[0]), compare_fields);
	for (size_t i = 0; i < n; i++) {
		feed(digest, i ? "&" : "");
		feed(digest, fields[i]);
		feed(digest, strchr(fields[i], '=') ? "" : "=");
	}
	return 0;
}

static void feed_value(EVP_MD_CTX *digest, const char *value)
{
	while (*value == ' ')
		value++;
	while (*value) {
		size_t word = strcspn(value, " ");
		EVP_DigestUpdate(digest, value, word);
		value += word;
		value += strspn(value, " ");
		if (*value)
			feed(digest, " ");
	}
}

/* Writes the names of the headers, which are sorted, joined by ';'.  Returns 0 or -EINVAL: they are too long. */
static int write_names(const struct remote_header *headers, size_t n, char ret_names[NAMES_MAX])
{
	size_t len = 0;
	ret_names[0] = 0;
	for (size_t i = 0; i < n; i++) {
		int more = snprintf(ret_names + len, NAMES_MAX - len, "%s%s", i ? ";" : "", headers[i].name);
		if (more < 0 || len + (size_t)more >= NAMES_MAX)
			return -EINVAL;
		len += (size_t)more;
	}
	return 0;
}

/* Hashes the canonical request.  It has the session token, so it stands nowhere as a whole. */
static int hash_request(const struct remote_sigv4 *r, const struct remote_header *headers, const char *names,
        char ret_hash[REMOTE_SIGV4_HASH_SIZE])
{
	uint8_t hash[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *digest = EVP_MD_CTX_new();
	if (!digest)
		return -ENOMEM;
	int rc = EVP_DigestInit_ex(digest, EVP_sha256(), NULL) ? 0 : -EIO;
	const char *const first[] = { r->method, "\n", r->path, "\n" };
	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]) && rc == 0; i++)
		feed(digest, first[i]);
	if (rc == 0)
		rc = feed_query(digest, r->query);
	for (size_t i = 0; i < r->n_headers && rc == 0; i++) {
		feed(digest, "\n");
		feed(digest, headers[i].name);
		feed(digest, ":");
		feed_value(digest, headers[i].value);
	}
	const char *const last[] = { "\n\n", names, "\n", r->payload_hash };
	for (size_t i = 0; i < sizeof(last) / sizeof(last[0]) && rc == 0; i++)
		feed(digest, last[i]);
	if (rc == 0 && !EVP_DigestFinal_ex(digest, hash, NULL))
		rc = -EIO;
	EVP_MD_CTX_free(digest);
	if (rc == 0)
		hex(hash, ret_hash);
	return rc;
}

static int hmac(const void *key, size_t key_len, const char *text, uint8_t ret_hash[HASH_BYTES])
{
	unsigned len = HASH_BYTES;
	return HMAC(EVP_sha256(), key, (int)key_len, (const uint8_t *)text, strlen(text), ret_hash, &len) ? 0 : -EIO;
}

/* The key of a day, a region and a service. */
static int derive_key(const struct remote_sigv4 *r, const char *day, uint8_t ret_key[HASH_BYTES])
{
	char first[512];
	int len = snprintf(first, sizeof(first), "AWS4%s", r->secret_key);
	if (len < 0 || (size_t)len >= sizeof(first))
		return -EINVAL;
	const char *const steps[] = { day, r->region, r->service, "aws4_request" };
	int rc = hmac(first, (size_t)len, steps[0], ret_key);
	OPENSSL_cleanse(first, sizeof(first));
	for (size_t i = 1; i < sizeof(steps) / sizeof(steps[0]) && rc == 0; i++)
		rc = hmac(ret_key, HASH_BYTES, steps[i], ret_key);
	return rc;
}

int remote_sigv4_sign(const struct remote_sigv4 *r, char ret_authorization[REMOTE_SIGV4_AUTHORIZATION_MAX])
{
	if (!r->access_key || !r->secret_key || !r->region || !r->path || r->path[0] != '/' ||
	        r->n_headers > REMOTE_SIGV4_HEADERS_MAX || strlen(r->date) != REMOTE_SIGV4_DATE_SIZE - 1)
		return -EINVAL;
	struct remote_header headers[REMOTE_SIGV4_HEADERS_MAX];
	memcpy(headers, r->headers, r->n_headers * sizeof(headers[0]));
	qsort(headers, r->n_headers, sizeof(headers[0]), compare_headers);

	char day[9], scope[256], hash[REMOTE_SIGV4_HASH_SIZE], to_sign[512], signature[REMOTE_SIGV4_HASH_SIZE];
	char names[NAMES_MAX];
	snprintf(day, sizeof(day), "%.8s", r->date);
	int len = snprintf(scope, sizeof(scope), "%s/%s/%s/aws4_request", day, r->region, r->service);
	if (len < 0 || (size_t)len >= sizeof(scope) || write_names(headers, r->n_headers, names) < 0)
		return -EINVAL;
	int rc = hash_request(r, headers, names, hash);
	if (rc < 0)
		return rc;
	snprintf(to_sign, sizeof(to_sign), "AWS4-HMAC-SHA256\n%s\n%s\n%s", r->date, scope, hash);

	uint8_t key[HASH_BYTES], mac[HASH_BYTES];
	rc = derive_key(r, day, key);
	if (rc == 0)
		rc = hmac(key, sizeof(key), to_sign, mac);
	OPENSSL_cleanse(key, sizeof(key));
	if (rc < 0)
		return rc;
	hex(mac, signature);

	len = snprintf(ret_authorization, REMOTE_SIGV4_AUTHORIZATION_MAX,
	        "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", r->access_key, scope, names,
	        signature);
	return len < 0 || len >= REMOTE_SIGV4_AUTHORIZATION_MAX ? -ENAMETOOLONG : 0;
}
