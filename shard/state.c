/* SPDX-License-Identifier: Apache-2.0 */
/* Writes, parses and applies the resume state; shard/state.h first. */
#include "shard/state.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/base/units.h"

enum { STATE_VERSION = 1 };

/* Makes a JSON number, or a string of digits for a number over 2^63-1, because the integers of jansson are signed. */
static json_t *json_u64(uint64_t value)
{
	char digits[24];

	if (value <= INT64_MAX)
		return json_integer((json_int_t)value);
	snprintf(digits, sizeof(digits), "%" PRIu64, value);
	return json_string(digits);
}

/* Adds steps with this view's world to the past of a block epoch. */
static int grow_past(const struct shard_view_options *o, uint64_t steps, struct shard_view_options *next)
{
	uint32_t last = next->n_past;

	if (steps == 0)
		return 0;
	if (last > 0 && next->past[last - 1].world == o->world) {
		next->past[last - 1].steps += steps;
		return 0;
	}
	if (last == SHARD_DEAL_SEGMENTS_MAX)
		return -E2BIG;
	next->past[last] = (struct shard_deal_segment){ .world = o->world, .steps = steps };
	next->n_past++;
	return 0;
}

/* Computes the options with which another job continues. */
static int next_options(
        const struct shard_view *view, uint64_t epoch, uint64_t steps, struct shard_view_options *ret_options)
{
	const struct shard_view_options *o = shard_view_options_get(view);
	struct shard_view_options next = *o;
	uint64_t n = shard_view_samples(view);
	uint64_t start = epoch == o->epoch ? o->start : 0;
	uint64_t end = o->tail == SHARD_TAIL_DROP ? start + (n - start) / o->world * o->world : n;
	int rc = 0;

	if (steps < start)
		return -EINVAL;
	next.epoch = epoch;
	next.start = steps;
	if (epoch != o->epoch)
		next.n_past = 0;
	if (steps >= end) {
		next.epoch = epoch + 1;
		next.start = 0;
		next.n_past = 0;
	} else if (o->deal == SHARD_DEAL_BLOCK) {
		rc = grow_past(o, steps - start, &next);
	}
	*ret_options = next;
	return rc;
}

static json_t *json_past(const struct shard_view_options *o)
{
	cleanup_json json_t *list = json_array();

	for (uint32_t i = 0; list && i < o->n_past; i++) {
		json_t *pair = json_pack("[I,I]", (json_int_t)o->past[i].world, (json_int_t)o->past[i].steps);

		if (!pair || json_array_append_new(list, pair) < 0)
			return NULL;
	}
	return steal_ptr(&list);
}

int shard_state_format(
        const struct shard_view *view, uint64_t epoch, uint64_t steps_trained, char *buf, size_t buf_size)
{
	struct shard_view_options o;
	cleanup_json json_t *root = NULL;
	char hex[33];
	char text[SHARD_STATE_MAX];
	size_t len;
	int rc = next_options(view, epoch, steps_trained, &o);

	if (rc < 0)
		return rc;
	if (strlen(o.subdir) > SHARD_STATE_SUBDIR_MAX)
		return -ENAMETOOLONG;
	base_format_hex(shard_index_info(shard_view_index(view))->identity, 16, hex);
	root = json_pack("{s:i,s:s,s:s,s:s,s:o,s:o,s:o,s:s}", "version", STATE_VERSION, "dataset", hex, "order",
	        shard_order_mode_name(o.order), "deal", shard_deal_mode_name(o.deal), "seed", json_u64(o.seed), "epoch",
	        json_u64(o.epoch), "start", json_u64(o.start), "tail", shard_tail_name(o.tail));
	if (!root)
		return -ENOMEM;
	if (o.subdir[0] != '\0') {
		json_t *subdir = json_string(o.subdir);

		if (!subdir)
			return -EILSEQ;
		if (json_object_set_new(root, "subdir", subdir) < 0)
			return -ENOMEM;
	}
	if (o.order == SHARD_ORDER_CHUNK &&
	        json_object_set_new(
	                root, "chunk", json_pack("[I,I]", (json_int_t)o.chunk_items, (json_int_t)o.pool_chunks)) < 0)
		return -ENOMEM;
	if (o.n_past > 0 && json_object_set_new(root, "past", json_past(&o)) < 0)
		return -ENOMEM;
	if (o.groups > 1 &&
	        json_object_set_new(root, "groups", json_pack("[o,o]", json_u64(o.groups), json_u64(o.redeal))) < 0)
		return -ENOMEM;
	if (o.on_bad != SHARD_ON_BAD_EIO &&
	        (json_object_set_new(root, "on_bad", json_string(shard_on_bad_name(o.on_bad))) < 0 ||
	                json_object_set_new(root, "quarantine", json_sprintf("%016" PRIx64, o.quarantine->hash)) < 0))
		return -ENOMEM;
	len = json_dumpb(root, text, sizeof(text), JSON_COMPACT | JSON_PRESERVE_ORDER);
	if (len == 0 || len >= sizeof(text) || len >= buf_size)
		return -ERANGE;
	memcpy(buf, text, len);
	buf[len] = '\0';
	return 0;
}

