/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics of a mount, as JSON and for Prometheus; fs/stats.h first. */
#include "fs/stats.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

#include "fs/budget.h"
#include "fs/directory_names.h"
#include "fs/history.h"
#include "fs/server.h"
#include "fs/supervise/handover_memory.h"
#include "fs/sink.h"
#include "fs/read_latency.h"
#include "fs/announced_orders.h"
#include "fs/sampler_streams.h"
#include "fs/store_limit.h"
#include "fs/warm_up.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/state.h"
#include "shard/base/log.h"
#include "shard/base/units.h"
#include "shard/remote/client.h"

enum { TEXT_SHOWN_MAX = 512, FIELDS_MAX = 107, STORE_FIELDS = 11, TIER_FIELDS = 13, QUARANTINE_SHOWN_MAX = 4 };

struct fs_stats {
	struct fs_handover_counts before;                       /* what earlier servers counted ... */
	struct fs_handover_rank_counts before_of[FS_VIEWS_MAX]; /* ... and of each rank, if there are several */
	pthread_mutex_t lock;                                   /* guards the counts in the handover memory; a leaf */
};

int fs_stats_new(struct fs_server *server, struct fs_stats **ret_stats)
{
	struct fs_stats *stats = calloc(1, sizeof(*stats));
	if (!stats)
		return -ENOMEM;
	pthread_mutex_init(&stats->lock, NULL);
	if (server->successor)
		fs_handover_load_counts(server->handover, &stats->before);
	for (uint32_t i = 0; server->successor && i < server->n_views; i++) {
		const struct fs_handover_view place = fs_handover_view(server->handover, i);
		fs_handover_load_rank_counts(&place, &stats->before_of[i]);
	}
	*ret_stats = stats;
	return 0;
}

void fs_stats_free(struct fs_stats *stats)
{
	if (!stats)
		return;
	pthread_mutex_destroy(&stats->lock);
	free(stats);
}

/* ---- the numbers ---- */

struct field {
	const char *name;
	const char *help; /* of the metric */
	bool counter;     /* it only grows; write COUNTER */
	uint64_t value;
};
/* True; the compiler counts how often it stands in the tables below. */
enum { FIRST_COUNTER = __COUNTER__ };
#define COUNTER (__COUNTER__ >= 0)

/* The counters of which each of several ranks has its own; all others are the same for all ranks. New names at the end
 * only: a successor finds a value by its place. */
static const char *const rank_counters[] = { "opens", "hits", "misses", "fetched", "jumps", "asked_bytes",
	"cached_bytes" };
enum { RANK_COUNTERS = sizeof(rank_counters) / sizeof(rank_counters[0]) };
_Static_assert((int)RANK_COUNTERS <= (int)FS_HANDOVER_RANK_COUNTS, "a successor gets every counter of a rank");

static int rank_counter(const char *name)
{
	for (int i = 0; i < RANK_COUNTERS; i++)
		if (strcmp(name, rank_counters[i]) == 0)
			return i;
	return -1;
}

/* Adds what earlier servers counted of one of several ranks, and leaves the sums. Under the lock. The memory of a rank
 * that nobody reads stays untouched. */
static void carry_rank(struct fs_server *server, const struct fs_view *view, struct field *fields, size_t n)
{
	const struct fs_handover_view place = fs_handover_view(server->handover, view->number);
	struct fs_handover_rank_counts last = { 0 };
	bool grown = false;
	fs_handover_load_rank_counts(&place, &last);
	for (size_t i = 0; i < n; i++) {
		int at = fields[i].counter ? rank_counter(fields[i].name) : -1;
		if (at < 0)
			continue;
		fields[i].value += server->stats->before_of[view->number].values[at];
		if (fields[i].value > last.values[at]) {
			last.values[at] = fields[i].value;
			grown = true;
		}
	}
	if (grown)
		fs_handover_store_rank_counts(&place, &last);
}

static uint64_t count_of(const struct fs_handover_counts *counts, uint64_t key)
{
	for (uint64_t k = 0; k < counts->n; k++)
		if (counts->counts[k].key == key)
			return counts->counts[k].value;
	return 0;
}

