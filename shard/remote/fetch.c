/* SPDX-License-Identifier: Apache-2.0 */
/* One small HTTP request; shard/remote/fetch.h first. */
#include "shard/remote/fetch.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shard/base/clock.h"
#include "shard/remote/proxy.h"
#include "shard/remote/secret_memory.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode started = CURLE_FAILED_INIT;

static void start(void)
{
	started = remote_secret_init_curl();
}

int remote_fetch_init(void)
{
	pthread_once(&once, start);
	return started == CURLE_OK ? 0 : -ENOMEM;
}

int remote_curl_errno(CURLcode code)
{
	switch ((int)code) {
	case CURLE_OK:
		return 0;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_COULDNT_CONNECT:
		return -ECONNREFUSED;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return -EHOSTUNREACH;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
	case CURLE_SSL_ISSUER_ERROR:
		return -EKEYREJECTED;
	case CURLE_OUT_OF_MEMORY:
		return -ENOMEM;
	case CURLE_FILESIZE_EXCEEDED:
		return -EFBIG;
	case CURLE_TOO_MANY_REDIRECTS:
		return -ELOOP;
	case CURLE_UNSUPPORTED_PROTOCOL:
		return -EPROTO;
	case CURLE_URL_MALFORMAT:
		return -EINVAL;
	default:
		return -EIO;
	}
}

void remote_curl_common(CURL *handle, const char *ca_bundle)
{
	curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, 10L);
	curl_easy_setopt(handle, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(handle, CURLOPT_USERAGENT, "ddpfs/" DDPFS_VERSION);
	if (ca_bundle)
		curl_easy_setopt(handle, CURLOPT_CAINFO, ca_bundle);
}

void remote_curl_follow(CURL *handle, const char *url)
{
	bool tls = strncasecmp(url, "https:", 6) == 0;
	curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
	curl_easy_setopt(handle, CURLOPT_MAXREDIRS, (long)REMOTE_REDIRECTS_MAX);
	curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https");
}

const char *remote_curl_reason(CURLcode code)
{
	if (code == CURLE_TOO_MANY_REDIRECTS)
		return "the server redirects again and again";
	if (code == CURLE_UNSUPPORTED_PROTOCOL)
		return "the server redirects to another scheme; from https only https is followed";
	return curl_easy_strerror(code);
}

int remote_header_add(struct curl_slist **list, const char *name, const char *value)
{
	cleanup_secret char *line = remote_secret_join(name, ": ", value);
	struct curl_slist *longer = line ? curl_slist_append(*list, line) : NULL;
	if (line)
		explicit_bzero(line, strlen(line));
	*list = longer ? longer : *list;
	return longer ? 0 : -ENOMEM;
}

static size_t take_body(char *data, size_t size, size_t n, void *arg)
{
	struct remote_answer *answer = arg;
	size_t len = size * n;
	if (answer->body_len + len > REMOTE_FETCH_MAX)
		return 0;
	char *body = remote_secret_realloc(answer->body, answer->body_len + len + 1);
	if (!body)
		return 0;
	memcpy(body + answer->body_len, data, len);
	answer->body = body;
	answer->body_len += len;
	body[answer->body_len] = 0;
	return len;
}

/* Copies a header's value into room of `size` bytes, if the line has that name. */
static void take_value(const char *line, size_t len, const char *name, char *room, size_t size)
{
	size_t at = strlen(name);
	if (len <= at || line[at] != ':' || strncasecmp(line, name, at) != 0)
		return;
	at++;
	while (at < len && (line[at] == ' ' || line[at] == '\t'))
		at++;
	while (len > at && isspace((unsigned char)line[len - 1]))
		len--;
	if (len - at < size) {
		memcpy(room, line + at, len - at);
		room[len - at] = 0;
	}
}

static void take_size(const char *text, uint64_t *size)
{
	if (isdigit((unsigned char)*text))
		*size = strtoull(text, NULL, 10);
	else if (*text)
		*size = UINT64_MAX; /* "*": the server does not know it */
}

static size_t take_header(char *line, size_t size, size_t n, void *arg)
{
	struct remote_answer *answer = arg;
	char number[64] = "", range[64] = "";
	if (size * n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* the next answer, behind a redirect or "100 Continue" */
		answer->size = UINT64_MAX;
		answer->ranged = false;
		answer->etag[0] = answer->modified[0] = answer->region[0] = 0;
	}
	take_value(line, size * n, "content-length", number, sizeof(number));
	take_value(line, size * n, "content-range", range, sizeof(range));
	const char *slash = strchr(range, '/'), *text = slash ? slash + 1 : number;
	if (slash || !answer->ranged) /* the two may come in any order */
		take_size(text, &answer->size);
	answer->ranged = answer->ranged || slash;
	take_value(line, size * n, "etag", answer->etag, sizeof(answer->etag));
	take_value(line, size * n, "last-modified", answer->modified, sizeof(answer->modified));
	take_value(line, size * n, "x-amz-bucket-region", answer->region, sizeof(answer->region));
	return size * n;
}

