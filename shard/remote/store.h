/* SPDX-License-Identifier: Apache-2.0 */
/* A store: where the objects of one dataset are, and how requests to them are addressed and signed.
 *
 * An S3 store signs each request, unless it is anonymous.  The first request that comes less than REMOTE_RENEW_S
 * before the credentials expire makes a thread of the store renew them.  If that fails, the log says why, once, and it
 * is tried again after 30 s.
 *
 * Addresses (docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html): at AWS the bucket is in the host's
 * name if TLS certificates cover it (no '.' in the bucket); with an endpoint of one's own it is in the path.
 *
 * Threads: any thread may call all functions at any time, except remote_store_close, which is the last call. */
#ifndef DDPFS_SHARD_REMOTE_STORE_H
#define DDPFS_SHARD_REMOTE_STORE_H

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"
#include "shard/remote/fetch.h"
#include "shard/remote/location.h"

struct remote_store; /* opaque */

/* Opens the store of a dataset's name (shard/remote/location.h).  Finds settings and credentials; sends no request to
 * the store.
 * Returns 0, or with a sentence: -EINVAL: the name or a setting is wrong; errors of remote_credentials_get; -ENOMEM. */
int remote_store_open(const char *name, struct base_err *err, struct remote_store **ret_store);
/* Starts a process that asks for credentials when they must be renewed, because this process will not be allowed to
 * start a program (shard/remote/credentials_agent.h).  Call it before there are threads.  Nothing to do if requests are
 * not signed, or if the credentials do not expire.
 * Returns 0, or -errno of fork(2); then renewals are asked for by this process. */
int remote_store_use_agent(struct remote_store *store);

/* Closes a store; NULL is allowed.  Waits for a renewal that is under way. */
void remote_store_close(struct remote_store *store);

/* Returns the name without '/' at its end. */
const char *remote_store_name(const struct remote_store *store);
const struct remote_location *remote_store_location(const struct remote_store *store);
/* Returns the file of certificates, or NULL for the system's. */
const char *remote_store_ca_bundle(const struct remote_store *store);

struct remote_request {
	const char *method; /* "GET", ... */
	const char *key;    /* of the object; NULL: the bucket itself (S3 only) */
	const char *query;  /* encoded, without '?'; NULL: none */
	/* Further headers, "Name: value"; they are not signed.  Ends with NULL; NULL: none. */
	const char *const *headers;
	const void *body; /* signed over plain http; NULL: none */
	size_t body_len;  /* bytes */
	unsigned stall_s; /* ends a try in which no byte moves for so long; 0: only its timeout does */
	/* An answer with status 200 may have an error as its body, because the store began it before it was done
	 * (CompleteMultipartUpload).  It counts as status 500, or as 404 if it is NoSuchUpload. */
	bool late_errors;
	/* The caller has something to go on with: it is not tried again after a second if there is no address or no
	 * connection.  A store that is reached has its time. */
	bool hurry;
};

/* Returns the URL of an object, without a query.  The caller frees it; NULL: out of memory. */
char *remote_store_url(const struct remote_store *store, const char *key);

/* Makes the headers of a request, signed with the credentials of now.  url: of remote_store_url, for the same key.
 * *ret_headers: for curl_slist_free_all.
 * Returns 0; -ENOMEM; -EINVAL: a field is too long. */
int remote_store_headers(struct remote_store *store, const char *url, const struct remote_request *request,
        struct curl_slist **ret_headers);

/* Sends a request and waits for the answer; tries again after errors of the connection, 429 and 5xx, with growing
 * pauses, for 10 s, and at least once (four times with a body).  timeout_s: for one try.  If it takes a second, or no
 * byte of a body is taken for 15 s, the log says what is waited for.  If the credentials have expired, it asks for
 * others; if these are the same and have no session token, it does not try again.
 * Returns 0 (whatever the status is; answer.tries says how often it was sent), or an error of remote_fetch; then err
 * also says for how long it was tried. */
int remote_store_ask(struct remote_store *store, const struct remote_request *request, unsigned timeout_s,
        struct base_err *err, struct remote_answer *ret_answer);

/* Asks for an object's size, ETag and Last-Modified: by HEAD, and by GET for its first byte if the server refuses HEAD
 * or does not say the size.  So the answer to a request that is refused has a body, which says why.
 * Returns 0 (whatever the status is; if it is below 300, the size is known), -EPROTO (the store does not say the size),
 * or an error of remote_store_ask. */
int remote_store_head(struct remote_store *store, const char *key, unsigned timeout_s, struct base_err *err,
        struct remote_answer *ret_answer);
/* The same for a caller in a hurry (remote_request.hurry). */
int remote_store_head_in_hurry(struct remote_store *store, const char *key, unsigned timeout_s, struct base_err *err,
        struct remote_answer *ret_answer);

/* Returns whether a status of 300 or more may be another one at the next try: 408, 429, 5xx but 501, and S3's
 * RequestTimeout. */
bool remote_store_passes(const struct remote_answer *answer);

/* Returns whether a status of 300 or more says that the credentials are not valid any more: ExpiredToken and the like.
 * An answer to HEAD has no body, so it never does. */
bool remote_store_expired(const struct remote_answer *answer);

/* Says that the store refused the credentials (ExpiredToken and the like), so that they are renewed now.
 * Returns true if the credentials have changed since `since_ns` (CLOCK_MONOTONIC), or if a renewal has begun. */
bool remote_store_renew(struct remote_store *store, uint64_t since_ns);

/* Writes the sentence for a status of 300 or more: the object's name, the store's reason, the next step.
 * Returns -ENOENT (404), -EACCES (401, 403), -ESTALE (412), -EREMCHG (another region), or -EIO. */
int remote_store_refusal(
        const struct remote_store *store, const char *key, const struct remote_answer *answer, struct base_err *err);

#endif
