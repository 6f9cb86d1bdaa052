/* SPDX-License-Identifier: Apache-2.0 */
/* The http thread: transfers, retries, second transfers; shard/remote/client.h first. */
#include "shard/remote/client.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/log.h"
#include "shard/remote/latency.h"
#include "shard/remote/proxy.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

enum {
	ERROR_BODY_MAX = 1024,   /* bytes of a refusal that are kept */
	BUFFER_BYTES = 64 << 10, /* of libcurl, for each transfer: 32 MiB at most, beside the budget */
	TICK_MS = 1000,          /* the longest sleep of the thread */
	EVENTS_MAX = 64,         /* sockets looked at between two looks at the queues */
	/* A transfer has two sockets at most: libcurl tries IPv6 and IPv4 side by side. */
	UNWATCHED_MAX = 2 * REMOTE_TRANSFERS_MAX,
	UNWATCHED_MS = 10,      /* how often they are looked at */
	HEDGE_CREDITS_MAX = 8,  /* second transfers in a row that were of no use */
	HEDGE_SILENT = 4,       /* a read gets one so many times later if all others are silent, too */
	ADJUST_ANSWERS = 32,    /* the fewest answers that say something of the store */
	THROTTLED_SHARE = 5,    /* a fifth of answers 429 and 503: the store is asked too much */
	READ_TRANSFERS_MAX = 4, /* of one read, at the same time */
	HEDGE_EVERY = 30,       /* reads for one second transfer: 3% */
	/* On a full link all transfers are slow, and the bytes of second ones come twice.  So these have a budget. */
	HEDGE_BUDGET_PART = 20,       /* of 20 new bytes it gets one */
	HEDGE_BUDGET_FIRST = 1 << 20, /* bytes, at first */
	HEDGE_BUDGET_MAX = 16 << 20,  /* bytes that it has, or owes, at most */
};

#define PAUSE_MIN_NS (50 * MS)
#define PAUSE_MAX_NS (10 * S)
#define HEDGE_MIN_NS (20 * MS)
#define STALL_MIN_NS (5 * S)
#define STALL_MAX_NS (60 * S)
#define AWAY_NS (5 * S) /* of silence: a store that is only slow has answered something by then */

/* One HTTP request. */
struct transfer {
	struct remote_client *client;
	CURL *easy;
	struct remote_read *read;   /* NULL: it is idle */
	TAILQ_ENTRY(transfer) link; /* in the idle or the running ones */
	struct curl_slist *headers;
	uint32_t pos;         /* in the read: where its next byte goes */
	uint64_t started_ns;  /* when it began */
	uint64_t progress_ns; /* when it began, or its last byte came */
	bool first;           /* a byte of the body came */
	bool hedge;           /* it began beside a slow one, and has brought nothing new so far */
	uint32_t at_stake;    /* bytes that it may bring in vain: what its read lacked, if it began beside a slow one */
	bool ranged;          /* the answer says which range it is */
	int refused;          /* -errno that the answer's headers led to, or 0 */
	long status;          /* of the answer; 0: no answer yet */
	uint64_t retry_after_ns;
	char etag[256], modified[64], region[64], encoding[32];
	char error[ERROR_BODY_MAX]; /* the begin of a refusal's body */
	size_t error_len;
};

TAILQ_HEAD(transfer_list, transfer);

struct remote_client {
	struct remote_store *store;
	uint64_t timeout_ns;
	pthread_t thread;
	CURLM *multi;
	int wake_fd; /* eventfd: the http thread must look at what `lock` guards */

	/* Of the http thread: */
	int epoll_fd; /* the sockets of libcurl, and wake_fd */
	/* Sockets that the kernel did not take into the epoll set, with what libcurl waits for. */
	struct epoll_event unwatched[UNWATCHED_MAX];
	uint32_t n_unwatched;
	bool warned;      /* about them */
	uint64_t curl_ns; /* when libcurl wants to be called without a socket's event; UINT64_MAX: not */
	struct transfer transfers[REMOTE_TRANSFERS_MAX];
	struct transfer_list idle, running;
	uint32_t n_running;
	uint32_t limit;                          /* transfers that may run at the same time */
	uint32_t answers, throttled;             /* since limit was adjusted */
	uint64_t halved_ns;                      /* when limit was last halved */
	struct remote_read *ready, **ready_tail; /* reads that wait for a transfer */
	struct remote_read *paused;              /* reads that wait for their next try */
	unsigned hedge_credits, hedge_reads;
	int64_t hedge_budget; /* bytes that may come twice; negative: more came */
	struct remote_latency latency;
	uint64_t random;      /* of the jitter: xorshift64* */
	uint64_t answered_ns; /* when a transfer last got an answer that was not a refusal */
	uint64_t heard_ns;    /* when a byte of an object last came, or the thread began to wait for one */
	uint64_t live_ns;     /* time until heard_ns in which bytes came: see live_until() */

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t done_cv;
	struct remote_read *submitted, **submitted_tail;
	struct remote_read *done, **done_tail;
	bool woken, stop, cancelled;
	struct remote_stats stats;
};

