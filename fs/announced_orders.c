/* SPDX-License-Identifier: Apache-2.0 */
/* The table of announced lists, their streams, and which list an open belongs to; fs/announced_orders.h first. */
#include "fs/announced_orders.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/budget.h"
#include "fs/server.h"
#include "fs/sink.h"
#include "shard/base/cleanup.h"
#include "shard/base/log.h"

enum {
	LISTS_MAX = FS_HANDOVER_LISTS_MAX,
	PARTS_MAX = 32,     /* parts of lists, beside the last part of each: of 33 readers of one list */
	BLOCKS_SHARED = 64, /* blocks of the chunks of all lists together, about */
	REST_MS = 1000,     /* a list that was read to its end ends when nothing was appended for so long */
	OTHERS_MAX = 64,    /* opens after the end of the last list, from which on the mount's order is not known */
};
_Static_assert(FS_GUEST_LISTS < FS_ANNOUNCED_LISTS, "guests leave lists to others");
_Static_assert(LISTS_MAX >= 2 * FS_ANNOUNCED_LISTS + PARTS_MAX, "a list, the one that replaces it, and all parts");
static const uint64_t MEMORY_MIN = 64 << 20; /* bytes that orders may always take */

/* A list of the table, or a part of one, and what is known of it. */
struct held {
	struct fs_announced_list *list; /* NULL: this one is free */
	bool writing;                   /* main writes into it */
	bool shown;                     /* it has entries */
	bool ending;                    /* it was replaced or forgotten */
	bool closed;                    /* another part of the list comes behind it, which grows */
	uint64_t shown_ns;              /* when the latest entries came */
	/* The recognise thread: */
	struct shard_view *order;
	struct fs_sink_stream *stream; /* NULL: not begun */
	bool failed, told;             /* it cannot be read ahead; it was confirmed */
};

struct fs_announced_orders {
	struct fs_server *server;
	struct fs_view *view;
	void (*wake)(void *arg);
	void *arg;
	struct fs_order_memory *memory;
	uint64_t cap_bytes; /* main's: of the request that is answered */

	pthread_mutex_t lock; /* guards the fields of the table, but those of the recognise thread */
	struct held table[LISTS_MAX];
	uint32_t next_id;
	uint64_t explained, dropped;
	bool ended;                 /* the last list was read to its end */
	uint64_t others;            /* opens since then */
	uint64_t changes, taken_in; /* of the lists by main; those that the recognise thread has acted on */
	_Atomic unsigned live;
};

uint64_t fs_announced_orders_limit(struct fs_announced_orders *orders)
{
	uint64_t part = fs_budget_bytes(orders->server->budget) / 4;
	part = part > MEMORY_MIN ? part : MEMORY_MIN;
	return part < orders->cap_bytes ? part : orders->cap_bytes;
}

void fs_announced_orders_cap(struct fs_announced_orders *orders, uint64_t cap_bytes)
{
	orders->cap_bytes = cap_bytes;
}

int fs_announced_orders_new(struct fs_server *server, struct fs_view *view, void (*wake)(void *arg), void *arg,
        struct fs_announced_orders **ret_orders)
{
	struct fs_announced_orders *orders = calloc(1, sizeof(*orders));
	if (!orders)
		return -ENOMEM;
	int rc = fs_order_memory_new(server->handover, &orders->memory);
	if (rc < 0) {
		free(orders);
		return rc;
	}
	orders->server = server;
	orders->view = view;
	orders->wake = wake;
	orders->arg = arg;
	orders->next_id = 1;
	orders->cap_bytes = UINT64_MAX;
	pthread_mutex_init(&orders->lock, NULL);
	*ret_orders = orders;
	return 0;
}

void fs_announced_orders_free(struct fs_announced_orders *orders)
{
	if (!orders)
		return;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		if (orders->table[i].list)
			fs_announced_list_leave(orders->table[i].list);
	}
	fs_order_memory_free(orders->memory);
	pthread_mutex_destroy(&orders->lock);
	free(orders);
}

struct fs_order_memory *fs_announced_orders_memory(struct fs_announced_orders *orders)
{
	return orders->memory;
}

unsigned fs_announced_orders_live(struct fs_announced_orders *orders)
{
	return atomic_load(&orders->live);
}

/* ---- main ---- */

