/* SPDX-License-Identifier: Apache-2.0 */
/* Reads numbers and paths that a client announces; fs/follow_request.h first. */
#include "fs/follow_request.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/announced_orders.h"
#include "fs/heartbeat.h"
#include "fs/node.h"
#include "fs/order_numbers.h"
#include "fs/read_ahead_note.h"
#include "fs/sampler_streams.h"
#include "fs/server.h"
#include "prefetch/sampler/drawn.h"
#include "shard/base/cleanup.h"

enum {
	LEARN_SHARE = 10,    /* looks for a list take this part of main's time at most */
	PIECE = 1 << 16,     /* numbers that are taken in at once */
	TEXT_MAX = 16 << 20, /* bytes of text in one request */
	BEAT_PIECES = 64,    /* pieces between two beats */
	NAME_MAX_LEN = FS_HANDOVER_LIST_NAME - 1,
	OWNER_LEN = sizeof("4294967295 ") - 1, /* at most, of what stands before a guest's names: they have no spaces */
};
static const json_int_t FROM_MAX = (json_int_t)1 << 62; /* an entry's place behind it is an int64_t, too */
static const char ALL_PREFIX[] = ".ddpfs/all/";

/* A request that is being answered. */
struct asked {
	struct fs_server *server;
	struct fs_view *view;
	struct fs_announced_orders *orders;
	struct fs_order_numbers *numbers;
	const struct fs_follow_input *input;
	char owner[OWNER_LEN + 1];            /* a guest's, as it stands before his names; else "" */
	const char *list_given, *table_given; /* names as the request has them */
	char list[NAME_MAX_LEN + 1], table[NAME_MAX_LEN + 1];
	const char *how, *form, *listing, *dir;
	uint64_t bytes, size, buffer, from;
	bool skip_unknown;
	struct fs_order_numbering *numbering; /* of numbers */
	/* Where samples go: */
	struct fs_announced_piece *piece; /* NULL: into the table */
	uint64_t at, entries, skipped;    /* entries that were looked at, taken, left out */
	json_t *refusal;                  /* NULL: none yet */
};

/* ---- refusals ---- */