/* ---- objects ---- */

int remote_object_new(
        struct remote_store *store, const char *path, uint64_t size_bytes, struct remote_object **ret_object)
{
	char key[REMOTE_KEY_MAX];
	int rc = remote_location_key(remote_store_location(store), path, key);
	if (rc < 0)
		return rc;
	struct remote_object *object = calloc(1, sizeof(*object));
	if (!object)
		return -ENOMEM;
	object->size_bytes = size_bytes;
	object->key = strdup(key);
	object->url = remote_store_url(store, key);
	if (!object->key || !object->url) {
		remote_object_free(object);
		return -ENOMEM;
	}
	*ret_object = object;
	return 0;
}

void remote_object_free(struct remote_object *object)
{
	if (!object)
		return;
	free(object->key);
	free(object->url);
	free(object);
}

/* ---- counters ---- */

static void count(struct remote_client *c, uint64_t *counter, uint64_t n)
{
	lock_for_scope(&c->lock);
	*counter += n;
}

static void count_answer(struct remote_client *c, uint64_t first_byte_ns)
{
	lock_for_scope(&c->lock);
	c->stats.answers++;
	c->stats.first_byte_ns += first_byte_ns;
	if (!c->stats.first_byte_least_ns || first_byte_ns < c->stats.first_byte_least_ns)
		c->stats.first_byte_least_ns = first_byte_ns;
}

static void tell_error(struct remote_client *c, const char *text)
{
	lock_for_scope(&c->lock);
	snprintf(c->stats.error, sizeof(c->stats.error), "%.*s", (int)sizeof(c->stats.error) - 1, text);
}

/* Of this thread. */
static uint64_t cpu_ns(void)
{
	struct timespec t = { 0 };
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * S + (uint64_t)t.tv_nsec;
}

static uint64_t random_below(struct remote_client *c, uint64_t n)
{
	c->random ^= c->random >> 12;
	c->random ^= c->random << 25;
	c->random ^= c->random >> 27;
	return n ? (c->random * UINT64_C(2685821657736338717)) % n : 0;
}

/* ---- the answer's headers and body ---- */

static bool value_of(const char *line, size_t len, const char *name, char *room, size_t size)
{
	size_t at = strlen(name);
	if (len <= at || line[at] != ':' || strncasecmp(line, name, at) != 0)
		return false;
	at++;
	while (at < len && (line[at] == ' ' || line[at] == '\t'))
		at++;
	while (len > at && isspace((unsigned char)line[len - 1]))
		len--;
	if (len - at >= size)
		return false;
	memcpy(room, line + at, len - at);
	room[len - at] = 0;
	return true;
}