/* Adds what earlier servers counted, and leaves the sums to the next server. @view: NULL: the whole mount; else one of
 * several ranks. */
static void carry(struct fs_server *server, const struct fs_view *view, struct field *fields, size_t n)
{
	struct fs_stats *stats = server->stats;
	struct fs_handover_counts last = { 0 };
	struct fs_handover_counts next = { 0 };
	lock_for_scope(&stats->lock);
	fs_handover_load_counts(server->handover, &last);
	for (size_t i = 0; i < n; i++) {
		if (!fields[i].counter || strcmp(fields[i].name, "restarts") == 0) /* the supervisor counts these */
			continue;
		assert(next.n < FS_HANDOVER_COUNTS_MAX);
		uint64_t key = XXH3_64bits(fields[i].name, strlen(fields[i].name));
		/* Two threads may come here in another order than they counted: a value that was shown is kept. */
		uint64_t value = count_of(&last, key);
		if (!view || rank_counter(fields[i].name) < 0) {
			fields[i].value += count_of(&stats->before, key);
			value = fields[i].value > value ? fields[i].value : value;
		}
		next.counts[next.n++] = (struct fs_handover_count){ .key = key, .value = value };
	}
	fs_handover_store_counts(server->handover, &next);
	if (view)
		carry_rank(server, view, fields, n);
}

/* Leaves what each of several ranks counted. So nothing of a rank falls behind what was shown of the whole mount. */
static void keep_ranks(struct fs_server *server)
{
	for (uint32_t i = 0; server->n_views > 1 && i < server->n_views; i++) {
		const struct fs_view *view = server->views[i];
		struct fs_hit_counting_count opens;
		struct prefetch_stream_stats stream;
		fs_watch_count(server->watch, view, &opens);
		fs_sink_stats(server->sink, view, &stream);
		struct field fields[] = {
			{ "opens", NULL, true, opens.opens },
			{ "hits", NULL, true, opens.hits },
			{ "misses", NULL, true, opens.misses },
			{ "fetched", NULL, true, stream.fetched },
			{ "jumps", NULL, true, stream.jumps },
			{ "asked_bytes", NULL, true, opens.bytes },
			{ "cached_bytes", NULL, true, opens.cached_bytes },
		};
		_Static_assert(sizeof(fields) / sizeof(fields[0]) == RANK_COUNTERS, "every counter of a rank");
		lock_for_scope(&server->stats->lock);
		carry_rank(server, view, fields, RANK_COUNTERS);
	}
}

/* Of the client of a store, if the dataset lies in one. */
static size_t collect_store(struct fs_server *server, struct field fields[])
{
	struct remote_stats s;
	if (!prefetch_remote_stats(server->prefetch, &s))
		return 0;
	const struct field all[] = {
		{ "store_requests", "Requests to the store", COUNTER, s.requests },
		{ "store_retries", "Requests that took the place of one that failed", COUNTER, s.retries },
		{ "store_hedged", "Requests beside a slow one", COUNTER, s.hedged },
		{ "store_throttled", "Answers by which the store asked for fewer requests (429, 503)", COUNTER,
		        s.throttled },
		{ "store_bytes", "Bytes that the store sent", COUNTER, s.bytes },
		{ "store_wasted_bytes", "Bytes that it sent twice", COUNTER, s.wasted_bytes },
		{ "store_first_byte_p50_ns", "Median time to the first byte of an answer", false, s.first_byte_p50_ns },
		{ "store_first_byte_p99_ns", "99th percentile of the time to the first byte", false,
		        s.first_byte_p99_ns },
		{ "store_limit", "Requests that may run at the same time", false, s.limit },
		{ "store_running", "Requests that run", false, s.running },
		{ "store_away_ns", "Time since which the store has not answered; 0: it answers", false, s.away_ns },
	};
	_Static_assert(sizeof(all) / sizeof(all[0]) == STORE_FIELDS, "fields fit");
	memcpy(fields, all, sizeof(all));
	return STORE_FIELDS;
}

