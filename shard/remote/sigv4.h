/* SPDX-License-Identifier: Apache-2.0 */
/* AWS Signature Version 4 for S3, in the Authorization header.
 *
 * Source of the algorithm: "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)", Amazon
 * S3 API Reference.  S3 encodes a path once and does not normalize it, unlike other services.
 *
 * Threads: any; the functions share no state. */
#ifndef DDPFS_SHARD_REMOTE_SIGV4_H
#define DDPFS_SHARD_REMOTE_SIGV4_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
	REMOTE_SIGV4_HEADERS_MAX = 16,         /* headers that one request signs */
	REMOTE_SIGV4_AUTHORIZATION_MAX = 2048, /* bytes of the header's value, NUL included */
	REMOTE_SIGV4_DATE_SIZE = sizeof("20130524T000000Z"),
	REMOTE_SIGV4_HASH_SIZE = 65, /* a SHA-256 in hexadecimal, and a NUL */
};

/* What stands for the hash of a body that is not hashed; TLS protects it. */
#define REMOTE_SIGV4_UNSIGNED "UNSIGNED-PAYLOAD"
/* The hash of an empty body. */
#define REMOTE_SIGV4_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct remote_header {
	const char *name;  /* in small letters */
	const char *value; /* spaces at its ends are not signed, and several in a row count as one */
};

struct remote_sigv4 {
	const char *access_key, *secret_key;
	const char *region;                  /* "us-east-1" */
	const char *service;                 /* "s3" */
	const char *method;                  /* "GET" */
	const char *path;                    /* as it is sent: encoded, begins with '/' */
	const char *query;                   /* as it is sent: encoded, without '?'; "" or NULL: none */
	const struct remote_header *headers; /* all that are signed, "host" and "x-amz-date" among them */
	size_t n_headers;                    /* at most REMOTE_SIGV4_HEADERS_MAX */
	const char *payload_hash;            /* hexadecimal SHA-256 of the body, or REMOTE_SIGV4_UNSIGNED */
	const char *date;                    /* the value of x-amz-date (remote_sigv4_date) */
};

/* Writes the value of x-amz-date for a time. */
void remote_sigv4_date(time_t now, char ret_date[REMOTE_SIGV4_DATE_SIZE]);

/* Writes the SHA-256 of `len` bytes in hexadecimal. */
void remote_sigv4_hash(const void *data, size_t len, char ret_hash[REMOTE_SIGV4_HASH_SIZE]);

/* Signs a request.  ret_authorization is the value of its Authorization header.
 * Returns 0; -EINVAL: a field is missing, or there are too many headers; -ENAMETOOLONG: the value has no room;
 * -ENOMEM; -EIO: libcrypto failed. */
int remote_sigv4_sign(const struct remote_sigv4 *request, char ret_authorization[REMOTE_SIGV4_AUTHORIZATION_MAX]);

#endif