/* "bytes FIRST-LAST/SIZE": the answer must be the range that was asked for. */
static int check_range(const struct transfer *t, const char *range)
{
	uint64_t first = 0, last = 0, size = UINT64_MAX;
	int n = sscanf(range, "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &first, &last, &size);
	const struct remote_read *read = t->read;
	if (n < 2 || first != read->offset + t->pos)
		return -EIO;
	if (n == 3 && read->object->size_bytes != UINT64_MAX && size != read->object->size_bytes)
		return -ESTALE;
	return 0;
}

/* Returns the seconds that Retry-After names, as a number or as a date (RFC 9110, 10.2.3): 0 .. 120. */
static uint64_t retry_after_s(const char *value)
{
	time_t now = time(NULL), date = isdigit((unsigned char)*value) ? 0 : curl_getdate(value, NULL);
	uint64_t seconds = date == 0 ? strtoul(value, NULL, 10) : date > now ? (uint64_t)(date - now) : 0;
	return seconds < 120 ? seconds : 120;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	char value[256];
	size_t len = size * n;
	if (len > 5 && strncmp(line, "HTTP/", 5) == 0) { /* the next answer, behind a redirect or "100 Continue" */
		t->refused = 0;
		t->ranged = false;
		t->retry_after_ns = 0;
		t->etag[0] = t->modified[0] = t->region[0] = t->encoding[0] = 0;
	} else if (value_of(line, len, "content-range", value, sizeof(value))) {
		t->refused = check_range(t, value);
		t->ranged = true;
	} else if (value_of(line, len, "retry-after", value, sizeof(value))) {
		t->retry_after_ns = retry_after_s(value) * S;
	} else if (!value_of(line, len, "etag", t->etag, sizeof(t->etag)) &&
	           !value_of(line, len, "last-modified", t->modified, sizeof(t->modified)) &&
	           !value_of(line, len, "content-encoding", t->encoding, sizeof(t->encoding))) {
		value_of(line, len, "x-amz-bucket-region", t->region, sizeof(t->region));
	}
	return len;
}

/* Compares the object of an answer with that of the first one.  Returns 0 or -ESTALE. */
static int check_object(const struct transfer *t)
{
	struct remote_object *object = t->read->object;
	if (!object->etag[0] && !object->modified[0]) {
		snprintf(object->etag, sizeof(object->etag), "%s", t->etag);
		snprintf(object->modified, sizeof(object->modified), "%s", t->modified);
		return 0;
	}
	bool same = object->etag[0] ? strcmp(object->etag, t->etag) == 0 : strcmp(object->modified, t->modified) == 0;
	return same ? 0 : -ESTALE;
}

/* At the first byte of a body: is it what was asked for?  Returns false: the transfer ends. */
static bool begin_body(struct transfer *t)
{
	struct remote_client *c = t->client;
	curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
	uint64_t now = base_now_ns();
	t->first = true;
	if (t->status == 206) {
		remote_latency_add(&c->latency, now - t->started_ns);
		c->answered_ns = now;
	}
	if (t->status == 206 || t->status == 200)
		count_answer(c, now - t->started_ns);
	if (t->status == 200) /* the server sends all of the object */
		t->refused = t->read->offset + t->pos == 0 ? 0 : -EOPNOTSUPP;
	if (t->status == 206 && !t->ranged) /* its bytes may be any part of the object */
		t->refused = -EIO;
	if ((t->status == 206 || t->status == 200) && t->refused == 0)
		t->refused = check_object(t);
	return t->refused == 0;
}

/* Returns the store's live time.  It stands still while no bytes come at all: then the store, the link or this machine
 * has paused, and no transfer is slower than the others. */
static uint64_t live_until(const struct remote_client *c, uint64_t now)
{
	uint64_t silent = now - c->heard_ns, most = c->latency.p90_ns ? c->latency.p90_ns : S / HEDGE_SILENT;
	return c->live_ns + (silent < most ? silent : most);
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
	struct transfer *t = arg;
	struct remote_client *c = t->client;
	struct remote_read *read = t->read;
	size_t len = size * n;
	bool first = !t->first;
	if (first && !begin_body(t))
		return CURL_WRITEFUNC_ERROR;
	if (t->status != 206 && t->status != 200) {
		size_t room = sizeof(t->error) - 1 - t->error_len, part = len < room ? len : room;
		memcpy(t->error + t->error_len, data, part);
		t->error_len += part;
		t->error[t->error_len] = 0;
		return len;
	}
	size_t taken = len < read->len - t->pos ? len : read->len - t->pos;
	uint32_t end = t->pos + (uint32_t)taken;
	size_t used = 0;
	uint64_t now = base_now_ns(), body_ns = first ? 0 : now - t->progress_ns;
	c->live_ns = live_until(c, now);
	t->progress_ns = c->heard_ns = now;
	if (end > read->high) {
		uint32_t from = t->pos > read->high ? t->pos : read->high;
		/* A transfer never begins behind high, so there is no gap. */
		memcpy(read->data + from, data + (from - t->pos), end - from);
		used = end - from;
		read->high = end;
		read->tries = 0;
		read->progress_ns = now;
		read->live_ns = c->live_ns;
		c->hedge_credits += t->hedge && c->hedge_credits < HEDGE_CREDITS_MAX;
		t->hedge = false;
	}
	t->pos = end;
	c->hedge_budget += (int64_t)(used / HEDGE_BUDGET_PART) - (int64_t)(len - used);
	if (c->hedge_budget > HEDGE_BUDGET_MAX || c->hedge_budget < -HEDGE_BUDGET_MAX)
		c->hedge_budget = c->hedge_budget > 0 ? HEDGE_BUDGET_MAX : -HEDGE_BUDGET_MAX;
	lock_for_scope(&c->lock);
	c->stats.bytes += len;
	c->stats.body_ns += body_ns;
	c->stats.wasted_bytes += len - used;
	/* A server that answers with the whole object is stopped at the end of the range. */
	return taken == len ? len : CURL_WRITEFUNC_ERROR;
}

/* ---- queues ---- */

static void make_ready(struct remote_client *c, struct remote_read *read)
{
	read->queued_next = NULL;
	*c->ready_tail = read;
	c->ready_tail = &read->queued_next;
}

static struct remote_read *take_ready(struct remote_client *c)
{
	struct remote_read *read = c->ready;
	c->ready = read->queued_next;
	if (!c->ready)
		c->ready_tail = &c->ready;
	return read;
}

static void finish_read(struct remote_client *c, struct remote_read *read, int res)
{
	read->res = res;
	lock_for_scope(&c->lock);
	read->next = NULL;
	*c->done_tail = read;
	c->done_tail = &read->next;
	pthread_cond_signal(&c->done_cv);
}

/* ---- transfers ---- */

static int prepare(struct transfer *t)
{
	struct remote_client *c = t->client;
	if (t->easy)
		return 0;
	t->easy = curl_easy_init();
	if (!t->easy)
		return -ENOMEM;
	remote_curl_common(t->easy, remote_store_ca_bundle(c->store));
	const struct remote_location *location = remote_store_location(c->store);
	if (!location->bucket) /* a signature is for one host, and its token is a secret */
		remote_curl_follow(t->easy, location->origin);
	curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
	curl_easy_setopt(t->easy, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
	curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
	curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
	curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
	return 0;
}

static int make_headers(struct transfer *t)
{
	struct remote_client *c = t->client;
	const struct remote_object *object = t->read->object;
	char match[sizeof(object->etag) + 16];
	const char *headers[2] = { NULL, NULL };
	if (object->etag[0] == '"') { /* If-Match takes strong ones only */
		snprintf(match, sizeof(match), "If-Match: %s", object->etag);
		headers[0] = match;
	}
	return remote_store_headers(c->store, object->url,
	        &(struct remote_request){ .method = "GET", .key = object->key, .headers = headers }, &t->headers);
}

static void begin_transfer(struct transfer *t, struct remote_read *read)
{
	t->read = read;
	t->pos = read->high;
	t->headers = NULL;
	t->started_ns = t->progress_ns = base_now_ns();
	t->first = t->ranged = t->hedge = false;
	t->at_stake = 0;
	t->refused = 0;
	t->status = 0;
	t->retry_after_ns = 0;
	t->etag[0] = t->modified[0] = t->region[0] = t->encoding[0] = t->error[0] = 0;
	t->error_len = 0;
}

/* Returns how much of the time that a reader has waited elsewhere counts in the timeout. */
static uint64_t counted_wait(const struct remote_client *c, const struct remote_read *read)
{
	const uint64_t least = REMOTE_TIMEOUT_LEAST_S * S, most = c->timeout_ns > least ? c->timeout_ns - least : 0;
	return read->waited_ns < most ? read->waited_ns : most;
}

/* Begins a transfer for the rest of a read.  Returns 0, or -ENOMEM. */
static int start_transfer(struct remote_client *c, struct remote_read *read)
{
	struct transfer *t = TAILQ_FIRST(&c->idle);
	if (!t)
		return -ENOMEM;
	begin_transfer(t, read);
	int rc = prepare(t);
	if (rc == 0)
		rc = make_headers(t);
	if (rc < 0)
		return rc;
	char range[64];
	snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, read->offset + read->high, read->offset + read->len - 1);
	curl_easy_setopt(t->easy, CURLOPT_URL, read->object->url);
	curl_easy_setopt(t->easy, CURLOPT_RANGE, range);
	curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
	if (curl_multi_add_handle(c->multi, t->easy) != CURLM_OK) {
		curl_slist_free_all(t->headers);
		return -ENOMEM;
	}
	TAILQ_REMOVE(&c->idle, t, link);
	TAILQ_INSERT_TAIL(&c->running, t, link);
	if (!read->begun_ns) /* its time runs from here: it may have waited for the transfers of others */
		read->progress_ns = t->started_ns - counted_wait(c, read);
	read->transfers++;
	read->begun_ns = t->started_ns;
	read->live_ns = live_until(c, t->started_ns);
	c->n_running++;
	count(c, &c->stats.requests, 1);
	return 0;
}

static void end_transfer(struct transfer *t)
{
	struct remote_client *c = t->client;
	curl_multi_remove_handle(c->multi, t->easy);
	curl_slist_free_all(t->headers);
	t->headers = NULL;
	t->read->transfers--;
	t->read = NULL;
	TAILQ_REMOVE(&c->running, t, link);
	TAILQ_INSERT_HEAD(&c->idle, t, link); /* its handle has a connection */
	c->n_running--;
}

/* Ends all transfers of a read. */
static void end_transfers(struct remote_client *c, const struct remote_read *read)
{
	struct transfer *t = TAILQ_FIRST(&c->running);
	while (t && read->transfers) {
		struct transfer *next = TAILQ_NEXT(t, link);
		if (t->read == read)
			end_transfer(t);
		t = next;
	}
}

/* ---- what a transfer's end means ---- */

/* Counts an answer.  When as many came as transfers run, adjusts how many may run.  Transfers that began before the
 * limit was halved do not count: their answers tell of the limit before. */
static void adjust_limit(struct remote_client *c, const struct transfer *t, bool throttled)
{
	if (t->started_ns < c->halved_ns)
		return;
	c->throttled += throttled;
	if (++c->answers < ADJUST_ANSWERS || c->answers < c->n_running)
		return;
	if (c->throttled * THROTTLED_SHARE > c->answers) {
		c->limit = c->n_running / 2 > 1 ? c->n_running / 2 : 1;
		c->halved_ns = base_now_ns();
	} else {
		c->limit += c->limit / 4 + 1;
	}
	c->limit = c->limit < REMOTE_TRANSFERS_MAX ? c->limit : REMOTE_TRANSFERS_MAX;
	c->answers = c->throttled = 0;
}

/* Tells why an answer was not taken. */
static void tell_refused(struct remote_client *c, const struct transfer *t)
{
	const struct remote_object *object = t->read->object;
	const bool etags = object->etag[0] != 0;
	const char *first = etags ? object->etag : object->modified, *now = etags ? t->etag : t->modified;
	char text[256], quoted[2][44], key[164], encoding[16];
	base_err_quote(first, quoted[0], sizeof(quoted[0]));
	base_err_quote(*now ? now : "(none)", quoted[1], sizeof(quoted[1]));
	base_err_quote(t->encoding, encoding, sizeof(encoding));
	if (t->refused == -ESTALE && strcmp(first, now) != 0)
		snprintf(text, sizeof(text), "'%s': the object was replaced: %s %s in place of %s%s%s%s",
		        base_err_quote(object->key, key, 80), etags ? "ETag" : "Last-Modified", quoted[1], quoted[0],
		        *encoding ? " (Content-Encoding: " : "", encoding, *encoding ? ")" : "");
	else
		snprintf(text, sizeof(text), "'%s': %s", base_err_quote(object->key, key, sizeof(key)),
		        t->refused == -ESTALE ? "the object was replaced: it has another size"
		        : t->refused == -EIO  ? "the server answers with another range than it was asked for"
		                              : "the server does not answer ranges");
	tell_error(c, text);
}

/* Returns the result of a transfer that did not bring all: -errno if the read fails, -EAGAIN for another try.
 * Tells why in c->stats.error. */
static int judge(struct transfer *t, CURLcode code)
{
	struct remote_client *c = t->client;
	if (t->refused && (t->status == 206 || t->status == 200)) {
		tell_refused(c, t);
		return t->refused == -EIO ? -EAGAIN : t->refused;
	}
	if (code != CURLE_OK && code != CURLE_WRITE_ERROR) {
		/* TLS that cannot be trusted does not heal, unless it worked before. */
		int rc = remote_curl_errno(code);
		char proxy[REMOTE_PROXY_TEXT_MAX];
		/* Without libcurl's sentence: it may have a password, and would stand in memory that a core has. */
		bool of_proxy = remote_proxy_failed(t->easy, code, "", proxy);
		tell_error(c, of_proxy ? proxy : remote_curl_reason(code));
		bool lasts = rc == -ELOOP || rc == -EPROTO || rc == -EINVAL || (rc == -EKEYREJECTED && !c->answered_ns);
		return lasts ? rc : -EAGAIN;
	}
	if (t->status == 206 || t->status == 200)
		return -EAGAIN;
	struct remote_answer answer = { .status = t->status, .body = t->error, .body_len = t->error_len };
	memcpy(answer.region, t->region, sizeof(answer.region));
	struct base_err err = { 0 };
	int rc = remote_store_refusal(c->store, t->read->object->key, &answer, &err);
	tell_error(c, err.text);
	if (t->status == 429 || t->status == 503) {
		adjust_limit(c, t, true);
		count(c, &c->stats.throttled, 1);
	}
	if (remote_store_expired(&answer))
		return remote_store_renew(c->store, t->started_ns) ? -EAGAIN : rc;
	return remote_store_passes(&answer) ? -EAGAIN : rc;
}

/* Plans the next try of a read, or fails it. */
static void try_again(struct remote_client *c, struct remote_read *read, uint64_t retry_after_ns)
{
	uint64_t now = base_now_ns(), waited = now - read->progress_ns;
	if (waited >= c->timeout_ns) {
		finish_read(c, read, -ETIMEDOUT);
		return;
	}
	count(c, &c->stats.retries, 1);
	unsigned doublings = read->tries < 8 ? read->tries : 8;
	uint64_t pause = read->tries ? PAUSE_MIN_NS << (doublings - 1) : 0; /* at once, if bytes had come */
	pause = pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS;
	pause = pause / 2 + random_below(c, pause / 2 + 1);
	if (pause < retry_after_ns)
		pause = retry_after_ns + random_below(c, retry_after_ns / 4);
	uint64_t left = c->timeout_ns - waited;
	if (pause > left) /* the last tries are then, whatever the store says, and not those of all reads at once */
		pause = left - random_below(c, left / 8);
	read->tries++;
	read->due_ns = now + pause;
	read->queued_next = c->paused;
	c->paused = read;
}

static void on_end(struct transfer *t, CURLcode code)
{
	struct remote_client *c = t->client;
	struct remote_read *read = t->read;
	uint64_t retry_after_ns = t->retry_after_ns;
	if (!t->first)
		curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->status);
	if (read->high == read->len) {
		adjust_limit(c, t, false);
		end_transfers(c, read);
		finish_read(c, read, (int)read->len);
		return;
	}
	int rc = judge(t, code);
	end_transfer(t);
	if (rc != -EAGAIN) {
		end_transfers(c, read);
		finish_read(c, read, rc);
	} else if (!read->transfers) {
		try_again(c, read, retry_after_ns);
	}
}

