/* SPDX-License-Identifier: Apache-2.0 */
/* Searches for mounts, reads their counters and computes rates, for `ddpfs top`; top_model.h first. */
#include "tools/ddpfs/top_model.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "tools/ddpfs/ask_server.h"

static const uint64_t SEARCH_NS = 2000000000; /* between two searches */

#define COUNTER(member, key)                                                                                           \
	{                                                                                                              \
		offsetof(struct watched_counts, member), key, key, false, 0, 0, NULL                                   \
	}
#define LARGEST(member, key, shown)                                                                                    \
	{                                                                                                              \
		offsetof(struct watched_counts, member), key, shown, true, 0, 0, NULL                                  \
	}
#define RATED(member, shown, rate, unit, rate_key)                                                                     \
	{                                                                                                              \
		offsetof(struct watched_counts, member), #member, shown, false, offsetof(struct watched_rates, rate),  \
		        unit, rate_key                                                                                 \
	}
const struct watched_counter watched_counters[WATCHED_COUNTERS] = {
	COUNTER(position, "position"),
	COUNTER(turns, "turns"),
	RATED(opens, "opens", opens, 1, "files_per_s"),
	RATED(misses, "misses", misses, 1, NULL),
	RATED(cached_bytes, NULL, cached, 1, "cached_bytes_per_s"),
	RATED(delivered_bytes, NULL, delivered, 1, "delivered_bytes_per_s"),
	RATED(read_bytes, NULL, read, 1, "read_bytes_per_s"),
	RATED(wasted_bytes, NULL, wasted, 1, "wasted_bytes_per_s"),
	RATED(waited_ns, NULL, waited, 1e9, "waited_share"),
	LARGEST(wait_p50_ns, "epoch_wait_p50_ns", "wait_p50_ns"),
	LARGEST(wait_p99_ns, "epoch_wait_p99_ns", "wait_p99_ns"),
	LARGEST(wait_max_ns, "epoch_wait_max_ns", "wait_max_ns"),
	COUNTER(window_bytes, "window_bytes"),
	COUNTER(window_limit_bytes, "window_limit_bytes"),
	COUNTER(depth, "depth"),
	COUNTER(inflight, "inflight"),
	LARGEST(device_rate, "device_rate", "device_rate"), /* they may share the device */
	COUNTER(resident_bytes, "resident_bytes"),
	COUNTER(memory_bytes, "memory_bytes"),
	RATED(tier_bytes, NULL, tier, 1, "tier_bytes_per_s"),
	LARGEST(tier_used_bytes, "tier_used_bytes", "tier_used_bytes"), /* they may share the tier */
	LARGEST(tier_room_bytes, "tier_room_bytes", "tier_room_bytes"),
	RATED(store_requests, "store_requests", requests, 1, "store_requests_per_s"),
	RATED(store_retries, "store_retries", retries, 1, NULL),
	RATED(store_throttled, "store_throttled", throttled, 1, NULL),
	RATED(store_hedged, "store_hedged", hedged, 1, NULL),
	LARGEST(store_first_byte_p50_ns, "store_first_byte_p50_ns", "store_first_byte_p50_ns"),
	LARGEST(store_first_byte_p99_ns, "store_first_byte_p99_ns", "store_first_byte_p99_ns"),
};

/* Returns the counter, or its rate. */
static uint64_t *counter_of(struct watched_counts *counts, const struct watched_counter *c)
{
	return (uint64_t *)((char *)counts + c->at);
}

static double *rate_of(struct watched_rates *rates, const struct watched_counter *c)
{
	return (double *)((char *)rates + c->rate_at);
}

/* ---- the search for mounts ---- */

/* With targets there is one peer for each; a peer that was not found has pid 0. */
struct watched_search {
	char **targets;
	size_t n_targets;
	struct base_control_peer *peers;
	size_t n;
	struct base_control_silent *silent; /* without targets */
	size_t n_silent;
	int rc;
	struct base_err err;
	_Atomic bool done; /* once true, the caller owns all members above */
};