/* One key of a state.  `read` reads its value into the state; it returns false if the value is not valid. */
struct key {
	const char *name;
	bool required;
	bool (*read)(const json_t *value, struct shard_state *state);
};

static bool read_u64(const json_t *value, uint64_t *ret_value)
{
	const char *text = json_string_value(value);
	char *end;

	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		*ret_value = (uint64_t)json_integer_value(value);
		return true;
	}
	if (!text || text[0] < '0' || text[0] > '9' || json_string_length(value) != strlen(text))
		return false;
	errno = 0;
	*ret_value = strtoull(text, &end, 10);
	return errno == 0 && *end == '\0';
}

static bool read_version(const json_t *value, struct shard_state *state)
{
	(void)state;
	return json_is_integer(value);
}

static bool read_dataset(const json_t *value, struct shard_state *state)
{
	const char *hex = json_string_value(value);

	if (!hex || strlen(hex) != 32 || strspn(hex, "0123456789abcdef") != 32)
		return false;
	for (unsigned i = 0; i < 16; i++) {
		char pair[3] = { hex[2 * i], hex[2 * i + 1], '\0' };

		state->dataset[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	return true;
}

static bool read_order(const json_t *value, struct shard_state *state)
{
	const char *text = json_string_value(value);

	return text && shard_order_mode_parse(text, &state->options.order) == 0 &&
	       state->options.order != SHARD_ORDER_AUTO;
}

static bool read_deal(const json_t *value, struct shard_state *state)
{
	const char *text = json_string_value(value);

	return text && shard_deal_mode_parse(text, &state->options.deal) == 0 && state->options.deal != SHARD_DEAL_AUTO;
}

static bool read_tail(const json_t *value, struct shard_state *state)
{
	const char *text = json_string_value(value);

	return text && shard_tail_parse(text, &state->options.tail) == 0;
}

static bool read_seed(const json_t *value, struct shard_state *state)
{
	return read_u64(value, &state->options.seed);
}

static bool read_epoch(const json_t *value, struct shard_state *state)
{
	return read_u64(value, &state->options.epoch);
}

static bool read_start(const json_t *value, struct shard_state *state)
{
	return read_u64(value, &state->options.start);
}

static bool read_subdir(const json_t *value, struct shard_state *state)
{
	const char *text = json_string_value(value);

	if (!text || text[0] == '\0' || json_string_length(value) >= sizeof(state->subdir) ||
	        json_string_length(value) != strlen(text))
		return false;
	memcpy(state->subdir, text, strlen(text) + 1);
	return true;
}

static bool read_pair(const json_t *value, uint64_t *ret_first, uint64_t *ret_second)
{
	return json_is_array(value) && json_array_size(value) == 2 && read_u64(json_array_get(value, 0), ret_first) &&
	       read_u64(json_array_get(value, 1), ret_second) && *ret_first > 0 && *ret_second > 0;
}

static bool read_chunk(const json_t *value, struct shard_state *state)
{
	return read_pair(value, &state->options.chunk_items, &state->options.pool_chunks);
}

static bool read_groups(const json_t *value, struct shard_state *state)
{
	struct shard_view_options *o = &state->options;

	return json_is_array(value) && json_array_size(value) == 2 && read_u64(json_array_get(value, 0), &o->groups) &&
	       read_u64(json_array_get(value, 1), &o->redeal) && o->groups > 1;
}

static bool read_past(const json_t *value, struct shard_state *state)
{
	struct shard_view_options *o = &state->options;
	size_t count = json_array_size(value);
	uint64_t world;

	if (!json_is_array(value) || count == 0 || count > SHARD_DEAL_SEGMENTS_MAX)
		return false;
	for (size_t i = 0; i < count; i++) {
		if (!read_pair(json_array_get(value, i), &world, &o->past[i].steps) || world > SHARD_WORLD_MAX)
			return false;
		o->past[i].world = (uint32_t)world;
	}
	o->n_past = (uint32_t)count;
	return true;
}

static bool read_on_bad(const json_t *value, struct shard_state *state)
{
	const char *text = json_string_value(value);

	return text && shard_on_bad_parse(text, &state->options.on_bad) == 0 &&
	       state->options.on_bad != SHARD_ON_BAD_EIO;
}

static bool read_quarantine(const json_t *value, struct shard_state *state)
{
	const char *hex = json_string_value(value);

	if (!hex || strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16)
		return false;
	state->quarantine = strtoull(hex, NULL, 16);
	return true;
}

static const struct key keys[] = {
	{ "version", true, read_version },
	{ "dataset", true, read_dataset },
	{ "order", true, read_order },
	{ "deal", true, read_deal },
	{ "seed", true, read_seed },
	{ "epoch", true, read_epoch },
	{ "start", true, read_start },
	{ "tail", true, read_tail },
	{ "subdir", false, read_subdir },
	{ "chunk", false, read_chunk },
	{ "past", false, read_past },
	{ "groups", false, read_groups },
	{ "on_bad", false, read_on_bad },
	{ "quarantine", false, read_quarantine },
};

static const struct key *find_key(const char *name)
{
	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (strcmp(name, keys[i].name) == 0)
			return &keys[i];
	}
	return NULL;
}

static int read_keys(json_t *root, struct base_err *err, struct shard_state *state)
{
	char quoted[128];
	const char *name;
	json_t *value;

	/* clang-format off */
	json_object_foreach(root, name, value) {
		const struct key *key = find_key(name);

		base_err_quote(name, quoted, sizeof(quoted));
		if (!key)
			return base_err_set(err, -EUCLEAN,
			        "resume state: unknown key \"%s\"; a newer ddpfs may have written it",
			        quoted);
		if (!key->read(value, state))
			return base_err_set(err, -EUCLEAN, "resume state: the value of \"%s\" is not valid", quoted);
	}
	/* clang-format on */
	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (keys[i].required && !json_object_get(root, keys[i].name))
			return base_err_set(err, -EUCLEAN, "resume state: \"%s\" is missing", keys[i].name);
	}
	if ((state->options.order == SHARD_ORDER_CHUNK) != (state->options.chunk_items > 0))
		return base_err_set(
		        err, -EUCLEAN, "resume state: \"chunk\" belongs to order=chunk and is needed there");
	if (state->options.n_past > 0 && state->options.deal != SHARD_DEAL_BLOCK)
		return base_err_set(err, -EUCLEAN, "resume state: \"past\" belongs to deal=block");
	if (state->options.groups > 1 &&
	        (state->options.deal != SHARD_DEAL_STRIDE || !shard_order_has_groups(state->options.order)))
		return base_err_set(err, -EUCLEAN,
		        "resume state: \"groups\" belongs to deal=stride with order=full or order=chunk");
	if ((json_object_get(root, "on_bad") != NULL) != (json_object_get(root, "quarantine") != NULL))
		return base_err_set(err, -EUCLEAN, "resume state: \"on_bad\" and \"quarantine\" belong together");
	return 0;
}