static json_t *refuse_at(const char *code, int64_t at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static json_t *refuse_at(const char *code, int64_t at, const char *fmt, ...)
{
	char text[1024];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	json_t *reply = json_pack("{s:b,s:s,s:s}", "ok", 0, "error", text, "code", code);
	if (reply && at >= 0)
		json_object_set_new(reply, "at", json_integer(at));
	return reply;
}

static json_t *refuse_rc(const struct asked *a, int rc)
{
	if (rc == -ENOSPC && a->input->guest)
		return refuse_at("space", (int64_t)(a->from + a->at),
		        "over the mount, one user may take half of the memory for announced orders, and all such users "
		        "three quarters: that, or all of it, is full: announce smaller windows (append)");
	if (rc == -ENOSPC)
		return refuse_at("space", (int64_t)a->at,
		        "announced orders may take %" PRIu64
		        " MiB of this mount's memory, and that is full: announce smaller windows (append), or "
		        "mount with more memory=",
		        (fs_announced_orders_limit(a->orders) + (1 << 20) - 1) >> 20);
	if (rc == -E2BIG && a->input->guest)
		return refuse_at("lists", -1,
		        "over the mount, one user may announce %d lists, and all such users %d: end one of your lists, "
		        "or try again later",
		        FS_GUEST_LISTS_USER, FS_GUEST_LISTS);
	if (rc == -E2BIG)
		return refuse_at("lists", -1, "there are %d lists already: end one of them first", FS_ANNOUNCED_LISTS);
	return refuse_at("invalid", -1, "%s", base_err_str(rc));
}

/* ---- the request ---- */

static size_t name_max(const struct asked *a)
{
	return a->input->guest ? NAME_MAX_LEN - OWNER_LEN : NAME_MAX_LEN;
}

static bool name_is_valid(const struct asked *a, const char *name)
{
	size_t len = strlen(name);
	for (size_t i = 0; i < len; i++) {
		if (name[i] <= ' ' || name[i] > '~')
			return false;
	}
	return len > 0 && len <= name_max(a);
}

static bool reason_is_valid(const char *reason)
{
	size_t len = strlen(reason);
	for (size_t i = 0; i < len; i++) {
		if (reason[i] < ' ' || reason[i] > '~')
			return false;
	}
	return len > 0 && len < FS_READ_AHEAD_REASON_MAX;
}

static const char *text_of(json_t *request, const char *key, const char *otherwise)
{
	json_t *value = json_object_get(request, key);
	return value ? json_string_value(value) : otherwise;
}

/* Returns NULL, or a refusal. */
static json_t *parse(struct asked *a, json_t *request)
{
	json_t *bytes = json_object_get(request, "bytes");
	a->list_given = text_of(request, "list", "default");
	a->how = text_of(request, "how", "replace");
	a->form = text_of(request, "form", "text");
	a->listing = text_of(request, "listing", "sorted");
	a->dir = text_of(request, "dir", "");
	a->table_given = text_of(request, "table", "");
	a->skip_unknown = json_is_true(json_object_get(request, "skip_unknown"));
	if (!a->list_given || !a->how || !a->form || !a->listing || !a->dir || !a->table_given)
		return refuse_at(
		        "invalid", -1, "\"list\", \"how\", \"form\", \"listing\", \"dir\" and \"table\" must be texts");
	if (!name_is_valid(a, a->list_given) || (*a->table_given && !name_is_valid(a, a->table_given)))
		return refuse_at("invalid", -1, "the name of a list has 1 to %zu printable ASCII characters, no spaces",
		        name_max(a));
	snprintf(a->list, sizeof(a->list), "%s%s", a->owner, a->list_given);
	snprintf(a->table, sizeof(a->table), "%s%s", *a->table_given ? a->owner : "", a->table_given);
	if (bytes && (!json_is_integer(bytes) || json_integer_value(bytes) < 0))
		return refuse_at("invalid", -1, "\"bytes\" must be a whole number");
	a->bytes = (uint64_t)json_integer_value(bytes);
	json_t *buffer = json_object_get(request, "buffer");
	if (buffer && (!json_is_integer(buffer) || json_integer_value(buffer) < 0 ||
	                      json_integer_value(buffer) > FS_ANNOUNCED_BUFFER_MAX))
		return refuse_at(
		        "invalid", -1, "\"buffer\" must be a whole number, at most %d", FS_ANNOUNCED_BUFFER_MAX);
	a->buffer = (uint64_t)json_integer_value(buffer);
	json_int_t size = json_integer_value(json_object_get(request, "size"));
	a->size = size > 0 ? (uint64_t)size : 0;
	json_t *from = json_object_get(request, "from");
	if (from && (!json_is_integer(from) || json_integer_value(from) < 0 || json_integer_value(from) > FROM_MAX))
		return refuse_at("invalid", -1, "\"from\" must be a whole number, at most 2^62");
	a->from = (uint64_t)json_integer_value(from);
	return NULL;
}

/* Checks where the entries come from. Returns NULL and the bytes there, or a refusal. */
static json_t *check_source(const struct asked *a, uint64_t *ret_there)
{
	struct stat st;
	struct statfs fs;
	int fd = a->input->fd;
	*ret_there = a->input->size;
	if (a->input->guest)
		return NULL;
	if (fd < 0)
		return refuse_at("invalid", -1, "an announcement needs a descriptor of the memory that holds it");
	if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 || !S_ISREG(st.st_mode) ||
	        (unsigned long)fs.f_type != TMPFS_MAGIC)
		return refuse_at("invalid", -1, "the descriptor must be a memfd, or a file on tmpfs");
	*ret_there = (uint64_t)st.st_size;
	return NULL;
}

/* Checks the entries' source and form. Returns NULL, or a refusal. */
static json_t *check_entries(const struct asked *a)
{
	uint64_t there, size = strcmp(a->form, "u64") == 0 ? 8 : strcmp(a->form, "u32") == 0 ? 4 : 1;
	json_t *refusal = check_source(a, &there);
	if (refusal)
		return refusal;
	if (a->bytes == 0)
		return refuse_at("invalid", -1, "nothing is announced: give at least one entry");
	if (there < a->bytes)
		return refuse_at("invalid", -1, "%s is shorter than \"bytes\"",
		        a->input->guest ? "what comes behind the request" : "the descriptor's file");
	if (a->bytes % size != 0)
		return refuse_at("invalid", -1, "\"bytes\" is no multiple of a number's %" PRIu64 " bytes", size);
	if (size == 1 && strcmp(a->form, "text") != 0)
		return refuse_at("invalid", -1, "\"form\" must be \"u32\", \"u64\" or \"text\"");
	if (size == 1 && a->bytes > TEXT_MAX)
		return refuse_at("invalid", -1, "one request holds at most %d MiB of text: send the rest with append",
		        TEXT_MAX >> 20);
	return NULL;
}