/* ---- slow transfers ---- */

static uint64_t clamp(uint64_t value, uint64_t low, uint64_t high)
{
	return value < low ? low : value > high ? high : value;
}

/* Returns the bytes that second transfers may still bring in vain.  A silent one may hang: then it brings none, and
 * must not keep other reads from getting one. */
static int64_t at_stake(const struct remote_client *c, uint64_t now, uint64_t silence_ns)
{
	const struct transfer *t;
	int64_t bytes = 0;
	TAILQ_FOREACH(t, &c->running, link)
	{
		bytes += now - t->progress_ns < silence_ns ? t->at_stake : 0;
	}
	return bytes;
}

/* Gives silent transfers a second one, or gives them up.  Returns when it has to look again. */
static uint64_t look_at_slow(struct remote_client *c, uint64_t now)
{
	const uint64_t p90 = c->latency.p90_ns;
	const uint64_t hedge_ns = p90 ? 3 * p90 + HEDGE_MIN_NS : S;
	const uint64_t stall_ns = p90 ? clamp(20 * p90, STALL_MIN_NS, STALL_MAX_NS) : STALL_MAX_NS / 2;
	uint64_t next = UINT64_MAX;
	int64_t stake = at_stake(c, now, HEDGE_SILENT * hedge_ns);
	struct transfer *following;
	for (struct transfer *t = TAILQ_FIRST(&c->running); t; t = following) {
		following = TAILQ_NEXT(t, link);
		struct remote_read *read = t->read;
		if (read->begun_ns > now)
			continue; /* its read got a second one in this loop */
		uint64_t silent = now - t->progress_ns;
		/* After each try more time: else a store that has become slower than that would never be heard. */
		uint64_t most_ns = stall_ns << (read->tries < 4 ? read->tries : 4);
		most_ns = most_ns < STALL_MAX_NS ? most_ns : STALL_MAX_NS;
		/* But its reader gets an answer within the timeout. */
		uint64_t waited = now - read->progress_ns, left = waited < c->timeout_ns ? c->timeout_ns - waited : 0;
		if (most_ns > silent + left)
			most_ns = silent + left > stall_ns ? silent + left : stall_ns;
		if (silent >= most_ns) {
			tell_error(c, "a transfer stopped");
			end_transfer(t);
			if (!read->transfers)
				try_again(c, read, 0);
			continue;
		}
		/* All transfers of the read are silent since then. */
		uint64_t since = read->begun_ns > read->progress_ns ? read->begun_ns : read->progress_ns;
		/* What a silence counts may have shrunk since then, with the latencies. */
		uint64_t quiet = now - since, live = live_until(c, now);
		live -= live < read->live_ns ? live : read->live_ns;
		uint64_t least = c->n_running > 1 && live < hedge_ns ? HEDGE_SILENT * hedge_ns : hedge_ns;
		bool may = read->transfers < READ_TRANSFERS_MAX && c->hedge_credits;
		if (may && quiet >= least && stake <= c->hedge_budget && start_transfer(c, read) == 0) {
			struct transfer *second = TAILQ_LAST(&c->running, transfer_list);
			second->hedge = true;
			second->at_stake = read->len - read->high;
			stake += second->at_stake;
			c->hedge_credits--;
			count(c, &c->stats.hedged, 1);
		}
		/* Until then only bytes that come make it slow, and they wake the thread. */
		uint64_t wait = may && least > quiet ? least - quiet : most_ns - silent;
		next = now + wait < next ? now + wait : next;
	}
	return next;
}