static void set_method(CURL *handle, const struct remote_fetch *fetch)
{
	curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, fetch->method);
	curl_easy_setopt(handle, CURLOPT_NOBODY, (long)(strcmp(fetch->method, "HEAD") == 0));
	if (strcmp(fetch->method, "PUT") == 0 || strcmp(fetch->method, "POST") == 0) {
		curl_easy_setopt(handle, CURLOPT_POST, 1L);
		curl_easy_setopt(handle, CURLOPT_POSTFIELDS, fetch->body ? fetch->body : "");
		curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)fetch->body_len);
	}
}

/* What on_progress saw last. */
struct progress {
	const struct remote_fetch *fetch;
	curl_off_t sent;
	uint64_t moved_ns; /* when it last changed, or the request began */
};

static int on_progress(void *arg, curl_off_t body, curl_off_t got, curl_off_t upload, curl_off_t sent)
{
	struct progress *progress = arg;
	uint64_t now = base_now_ns();
	(void)body;
	(void)upload;
	if (sent != progress->sent)
		progress->moved_ns = now;
	progress->sent = sent;
	if (got == 0)
		progress->fetch->silent(progress->fetch->arg, now - progress->moved_ns);
	return 0;
}

static int run(CURL *handle, const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *answer)
{
	char detail[CURL_ERROR_SIZE] = "";
	struct progress progress = { .fetch = fetch, .moved_ns = base_now_ns() };
	long redirects = 0;
	curl_off_t connected_us = 0;
	remote_curl_common(handle, fetch->ca_bundle);
	curl_easy_setopt(handle, CURLOPT_URL, fetch->url);
	curl_easy_setopt(handle, CURLOPT_HTTPHEADER, fetch->headers);
	curl_easy_setopt(handle, CURLOPT_TIMEOUT, fetch->timeout_s);
	if (fetch->connect_ms)
		curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, fetch->connect_ms);
	curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, detail);
	curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(handle, CURLOPT_WRITEDATA, answer);
	curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(handle, CURLOPT_HEADERDATA, answer);
	if (fetch->silent) {
		curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
		curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, on_progress);
		curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &progress);
	}
	if (fetch->stall_s) {
		curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, (long)fetch->stall_s);
	}
	if (fetch->follow)
		remote_curl_follow(handle, fetch->url);
	set_method(handle, fetch);
	CURLcode code = curl_easy_perform(handle);
	curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &answer->status);
	curl_easy_getinfo(handle, CURLINFO_REDIRECT_COUNT, &redirects);
	answer->redirected = redirects > 0;
	if (code == CURLE_OK)
		return 0;
	int rc = code == CURLE_WRITE_ERROR ? -EFBIG : remote_curl_errno(code);
	curl_easy_getinfo(handle, CURLINFO_CONNECT_TIME_T, &connected_us);
	if (fetch->connect_ms && rc == -ETIMEDOUT && connected_us == 0)
		rc = -EHOSTUNREACH;
	char proxy[REMOTE_PROXY_TEXT_MAX];
	if (remote_proxy_failed(handle, code, detail, proxy))
		return base_err_set(err, rc, "%.*s: %s", (int)strcspn(fetch->url, "?"), fetch->url, proxy);
	/* Of a redirect libcurl's own words may have the next URL's query, which may hold a signature. */
	bool own = !*detail || (fetch->follow && (rc == -ELOOP || rc == -EPROTO || rc == -EINVAL));
	return base_err_set(err, rc, "%.*s: %s", (int)strcspn(fetch->url, "?"), fetch->url,
	        own ? remote_curl_reason(code) : detail);
}

int remote_fetch(const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *ret_answer)
{
	int rc = remote_fetch_init();
	CURL *handle = rc == 0 ? curl_easy_init() : NULL;
	if (!handle)
		return base_err_set(err, -ENOMEM, "libcurl cannot start: out of memory");
	struct remote_answer answer = { .size = UINT64_MAX };
	rc = run(handle, fetch, err, &answer);
	curl_easy_cleanup(handle);
	if (rc == 0 && !answer.body && !(answer.body = remote_secret_join("", "", NULL)))
		rc = base_err_set(err, -ENOMEM, "out of memory");
	if (rc < 0) {
		remote_answer_done(&answer);
		return rc;
	}
	*ret_answer = answer;
	return 0;
}

void remote_answer_done(struct remote_answer *answer)
{
	if (answer->body)
		explicit_bzero(answer->body, answer->body_len); /* it may hold credentials */
	remote_secret_free(answer->body);
	*answer = (struct remote_answer){ .body = NULL };
}