/* Of the tier, if the options name one. */
static size_t collect_tier(struct fs_server *server, struct field fields[])
{
	struct prefetch_tier_stats s = { .off = server->tier_failed };
	if (!prefetch_tier_stats(server->prefetch, &s) && !s.off)
		return 0;
	const struct field all[] = {
		{ "tier_hits", "Blocks that the tier had", COUNTER, s.blocks.hits },
		{ "tier_bytes", "Bytes of these blocks", COUNTER, s.blocks.hit_bytes },
		{ "tier_waited", "Those of them that another process fetched meanwhile", COUNTER, s.waited },
		{ "tier_misses", "Blocks that the tier did not have", COUNTER, s.blocks.misses },
		{ "tier_bad", "Blocks and entries of the tier that were damaged", COUNTER, s.blocks.bad },
		{ "tier_stored_bytes", "Bytes stored in the tier", COUNTER, s.blocks.stored_bytes },
		{ "tier_moved_bytes", "Bytes of these that were there, for an earlier use", COUNTER,
		        s.blocks.moved_bytes },
		{ "tier_refused", "Blocks that found no room in the tier", COUNTER, s.blocks.refused + s.skipped },
		{ "tier_told_epochs",
		        "Epochs whose uses the tier is told, the current one included; 0: it keeps what it has", false,
		        server->tier_uses ? cache_tier_uses_epochs(server->tier_uses) : 0 },
		{ "tier_used_bytes", "Bytes in the tier, of all datasets", false, s.fill.used_bytes },
		{ "tier_dataset_bytes", "Bytes in the tier, of this dataset", false, s.fill.dataset_bytes },
		{ "tier_room_bytes", "Bytes that the tier can hold", false, s.fill.room_bytes },
		{ "tier_off", "The error number that switched the tier off; 0: it is on", false, (uint64_t)s.off },
	};
	_Static_assert(sizeof(all) / sizeof(all[0]) == TIER_FIELDS, "fields fit");
	memcpy(fields, all, sizeof(all));
	return TIER_FIELDS;
}

/* What the recognise threads of a view have left to do; NULL: those of all views. */
struct left_to_do {
	uint64_t queued, behind;
	bool begun;
	struct fs_announced_orders_counts announced;
};

static void look_at_samplers(struct fs_server *server, const struct fs_view *view, struct left_to_do *ret_left)
{
	*ret_left = (struct left_to_do){ .begun = true };
	for (uint32_t i = 0; i < server->n_views; i++) {
		uint64_t queued, behind;
		struct fs_announced_orders_counts announced;
		if (view && view->number != i)
			continue;
		fs_sampler_streams_queue(server->samplers[i], &queued, &behind);
		fs_sampler_streams_announced(server->samplers[i], &announced);
		ret_left->queued += queued;
		ret_left->behind += behind;
		ret_left->begun &= fs_sampler_streams_begun(server->samplers[i]);
		ret_left->announced.explained += announced.explained;
		ret_left->announced.dropped += announced.dropped;
		ret_left->announced.memory_bytes += announced.memory_bytes;
		ret_left->announced.waits |= announced.waits;
	}
}

/* What numbers are about. */
struct scope {
	struct fs_view *only; /* one of several ranks; NULL: the whole mount */
	struct fs_view *any;  /* a view whose options are those of all that is meant */
};

/* @view: NULL: the whole mount. */
static struct scope scope_of(const struct fs_server *server, struct fs_view *view)
{
	return (struct scope){ .only = server->n_views > 1 ? view : NULL, .any = view ? view : server->views[0] };
}

/* What is left to do is looked up before what was done: with no open and no announced list in a queue, and then an idle
 * engine, the other counters are final until the trainer goes on. */