/* Under the lock. */
static bool counts(const struct held *held)
{
	return held->list && held->shown && !held->ending;
}

/* Finds the list that has this name and counts; of several parts the one that grows. NULL: there is none. Under the
 * lock. */
static struct held *find(struct fs_announced_orders *orders, const char *name)
{
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		if (counts(held) && !held->closed && strcmp(fs_announced_list_name(held->list), name) == 0)
			return held;
	}
	return NULL;
}

/* Ends the list that has this name, with all parts. Returns false if there is none. Under the lock. */
static bool end_named(struct fs_announced_orders *orders, const char *name)
{
	bool found = false;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		if (!counts(held) || strcmp(fs_announced_list_name(held->list), name) != 0)
			continue;
		held->ending = found = true;
	}
	return found;
}

/* Returns whether there are other parts of a list. Under the lock. */
static bool has_parts(const struct fs_announced_orders *orders, const struct held *held)
{
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		const struct held *other = &orders->table[i];
		if (other != held && counts(other) &&
		        fs_announced_list_id(other->list) == fs_announced_list_id(held->list))
			return true;
	}
	return false;
}

/* Of the parts of a list the last one grows, and the others are closed. Under the lock. */
static void close_parts(struct fs_announced_orders *orders)
{
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		struct fs_announced_state state, others;
		if (!counts(held))
			continue;
		fs_announced_list_state(held->list, &state);
		held->closed = false;
		for (unsigned k = 0; k < LISTS_MAX && !held->closed; k++) {
			struct held *other = &orders->table[k];
			if (!counts(other) || fs_announced_list_id(other->list) != fs_announced_list_id(held->list))
				continue;
			fs_announced_list_state(other->list, &others);
			held->closed = others.end > state.end;
		}
	}
}

/* Finds a free place in the table. NULL: there is none. Counts the lists that are not ending, and the parts beside the
 * last one of each. Under the lock. */
static struct held *free_place(struct fs_announced_orders *orders, unsigned *ret_lists, unsigned *ret_parts)
{
	struct held *empty = NULL;
	*ret_lists = *ret_parts = 0;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		*ret_lists += held->list && !held->ending && !held->closed;
		*ret_parts += held->list && held->closed;
		if (!held->list && !empty)
			empty = held;
	}
	return empty;
}

/* The chunks of few lists may be long: the longer they are, the farther the engine sees. */
static uint32_t chunk_blocks(const struct fs_announced_orders *orders, unsigned lists)
{
	uint64_t blocks = (uint64_t)orders->server->info->n_samples / 2 / FS_ORDER_BLOCK + 1;
	uint64_t most = BLOCKS_SHARED / FS_ANNOUNCED_CHUNKS / lists + 1;
	blocks = blocks < most ? blocks : most;
	return (uint32_t)(blocks < FS_ANNOUNCED_CHUNK_BLOCKS ? blocks : FS_ANNOUNCED_CHUNK_BLOCKS);
}

static int new_list(struct fs_announced_orders *orders, const char *name, uint64_t buffer, struct held **ret_held)
{
	unsigned lists, parts;
	struct held *empty = free_place(orders, &lists, &parts);
	if (!empty || (lists >= FS_ANNOUNCED_LISTS && !find(orders, name)))
		return -E2BIG;
	struct fs_announced_list_options options = {
		.memory = orders->memory,
		.name = name,
		.id = orders->next_id,
		.chunk_blocks = chunk_blocks(orders, lists + 1),
		.n_samples = orders->server->info->n_samples,
		.buffer = buffer,
	};
	*empty = (struct held){ 0 };
	int rc = fs_announced_list_new(&options, &empty->list);
	if (rc < 0)
		return rc;
	orders->next_id++;
	*ret_held = empty;
	return 0;
}

int fs_announced_orders_begin(struct fs_announced_orders *orders, const char *name, bool append, uint64_t buffer,
        struct fs_announced_piece *ret_piece)
{
	fs_order_memory_limit(orders->memory, fs_announced_orders_limit(orders));
	lock_for_scope(&orders->lock);
	struct held *held = append ? find(orders, name) : NULL;
	int rc = held ? 0 : new_list(orders, name, buffer, &held);
	if (rc == 0) {
		held->writing = true;
		fs_announced_piece_begin(held->list, ret_piece);
	}
	return rc;
}