/* ---- the thread ---- */

/* Ends the reads of a list that is linked by queued_next. */
static void cancel_list(struct remote_client *c, struct remote_read *read)
{
	for (struct remote_read *next; read; read = next) {
		next = read->queued_next;
		finish_read(c, read, -ECANCELED);
	}
}

static void cancel_all(struct remote_client *c)
{
	while (!TAILQ_EMPTY(&c->running)) {
		struct remote_read *read = TAILQ_FIRST(&c->running)->read;
		end_transfers(c, read);
		finish_read(c, read, -ECANCELED);
	}
	cancel_list(c, c->paused);
	cancel_list(c, c->ready);
	c->paused = c->ready = NULL;
	c->ready_tail = &c->ready;
}

/* Returns when the first read that waits for its next try is due. */
static uint64_t next_due(const struct remote_client *c)
{
	uint64_t next = UINT64_MAX;
	for (const struct remote_read *read = c->paused; read; read = read->queued_next)
		next = read->due_ns < next ? read->due_ns : next;
	return next;
}

/* Begins transfers for what is ready, and for what is due again. */
static void start_reads(struct remote_client *c, uint64_t now)
{
	struct remote_read **at = &c->paused;
	while (*at) {
		struct remote_read *read = *at;
		if (read->due_ns <= now) {
			*at = read->queued_next;
			make_ready(c, read);
		} else {
			at = &read->queued_next;
		}
	}
	while (c->ready && c->n_running < c->limit && c->n_running < REMOTE_TRANSFERS_MAX) {
		struct remote_read *read = take_ready(c);
		int rc = start_transfer(c, read);
		if (rc < 0)
			finish_read(c, read, rc);
		else if (++c->hedge_reads % HEDGE_EVERY == 0 && c->hedge_credits < HEDGE_CREDITS_MAX)
			c->hedge_credits++;
	}
}

