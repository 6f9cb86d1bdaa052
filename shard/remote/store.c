/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and signs requests; shard/remote/store.h first. */
#include "shard/remote/store.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"
#include "shard/remote/credentials.h"
#include "shard/remote/credentials_agent.h"
#include "shard/remote/sigv4.h"
#include "shard/remote/uri.h"
#include "shard/remote/xml.h"

enum {
	RENEW_AGAIN_S = 30,  /* after a renewal that failed */
	ASK_FOR_S = 10,      /* for which remote_store_ask tries again */
	ASK_TRIES = 2,       /* as often at least, however long one takes */
	ASK_TRIES_BODY = 5,  /* the same for a request with a body, which takes long to send */
	ASK_HURRY_MS = 1000, /* the same for one in a hurry, if the store is not reached */
	ASK_PAUSE_MS = 100,  /* before its second try; doubles */
	ASK_PAUSE_MAX_MS = 5000,
	ASK_SILENT_MS = 1000, /* of silence, after which the log says that the store is waited for */
	SEND_SILENT_S = 15,   /* the same while a body is sent */
	CODE_MAX = 128,       /* bytes of S3's error code */
};

struct remote_store {
	struct remote_location location;
	struct remote_settings settings;
	char *origin;     /* "https://HOST[:PORT]" that requests go to */
	const char *host; /* the part of origin behind "//" */
	char *base_path;  /* of the endpoint, encoded, without '/' at its end; "" mostly */
	const char *region;
	bool s3;
	bool bucket_in_path;
	bool plain; /* http: bodies are signed */

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t renew_cv;
	struct remote_credentials *credentials; /* NULL: requests are not signed */
	uint64_t renewed_ns;                    /* CLOCK_MONOTONIC when they were asked for */
	uint64_t changed_ns;                    /* the same when they became others; 0: never */
	time_t renew_at;                        /* CLOCK_REALTIME; 0: never */
	bool renew, stop;
	bool asking; /* a thread asks for them */
	bool failed; /* so did the latest time; of the thread that asks */
	bool thread_runs;
	int agent; /* connection to the process that finds credentials; -1: this process does */
	pthread_t thread;
};

/* ---- where ---- */

/* A bucket with a dot has no certificate as a part of a host's name. */
static bool fits_host(const char *bucket)
{
	for (const char *c = bucket; *c; c++)
		if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '-'))
			return false;
	return strlen(bucket) >= 3 && strlen(bucket) <= 63;
}

/* Returns how many bytes of host[len] are left without ":443" of https, or ":80" of http: libcurl sends no such port in
 * `Host`, which is signed. */
static size_t without_default_port(const char *endpoint, const char *host, size_t len)
{
	const char *port = strncmp(endpoint, "https:", 6) == 0 ? ":443" : ":80";
	size_t port_len = strlen(port);
	return len > port_len && memcmp(host + len - port_len, port, port_len) == 0 ? len - port_len : len;
}

/* Splits an endpoint into origin and base path; with virtual hosts the bucket goes in front of the host. */
static int use_endpoint(struct remote_store *store, const char *endpoint)
{
	const char *host = strstr(endpoint, "://") + 3;
	size_t host_len = strcspn(host, "/"), path_len = strlen(host + host_len);
	while (path_len && host[host_len + path_len - 1] == '/')
		path_len--;
	bool in_host = !store->bucket_in_path;
	store->base_path = strndup(host + host_len, path_len);
	host_len = without_default_port(endpoint, host, host_len);
	if (asprintf(&store->origin, "%.*s%s%s%.*s", (int)(host - endpoint), endpoint,
	            in_host ? store->location.bucket : "", in_host ? "." : "", (int)host_len, host) < 0)
		store->origin = NULL;
	return store->origin && store->base_path ? 0 : -ENOMEM;
}

static int use_aws(struct remote_store *store)
{
	const char *suffix = strncmp(store->region, "cn-", 3) == 0 ? ".cn" : "";
	cleanup_free char *endpoint = NULL;
	if (asprintf(&endpoint, "https://s3.%s.amazonaws.com%s", store->region, suffix) < 0)
		return -ENOMEM;
	return use_endpoint(store, endpoint);
}