static struct held *held_of(struct fs_announced_orders *orders, const struct fs_announced_list *list)
{
	struct held *held = orders->table;
	while (held->list != list)
		held++;
	return held;
}

static int show(struct fs_announced_orders *orders, struct fs_announced_piece *piece, uint64_t *ret_length)
{
	struct fs_announced_state state;
	struct fs_announced_list *list = piece->list;
	lock_for_scope(&orders->lock);
	struct held *held = held_of(orders, list);
	int rc = fs_announced_list_commit(piece);
	if (rc == 0) {
		if (!held->shown)
			end_named(orders, fs_announced_list_name(list));
		held->shown = true;
		held->writing = false;
		held->shown_ns = base_now_ns();
		orders->ended = false;
		orders->changes++;
		fs_announced_list_state(list, &state);
		*ret_length = state.end - state.cursor;
		fs_announced_list_save(list, (uint32_t)(held - orders->table));
	}
	return rc;
}

int fs_announced_orders_show(struct fs_announced_orders *orders, struct fs_announced_piece *piece, uint64_t *ret_length)
{
	int rc = show(orders, piece, ret_length);
	if (rc == 0)
		orders->wake(orders->arg);
	return rc;
}

/* Returns the list if nobody has seen it; the caller frees it. */
static struct fs_announced_list *undo(struct fs_announced_orders *orders, struct fs_announced_piece *piece)
{
	lock_for_scope(&orders->lock);
	struct held *held = held_of(orders, piece->list);
	struct fs_announced_list *unseen = held->shown ? NULL : held->list;
	fs_announced_piece_undo(piece);
	held->writing = false;
	if (unseen)
		*held = (struct held){ 0 };
	return unseen;
}

void fs_announced_orders_undo(struct fs_announced_orders *orders, struct fs_announced_piece *piece)
{
	fs_announced_list_free(undo(orders, piece));
}

static bool forget(struct fs_announced_orders *orders, const char *name)
{
	lock_for_scope(&orders->lock);
	bool found = end_named(orders, name);
	if (found) {
		orders->ended = false;
		orders->changes++;
	}
	return found;
}

bool fs_announced_orders_forget(struct fs_announced_orders *orders, const char *name)
{
	bool found = forget(orders, name);
	if (found)
		orders->wake(orders->arg);
	return found;
}

/* ---- guests ---- */

/* Whether the list is this guest's; NULL: any guest's. */
static bool is_guest(const char *name, const char *owner)
{
	return owner ? strncmp(name, owner, strlen(owner)) == 0 : strchr(name, ' ') != NULL;
}

uint64_t fs_announced_orders_bytes(struct fs_announced_orders *orders, const char *owner)
{
	uint64_t bytes = 0;
	lock_for_scope(&orders->lock);
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		const struct fs_announced_list *list = orders->table[i].list;
		if (list && is_guest(fs_announced_list_name(list), owner))
			bytes += fs_announced_list_bytes(list);
	}
	return bytes;
}

/* Places of the table that guests have, and lists of those that are not ending. Under the lock. */
static void count_guests(
        const struct fs_announced_orders *orders, const char *owner, unsigned *ret_places, unsigned *ret_lists)
{
	*ret_places = *ret_lists = 0;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		const struct held *held = &orders->table[i];
		if (!held->list || !is_guest(fs_announced_list_name(held->list), owner))
			continue;
		++*ret_places;
		*ret_lists += !held->ending && !held->closed;
	}
}

bool fs_announced_orders_guest_may(struct fs_announced_orders *orders, const char *owner, const char *name)
{
	unsigned places, all_places, lists, all_lists;
	lock_for_scope(&orders->lock);
	count_guests(orders, owner, &places, &lists);
	count_guests(orders, NULL, &all_places, &all_lists);
	/* A list that was replaced keeps its place until the recognise thread has ended it. */
	if (places >= 2 * FS_GUEST_LISTS_USER || all_places >= 2 * FS_GUEST_LISTS)
		return false;
	return find(orders, name) || (lists < FS_GUEST_LISTS_USER && all_lists < FS_GUEST_LISTS);
}

/* ---- opens ---- */

/* An open, and the list that it fits best. */
struct fitting {
	struct held *held; /* NULL: none */
	enum fs_announced_fit fit;
	uint64_t place, apart;
};