static size_t collect(struct fs_server *server, struct scope scope, struct field fields[FIELDS_MAX])
{
	const struct fs_counters *c = &server->counters;
	struct prefetch_stats engine = { 0 };
	struct fs_view_progress progress;
	struct fs_hit_counting_count opens;
	struct left_to_do left;
	const struct fs_view *view = scope.any;
	/* First, so that the queue and the engine know of all opens until now. */
	fs_watch_count(server->watch, scope.only, &opens);
	look_at_samplers(server, scope.only, &left);
	bool idle = left.begun && !left.announced.waits && prefetch_idle(server->prefetch);
	prefetch_stats_get(server->prefetch, &engine);
	fs_server_progress(server, scope.only, &progress);
	struct prefetch_stream_stats stream;
	fs_sink_stats(server->sink, scope.only, &stream);
	struct fs_read_latency_epoch waits;
	fs_read_latency_get(server->read_latency, progress.epoch, &waits);
	const struct field all[] = {
		{ "rank", "Rank of this view", false, view->options.rank },
		{ "world", "Ranks of the job", false, view->options.world },
		{ "epoch", "Current epoch", false, progress.epoch },
		{ "position", "Turns of this rank up to the furthest one opened in this epoch", false,
		        progress.next_turn },
		{ "turns", "Samples of this rank in this epoch", false, progress.turns },
		{ "opened", "Samples of this rank opened in this epoch", false, progress.n_opened },
		{ "opens", "Files opened by watched names", COUNTER, opens.opens },
		{ "asked_bytes", "Bytes of the opened files", COUNTER, opens.bytes },
		{ "cached_bytes", "Bytes of these that the page cache gave: no read of them reached the server",
		        COUNTER, opens.cached_bytes },
		{ "hits", "Opens served by the page cache alone", COUNTER, opens.hits },
		{ "misses", "Opens of which a read reached the server", COUNTER, opens.misses },
		{ "reads", "Read requests that reached the server", COUNTER, fs_counted(&c->reads) },
		{ "unwatched_reads", "Read requests for no open of a watched name", COUNTER,
		        fs_counted(&c->unwatched_reads) },
		{ "read_reply_bytes", "Bytes answered to read requests", COUNTER, fs_counted(&c->read_reply_bytes) },
		{ "errors", "Read requests answered with an error", COUNTER, fs_counted(&c->errors) },
		{ "wait_p50_ns", "Median wait of a read for its block", false, engine.wait_p50_ns },
		{ "wait_p99_ns", "99th percentile of the wait of a read for its block", false, engine.wait_p99_ns },
		{ "wait_max_ns", "Longest wait of a read for its block", false, engine.wait_max_ns },
		{ "waited_ns", "Time that reads waited in all, readers side by side each for itself", COUNTER,
		        fs_counted(&c->waited_ns) },
		{ "epoch_reads", "Reads of this epoch that had to wait", false, waits.n },
		{ "epoch_waited_ns", "Time that reads of this epoch waited in all", false, waits.sum_ns },
		{ "epoch_wait_p50_ns", "Median wait of these reads", false, waits.p50_ns },
		{ "epoch_wait_p99_ns", "99th percentile of the wait of these reads", false, waits.p99_ns },
		{ "epoch_wait_max_ns", "Longest wait of these reads", false, waits.max_ns },
		{ "read_bytes", "Bytes read from the shards", COUNTER, engine.read_bytes },
		{ "delivered_bytes", "Verified bytes delivered", COUNTER,
		        engine.delivered_bytes + engine.stored_bytes },
		{ "wasted_bytes", "Bytes read ahead that nobody used", COUNTER, engine.wasted_bytes },
		{ "window_bytes", "Bytes read ahead and not yet used", false, stream.window_bytes },
		{ "window_limit_bytes", "Bytes that may be read ahead", false, stream.window_limit },
		{ "fetched", "Samples read ahead", COUNTER, stream.fetched },
		{ "following", "1 while the order is followed and read ahead", false, stream.following },
		{ "jumps", "Times the trainer was found at another place of the order", COUNTER, stream.jumps },
		{ "stored_bytes", "Bytes put into the page cache ahead of their reader", COUNTER, engine.stored_bytes },
		{ "evicted", "Samples dropped to make room", COUNTER, engine.evicted },
		{ "evicted_blocks", "Blocks of large and common files dropped to make room", COUNTER,
		        engine.evicted_blocks },
		{ "lost", "Samples that the kernel took back", COUNTER, engine.lost },
		{ "refetches", "Times that what comes next was read again because the kernel had taken much back",
		        COUNTER, engine.refetches },
		{ "regained", "Blocks that the kernel had taken back and that were read again before their use",
		        COUNTER, engine.regained },
		{ "warm_ups", "Times that the dataset was read in storage order, because no order was known", COUNTER,
		        engine.warm_ups },
		{ "warm_up_bytes", "Bytes read so", COUNTER, engine.warm_up_bytes },
		{ "announced_opens", "Opens that an announced list explains", COUNTER, left.announced.explained },
		{ "orders_dropped", "Announced lists that the opens did not follow", COUNTER, left.announced.dropped },
		{ "order_memory_bytes", "Memory of announced lists", false, left.announced.memory_bytes },
		{ "device_rate", "Bytes per second that the device was measured to give", false, engine.device_rate },
		{ "resident_bytes", "Bytes held in memory", false, engine.buffer_bytes + engine.resident_bytes },
		{ "depth", "Reads in flight that the engine allows", false, engine.depth },
		{ "inflight", "Reads in flight", false, engine.inflight },
		{ "idle", "1 while nothing is left to read ahead until the trainer goes on", false, idle },
		{ "recognise_queue", "Opens that the recogniser has not finished to examine", false, left.queued },
		{ "recognise_behind", "Opens that it has not begun to examine", false, left.behind },
		{ "shared", "1 while shards are read through the page cache, shared with other mounts", false,
		        engine.shared },
		{ "bad_blocks", "Bad blocks: their checksum did not match, read twice", COUNTER, engine.bad_blocks },
		{ "mended_blocks", "Blocks whose checksum matched when read a second time", COUNTER,
		        engine.mended_blocks },
		{ "io_errors", "Reads of shards that failed, each once, also when a second try succeeded", COUNTER,
		        engine.io_errors },
		{ "listings", "Directories opened for listing", COUNTER, fs_counted(&c->listings) },
		{ "entries", "Names listed", COUNTER, fs_counted(&c->entries) },
		{ "lookups", "Lookups answered", COUNTER, fs_counted(&c->lookups) },
		{ "hinted", "Files read as soon as they were looked up", COUNTER, engine.hinted },
		{ "worker_reads", "Reads of shards by the threads that answer the kernel", COUNTER,
		        engine.caller_reads },
		{ "getattrs", "Attribute requests answered", COUNTER, fs_counted(&c->getattrs) },
		{ "fill_class", "Files of other ranks listed in classes without one of this rank", COUNTER,
		        fs_counted(&c->fill_class) },
		{ "watched_dirs", "Directories watched for opens", false, fs_watch_dirs(server->watch) },
		{ "watch_overflows", "Times the queue of opens overflowed", COUNTER, fs_counted(&c->watch_overflows) },
		{ "memory_bytes", "Memory budget", false, fs_budget_bytes(server->budget) },
		{ "names_bytes", "Bytes of the kernel's inodes and names of directories that were listed whole", false,
		        fs_directory_names_bytes(server->names) },
		{ "samples", "Samples dealt in an epoch, all ranks", false, shard_view_samples(view->order) },
		{ "quarantined", "Samples of the quarantine list that on_bad leaves out or replaces", false,
		        shard_view_n_bad(view->order) },
		{ "files", "Files of the dataset", false, server->info->n_files },
		{ "content_bytes", "Bytes of all files of the dataset", false, server->info->content_bytes },
		{ "restarts", "Times that a new server took the place of one", COUNTER, server->channel->restarts },
		{ "uptime_s", "Seconds since the mount", false, (base_now_ns() - server->started_ns) / 1000000000 },
	};
	size_t n = sizeof(all) / sizeof(all[0]);
	_Static_assert(__COUNTER__ - FIRST_COUNTER - 1 <= FS_HANDOVER_COUNTS_MAX, "a successor gets every counter");
	_Static_assert(sizeof(all) / sizeof(all[0]) + STORE_FIELDS + TIER_FIELDS <= FIELDS_MAX, "fields fit");
	memcpy(fields, all, sizeof(all));
	n += collect_store(server, fields + n);
	n += collect_tier(server, fields + n);
	carry(server, scope.only, fields, n);
	if (!scope.only)
		keep_ranks(server);
	return n;
}