int shard_state_parse(const char *json, size_t len, struct base_err *err, struct shard_state *ret_state)
{
	struct shard_state state = { .options = SHARD_VIEW_OPTIONS_DEFAULT };
	cleanup_json json_t *root = NULL;
	json_error_t error; /* its text can contain bytes of the input */
	char quoted[4 * JSON_ERROR_TEXT_LENGTH];
	const json_t *version;
	int rc;

	if (len >= SHARD_STATE_MAX)
		return base_err_set(err, -EFBIG, "resume state: over %d bytes; this is not a state that ddpfs wrote",
		        SHARD_STATE_MAX - 1);
	root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(root))
		return base_err_set(err, -EUCLEAN, "resume state: not JSON as ddpfs writes it (%s)",
		        root ? "no object" : base_err_quote(error.text, quoted, sizeof(quoted)));
	version = json_object_get(root, "version");
	if (json_is_integer(version) && json_integer_value(version) != STATE_VERSION)
		return base_err_set(err, -EPROTONOSUPPORT,
		        "resume state: version %" PRId64 "; this ddpfs knows version %d: use the ddpfs that wrote it",
		        (int64_t)json_integer_value(version), STATE_VERSION);
	rc = read_keys(root, err, &state);
	if (rc == 0)
		*ret_state = state;
	return rc;
}