static void fit_one(struct held *held, uint32_t sample, struct fitting *best)
{
	uint64_t place = 0;
	struct fs_announced_state state;
	enum fs_announced_fit fit = fs_announced_list_fit(held->list, sample, &place);
	if (fit == FS_ANNOUNCED_ELSEWHERE || fit < best->fit)
		return;
	fs_announced_list_state(held->list, &state);
	uint64_t apart = place > state.high ? place - state.high : state.high - place;
	if (fit == best->fit && apart >= best->apart)
		return;
	*best = (struct fitting){ .held = held, .fit = fit, .place = place, .apart = apart };
}

static void tell_used(struct held *held, uint64_t place, bool past)
{
	uint64_t epoch, turn;
	fs_announced_list_turn(held->list, place, &epoch, &turn);
	fs_sink_used(held->stream, epoch, turn, past);
}

/* Finds a place for one more part of a list. NULL: no list can be split now. Under the lock. */
static struct held *place_for_part(struct fs_announced_orders *orders, unsigned *ret_lists)
{
	unsigned parts;
	struct held *empty = free_place(orders, ret_lists, &parts);
	return parts < PARTS_MAX ? empty : NULL;
}

/* Returns how many entries readers may leave unused between them: a quarter of what their streams may hold.
 * UINT64_MAX: no list can be split. Under the lock. */
static uint64_t apart(struct fs_announced_orders *orders)
{
	unsigned lists;
	if (!place_for_part(orders, &lists) || lists == 0)
		return UINT64_MAX;
	const struct shard_info *info = orders->server->info;
	uint64_t bytes = fs_budget_bytes(orders->server->budget) / 16 * 3 / lists;
	uint64_t entries = bytes / (info->content_bytes / info->n_samples + 1);
	entries = entries < FS_ANNOUNCED_AHEAD ? entries : FS_ANNOUNCED_AHEAD;
	return entries > FS_ANNOUNCED_NEAR ? entries : FS_ANNOUNCED_NEAR;
}

static void missed(struct fs_announced_orders *orders, uint32_t sample)
{
	uint64_t places[FS_ANNOUNCED_RING], least = apart(orders);
	size_t n;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		if (!held->stream || held->ending)
			continue;
		bool fits = fs_order_memory_fits(orders->memory, fs_announced_list_part_bytes(held->list));
		if (!fs_announced_list_missed(held->list, sample, fits ? least : UINT64_MAX, places, &n))
			continue;
		for (size_t k = 0; k < n; k++)
			tell_used(held, places[k], true);
	}
}

/* Tells the other lists of an open that one of them explains. Under the lock. */
static void pass_others(struct fs_announced_orders *orders, const struct held *by, uint32_t sample)
{
	uint32_t id = fs_announced_list_id(by->list);
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		if (held != by && held->stream && !held->ending)
			fs_announced_list_passed(held->list, sample, fs_announced_list_id(held->list) == id);
	}
}

/* Returns whether a list explains the open. Under the lock. */
static bool opened(struct fs_announced_orders *orders, uint32_t file)
{
	struct fitting best = { .fit = FS_ANNOUNCED_ELSEWHERE, .apart = UINT64_MAX };
	struct fs_announced_state state;
	struct shard_place at;
	uint32_t sample;
	uint64_t places[FS_ANNOUNCED_RING];
	size_t n;
	if (shard_index_place(orders->server->index, file, &at) < 0 || at.sample == SHARD_NONE ||
	        shard_view_instead(orders->view->order, at.sample, &sample) < 0)
		return false;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		if (orders->table[i].stream && !orders->table[i].ending)
			fit_one(&orders->table[i], sample, &best);
	}
	if (!best.held) {
		missed(orders, sample);
		return false;
	}
	if (best.fit == FS_ANNOUNCED_AGAIN)
		return true;
	pass_others(orders, best.held, sample);
	fs_announced_list_use(best.held->list, best.place, best.fit == FS_ANNOUNCED_SURELY);
	tell_used(best.held, best.place, false);
	fs_announced_list_reached(best.held->list, places, &n);
	for (size_t i = 0; i < n; i++)
		tell_used(best.held, places[i], true);
	fs_announced_list_state(best.held->list, &state);
	bool explains = best.fit == FS_ANNOUNCED_SURELY || state.confirmed;
	orders->explained += explains ? 1 + n : 0; /* opens before may be explained only now */
	return explains;
}