/* Takes in what was submitted.  Returns false when the thread ends. */
static bool take_submitted(struct remote_client *c)
{
	uint64_t now = base_now_ns(), cpu = cpu_ns();
	struct remote_read *read;
	bool stop, cancelled;
	{
		lock_for_scope(&c->lock);
		read = c->submitted;
		c->submitted = NULL;
		c->submitted_tail = &c->submitted;
		stop = c->stop;
		cancelled = c->cancelled;
		c->stats.running = c->n_running;
		c->stats.cpu_ns = cpu;
		c->stats.limit = c->limit;
		c->stats.first_byte_p50_ns = c->latency.p50_ns;
		c->stats.first_byte_p99_ns = c->latency.p99_ns;
		if (TAILQ_EMPTY(&c->running) && !c->ready && !c->paused)
			c->heard_ns = now;
		uint64_t silent_ns = now - c->heard_ns;
		/* While a read is tried, none is paused: a store that was away stays so until it answers. */
		bool failing = c->paused || c->stats.away_ns;
		c->stats.away_ns = silent_ns >= (failing ? S : AWAY_NS) ? silent_ns : 0;
	}
	while (read) {
		struct remote_read *next = read->next;
		read->high = 0;
		read->transfers = read->tries = 0;
		read->begun_ns = 0;
		read->progress_ns = now;
		make_ready(c, read);
		read = next;
	}
	if (cancelled)
		cancel_all(c);
	return !stop;
}