static void search_free(struct watched_search *search)
{
	if (!search)
		return;
	base_control_peers_free(search->peers, search->n);
	free(search->silent);
	free(search);
}

/* Whether `rc` means a silent server, which may answer later. */
static bool may_come(const char *target, int rc)
{
	uid_t owner;
	return rc == -ETIMEDOUT && (target[0] == '@' || ask_owner(target, &owner) != -ENOENT);
}

static void search(struct watched_search *s)
{
	if (!s->n_targets) {
		s->rc = ask_survey(BASE_CONTROL_SURVEY_MS, &s->peers, &s->n, &s->silent, &s->n_silent);
		return;
	}
	s->peers = calloc(s->n_targets, sizeof(*s->peers));
	if (!s->peers) {
		s->rc = -ENOMEM;
		return;
	}
	s->n = s->n_targets;
	for (size_t i = 0; i < s->n; i++) {
		struct base_control_peer peer;
		struct base_err err = { 0 };
		int rc = ask_find_within(s->targets[i], BASE_CONTROL_SURVEY_MS, &err, &peer);
		if (rc == 0)
			s->peers[i] = peer;
		else if (s->rc == 0 && !may_come(s->targets[i], rc)) {
			s->rc = rc;
			s->err = err;
		}
	}
}

static void *search_run(void *arg)
{
	struct watched_search *s = arg;
	search(s);
	atomic_store(&s->done, true);
	return NULL;
}

static struct watched_search *search_new(const struct watched *watched)
{
	struct watched_search *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	s->targets = watched->targets;
	s->n_targets = watched->n_targets;
	return s;
}

/* The thread is detached, so the end of the program does not wait for a server that has stopped. */
static void search_start(struct watched *watched)
{
	pthread_attr_t attr;
	pthread_t thread;
	struct watched_search *s = search_new(watched);
	watched->searched_ns = base_now_ns();
	if (!s)
		return;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, search_run, s) == 0)
		watched->search = s;
	else
		free(s);
	pthread_attr_destroy(&attr);
}

/* ---- the list ---- */

static void mount_done(struct watched_mount *mount)
{
	free(mount->mountpoint);
	free(mount->read_ahead_note);
	free(mount->misuse);
}

static int mount_set(struct watched_mount *mount, const struct base_control_peer *peer)
{
	struct watched_mount set = {
		.target = mount->target,
		.mountpoint = strdup(peer->mountpoint),
		.pid = peer->pid,
		.rank = peer->rank,
		.ranks = peer->ranks,
		.world = peer->world,
		.view_all = peer->view_all,
	};
	memcpy(set.socket, peer->socket, sizeof(set.socket));
	if (!set.mountpoint)
		return -ENOMEM;
	mount_done(mount);
	*mount = set;
	return 0;
}

static bool same(const struct watched_mount *mount, const struct base_control_peer *peer)
{
	return mount->mountpoint && mount->pid == peer->pid && strcmp(mount->socket, peer->socket) == 0;
}

/* Sets the present place of a mount that was moved. */
static int move(struct watched_mount *mount, const char *place)
{
	if (strcmp(mount->mountpoint, place) == 0)
		return 0;
	char *copy = strdup(place);
	if (!copy)
		return -ENOMEM;
	free(mount->mountpoint);
	mount->mountpoint = copy;
	return 0;
}

/* Makes room for one more mount at the end of the list.  The caller increments watched->n. */
static struct watched_mount *new_mount(struct watched *watched)
{
	struct watched_mount *more = realloc(watched->mounts, (watched->n + 1) * sizeof(*more));
	if (!more)
		return NULL;
	watched->mounts = more;
	more[watched->n] = (struct watched_mount){ 0 };
	return &more[watched->n];
}