size_t fs_announced_orders_opened(
        struct fs_announced_orders *orders, uint32_t *files, size_t n, uint32_t *ret_explained)
{
	size_t left = 0;
	bool live = fs_announced_orders_live(orders) > 0;
	lock_for_scope(&orders->lock);
	if (!live) {
		orders->others += n;
		return n;
	}
	for (size_t i = 0; i < n; i++) {
		if (opened(orders, files[i]))
			ret_explained[i - left] = files[i];
		else
			files[left++] = files[i];
	}
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		if (orders->table[i].stream)
			fs_sink_flush(orders->table[i].stream);
	}
	return left;
}

/* ---- streams ---- */

static void end_stream(struct fs_announced_orders *orders, struct held *held)
{
	if (held->stream) {
		fs_sink_unfollow(orders->server->sink, held->stream);
		atomic_fetch_sub(&orders->live, 1);
	}
	held->stream = NULL;
	shard_view_free(held->order);
	held->order = NULL;
}

/* Takes a list out of the table; the caller frees it. */
static struct fs_announced_list *take_list(struct fs_announced_orders *orders, struct held *held)
{
	static const struct fs_handover_list none = { 0 };
	lock_for_scope(&orders->lock);
	struct fs_announced_list *list = held->list;
	fs_handover_store_list(fs_order_memory_records(orders->memory), (uint32_t)(held - orders->table), &none);
	*held = (struct held){ 0 };
	return list;
}

/* Only this thread ends lists, so one that it found stays. */
static void end_list(struct fs_announced_orders *orders, struct held *held)
{
	end_stream(orders, held);
	fs_announced_list_free(take_list(orders, held));
}

static int begin_stream(struct fs_announced_orders *orders, struct held *held)
{
	struct shard_view_given given;
	uint64_t epoch, turn;
	fs_announced_list_given(held->list, &given);
	fs_announced_list_turn(held->list, fs_announced_list_start(held->list), &epoch, &turn);
	int rc = shard_view_new_given(orders->server->index, &given, &held->order);
	if (rc < 0)
		return rc;
	struct prefetch_stream_options options = {
		.view = held->order,
		.epoch = epoch,
		.turn = turn,
		.buffer_turns = fs_announced_list_buffer(held->list),
		.tells_uses =
		        orders->view->all, /* fs/announced_sampler.h; a rank's view tells the uses of its own order */
		.uses_epoch = CACHE_TIER_USES_LATEST,
	};
	rc = fs_sink_follow(orders->server->sink, orders->view, &options, &held->stream);
	if (rc < 0) {
		shard_view_free(held->order);
		held->order = NULL;
		return rc;
	}
	atomic_fetch_add(&orders->live, 1);
	return 0;
}

static void begin_list(struct fs_announced_orders *orders, struct held *held)
{
	int rc = begin_stream(orders, held);
	if (rc == -ENODATA)
		return; /* its reader is at its end: task_of begins it when entries are appended */
	if (rc < 0)
		log_warning("the announced list '%s' is not read ahead: %s", fs_announced_list_name(held->list),
		        base_err_str(rc));
	held->failed = rc < 0;
}

/* Makes the chunks that are due; else the next call of fs_announced_orders_sync tries again. */
static void build(struct fs_announced_orders *orders, struct held *held)
{
	lock_for_scope(&orders->lock);
	fs_announced_list_build(held->list);
}

/* What is to be done with a list. */
enum task { TASK_NONE, TASK_END, TASK_DROP, TASK_BEGIN, TASK_REFRESH, TASK_SPLIT };