/* Gets n bytes of the entries. @offset + n: at most a->bytes. */
static int read_all(const struct asked *a, uint8_t *buf, size_t n, uint64_t offset)
{
	if (a->input->guest) {
		memcpy(buf, a->input->data + offset, n);
		return 0;
	}
	while (n > 0) {
		ssize_t got = pread(a->input->fd, buf, n, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -EINVAL; /* it became shorter */
		buf += got;
		offset += (size_t)got;
		n -= (size_t)got;
	}
	return 0;
}

/* Takes in samples. SHARD_NONE: a table keeps their numbers, a list leaves them out. */
static int take(struct asked *a, uint32_t *samples, size_t n)
{
	size_t kept = 0;
	if (!a->piece) {
		a->entries += n;
		return fs_order_numbers_add(a->numbers, a->table, samples, n);
	}
	for (size_t i = 0; i < n; i++) {
		if (samples[i] != SHARD_NONE)
			samples[kept++] = samples[i];
	}
	a->entries += kept;
	a->skipped += n - kept;
	return fs_announced_piece_add(a->piece, samples, kept);
}

/* ---- numbers ---- */

static int take_numbers(struct asked *a)
{
	size_t size = strcmp(a->form, "u64") == 0 ? 8 : 4;
	uint64_t n = a->bytes / size, most = fs_order_numbering_size(a->numbering);
	cleanup_free uint8_t *raw = malloc(PIECE * size);
	cleanup_free uint32_t *samples = malloc(PIECE * sizeof(*samples));
	if (!raw || !samples)
		return -ENOMEM;
	for (uint64_t pieces = 0; a->at < n; pieces++) {
		size_t some = n - a->at < PIECE ? (size_t)(n - a->at) : PIECE;
		int rc = read_all(a, raw, some * size, a->at * size);
		for (size_t i = 0; rc == 0 && i < some; i++) {
			uint64_t number;
			uint32_t small;
			if (size == 8) {
				memcpy(&number, raw + 8 * i, 8);
			} else {
				memcpy(&small, raw + 4 * i, 4);
				number = small;
			}
			if (number >= most) {
				uint64_t place = a->from + a->at + i;
				a->refusal = refuse_at("range", (int64_t)place,
				        "index %" PRId64 " at place %" PRIu64 " is out of range: there are %" PRIu64
				        " files",
				        (int64_t)number, place, most); /* -1 came as 2^64 - 1 */
				return -ERANGE;
			}
			samples[i] = fs_order_numbering_sample(a->numbering, number);
		}
		if (rc == 0)
			rc = take(a, samples, some);
		if (rc < 0)
			return rc;
		a->at += some;
		if (pieces % BEAT_PIECES == BEAT_PIECES - 1)
			fs_heartbeat_check(a->server->heartbeat);
	}
	return 0;
}

/* Finds the numbering of the request. Returns NULL, or a refusal. */
static json_t *find_numbering(struct asked *a)
{
	bool imagefolder = strcmp(a->listing, "imagefolder") == 0;
	int rc;
	if (strcmp(a->listing, "table") == 0) {
		rc = fs_order_numbers_table(a->numbers, a->table, &a->numbering);
		if (rc < 0 && a->input->guest && fs_order_numbers_is_of_list(a->table_given)) /* it is everybody's */
			rc = fs_order_numbers_table(a->numbers, a->table_given, &a->numbering);
		return rc == 0 ? NULL
		               : refuse_at("table", -1, "there is no table of files '%s': announce its paths first",
		                         a->table_given);
	}
	if (!imagefolder && strcmp(a->listing, "sorted") != 0)
		return refuse_at("invalid", -1, "\"listing\" must be \"sorted\", \"imagefolder\" or \"table\"");
	fs_order_memory_limit(fs_announced_orders_memory(a->orders), fs_announced_orders_limit(a->orders));
	rc = fs_order_numbers_listing(a->numbers, imagefolder, a->dir, &a->numbering);
	if (rc == -ENOENT)
		return refuse_at("unknown", -1, "'%s': no directory of the mount, or there are no %s in it",
		        *a->dir ? a->dir : ".", imagefolder ? "images in classes" : "files");
	return rc < 0 ? refuse_rc(a, rc) : NULL;
}

/* ---- paths ---- */

static int file_of_path(const struct asked *a, const char *path, uint32_t *ret_file)
{
	enum shard_kind kind;
	while (path[0] == '.' && path[1] == '/')
		path += 2;
	if (a->view->layout == FS_LAYOUT_FLAT && !strchr(path, '/') &&
	        fs_flat_lookup(a->server, a->view, path, NULL, ret_file) == 0)
		return 0;
	if (strncmp(path, ALL_PREFIX, sizeof(ALL_PREFIX) - 1) == 0)
		path += sizeof(ALL_PREFIX) - 1;
	int rc = shard_index_find_path(a->server->index, path, &kind, ret_file);
	return rc == 0 && kind != SHARD_KIND_FILE ? -EISDIR : rc;
}

static int sample_of_path(const struct asked *a, const char *path, uint32_t *ret_sample)
{
	struct shard_place place;
	uint32_t file;
	int rc = file_of_path(a, path, &file);
	if (rc == 0)
		rc = shard_index_place(a->server->index, file, &place);
	if (rc == 0 && place.sample == SHARD_NONE)
		*ret_sample = SHARD_NONE; /* a common file: every rank has it, and it is not read ahead */
	else if (rc == 0)
		rc = shard_view_instead(a->view->order, place.sample, ret_sample);
	return rc;
}

static int refuse_path(struct asked *a, const char *path, int rc)
{
	char quoted[256];
	if (rc != -ENOENT && rc != -ENOTDIR && rc != -EISDIR)
		return rc;
	a->refusal = refuse_at("unknown", (int64_t)(a->from + a->at),
	        "'%s': %s: give paths as the mount shows them, or leave out others with --skip-unknown "
	        "(skip_unknown=True)",
	        base_err_quote(path, quoted, sizeof(quoted)),
	        rc == -EISDIR ? "a directory, not a file" : "no such file in the mount");
	return -ENOENT;
}

static int take_text(struct asked *a)
{
	uint32_t samples[256];
	size_t n = 0;
	cleanup_free char *text = malloc(a->bytes + 1);
	int rc = text ? read_all(a, (uint8_t *)text, a->bytes, 0) : -ENOMEM;
	if (rc < 0)
		return rc;
	text[a->bytes] = '\0';
	for (const char *path = text; path < text + a->bytes; path += strlen(path) + 1) {
		uint32_t sample = SHARD_NONE;
		rc = sample_of_path(a, path, &sample);
		if (rc < 0 && !a->skip_unknown)
			return refuse_path(a, path, rc);
		samples[n++] = rc < 0 ? SHARD_NONE : sample;
		a->at++;
		if (n == sizeof(samples) / sizeof(samples[0])) {
			rc = take(a, samples, n);
			n = 0;
			if (rc < 0)
				return rc;
		}
		if (a->at % PIECE == 0)
			fs_heartbeat_check(a->server->heartbeat);
	}
	return take(a, samples, n);
}

/* ---- what a trainer's numbers mean ---- */

static void beat(void *user)
{
	struct fs_server *server = user;
	fs_heartbeat_check(server->heartbeat);
}

/* Makes the table of the list by which the indices are files that were opened.  Returns as prefetch_drawn_list. */
static int learn(struct asked *a, const uint64_t *indices, size_t n, char ret_table[FS_ORDER_TABLE_NAME],
        char *ret_text, size_t text_size)
{
	cleanup_free uint32_t *opened = malloc(PREFETCH_DRAWN_MAX * sizeof(*opened));
	struct prefetch_list *list;
	if (!opened)
		return -ENOMEM;
	const struct prefetch_drawn drawn = {
		.index = a->server->index,
		.shown = a->view->order,
		.opened = opened,
		.n_opened = fs_sampler_streams_latest(a->server->samplers[a->view->number], opened, PREFETCH_DRAWN_MAX),
		.indices = indices,
		.n_indices = n,
		.size = (uint32_t)a->size,
		.beat = beat,
		.user = a->server,
	};
	int rc = prefetch_drawn_list(&drawn, &list);
	if (rc < 0)
		return rc;
	prefetch_list_describe(list, ret_text, text_size);
	fs_order_memory_limit(fs_announced_orders_memory(a->orders), fs_announced_orders_limit(a->orders));
	rc = fs_order_numbers_of_list(a->numbers, list, ret_table);
	prefetch_list_put(list);
	return rc;
}

static json_t *answer_learn(struct asked *a)
{
	char table[FS_ORDER_TABLE_NAME], text[320];
	uint64_t *after_ns = &a->server->learn_after_ns[a->input->guest];
	json_t *refusal = check_entries(a);
	if (refusal)
		return refusal;
	if (strcmp(a->form, "u64") != 0 || a->bytes > PREFETCH_DRAWN_MAX * sizeof(uint64_t))
		return refuse_at(
		        "invalid", -1, "drawn indices have the form \"u64\", and are %d at most", PREFETCH_DRAWN_MAX);
	if (a->size == 0)
		return refuse_at("invalid", -1, "\"size\" must be how many files the trainer numbers");
	if (a->size > shard_index_info(a->server->index)->n_files)
		return json_pack("{s:b,s:b,s:b}", "ok", 1, "found", 0, "more", 0);
	size_t n = a->bytes / sizeof(uint64_t);
	cleanup_free uint64_t *indices = malloc(a->bytes);
	int rc = indices ? read_all(a, (uint8_t *)indices, a->bytes, 0) : -ENOMEM;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (indices[i] >= a->size)
			return refuse_at("range", (int64_t)i,
			        "index %" PRIu64 " at place %zu is out of range: there are %" PRIu64 " files",
			        indices[i], i, a->size);
	}
	uint64_t began_ns = base_now_ns();
	if (rc == 0 && began_ns < *after_ns)
		rc = -EAGAIN;
	if (rc == 0) {
		rc = learn(a, indices, n, table, text, sizeof(text));
		uint64_t ended_ns = base_now_ns();
		*after_ns = rc == 0 ? 0 : ended_ns + (ended_ns - began_ns) * LEARN_SHARE;
	}
	if (rc == -EAGAIN || rc == -ENOENT)
		return json_pack("{s:b,s:b,s:b}", "ok", 1, "found", 0, "more", rc == -EAGAIN);
	return rc < 0 ? refuse_rc(a, rc)
	              : json_pack("{s:b,s:b,s:s,s:s}", "ok", 1, "found", 1, "table", table, "list", text);
}