static struct watched_mount *by_socket(struct watched *watched, const char *socket)
{
	for (size_t i = 0; i < watched->n; i++)
		if (strcmp(watched->mounts[i].socket, socket) == 0)
			return &watched->mounts[i];
	return NULL;
}

static int add(struct watched *watched, const struct base_control_peer *peer)
{
	struct watched_mount *mount = by_socket(watched, peer->socket);
	if (mount && same(mount, peer))
		return move(mount, peer->mountpoint);
	bool fresh = !mount;
	if (fresh && !(mount = new_mount(watched)))
		return -ENOMEM;
	int rc = mount_set(mount, peer);
	watched->n += fresh && rc == 0;
	return rc;
}

/* Adds a mount of which only the process and the socket are known. */
static int add_silent(struct watched *watched, const struct base_control_silent *silent)
{
	if (by_socket(watched, silent->socket))
		return 0;
	struct watched_mount *mount = new_mount(watched);
	if (!mount)
		return -ENOMEM;
	mount->state = WATCHED_SILENT;
	mount->pid = silent->pid;
	memcpy(mount->socket, silent->socket, sizeof(mount->socket));
	watched->n++;
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct watched_mount *x = a;
	const struct watched_mount *y = b;
	int order = strcmp(x->mountpoint ? x->mountpoint : "", y->mountpoint ? y->mountpoint : "");
	if (order == 0 && x->rank != y->rank)
		order = x->rank < y->rank ? -1 : 1;
	return order ? order : x->pid < y->pid ? -1 : x->pid > y->pid;
}

/* Takes the results of a search.  A mount that the search did not find stays, because its server may only be slow. */
static int take_found(struct watched *watched, const struct watched_search *s)
{
	int rc = 0;
	for (size_t i = 0; i < s->n && rc == 0; i++) {
		const struct base_control_peer *peer = &s->peers[i];
		if (!watched->n_targets)
			rc = add(watched, peer);
		else if (peer->pid && same(&watched->mounts[i], peer))
			rc = move(&watched->mounts[i], peer->mountpoint);
		else if (peer->pid)
			rc = mount_set(&watched->mounts[i], peer); /* mounted again */
	}
	for (size_t i = 0; i < s->n_silent && rc == 0; i++)
		rc = add_silent(watched, &s->silent[i]);
	if (!watched->n_targets && watched->n)
		qsort(watched->mounts, watched->n, sizeof(*watched->mounts), by_place);
	return rc;
}

static int make_mounts(struct watched *watched)
{
	if (!watched->n_targets)
		return 0;
	watched->mounts = calloc(watched->n_targets, sizeof(*watched->mounts));
	if (!watched->mounts)
		return -ENOMEM;
	watched->n = watched->n_targets;
	for (size_t i = 0; i < watched->n; i++) {
		watched->mounts[i].target = watched->targets[i];
		watched->mounts[i].state = WATCHED_SILENT; /* until it is found */
	}
	return 0;
}

int watched_open(char **targets, size_t n_targets, struct base_err *err, struct watched *ret_watched)
{
	struct watched watched = { .targets = targets, .n_targets = n_targets };
	struct watched_search *s = search_new(&watched);
	int rc = s ? make_mounts(&watched) : -ENOMEM;
	if (rc == 0) {
		search(s);
		rc = s->rc;
	}
	if (rc < 0 && s && s->err.text[0])
		*err = s->err;
	else if (rc < 0)
		base_err_set(err, rc, "cannot look for mounts: %s", base_err_str(rc));
	if (rc == 0 && (rc = take_found(&watched, s)) < 0)
		base_err_set(err, rc, "out of memory");
	search_free(s);
	watched.searched_ns = base_now_ns();
	if (rc < 0)
		watched_close(&watched);
	else
		*ret_watched = watched;
	return rc;
}

void watched_close(struct watched *watched)
{
	for (size_t i = 0; i < watched->n; i++)
		mount_done(&watched->mounts[i]);
	free(watched->mounts);
	if (watched->search && atomic_load(&watched->search->done))
		search_free(watched->search);
	*watched = (struct watched){ 0 };
}