/* Under the lock. */
static enum task task_of(struct fs_announced_orders *orders, struct held *held, uint64_t now_ns)
{
	struct fs_announced_state state;
	unsigned lists;
	if (!held->list || !held->shown)
		return TASK_NONE;
	if (held->ending)
		return held->writing ? TASK_NONE : TASK_END;
	int rc = fs_announced_list_build(held->list);
	fs_announced_list_state(held->list, &state);
	if (held->stream)
		fs_announced_list_save(held->list, (uint32_t)(held - orders->table));
	if (state.wrong && !held->writing) {
		held->ending = true;
		orders->ended = false;
		close_parts(orders);
		return TASK_DROP;
	}
	if (state.apart && held->stream && !held->writing && place_for_part(orders, &lists))
		return TASK_SPLIT;
	/* Of several parts, the one that grows ends last. */
	if (fs_announced_list_over(held->list, now_ns) && !held->writing &&
	        (held->closed || !has_parts(orders, held)) && now_ns > held->shown_ns + REST_MS * UINT64_C(1000000)) {
		held->ending = true;
		orders->ended = state.end > 0;
		orders->others = 0;
		return TASK_END;
	}
	if (rc < 0 || held->failed || (!held->stream && state.cursor == state.end))
		return TASK_NONE; /* the next call tries again */
	return !held->stream ? TASK_BEGIN : rc > 0 ? TASK_REFRESH : TASK_NONE;
}

/* Splits a list, and takes the new part into the table. Returns NULL if that is not possible now: main has begun to
 * write, or there is no memory. */
static struct held *split(struct fs_announced_orders *orders, struct held *held)
{
	unsigned lists;
	lock_for_scope(&orders->lock);
	struct held *other = place_for_part(orders, &lists);
	struct fs_announced_list *list;
	if (!other || held->writing || fs_announced_list_split(held->list, &list) < 0)
		return NULL;
	*other = *held;
	other->list = list;
	close_parts(orders);
	/* Between the two a successor finds some entries twice, and misses none. */
	fs_announced_list_save(other->list, (uint32_t)(other - orders->table));
	fs_announced_list_save(held->list, (uint32_t)(held - orders->table));
	return other;
}

static void count_dropped(struct fs_announced_orders *orders)
{
	lock_for_scope(&orders->lock);
	orders->dropped++;
}

/* Gives each of a list's two readers a stream. */
static void do_split(struct fs_announced_orders *orders, struct held *held)
{
	end_stream(orders, held);
	struct held *other = split(orders, held);
	build(orders, held);
	begin_list(orders, held);
	if (!other)
		return;
	build(orders, other);
	begin_list(orders, other);
}

static void do_task(struct fs_announced_orders *orders, struct held *held, enum task task)
{
	switch (task) {
	case TASK_NONE:
		return;
	case TASK_DROP:
		log_info("the announced list '%s' is dropped: what is opened is not in it, or comes in another order",
		        fs_announced_list_name(held->list));
		count_dropped(orders);
		end_list(orders, held);
		return;
	case TASK_END:
		end_list(orders, held);
		return;
	case TASK_BEGIN:
		begin_list(orders, held);
		return;
	case TASK_REFRESH:
		fs_sink_refresh(held->stream);
		return;
	case TASK_SPLIT:
		do_split(orders, held);
		return;
	}
}

static uint64_t changes(struct fs_announced_orders *orders)
{
	lock_for_scope(&orders->lock);
	return orders->changes;
}

static void took_in(struct fs_announced_orders *orders, uint64_t until)
{
	lock_for_scope(&orders->lock);
	orders->taken_in = until;
}

bool fs_announced_orders_sync(struct fs_announced_orders *orders, uint64_t now_ns)
{
	uint64_t until = changes(orders);
	bool confirmed = false;
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		struct held *held = &orders->table[i];
		struct fs_announced_state state = { 0 };
		enum task task;
		{
			lock_for_scope(&orders->lock);
			task = task_of(orders, held, now_ns);
			if (held->list)
				fs_announced_list_state(held->list, &state);
		}
		if (state.confirmed && !held->told)
			held->told = confirmed = true;
		do_task(orders, held, task);
	}
	took_in(orders, until);
	return confirmed;
}

void fs_announced_orders_end(struct fs_announced_orders *orders)
{
	for (unsigned i = 0; i < LISTS_MAX; i++)
		end_stream(orders, &orders->table[i]);
}

/* ---- a successor ---- */

static int restore_list(struct fs_announced_orders *orders, struct held *held,
        const struct fs_announced_list_options *options, const struct fs_handover_list *record)
{
	lock_for_scope(&orders->lock);
	if (record->id >= orders->next_id)
		orders->next_id = (uint32_t)record->id + 1;
	int rc = held->list ? -EEXIST : fs_announced_list_restore(options, record, &held->list);
	held->shown = rc == 0;
	held->shown_ns = base_now_ns();
	orders->dropped += rc < 0;
	return rc;
}