static void take_ends(struct remote_client *c)
{
	int left;
	CURLMsg *message;
	while ((message = curl_multi_info_read(c->multi, &left))) {
		if (message->msg != CURLMSG_DONE)
			continue;
		struct transfer *t = NULL;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&t);
		if (t->read)
			on_end(t, message->data.result);
	}
}

static void forget_unwatched(struct remote_client *c, int fd)
{
	for (uint32_t i = c->n_unwatched; i-- > 0;) {
		if (c->unwatched[i].data.fd == fd)
			c->unwatched[i] = c->unwatched[--c->n_unwatched];
	}
}

/* Keeps a socket that the kernel does not take into the epoll set: it lacks memory, or the user has
 * fs.epoll.max_user_watches sockets in such sets.  If libcurl got an error, it would end all transfers. */
static int keep_unwatched(struct remote_client *c, const struct epoll_event *event)
{
	if (c->n_unwatched == UNWATCHED_MAX)
		return -1;
	if (!c->warned)
		log_warning("%s: cannot watch a connection: %s: looking at it every %d ms",
		        remote_store_location(c->store)->name, strerror(errno), UNWATCHED_MS);
	c->warned = true;
	c->unwatched[c->n_unwatched++] = *event;
	return 0;
}

/* Looks at the sockets that are not in the epoll set, and tries to put them into it.  libcurl may change the list in
 * these calls.  One that is passed over is looked at the next time. */
static void look_at_unwatched(struct remote_client *c)
{
	int running;
	for (uint32_t i = c->n_unwatched; i-- > 0;) {
		if (i >= c->n_unwatched)
			continue;
		struct epoll_event event = c->unwatched[i];
		if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, event.data.fd, &event) == 0)
			forget_unwatched(c, event.data.fd);
		else
			curl_multi_socket_action(c->multi, event.data.fd, 0, &running);
	}
}

/* libcurl tells what it waits for at a socket.  With hundreds of transfers, a poll of all sockets for each piece that
 * comes would take most of a processor, so they are in an epoll set. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *unused)
{
	(void)easy;
	(void)unused;
	struct remote_client *c = arg;
	struct epoll_event event = { .data.fd = fd };
	forget_unwatched(c, fd);
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0U) | (what & CURL_POLL_OUT ? EPOLLOUT : 0U);
	if (epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, fd, &event) < 0 &&
	        epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		return keep_unwatched(c, &event);
	return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
	(void)multi;
	struct remote_client *c = arg;
	c->curl_ns = ms < 0 ? UINT64_MAX : base_now_ns() + (uint64_t)ms * MS;
	return 0;
}

/* Waits until something happens, until next_ns at most, and lets libcurl read and write.  Returns false if more sockets
 * may be ready. */