/* ---- counters ---- */

static uint64_t number(const json_t *stats, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(stats, key));
	return value < 0 ? 0 : (uint64_t)value;
}

/* If samplers were recognised, the one with the most opens says how far the trainer is. */
static void put_sampler(const json_t *stats, struct watched_counts *counts)
{
	uint64_t most = 0;
	size_t i;
	json_t *sampler;
	json_array_foreach(json_object_get(stats, "samplers"), i, sampler)
	{
		if (number(sampler, "opens") <= most)
			continue;
		most = number(sampler, "opens");
		counts->epoch = number(sampler, "epoch");
		counts->position = number(sampler, "turn");
		counts->turns = number(sampler, "turns");
	}
}

static struct watched_counts counts_of(const json_t *stats, bool view_all)
{
	struct watched_counts counts = {
		.at_ns = base_now_ns(), .uptime_s = number(stats, "uptime_s"), .epoch = number(stats, "epoch")
	};
	for (int i = 0; i < WATCHED_COUNTERS; i++)
		*counter_of(&counts, &watched_counters[i]) = number(stats, watched_counters[i].key);
	if (view_all)
		put_sampler(stats, &counts);
	return counts;
}

static struct watched_rates rates_between(struct watched_counts *a, struct watched_counts *b)
{
	struct watched_rates rates = { .known = true, .seconds = (double)(b->at_ns - a->at_ns) / 1e9 };
	if (rates.seconds <= 0 || b->uptime_s < a->uptime_s)
		return (struct watched_rates){ 0 };
	for (int i = 0; i < WATCHED_COUNTERS; i++) {
		const struct watched_counter *c = &watched_counters[i];
		uint64_t before = *counter_of(a, c), now = *counter_of(b, c);
		if (!c->rate_unit)
			continue;
		/* Counters only grow, except if another server got the same process id, and so the same socket path. */
		if (now < before)
			return (struct watched_rates){ 0 };
		*rate_of(&rates, c) = (double)(now - before) / c->rate_unit / rates.seconds;
	}
	return rates;
}

/* The server says two kinds of wrong use in a note, and the third one in its log. */
static char *misuse_of(const json_t *stats)
{
	const char *note = json_string_value(json_object_get(stats, "recognised_note"));
	const json_t *problems = json_object_get(stats, "problems");
	for (size_t i = 0; !note && i < json_array_size(problems); i++) {
		const char *text = json_string_value(json_object_get(json_array_get(problems, i), "text"));
		if (text && strstr(text, "it lists once"))
			note = "the trainer lists once: make its dataset object in the epoch loop, or mount with "
			       "view=all";
	}
	return note ? strdup(note) : NULL;
}

static void take_reply(struct watched_mount *mount, int rc, const char *reply)
{
	json_t *object = rc == 0 ? json_loads(reply, 0, NULL) : NULL;
	const json_t *stats = json_object_get(object, "stats");
	const char *note = json_string_value(json_object_get(stats, "read_ahead_note"));
	free(mount->misuse);
	mount->misuse = misuse_of(stats);
	free(mount->read_ahead_note);
	mount->read_ahead_note = note ? strdup(note) : NULL;
	if (json_is_object(stats)) {
		struct watched_counts counts = counts_of(stats, mount->view_all);
		mount->rates = mount->counted ? rates_between(&mount->counts, &counts) : (struct watched_rates){ 0 };
		mount->counts = counts;
		mount->counted = true;
		mount->state = WATCHED_LIVE;
	} else {
		mount->counted = false;
		mount->rates = (struct watched_rates){ 0 };
		mount->state = rc == -ECONNREFUSED || rc == -ENOENT || rc == -EACCES ? WATCHED_GONE : WATCHED_SILENT;
	}
	json_decref(object);
}