/* A server that died while it split a list has left two parts with the same entries. */
static void cut_part(const struct fs_handover_announced *records, uint32_t number, struct fs_handover_list *record)
{
	for (uint32_t i = 0; i < LISTS_MAX; i++) {
		struct fs_handover_list other;
		if (i == number || !fs_handover_load_list(records, i, &other) || other.id != record->id ||
		        other.begin >= record->end || other.end <= record->begin)
			continue;
		if (other.begin > record->begin)
			record->end = other.begin;
		else if (other.begin == record->begin && other.end < record->end)
			record->begin = other.end;
	}
	if (record->place < record->begin)
		record->place = record->begin;
	if (record->place > record->end)
		record->place = record->end;
	if (record->high < record->place)
		record->high = record->place;
	if (record->high > record->end)
		record->high = record->end;
}

void fs_announced_orders_restore(struct fs_announced_orders *orders)
{
	struct fs_handover_announced *records = fs_order_memory_records(orders->memory);
	for (uint32_t i = 0; i < LISTS_MAX; i++) {
		struct fs_handover_list record;
		struct held *held = &orders->table[i];
		if (!fs_handover_load_list(records, i, &record))
			continue;
		cut_part(records, i, &record);
		struct fs_announced_list_options options = {
			.memory = orders->memory,
			.name = record.name,
			.id = (uint32_t)record.id,
			.chunk_blocks = chunk_blocks(orders, 1),
			.n_samples = orders->server->info->n_samples,
		};
		if (restore_list(orders, held, &options, &record) < 0)
			log_warning("the announced list of a server that ended is lost: announce it again");
	}
	fs_order_memory_sweep(orders->memory);
	lock_for_scope(&orders->lock);
	close_parts(orders);
}

/* ---- statistics ---- */

void fs_announced_orders_count(struct fs_announced_orders *orders, struct fs_announced_orders_counts *ret_counts)
{
	*ret_counts = (struct fs_announced_orders_counts){ 0 };
	if (!orders)
		return;
	ret_counts->memory_bytes = fs_order_memory_bytes(orders->memory);
	lock_for_scope(&orders->lock);
	ret_counts->waits = orders->taken_in != orders->changes;
	ret_counts->explained = orders->explained;
	ret_counts->dropped = orders->dropped;
	ret_counts->ended = orders->ended && orders->others < OTHERS_MAX;
}

void fs_announced_orders_stats(struct fs_announced_orders *orders, json_t *object)
{
	json_t *lists = json_array();
	if (orders) {
		lock_for_scope(&orders->lock);
		for (unsigned i = 0; i < LISTS_MAX; i++) {
			const struct held *held = &orders->table[i];
			struct fs_announced_state state;
			if (!counts(held))
				continue;
			fs_announced_list_state(held->list, &state);
			json_array_append_new(
			        lists, json_pack("{ss sI sI sI sI sb}", "list", fs_announced_list_name(held->list),
			                       "entries", (json_int_t)state.end, "place", (json_int_t)state.high,
			                       "opens", (json_int_t)(state.sure + state.loose), "moves",
			                       (json_int_t)state.moves, "confirmed", (int)state.confirmed));
		}
	}
	json_object_set_new(object, "announced", lists);
}

void fs_announced_orders_describe(struct fs_announced_orders *orders, char *buf, size_t size)
{
	unsigned lists = 0;
	uint64_t left = 0, end = 0;
	const char *name = "";
	lock_for_scope(&orders->lock);
	for (unsigned i = 0; i < LISTS_MAX; i++) {
		const struct held *held = &orders->table[i];
		struct fs_announced_state state;
		if (!counts(held))
			continue;
		fs_announced_list_state(held->list, &state);
		left += state.end - state.high;
		if (held->closed)
			continue;
		lists++;
		end += state.end;
		name = fs_announced_list_name(held->list);
	}
	uint64_t place = end > left ? end - left : 0;
	if (lists == 1)
		snprintf(buf, size, "list '%s', %" PRIu64 " of %" PRIu64 " entries read", name, place, end);
	else
		snprintf(buf, size, "%u lists, %" PRIu64 " of %" PRIu64 " entries read", lists, place, end);
}