void fs_stats_keep(struct fs_server *server)
{
	struct field fields[FIELDS_MAX];
	collect(server, scope_of(server, NULL), fields);
}

static void put(struct fs_history_reading *reading, const char *name, uint64_t value)
{
	for (int i = 1; i < FS_HISTORY_FIELDS; i++)
		if (strcmp(fs_history_names[i], name) == 0)
			reading->values[i] = value;
}

void fs_stats_reading(struct fs_server *server, struct fs_history_reading *ret_reading)
{
	struct fs_view *view = server->views[0];
	struct field fields[FIELDS_MAX];
	uint64_t epoch, turn, turns;
	size_t n = collect(server, scope_of(server, NULL), fields);
	for (size_t i = 0; i < n; i++)
		put(ret_reading, fields[i].name, fields[i].value);
	if (!view->all || !fs_sampler_streams_progress(server->samplers[view->number], &epoch, &turn, &turns))
		return;
	put(ret_reading, "epoch", epoch);
	put(ret_reading, "position", turn);
	put(ret_reading, "turns", turns);
}

/* JSON must be UTF-8, but paths may hold any bytes. */
static json_t *text_value(const char *text)
{
	char quoted[TEXT_SHOWN_MAX];
	return json_string(base_err_quote(text, quoted, sizeof(quoted)));
}

