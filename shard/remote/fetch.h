/* SPDX-License-Identifier: Apache-2.0 */
/* One small HTTP request, answered in memory: for providers of credentials, lists of objects, and the like.
 *
 * Threads: any; each call has a connection of its own. */
#ifndef DDPFS_SHARD_REMOTE_FETCH_H
#define DDPFS_SHARD_REMOTE_FETCH_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"

enum {
	REMOTE_FETCH_MAX = 8 << 20, /* bytes of a body that is kept; a list of 1,000 objects has about 1 MiB */
	REMOTE_REDIRECTS_MAX = 5,   /* of one request */
};

struct remote_fetch {
	const char *method;         /* "GET", "PUT", "POST", "HEAD" or "DELETE" */
	const char *url;            /* encoded */
	struct curl_slist *headers; /* "Name: value"; not owned; NULL: none */
	const void *body;           /* of PUT and POST; may be NULL if body_len is 0 */
	size_t body_len;            /* bytes */
	long timeout_s;             /* for all of it */
	long connect_ms;            /* for a connection, else -EHOSTUNREACH; 0: as libcurl does it */
	bool follow;                /* redirects: remote_curl_follow() */
	const char *ca_bundle;      /* a file of certificates; NULL: the system's */
	unsigned stall_s;           /* ends it with -ETIMEDOUT if no byte moves for so long; 0: only timeout_s does */
	/* Called about once a second while nothing of the answer has come: for how long no byte was sent either.  NULL:
	 * nobody wants to know. */
	void (*silent)(void *arg, uint64_t silent_ns);
	void *arg;
};

struct remote_answer {
	long status;     /* 200, 404, ... */
	char *body;      /* NUL-terminated, in secret_memory.h; owned */
	size_t body_len; /* bytes, without the NUL */
	/* Content-Length of the answer, or the size behind '/' of its Content-Range; UINT64_MAX: it does not say. */
	uint64_t size;
	bool ranged;       /* it has a Content-Range */
	bool redirected;   /* it comes from where the first one led */
	unsigned tries;    /* of remote_store_ask, with the one that brought it */
	char etag[256];    /* with its quotes; "": none */
	char modified[64]; /* Last-Modified; "": none */
	char region[64];   /* x-amz-bucket-region; "": none */
};

/* Initialises libcurl, once.  Call it before there are threads if possible.  Returns 0 or -ENOMEM. */
int remote_fetch_init(void);

/* Sends a request and waits for the answer.  An answer with a status of 300 or more is not an error here.
 * Returns 0, and an answer for remote_answer_done; -ETIMEDOUT, -ECONNREFUSED, -EHOSTUNREACH (the name is not known, or
 * connect_ms is over),
 * -EKEYREJECTED (the server's certificate is not trusted), -EFBIG (the body exceeds REMOTE_FETCH_MAX), -ELOOP (too many
 * redirects), -EPROTO (a redirect to another scheme), -EINVAL (no URL, or a redirect to none), -EIO, -ENOMEM,
 * with a sentence that has the URL's host and not its query. */
int remote_fetch(const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *ret_answer);
void remote_answer_done(struct remote_answer *answer);

/* Appends a header to a list, which is for curl_slist_free_all.  Returns 0 or -ENOMEM. */
int remote_header_add(struct curl_slist **list, const char *name, const char *value);

/* Returns the -errno for a result of libcurl; 0 for CURLE_OK. */
int remote_curl_errno(CURLcode code);

/* Sets what all transfers have in common: TLS verified, no redirects, no signals, HTTP/1.1. */
void remote_curl_common(CURL *handle, const char *ca_bundle);
/* Makes a transfer follow up to REMOTE_REDIRECTS_MAX redirects, from https only to https.  Only for requests without a
 * secret: the next server gets the same headers. */
void remote_curl_follow(CURL *handle, const char *url);
/* Returns a sentence for a result of libcurl. */
const char *remote_curl_reason(CURLcode code);

#endif