/* ---- the answer ---- */

static json_t *reply_to(const struct asked *a, uint64_t length)
{
	return json_pack("{s:b,s:s,s:I,s:I,s:I,s:I}", "ok", 1, "list", a->list_given, "entries", (json_int_t)a->entries,
	        "skipped", (json_int_t)a->skipped, "length", (json_int_t)length, "order_memory_bytes",
	        (json_int_t)fs_order_memory_bytes(fs_announced_orders_memory(a->orders)));
}

static int take_all(struct asked *a)
{
	return strcmp(a->form, "text") == 0 ? take_text(a) : take_numbers(a);
}

static json_t *answer_table(struct asked *a)
{
	if (!*a->table)
		return refuse_at("invalid", -1, "\"table\" must name the table");
	if (strcmp(a->how, "table-end") == 0) {
		fs_order_numbers_drop(a->numbers, a->table);
		return reply_to(a, 0);
	}
	json_t *refusal = check_entries(a);
	if (refusal)
		return refusal;
	if (strcmp(a->form, "text") != 0)
		return refuse_at("invalid", -1, "a table of files is made of paths: \"form\" must be \"text\"");
	fs_order_memory_limit(fs_announced_orders_memory(a->orders), fs_announced_orders_limit(a->orders));
	int rc = take_text(a);
	if (rc < 0)
		fs_order_numbers_drop(a->numbers, a->table);
	return rc == 0 ? reply_to(a, 0) : a->refusal ? a->refusal : refuse_rc(a, rc);
}