/* JSON readers may take integers as signed. */
static json_t *number(uint64_t value)
{
	return value <= INT64_MAX ? json_integer((json_int_t)value) : json_sprintf("%" PRIu64, value);
}

static json_t *names(struct fs_server *server, const struct fs_view *view)
{
	char identity[33];
	char view_identity[33];
	const struct shard_view_options *o = &view->options;
	base_format_hex(server->info->identity, 16, identity);
	shard_view_identity(view->order, view_identity);
	json_t *object = json_object();
	json_object_set_new(object, "version", json_string(DDPFS_VERSION));
	json_object_set_new(object, "pid", json_integer(server->channel->supervisor));
	json_object_set_new(object, "server_pid", json_integer(getpid()));
	json_object_set_new(object, "control", text_value(server->channel->control_path));
	json_object_set_new(object, "mountpoint", text_value(server->options.mountpoint));
	json_object_set_new(object, "dataset", text_value(shard_index_dataset(server->index)));
	if (shard_index_separate(server->index))
		json_object_set_new(object, "index", text_value(shard_index_separate(server->index)));
	struct remote_stats store;
	if (prefetch_remote_stats(server->prefetch, &store) && store.error[0])
		json_object_set_new(object, "store_error", text_value(store.error));
	const char *limit = fs_store_limit_says(fs_store_limit_now(server->store_limits));
	if (limit)
		json_object_set_new(object, "limited_by", json_string(limit));
	json_object_set_new(object, "identity", json_string(identity));
	json_object_set_new(object, "view_identity", json_string(view_identity));
	json_object_set_new(object, "layout", json_string(view->layout == FS_LAYOUT_FLAT ? "flat" : "tree"));
	json_object_set_new(object, "view", json_string(view->all ? "all" : "rank"));
	json_object_set_new(object, "order", json_string(shard_order_mode_name(o->order)));
	json_object_set_new(object, "deal", json_string(shard_deal_mode_name(o->deal)));
	json_object_set_new(object, "tail", json_string(shard_tail_name(o->tail)));
	json_object_set_new(object, "seed", number(o->seed));
	json_object_set_new(object, "groups", number(o->groups > 1 ? o->groups : 1));
	json_object_set_new(object, "redeal", number(o->redeal));
	json_object_set_new(object, "on_bad", json_string(shard_on_bad_name(o->on_bad)));
	json_object_set_new(object, "subdir", text_value(o->subdir ? o->subdir : ""));
	return object;
}