static int mismatch(struct base_err *err, const char *key, const char *given, const char *saved)
{
	return base_err_set(err, -EINVAL,
	        "%s=%s was given, but the resume state has %s=%s: drop the option, or start without the state", key,
	        given, key, saved);
}

static int check_u64(struct base_err *err, bool given, const char *key, uint64_t option, uint64_t saved)
{
	char a[24];
	char b[24];

	if (!given || option == saved)
		return 0;
	snprintf(a, sizeof(a), "%" PRIu64, option);
	snprintf(b, sizeof(b), "%" PRIu64, saved);
	return mismatch(err, key, a, b);
}

/* redeal= has no meaning beside groups=1. */
static int check_redeal(struct base_err *err, unsigned set, const struct shard_view_options *option,
        const struct shard_view_options *saved)
{
	char a[24];
	char b[24];

	if (!(set & SHARD_STATE_SET_REDEAL) || option->redeal == saved->redeal)
		return 0;
	if (set & SHARD_STATE_SET_GROUPS && option->groups <= 1)
		return 0;
	snprintf(a, sizeof(a), "%" PRIu64, option->redeal);
	snprintf(b, sizeof(b), "%" PRIu64, saved->redeal);
	return mismatch(err, "redeal", a, saved->redeal > 0 ? b : "never");
}

static int check_dataset(const struct shard_state *state, const struct shard_index *index, struct base_err *err)
{
	const struct shard_info *info = shard_index_info(index);
	char saved[33];
	char here[33];

	if (memcmp(state->dataset, info->identity, sizeof(state->dataset)) == 0)
		return 0;
	base_format_hex(state->dataset, 16, saved);
	base_format_hex(info->identity, 16, here);
	return base_err_set(err, -ESTALE,
	        "the resume state is of dataset %s, but '%s' is %s: mount the dataset that was trained, or start "
	        "without "
	        "the state",
	        saved, shard_index_dataset(index), here);
}

/* Compares paths component by component: "a/b" equals "/a//b/". */
static bool same_path(const char *a, const char *b)
{
	for (;;) {
		size_t la;
		size_t lb;

		a += strspn(a, "/");
		b += strspn(b, "/");
		la = strcspn(a, "/");
		lb = strcspn(b, "/");
		if (la != lb || memcmp(a, b, la) != 0)
			return false;
		if (la == 0)
			return true;
		a += la;
		b += lb;
	}
}