/* A trainer says why it announces nothing. */
static json_t *answer_none(struct asked *a, struct fs_sampler_streams *samplers, json_t *request)
{
	const char *reason = text_of(request, "reason", "");
	if (!reason || !reason_is_valid(reason))
		return refuse_at("invalid", -1, "\"reason\" must have 1 to %d printable ASCII characters",
		        FS_READ_AHEAD_REASON_MAX - 1);
	fs_sampler_streams_reason(samplers, a->list, reason);
	return reply_to(a, 0);
}

/* ---- guests ---- */

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Lets the orders take so many more bytes as this guest may. */
static void bound_guest(struct asked *a)
{
	uint64_t most = fs_announced_orders_limit(a->orders);
	uint64_t own = fs_announced_orders_bytes(a->orders, a->owner) + fs_order_numbers_bytes(a->numbers, a->owner);
	uint64_t all = fs_announced_orders_bytes(a->orders, NULL) + fs_order_numbers_bytes(a->numbers, NULL);
	uint64_t left = minus(most / 2, own), left_all = minus(most / 4 * 3, all);
	uint64_t now = fs_order_memory_bytes(fs_announced_orders_memory(a->orders));
	fs_announced_orders_cap(a->orders, now + (left < left_all ? left : left_all));
	fs_order_numbers_owner(a->numbers, a->owner);
}