static json_t *sample_path(struct fs_server *server, uint32_t sample)
{
	char path[SHARD_PATH_MAX + 1];
	uint32_t file;
	if (shard_index_sample_first(server->index, sample, &file) < 0 ||
	        shard_index_file_path(server->index, file, path, sizeof(path)) < 0 ||
	        shard_index_check(server->index) < 0)
		return json_null();
	return text_value(path);
}

/* The first samples that on_bad leaves out or replaces, and what replaces them. */
static json_t *quarantine(struct fs_server *server, const struct fs_view *view)
{
	json_t *list = json_array();
	const struct shard_quarantine *q = view->options.quarantine;
	for (uint32_t i = 0; q && i < q->n && json_array_size(list) < QUARANTINE_SHOWN_MAX; i++) {
		uint32_t sample = q->samples[i], instead;
		if (sample < view->sample0 || sample >= view->sample_end)
			continue;
		json_t *entry = json_object();
		json_object_set_new(entry, "path", sample_path(server, sample));
		if (shard_view_instead(view->order, sample, &instead) == 0)
			json_object_set_new(entry, "instead", sample_path(server, instead));
		json_array_append_new(list, entry);
	}
	return list;
}

/* The waits of the latest epochs, oldest first. */
static json_t *epochs(struct fs_server *server)
{
	struct fs_read_latency_epoch all[FS_READ_LATENCY_EPOCHS];
	size_t n = fs_read_latency_all(server->read_latency, all);
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(
		        list, json_pack("{sI sI sI sI sI sI}", "epoch", (json_int_t)all[i].epoch, "reads",
		                      (json_int_t)all[i].n, "waited_ns", (json_int_t)all[i].sum_ns, "wait_p50_ns",
		                      (json_int_t)all[i].p50_ns, "wait_p99_ns", (json_int_t)all[i].p99_ns,
		                      "wait_max_ns", (json_int_t)all[i].max_ns));
	return list;
}

/* For mounts whose log goes nowhere, as in a container without syslog. */
static json_t *problems(void)
{
	struct base_log_line lines[BASE_LOG_KEPT];
	unsigned n = base_log_kept(lines);
	json_t *list = json_array();
	for (unsigned i = 0; i < n; i++) {
		json_t *line = json_object();
		json_object_set_new(line, "time_s", json_integer(lines[i].time_s));
		json_object_set_new(line, "text", text_value(lines[i].text));
		json_array_append_new(list, line);
	}
	return list;
}

static json_t *stats_object(struct fs_server *server, struct scope scope)
{
	struct field fields[FIELDS_MAX];
	struct prefetch_stats engine = { 0 };
	struct remote_stats store;
	struct fs_view_progress progress;
	size_t n = collect(server, scope, fields);
	prefetch_stats_get(server->prefetch, &engine);
	fs_server_progress(server, scope.only, &progress);
	json_t *object = names(server, scope.any);
	json_object_set_new(object, "advance", json_string(progress.automatic ? "auto" : "off"));
	json_object_set_new(object, "io",
	        json_string(prefetch_remote_stats(server->prefetch, &store) ? "http"
	                    : engine.uring                                  ? "io_uring"
	                                                                    : "pread"));
	json_object_set_new(object, "direct", json_boolean(engine.direct));
	for (size_t i = 0; i < n; i++)
		json_object_set_new(object, fields[i].name, json_integer((json_int_t)fields[i].value));
	if (server->options.n_ranks > 0)
		json_object_set_new(object, "ranks", json_integer(scope.only ? 1 : server->n_views));
	char why[FS_BUDGET_WHY_BYTES];
	fs_budget_why(server->budget, why, sizeof(why));
	json_object_set_new(object, "memory_why", json_string(why));
	if (scope.only || server->n_views == 1) /* samplers are recognised in each rank by itself */
		fs_sampler_streams_stats(server, scope.any, object);
	const char *warm_up = fs_warm_up_says(server->prefetch);
	if (warm_up)
		json_object_set_new(object, "warm_up", json_string(warm_up));
	json_object_set_new(object, "epochs", epochs(server));
	json_object_set_new(object, "quarantine", quarantine(server, scope.any));
	json_object_set_new(object, "problems", problems());
	return object;
}