/* Checks on_bad and the list, because the rest of an epoch depends on which samples are in it. */
static int check_quarantine(
        const struct shard_state *state, unsigned set, const struct shard_view_options *o, struct base_err *err)
{
	const struct shard_view_options *s = &state->options;

	if (s->on_bad != SHARD_ON_BAD_EIO && !(set & SHARD_STATE_SET_ON_BAD) && !o->quarantine)
		return base_err_set(err, -EINVAL,
		        "the resume state is of on_bad=%s: its quarantine list is needed, or an explicit on_bad=eio at "
		        "the "
		        "beginning of an epoch",
		        shard_on_bad_name(s->on_bad));
	if (s->start == 0)
		return 0;
	if (set & SHARD_STATE_SET_ON_BAD && o->on_bad != s->on_bad)
		return mismatch(err, "on_bad", shard_on_bad_name(o->on_bad), shard_on_bad_name(s->on_bad));
	if (s->on_bad == SHARD_ON_BAD_EIO || (o->quarantine && o->quarantine->hash == state->quarantine))
		return 0;
	return base_err_set(err, -EINVAL,
	        "the resume state is in the middle of an epoch with on_bad=%s and the quarantine list %016" PRIx64
	        ", which is not the one %s: finish the epoch with that list, or start at the next epoch",
	        shard_on_bad_name(s->on_bad), state->quarantine, o->quarantine ? "that was read" : "given (none)");
}

int shard_state_apply(const struct shard_state *state, const struct shard_index *index, unsigned set,
        struct shard_view_options *options, struct base_err *err)
{
	const struct shard_view_options *s = &state->options;
	struct shard_view_options o = *options;
	char quoted[2][300];
	int rc = check_dataset(state, index, err);

	if (rc == 0 && set & SHARD_STATE_SET_ORDER && o.order != SHARD_ORDER_AUTO && o.order != s->order)
		rc = mismatch(err, "order", shard_order_mode_name(o.order), shard_order_mode_name(s->order));
	if (rc == 0 && set & SHARD_STATE_SET_DEAL && o.deal != SHARD_DEAL_AUTO && o.deal != s->deal)
		rc = mismatch(err, "deal", shard_deal_mode_name(o.deal), shard_deal_mode_name(s->deal));
	if (rc == 0 && set & SHARD_STATE_SET_TAIL && o.tail != s->tail)
		rc = mismatch(err, "tail", shard_tail_name(o.tail), shard_tail_name(s->tail));
	if (rc == 0)
		rc = check_u64(err, set & SHARD_STATE_SET_SEED, "seed", o.seed, s->seed);
	if (rc == 0)
		rc = check_u64(err, set & SHARD_STATE_SET_EPOCH, "epoch", o.epoch, s->epoch);
	if (rc == 0)
		rc = check_u64(err, set & SHARD_STATE_SET_START, "start", o.start, s->start);
	if (rc == 0 && set & SHARD_STATE_SET_SUBDIR && !same_path(o.subdir ? o.subdir : "", state->subdir))
		rc = mismatch(err, "subdir", base_err_quote(o.subdir ? o.subdir : "", quoted[0], sizeof(quoted[0])),
		        base_err_quote(state->subdir, quoted[1], sizeof(quoted[1])));
	if (rc == 0 && set & SHARD_STATE_SET_CHUNK && s->order == SHARD_ORDER_CHUNK)
		rc = base_err_set(err, -EINVAL,
		        "chunk= or pool= was given, but the resume state has its own geometry: drop the option, or "
		        "start "
		        "without the state");
	if (rc == 0) /* groups=1 is the same as no groups */
		rc = check_u64(err, set & SHARD_STATE_SET_GROUPS, "groups", o.groups > 1 ? o.groups : 1,
		        s->groups > 1 ? s->groups : 1);
	if (rc == 0)
		rc = check_redeal(err, set, &o, s);
	if (rc == 0)
		rc = check_quarantine(state, set, &o, err);
	if (rc < 0)
		return rc;
	if (!(set & SHARD_STATE_SET_ON_BAD))
		o.on_bad = s->on_bad;
	o.order = s->order;
	o.deal = s->deal;
	o.tail = s->tail;
	o.seed = s->seed;
	o.epoch = s->epoch;
	o.start = s->start;
	o.n_past = s->n_past;
	memcpy(o.past, s->past, sizeof(o.past));
	o.subdir = state->subdir;
	o.chunk_items = s->chunk_items;
	o.pool_chunks = s->pool_chunks;
	o.groups = s->groups;
	o.redeal = s->redeal;
	*options = o;
	return 0;
}