static void unbound(struct asked *a)
{
	fs_announced_orders_cap(a->orders, UINT64_MAX);
	fs_order_memory_limit(fs_announced_orders_memory(a->orders), fs_announced_orders_limit(a->orders));
	fs_order_numbers_owner(a->numbers, "");
}

static json_t *answer_list(struct asked *a, struct fs_sampler_streams *samplers)
{
	struct fs_announced_piece piece;
	uint64_t length = 0;
	json_t *refusal = check_entries(a);
	if (!refusal && strcmp(a->form, "text") != 0)
		refusal = find_numbering(a);
	if (refusal)
		return refusal;
	int rc = a->input->guest && !fs_announced_orders_guest_may(a->orders, a->owner, a->list) ? -E2BIG : 0;
	if (rc == 0)
		rc = fs_announced_orders_begin(a->orders, a->list, strcmp(a->how, "append") == 0, a->buffer, &piece);
	if (rc < 0)
		return refuse_rc(a, rc);
	a->piece = &piece;
	rc = take_all(a);
	a->piece = NULL;
	if (rc == 0 && a->entries == 0 && a->input->guest) { /* other pieces of the list may have some */
		fs_announced_orders_undo(a->orders, &piece);
		return reply_to(a, 0);
	}
	if (rc == 0 && a->entries == 0) {
		a->refusal = refuse_at("unknown", -1,
		        "none of the %" PRIu64 " entries is a file of the dataset's samples", a->skipped);
		rc = -ENOENT;
	}
	if (rc == 0)
		rc = fs_announced_orders_show(a->orders, &piece, &length);
	if (rc < 0) {
		fs_announced_orders_undo(a->orders, &piece);
		return a->refusal ? a->refusal : refuse_rc(a, rc);
	}
	fs_sampler_streams_reason(samplers, a->list, NULL);
	return reply_to(a, length);
}

static json_t *answer(struct asked *a, struct fs_sampler_streams *samplers, json_t *request)
{
	if (strcmp(a->how, "end") == 0) {
		fs_announced_orders_forget(a->orders, a->list);
		return reply_to(a, 0);
	}
	if (strcmp(a->how, "none") == 0)
		return answer_none(a, samplers, request);
	if (strcmp(a->how, "table") == 0 || strcmp(a->how, "table-end") == 0)
		return answer_table(a);
	if (strcmp(a->how, "learn") == 0)
		return answer_learn(a);
	if (strcmp(a->how, "replace") != 0 && strcmp(a->how, "append") != 0)
		return refuse_at("invalid", -1,
		        "\"how\" must be \"replace\", \"append\", \"end\", \"none\", \"table\", \"table-end\" or "
		        "\"learn\"");
	return answer_list(a, samplers);
}

json_t *fs_follow_request(
        struct fs_server *server, struct fs_view *view, json_t *request, const struct fs_follow_input *input)
{
	struct fs_sampler_streams *samplers = server->samplers[view->number];
	struct asked a = { .server = server, .view = view, .input = input };
	if (input->guest)
		snprintf(a.owner, sizeof(a.owner), "%" PRIu32 " ", (uint32_t)input->uid);
	json_t *reply = parse(&a, request);
	if (reply)
		return reply;
	if (!samplers)
		return refuse_at("invalid", -1, "the mount is being set up: ask again");
	a.orders = fs_sampler_streams_orders(samplers);
	a.numbers = fs_sampler_streams_numbers(samplers);
	fs_order_numbers_beat(a.numbers, beat, server);
	if (input->guest)
		bound_guest(&a);
	reply = answer(&a, samplers, request);
	if (input->guest)
		unbound(&a);
	return reply;
}