static bool wait_for_sockets(struct remote_client *c, uint64_t next_ns)
{
	struct epoll_event events[EVENTS_MAX];
	int running;
	uint64_t now = base_now_ns(), value;
	next_ns = next_ns < c->curl_ns ? next_ns : c->curl_ns;
	uint64_t wait_ms = next_ns <= now ? 0 : (next_ns - now) / MS + 1;
	uint64_t most_ms = c->n_unwatched ? UNWATCHED_MS : TICK_MS;
	int n = epoll_wait(c->epoll_fd, events, EVENTS_MAX, (int)(wait_ms < most_ms ? wait_ms : most_ms));
	for (int i = 0; i < n; i++) {
		if (events[i].data.fd == c->wake_fd) {
			while (read(c->wake_fd, &value, sizeof(value)) < 0 && errno == EINTR)
				;
			continue;
		}
		uint32_t is = events[i].events;
		int what = (is & EPOLLIN ? CURL_CSELECT_IN : 0) | (is & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
		           (is & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
		curl_multi_socket_action(c->multi, events[i].data.fd, what, &running);
	}
	look_at_unwatched(c);
	if (c->curl_ns <= base_now_ns()) {
		c->curl_ns = UINT64_MAX;
		curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	}
	return n < EVENTS_MAX;
}

static void *run(void *arg)
{
	struct remote_client *c = arg;
	bool all_read = true; /* else a transfer may look slow whose bytes have come */
	pthread_setname_np(pthread_self(), "http");
	{
		lock_for_scope(&c->lock);
		c->stats.tid = gettid();
	}
	while (take_submitted(c)) {
		take_ends(c);
		uint64_t now = base_now_ns();
		start_reads(c, now);
		uint64_t slow = all_read ? look_at_slow(c, now) : now;
		uint64_t due = next_due(c);                      /* transfers that ended have added some */
		bool more = c->ready && c->n_running < c->limit; /* ... and left their places */
		all_read = wait_for_sockets(c, more ? now : slow < due ? slow : due);
	}
	while (!TAILQ_EMPTY(&c->running))
		end_transfer(TAILQ_FIRST(&c->running));
	return NULL;
}

/* ---- the owner's side ---- */

static void wake(struct remote_client *c)
{
	const uint64_t one = 1;
	while (write(c->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* Makes libcurl's handle and what its thread waits at.  Returns 0, -ENOMEM, or -errno of a descriptor. */
static int open_multi(struct remote_client *c)
{
	c->multi = curl_multi_init();
	if (!c->multi)
		return -ENOMEM;
	curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)REMOTE_TRANSFERS_MAX);
	curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
	curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
	c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = c->wake_fd };
	if (c->epoll_fd < 0 || c->wake_fd < 0 || epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->wake_fd, &event) < 0)
		return -errno;
	return 0;
}

/* Frees what belongs to the client.  Its thread does not run. */
static void close_client(struct remote_client *c)
{
	for (size_t i = 0; i < REMOTE_TRANSFERS_MAX; i++)
		curl_easy_cleanup(c->transfers[i].easy);
	curl_multi_cleanup(c->multi);
	if (c->wake_fd >= 0)
		close(c->wake_fd);
	if (c->epoll_fd >= 0)
		close(c->epoll_fd);
	pthread_cond_destroy(&c->done_cv);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int remote_client_new(struct remote_store *store, uint64_t timeout_ns, struct remote_client **ret_client)
{
	struct remote_client *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->store = store;
	c->timeout_ns = timeout_ns ? timeout_ns : REMOTE_TIMEOUT_DEFAULT_S * S;
	c->limit = REMOTE_TRANSFERS_MAX;
	c->random = base_now_ns() | 1;
	c->hedge_credits = HEDGE_CREDITS_MAX / 2;
	c->hedge_budget = HEDGE_BUDGET_FIRST;
	TAILQ_INIT(&c->idle);
	TAILQ_INIT(&c->running);
	for (size_t i = 0; i < REMOTE_TRANSFERS_MAX; i++) {
		c->transfers[i].client = c;
		TAILQ_INSERT_TAIL(&c->idle, &c->transfers[i], link);
	}
	c->ready_tail = &c->ready;
	c->submitted_tail = &c->submitted;
	c->done_tail = &c->done;
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->done_cv, &monotonic);
	pthread_condattr_destroy(&monotonic);
	c->wake_fd = c->epoll_fd = -1;
	c->curl_ns = UINT64_MAX;
	int rc = open_multi(c);
	if (rc == 0)
		rc = -pthread_create(&c->thread, NULL, run, c);
	if (rc < 0) {
		close_client(c);
		return rc;
	}
	*ret_client = c;
	return 0;
}

void remote_client_free(struct remote_client *c)
{
	if (!c)
		return;
	{
		lock_for_scope(&c->lock);
		c->stop = true;
	}
	wake(c);
	pthread_join(c->thread, NULL);
	close_client(c);
}

void remote_client_submit(struct remote_client *c, struct remote_read *read)
{
	bool first;
	{
		lock_for_scope(&c->lock);
		first = !c->submitted;
		read->next = NULL;
		*c->submitted_tail = read;
		c->submitted_tail = &read->next;
	}
	if (first) /* the thread takes all of them at once */
		wake(c);
}

void remote_client_wait(struct remote_client *c, int64_t timeout_ns, struct remote_read **ret_done)
{
	struct timespec until = { 0 };
	if (timeout_ns > 0) {
		uint64_t end = base_now_ns() + (uint64_t)timeout_ns;
		until = (struct timespec){ .tv_sec = (time_t)(end / S), .tv_nsec = (long)(end % S) };
	}
	lock_for_scope(&c->lock);
	while (!c->done && !c->woken && timeout_ns != 0) {
		if (timeout_ns < 0)
			pthread_cond_wait(&c->done_cv, &c->lock);
		else if (pthread_cond_timedwait(&c->done_cv, &c->lock, &until) == ETIMEDOUT)
			break;
	}
	c->woken = false;
	*ret_done = c->done;
	c->done = NULL;
	c->done_tail = &c->done;
}

void remote_client_cancel(struct remote_client *c)
{
	{
		lock_for_scope(&c->lock);
		c->cancelled = true;
	}
	wake(c);
}

void remote_client_wake(struct remote_client *c)
{
	lock_for_scope(&c->lock);
	c->woken = true;
	pthread_cond_signal(&c->done_cv);
}

void remote_client_stats_get(struct remote_client *c, struct remote_stats *ret_stats)
{
	lock_for_scope(&c->lock);
	*ret_stats = c->stats;
}