/* Reads the counters of all mounts that were found and are not gone. */
static int read_all(struct watched *watched, unsigned timeout_ms)
{
	size_t n = 0;
	cleanup_free const char **sockets = calloc(watched->n + 1, sizeof(*sockets));
	cleanup_free struct watched_mount **asked = calloc(watched->n + 1, sizeof(struct watched_mount *));
	cleanup_free char **replies = calloc(watched->n + 1, sizeof(*replies));
	cleanup_free int *rcs = calloc(watched->n + 1, sizeof(*rcs));
	if (!sockets || !asked || !replies || !rcs)
		return -ENOMEM;
	for (size_t i = 0; i < watched->n; i++) {
		struct watched_mount *mount = &watched->mounts[i];
		if (mount->state == WATCHED_GONE || !mount->socket[0])
			continue;
		sockets[n] = mount->socket;
		asked[n++] = mount;
	}
	int rc = base_control_request_all(sockets, n, "{\"cmd\":\"stat\"}", timeout_ms, rcs, replies);
	for (size_t i = 0; i < n && rc == 0; i++) {
		take_reply(asked[i], rcs[i], replies[i]);
		free(replies[i]);
	}
	return rc;
}

static void forget_gone(struct watched *watched)
{
	size_t n = 0;
	for (size_t i = 0; i < watched->n; i++) {
		if (watched->mounts[i].state == WATCHED_GONE)
			mount_done(&watched->mounts[i]);
		else
			watched->mounts[n++] = watched->mounts[i];
	}
	watched->n = n;
}

int watched_read(struct watched *watched, unsigned timeout_ms)
{
	int rc = 0;
	if (watched->search && atomic_load(&watched->search->done)) {
		rc = take_found(watched, watched->search);
		search_free(watched->search);
		watched->search = NULL;
	}
	if (rc == 0)
		rc = read_all(watched, timeout_ms);
	if (!watched->n_targets)
		forget_gone(watched);
	if (!watched->search && base_now_ns() - watched->searched_ns >= SEARCH_NS)
		search_start(watched);
	return rc;
}

/* ---- the total ---- */

static void add_counts(struct watched_counts *sum, struct watched_counts *more)
{
	for (int i = 0; i < WATCHED_COUNTERS; i++) {
		uint64_t *to = counter_of(sum, &watched_counters[i]), one = *counter_of(more, &watched_counters[i]);
		*to = !watched_counters[i].is_max ? *to + one : one > *to ? one : *to;
	}
}

static void add_rates(struct watched_rates *sum, struct watched_rates *more)
{
	if (!more->known)
		return;
	sum->known = true;
	sum->seconds = more->seconds;
	for (int i = 0; i < WATCHED_COUNTERS; i++)
		if (watched_counters[i].rate_unit)
			*rate_of(sum, &watched_counters[i]) += *rate_of(more, &watched_counters[i]);
}

void watched_total(const struct watched *watched, struct watched_counts *ret_counts, struct watched_rates *ret_rates,
        bool *ret_same_epoch)
{
	struct watched_counts counts = { 0 };
	struct watched_rates rates = { 0 };
	bool any = false, same_epoch = true;
	for (size_t i = 0; i < watched->n; i++) {
		struct watched_mount *mount = &watched->mounts[i];
		if (!mount->counted)
			continue;
		same_epoch = same_epoch && (!any || counts.epoch == mount->counts.epoch);
		if (!any || mount->counts.epoch < counts.epoch)
			counts.epoch = mount->counts.epoch;
		any = true;
		add_counts(&counts, &mount->counts);
		add_rates(&rates, &mount->rates);
	}
	*ret_counts = counts;
	*ret_rates = rates;
	*ret_same_epoch = same_epoch;
}

double watched_hit_rate(const struct watched_rates *rates)
{
	if (!rates->known || rates->opens <= 0)
		return -1;
	/* A READ may be counted before its open, because the server learns of opens through inotify, later. */
	return rates->misses >= rates->opens ? 0 : 1 - rates->misses / rates->opens;
}