static int set_place(struct remote_store *store)
{
	if (!store->s3) {
		store->bucket_in_path = true;
		return use_endpoint(store, store->location.origin);
	}
	const struct remote_settings *settings = &store->settings;
	store->region = settings->region ? settings->region : "us-east-1";
	store->bucket_in_path = settings->path_style || (settings->endpoint && !settings->virtual_host) ||
	                        !fits_host(store->location.bucket);
	return settings->endpoint ? use_endpoint(store, settings->endpoint) : use_aws(store);
}

/* Checks that requests can go there.  Without that an address which never works would be tried like a store that is
 * away. */
static int check_origin(const struct remote_store *store, struct base_err *err)
{
	CURLU *url = curl_url();
	char *port = NULL;
	CURLUcode code = url ? curl_url_set(url, CURLUPART_URL, store->origin, 0) : CURLUE_OUT_OF_MEMORY;
	if (code == CURLUE_OK && curl_url_get(url, CURLUPART_PORT, &port, 0) == CURLUE_OK && strcmp(port, "0") == 0)
		code = CURLUE_BAD_PORT_NUMBER;
	curl_free(port);
	curl_url_cleanup(url);
	if (code == CURLUE_OUT_OF_MEMORY)
		return base_err_set(err, -ENOMEM, "out of memory");
	if (code == CURLUE_OK)
		return 0;
	return base_err_set(err, -EINVAL, "%s: no request can go to '%s': %s", store->location.name,
	        base_quoted(store->origin),
	        code == CURLUE_BAD_PORT_NUMBER ? "the port must be a number from 1 to 65535" : curl_url_strerror(code));
}

/* ---- credentials ---- */

static time_t now_s(void)
{
	return time(NULL);
}

/* Returns when the credentials are to be renewed: REMOTE_RENEW_S before they expire, or at half of their time if that
 * is short.  0: never. */
static time_t renewal_of(const struct remote_credentials *c)
{
	if (!c->expires)
		return 0;
	time_t left = c->expires - now_s();
	return now_s() + (left > 2 * REMOTE_RENEW_S ? left - REMOTE_RENEW_S : left / 2);
}

static bool same(const struct remote_credentials *a, const struct remote_credentials *b)
{
	return strcmp(a->access_key, b->access_key) == 0 && strcmp(a->secret_key, b->secret_key) == 0 &&
	       strcmp(a->token, b->token) == 0;
}

/* Asks for credentials and takes them.  Under lock, which is not held meanwhile; one thread at a time (asking). */
static void ask_anew(struct remote_store *store)
{
	struct remote_credentials *fresh = NULL;
	struct base_err err = { 0 };
	store->asking = true;
	pthread_mutex_unlock(&store->lock);
	int rc =
	        store->agent >= 0 ? remote_agent_ask(store->agent, &err, &fresh) : remote_credentials_get(&err, &fresh);
	if (rc < 0 && !store->failed)
		log_warning("%s: the credentials cannot be renewed: %s; this is tried again every %d s",
		        store->location.name, err.text, RENEW_AGAIN_S);
	else if (rc == 0 && store->failed)
		log_info("%s: the credentials are renewed", store->location.name);
	store->failed = rc < 0;
	pthread_mutex_lock(&store->lock);
	store->asking = store->renew = false;
	store->renew_at = now_s() + RENEW_AGAIN_S;
	if (rc == 0) {
		store->renewed_ns = base_now_ns();
		if (!same(fresh, store->credentials))
			store->changed_ns = store->renewed_ns;
		remote_credentials_free(store->credentials);
		store->credentials = fresh;
		store->renew_at = renewal_of(fresh);
	}
	pthread_cond_broadcast(&store->renew_cv);
}

static void *renewer(void *arg)
{
	struct remote_store *store = arg;
	pthread_setname_np(pthread_self(), "credentials");
	lock_for_scope(&store->lock);
	while (!store->stop) {
		if (store->renew && !store->asking)
			ask_anew(store);
		else
			pthread_cond_wait(&store->renew_cv, &store->lock);
	}
	return NULL;
}

/* Makes the thread renew the credentials.  Returns false: there is no thread.  Under lock. */
static bool renew(struct remote_store *store)
{
	if (!store->thread_runs && pthread_create(&store->thread, NULL, renewer, store) == 0)
		store->thread_runs = true;
	store->renew = true;
	pthread_cond_broadcast(&store->renew_cv);
	return store->thread_runs;
}

bool remote_store_renew(struct remote_store *store, uint64_t since_ns)
{
	lock_for_scope(&store->lock);
	return store->renewed_ns > since_ns || (store->credentials && renew(store));
}