static char *dump(json_t *given)
{
	cleanup_json json_t *object = given;
	return object ? json_dumps(object, JSON_COMPACT) : NULL;
}

char *fs_stats_json(struct fs_server *server, struct fs_view *view)
{
	return dump(stats_object(server, scope_of(server, view)));
}

char *fs_info_json(struct fs_server *server, struct fs_view *view)
{
	struct fs_view_progress progress;
	struct scope scope = scope_of(server, view);
	fs_server_progress(server, scope.only, &progress);
	json_t *object = names(server, scope.any);
	json_object_set_new(object, "rank", json_integer(scope.any->options.rank));
	if (server->options.n_ranks > 0)
		json_object_set_new(object, "ranks", json_integer(scope.only ? 1 : server->n_views));
	json_object_set_new(object, "world", json_integer(scope.any->options.world));
	json_object_set_new(object, "dev", json_integer((json_int_t)server->dev));
	json_object_set_new(object, "advance", json_string(progress.automatic ? "auto" : "off"));
	json_object_set_new(object, "memory", fs_budget_json(server->budget));
	return dump(object);
}

/* ---- the texts ---- */

size_t fs_stats_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size)
{
	cleanup_json json_t *object = stats_object(server, scope_of(server, view));
	size_t len = object ? json_dumpb(object, buf, size - 1, JSON_INDENT(1)) : 0;
	return len < size ? len : 0;
}

/* A label's value: backslash, quote and newline escaped (base_err_quote leaves no newline). */
static void label(const char *text, char *out, size_t size)
{
	char quoted[TEXT_SHOWN_MAX];
	size_t n = 0;
	for (const char *s = base_err_quote(text, quoted, sizeof(quoted)); *s && n + 3 < size; s++) {
		if (*s == '"' || *s == '\\')
			out[n++] = '\\';
		out[n++] = *s;
	}
	out[n] = '\0';
}

/* Whether the metrics of a rank have this one. Those of the server stand in the file of one rank only, so that sums
 * over ranks are right: the first one that has a reader, because a pod sees its own rank only. */
static bool has_metric(const struct fs_server *server, const struct fs_view *view, const char *name)
{
	static const char *const gauges[] = { "rank", "world", "epoch", "position", "turns", "opened", "window_bytes",
		"window_limit_bytes", "following", "recognise_queue", "recognise_behind" };
	bool own = view == fs_server_first_reader(server) || rank_counter(name) >= 0;
	for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
		own |= strcmp(name, gauges[i]) == 0;
	return own;
}

size_t fs_metrics_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size)
{
	struct field fields[FIELDS_MAX];
	char mountpoint[2 * 128];
	size_t n_fields = collect(server, scope_of(server, view), fields);
	size_t n = 0;
	label(server->options.mountpoint, mountpoint, sizeof(mountpoint));
	for (size_t i = 0; i < n_fields; i++) {
		const char *suffix = fields[i].counter ? "_total" : "";
		if (!has_metric(server, view, fields[i].name))
			continue;
		int len = snprintf(buf + n, size - n,
		        "# HELP ddpfs_%s%s %s.\n# TYPE ddpfs_%s%s %s\nddpfs_%s%s{mountpoint=\"%s\",rank=\"%u\"} "
		        "%" PRIu64 "\n",
		        fields[i].name, suffix, fields[i].help, fields[i].name, suffix,
		        fields[i].counter ? "counter" : "gauge", fields[i].name, suffix, mountpoint, view->options.rank,
		        fields[i].value);
		if (len < 0 || (size_t)len >= size - n)
			break; /* whole metrics only */
		n += (size_t)len;
	}
	return n;
}

size_t fs_state_text(struct fs_server *server, struct fs_view *view, char *buf, size_t size)
{
	uint64_t epoch;
	uint64_t steps;
	(void)server;
	fs_view_trained(view, &epoch, &steps);
	int rc = shard_state_format(view->order, epoch, steps, buf, size);
	if (rc < 0)
		snprintf(buf, size, "{\"error\":\"%s\"}", base_err_str(rc));
	return strlen(buf);
}