/* The same for a thread that waits for the new credentials.  It starts no other thread, because the process may fork.
 * Returns true if another try is worth it: they have changed, or they are of the kind that comes to an end. */
static bool renew_and_wait(struct remote_store *store, uint64_t since_ns)
{
	lock_for_scope(&store->lock);
	if (!store->credentials)
		return false;
	while (store->asking)
		pthread_cond_wait(&store->renew_cv, &store->lock);
	if (store->renewed_ns <= since_ns)
		ask_anew(store);
	return store->changed_ns > since_ns || store->credentials->token[0];
}

static int start_credentials(struct remote_store *store, struct base_err *err)
{
	if (!store->s3 || store->settings.anonymous)
		return 0;
	int rc = remote_credentials_get(err, &store->credentials);
	if (rc < 0)
		return rc;
	store->renewed_ns = base_now_ns();
	store->renew_at = renewal_of(store->credentials);
	return 0;
}

int remote_store_use_agent(struct remote_store *store)
{
	return store->credentials && store->credentials->expires ? remote_agent_start(&store->agent) : 0;
}

/* ---- open, close ---- */

int remote_store_open(const char *name, struct base_err *err, struct remote_store **ret_store)
{
	struct remote_store *store = calloc(1, sizeof(*store));
	if (!store || remote_fetch_init() < 0) {
		free(store);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	store->agent = -1;
	pthread_mutex_init(&store->lock, NULL);
	pthread_cond_init(&store->renew_cv, NULL);

	int rc = remote_location_parse(name, err, &store->location);
	if (rc == 0) {
		store->s3 = store->location.bucket != NULL;
		rc = remote_settings_get(err, &store->settings);
	}
	if (rc == 0 && set_place(store) < 0)
		rc = base_err_set(err, -ENOMEM, "out of memory");
	if (rc == 0) {
		store->host = strstr(store->origin, "://") + 3;
		store->plain = strncasecmp(store->origin, "http://", 7) == 0;
		rc = check_origin(store, err);
	}
	if (rc == 0)
		rc = start_credentials(store, err);
	if (rc < 0) {
		remote_store_close(store);
		return rc;
	}
	*ret_store = store;
	return 0;
}

void remote_store_close(struct remote_store *store)
{
	if (!store)
		return;
	{
		lock_for_scope(&store->lock);
		store->stop = true;
		pthread_cond_broadcast(&store->renew_cv);
	}
	if (store->thread_runs)
		pthread_join(store->thread, NULL);
	remote_credentials_free(store->credentials);
	pthread_cond_destroy(&store->renew_cv);
	pthread_mutex_destroy(&store->lock);
	remote_settings_done(&store->settings);
	remote_location_done(&store->location);
	free(store->origin);
	free(store->base_path);
	if (store->agent >= 0)
		close(store->agent);
	free(store);
}

const char *remote_store_name(const struct remote_store *store)
{
	return store->location.name;
}

const struct remote_location *remote_store_location(const struct remote_store *store)
{
	return &store->location;
}

const char *remote_store_ca_bundle(const struct remote_store *store)
{
	return store->settings.ca_bundle;
}

/* ---- requests ---- */

char *remote_store_url(const struct remote_store *store, const char *key)
{
	cleanup_free char *path = remote_uri_encode(key ? key : "", key ? strlen(key) : 0, true);
	char *url = NULL;
	bool bucket = store->s3 && store->bucket_in_path;
	if (!path || asprintf(&url, "%s%s%s%s/%s", store->origin, store->base_path, bucket ? "/" : "",
	                     bucket ? store->location.bucket : "", path) < 0)
		return NULL;
	return url;
}

/* Signs a request, and adds the headers that say so.  Under lock. */
static int sign(
        struct remote_store *store, const char *url, const struct remote_request *request, struct curl_slist **list)
{
	char date[REMOTE_SIGV4_DATE_SIZE], hash[REMOTE_SIGV4_HASH_SIZE] = REMOTE_SIGV4_EMPTY;
	char authorization[REMOTE_SIGV4_AUTHORIZATION_MAX];
	const struct remote_credentials *c = store->credentials;
	remote_sigv4_date(now_s(), date);
	if (request->body && !store->plain)
		snprintf(hash, sizeof(hash), "%s", REMOTE_SIGV4_UNSIGNED);
	else if (request->body)
		remote_sigv4_hash(request->body, request->body_len, hash);
	struct remote_header headers[5] = { { "host", store->host }, { "x-amz-content-sha256", hash },
		{ "x-amz-date", date } };
	size_t n = 3;
	if (c->token[0])
		headers[n++] = (struct remote_header){ "x-amz-security-token", c->token };
	if (store->settings.requester_pays)
		headers[n++] = (struct remote_header){ "x-amz-request-payer", "requester" };
	int rc = remote_sigv4_sign(&(struct remote_sigv4){ .access_key = c->access_key,
	                                   .secret_key = c->secret_key,
	                                   .region = store->region,
	                                   .service = "s3",
	                                   .method = request->method,
	                                   .path = url + strlen(store->origin),
	                                   .query = request->query,
	                                   .headers = headers,
	                                   .n_headers = n,
	                                   .payload_hash = hash,
	                                   .date = date },
	        authorization);
	for (size_t i = 1; i < n && rc == 0; i++) /* libcurl sends host itself */
		rc = remote_header_add(list, headers[i].name, headers[i].value);
	if (rc == 0)
		rc = remote_header_add(list, "Authorization", authorization);
	explicit_bzero(authorization, sizeof(authorization));
	return rc;
}

int remote_store_headers(struct remote_store *store, const char *url, const struct remote_request *request,
        struct curl_slist **ret_headers)
{
	/* libcurl would wait a second for "100 Continue" before each body. */
	struct curl_slist *list = curl_slist_append(NULL, "Expect:");
	int rc = list ? 0 : -ENOMEM;
	for (size_t i = 0; rc == 0 && request->headers && request->headers[i]; i++) {
		struct curl_slist *longer = curl_slist_append(list, request->headers[i]);
		rc = longer ? 0 : -ENOMEM;
	}
	lock_for_scope(&store->lock);
	if (store->renew_at && !store->renew && now_s() >= store->renew_at)
		renew(store);
	if (rc == 0 && store->credentials)
		rc = sign(store, url, request, &list);
	else if (rc == 0 && store->s3 && store->settings.requester_pays)
		rc = remote_header_add(&list, "x-amz-request-payer", "requester");
	if (rc < 0) {
		curl_slist_free_all(list);
		return rc;
	}
	*ret_headers = list;
	return 0;
}

/* ---- ask ---- */

/* Copies an element of the XML of S3's error, as "NoSuchBucket" of <Code>, for messages. */
static void copy_element(const struct remote_answer *answer, const char *name, char element[CODE_MAX])
{
	remote_xml_quoted(answer->body ? answer->body : "", name, element, CODE_MAX);
}

bool remote_store_passes(const struct remote_answer *answer)
{
	char code[CODE_MAX];
	long status = answer->status;
	copy_element(answer, "Code", code);
	return status == 429 || status == 408 || (status >= 500 && status != 501) ||
	       (status == 400 && strcmp(code, "RequestTimeout") == 0); /* the store waited too long for the body */
}

/* Gives a late error (remote_request.late_errors) the status that it would have had in time, as botocore does. */
static void take_late_error(struct remote_answer *answer)
{
	char code[CODE_MAX];
	if (answer->status != 200 || !strstr(answer->body, "<Error>"))
		return;
	copy_element(answer, "Code", code);
	answer->status = strcmp(code, "NoSuchUpload") == 0 ? 404 : 500;
}

bool remote_store_expired(const struct remote_answer *answer)
{
	static const char *const codes[] = { "ExpiredToken", "TokenRefreshRequired", "InvalidAccessKeyId",
		"InvalidToken", "RequestExpired" };
	char code[CODE_MAX];
	copy_element(answer, "Code", code);
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (strcmp(code, codes[i]) == 0)
			return answer->status == 403 || answer->status == 400;
	return false;
}

/* answer: if rc is 0.  sent_ns: when the request was sent that it answers. */
static bool worth_another_try(struct remote_store *store, int rc, const struct remote_answer *answer, uint64_t sent_ns)
{
	if (rc == 0)
		return remote_store_passes(answer) || (remote_store_expired(answer) && renew_and_wait(store, sent_ns));
	return rc == -ETIMEDOUT || rc == -ECONNREFUSED || rc == -EHOSTUNREACH || rc == -EIO;
}

/* A call of remote_store_ask. */
struct asking {
	struct remote_store *store;
	uint64_t began_ns;
	bool sends; /* a body */
	bool said;  /* that it waits */
};

static void say_waiting(struct asking *asking, uint64_t silent_ns, const char *why)
{
	if (asking->said || silent_ns < ASK_SILENT_MS * UINT64_C(1000000))
		return;
	asking->said = true;
	log_warning("%s: waiting for the store: %s", asking->store->location.name, why);
}

static void on_silence(void *arg, uint64_t silent_ns)
{
	struct asking *asking = arg;
	/* What the store makes of a body that was sent takes its time. */
	if (!asking->sends || silent_ns >= SEND_SILENT_S * UINT64_C(1000000000))
		say_waiting(asking, silent_ns,
		        asking->sends ? "it takes no more of what is sent, and does not answer"
		                      : "it has not answered yet");
}

/* Says why the store is asked again. */
static void say_again(struct asking *asking, int rc, const struct base_err *err, long status)
{
	char text[64];
	snprintf(text, sizeof(text), "it answers with status %ld", status);
	say_waiting(asking, base_now_ns() - asking->began_ns, rc < 0 ? err->text : text);
}

static int ask_once(struct asking *asking, const struct remote_request *request, unsigned timeout_s,
        struct base_err *err, struct remote_answer *ret_answer)
{
	struct remote_store *store = asking->store;
	cleanup_free char *url = remote_store_url(store, request->key);
	cleanup_free char *whole = NULL;
	struct curl_slist *list = NULL;
	if (!url ||
	        asprintf(&whole, "%s%s%s", url, request->query ? "?" : "", request->query ? request->query : "") < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = remote_store_headers(store, url, request, &list);
	if (rc < 0)
		return base_err_set(
		        err, rc, "%s: the request cannot be signed: %s", store->location.name, base_err_str(rc));
	rc = remote_fetch(&(struct remote_fetch){ .method = request->method,
	                          .url = whole,
	                          .headers = list,
	                          .body = request->body,
	                          .body_len = request->body_len,
	                          .timeout_s = (long)timeout_s,
	                          .connect_ms = request->hurry ? ASK_HURRY_MS : 0,
	                          .follow = !store->s3,
	                          .ca_bundle = store->settings.ca_bundle,
	                          .stall_s = request->stall_s,
	                          .silent = on_silence,
	                          .arg = asking },
	        err, ret_answer);
	curl_slist_free_all(list);
	return rc;
}

/* Adds to the sentence of a failure for how long it was tried. */
static void tell_tries(struct base_err *err, unsigned tries, uint64_t began_ns)
{
	size_t len = strlen(err->text);
	if (tries > 1)
		snprintf(err->text + len, sizeof(err->text) - len, "; tried %u times, for %" PRIu64 " s", tries,
		        (base_now_ns() - began_ns) / 1000000000);
}

int remote_store_ask(struct remote_store *store, const struct remote_request *request, unsigned timeout_s,
        struct base_err *err, struct remote_answer *ret_answer)
{
	struct asking asking = { .store = store, .began_ns = base_now_ns(), .sends = request->body_len != 0 };
	const uint64_t end_ns = asking.began_ns + (uint64_t)ASK_FOR_S * 1000000000;
	struct base_err own = { 0 };
	err = err ? err : &own;
	const unsigned least = request->body_len ? ASK_TRIES_BODY : ASK_TRIES;
	unsigned pause_ms = ASK_PAUSE_MS;
	for (unsigned tries = 1;; tries++) {
		struct remote_answer answer;
		uint64_t sent_ns = base_now_ns();
		int rc = ask_once(&asking, request, timeout_s, err, &answer);
		if (rc == 0)
			answer.tries = tries;
		if (rc == 0 && request->late_errors)
			take_late_error(&answer);
		bool last = tries >= least && base_now_ns() > end_ns;
		if (request->hurry && (rc == -EHOSTUNREACH || rc == -ECONNREFUSED))
			last = base_now_ns() > asking.began_ns + ASK_HURRY_MS * UINT64_C(1000000);
		if (last || !worth_another_try(store, rc, &answer, sent_ns)) {
			if (rc == 0)
				*ret_answer = answer;
			else
				tell_tries(err, tries, asking.began_ns);
			return rc;
		}
		say_again(&asking, rc, err, rc == 0 ? answer.status : 0);
		if (rc == 0)
			remote_answer_done(&answer);
		struct timespec pause = { .tv_sec = pause_ms / 1000, .tv_nsec = (long)(pause_ms % 1000) * 1000000 };
		nanosleep(&pause, NULL);
		pause_ms = pause_ms * 2 < ASK_PAUSE_MAX_MS ? pause_ms * 2 : ASK_PAUSE_MAX_MS;
	}
}

/* Is there anything to learn from a GET? */
static bool head_tells_all(const struct remote_answer *head)
{
	bool away = head->status == 429 || (head->status >= 500 && head->status != 501);
	return away || (head->status < 300 && head->size != UINT64_MAX);
}

static int head(struct remote_store *store, const char *key, unsigned timeout_s, bool hurry, struct base_err *err,
        struct remote_answer *ret_answer)
{
	struct remote_answer answer;
	int rc = remote_store_ask(store, &(struct remote_request){ .method = "HEAD", .key = key, .hurry = hurry },
	        timeout_s, err, &answer);
	if (rc < 0 || head_tells_all(&answer)) {
		if (rc == 0)
			*ret_answer = answer;
		return rc;
	}
	remote_answer_done(&answer);
	const char *const first_byte[] = { "Range: bytes=0-0", NULL };
	rc = remote_store_ask(store,
	        &(struct remote_request){ .method = "GET", .key = key, .headers = first_byte, .hurry = hurry },
	        timeout_s, err, &answer);
	if (rc < 0)
		return rc;
	if (answer.status == 200 && answer.size == UINT64_MAX)
		answer.size = answer.body_len; /* all of it came */
	if (answer.status == 206 && !answer.ranged)
		answer.size = UINT64_MAX; /* its Content-Length is that of the range */
	if (answer.status < 300 && answer.size == UINT64_MAX) {
		remote_answer_done(&answer);
		return base_err_set(
		        err, -EPROTO, "%s: the server does not say how large '%s' is", store->location.name, key);
	}
	*ret_answer = answer;
	return 0;
}

int remote_store_head(struct remote_store *store, const char *key, unsigned timeout_s, struct base_err *err,
        struct remote_answer *ret_answer)
{
	return head(store, key, timeout_s, false, err, ret_answer);
}

int remote_store_head_in_hurry(struct remote_store *store, const char *key, unsigned timeout_s, struct base_err *err,
        struct remote_answer *ret_answer)
{
	return head(store, key, timeout_s, true, err, ret_answer);
}

/* ---- refusals ---- */

int remote_store_refusal(
        const struct remote_store *store, const char *key, const struct remote_answer *answer, struct base_err *err)
{
	char code[CODE_MAX], region[CODE_MAX], what[512], quoted[512];
	copy_element(answer, "Code", code);
	base_err_quote(answer->region, region, sizeof(region));
	if (!region[0] && (answer->status == 301 || answer->status == 400 || answer->status == 403))
		copy_element(answer, "Region", region); /* AWS says it in the header, too; others only here */
	base_err_quote(key ? key : "", quoted, sizeof(quoted));
	snprintf(what, sizeof(what), "%s", key ? quoted : "the bucket");
	const char *name = store->s3 ? store->location.bucket : store->origin;
	if (region[0] && store->s3 && strcmp(region, store->region) != 0)
		return base_err_set(err, -EREMCHG,
		        "%s: the bucket is in region '%s', and requests go to '%s'; set AWS_REGION=%s, or the "
		        "mount option s3_region=%s",
		        store->location.name, region, store->region, region, region);
	if (strcmp(code, "NoSuchBucket") == 0)
		return base_err_set(err, -ENOENT, "%s: there is no bucket '%s'", store->location.name, name);
	if (strcmp(code, "RequestTimeTooSkewed") == 0)
		return base_err_set(err, -EACCES,
		        "%s: the clock of this host is wrong by more than the store allows, so it refuses signatures: "
		        "set "
		        "the clock (timedatectl)",
		        store->location.name);
	switch (answer->status) {
	case 404:
	case 410:
		return base_err_set(err, -ENOENT, "%s: there is no object '%s'", store->location.name, what);
	case 401:
	case 403:
		return base_err_set(err, -EACCES, "%s: the store refuses access to '%s'%s%s%s", store->location.name,
		        what, *code ? " (" : "", code, *code ? ")" : "");
	case 412:
	case 416:
		return base_err_set(err, -ESTALE, "%s: '%s' was replaced", store->location.name, what);
	default:
		return base_err_set(err, -EIO, "%s: the store answers with status %ld%s%s for '%s'",
		        store->location.name, answer->status, *code ? " " : "", code, what);
	}
}
