/* SPDX-License-Identifier: Apache-2.0 */
/* The table of view options, and the state file; view_options.h first. */
#include "tools/common/view_options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"

const char view_options_keys[] = "order deal tail seed epoch start past rank world subdir chunk pool groups redeal "
                                 "state on_bad quarantine";

enum { CHUNK_BYTES_MIN = 512 };
#define POOL_BYTES_MAX (UINT64_C(1) << 50)

static int bad(struct base_err *err, const char *key, const char *value, const char *expected)
{
	return base_err_set(err, -EINVAL, "%s=%s: %s", key, base_quoted(value), expected);
}

static int bad_past(struct base_err *err, const char *value)
{
	return bad(err, "past", value,
	        "must be WORLDxSTEPS, joined with '+' where the world changed, such as 8x40960+6x600");
}

/* WORLDxSTEPS[+WORLDxSTEPS...] */
static int past(struct base_err *err, const char *value, struct shard_view_options *view)
{
	const char *at = value;
	uint32_t count = 0;

	for (;; at++) {
		char text[32];
		size_t len = strcspn(at, "+");
		char *times;
		uint64_t world;

		if (count == SHARD_DEAL_SEGMENTS_MAX)
			return bad(err, "past", value, "has more than 16 parts");
		if (len >= sizeof(text))
			return bad_past(err, value);
		memcpy(text, at, len);
		text[len] = '\0';
		times = strchr(text, 'x');
		if (!times)
			return bad_past(err, value);
		*times++ = '\0';
		if (base_parse_u64(text, SHARD_WORLD_MAX, &world) < 0 || world == 0 ||
		        base_parse_u64(times, SHARD_PERMUTE_MAX, &view->past[count].steps) < 0 ||
		        view->past[count].steps == 0)
			return bad_past(err, value);
		view->past[count++].world = (uint32_t)world;
		at += len;
		if (*at == '\0')
			break;
	}
	view->n_past = count;
	return 0;
}

static int set_order(struct view_options *o, const char *value, struct base_err *err)
{
	return shard_order_mode_parse(value, &o->view.order) < 0
	               ? bad(err, "order", value, "must be auto, full, chunk, torch or none")
	               : 0;
}

static int set_deal(struct view_options *o, const char *value, struct base_err *err)
{
	return shard_deal_mode_parse(value, &o->view.deal) < 0
	               ? bad(err, "deal", value, "must be auto, stride or block")
	               : 0;
}

static int set_tail(struct view_options *o, const char *value, struct base_err *err)
{
	return shard_tail_parse(value, &o->view.tail) < 0 ? bad(err, "tail", value, "must be pad, drop or short") : 0;
}

static int set_past(struct view_options *o, const char *value, struct base_err *err)
{
	return past(err, value, &o->view);
}

static int set_state(struct view_options *o, const char *value, struct base_err *err)
{
	bool optional = value[0] == '-';

	if (value[optional] == '\0')
		return bad(err, "state", value, "must name a file");
	o->state_path = value + optional;
	o->state_optional = optional;
	return 0;
}

static int set_on_bad(struct view_options *o, const char *value, struct base_err *err)
{
	return shard_on_bad_parse(value, &o->view.on_bad) < 0
	               ? bad(err, "on_bad", value, "must be eio, skip or substitute")
	               : 0;
}

static int set_quarantine(struct view_options *o, const char *value, struct base_err *err)
{
	if (value[0] == '\0')
		return bad(err, "quarantine", value, "must name a file");
	o->quarantine_path = value;
	return 0;
}

enum kind { KIND_U64, KIND_U32, KIND_SIZE, KIND_TEXT, KIND_CALL };

/* What the value of a key does: it goes into the member at `at`, or to take(). */
static const struct view_key {
	const char *key;
	unsigned set;
	enum kind kind;
	size_t at;
	uint64_t min, max; /* of a number */
	int (*take)(struct view_options *options, const char *value, struct base_err *err);
} view_keys[] = {
	{ "order", SHARD_STATE_SET_ORDER, .kind = KIND_CALL, .take = set_order },
	{ "deal", SHARD_STATE_SET_DEAL, .kind = KIND_CALL, .take = set_deal },
	{ "tail", SHARD_STATE_SET_TAIL, .kind = KIND_CALL, .take = set_tail },
	{ "seed", SHARD_STATE_SET_SEED, .kind = KIND_U64, offsetof(struct view_options, view.seed), 0, UINT64_MAX },
	{ "epoch", SHARD_STATE_SET_EPOCH, .kind = KIND_U64, offsetof(struct view_options, view.epoch), 0, UINT64_MAX },
	{ "start", SHARD_STATE_SET_START, .kind = KIND_U64, offsetof(struct view_options, view.start), 0, UINT64_MAX },
	{ "past", VIEW_OPTIONS_SET_PAST, .kind = KIND_CALL, .take = set_past },
	{ "rank", VIEW_OPTIONS_SET_RANK, .kind = KIND_U32, offsetof(struct view_options, view.rank), 0,
	        SHARD_WORLD_MAX - 1 },
	{ "world", VIEW_OPTIONS_SET_WORLD, .kind = KIND_U32, offsetof(struct view_options, view.world), 1,
	        SHARD_WORLD_MAX },
	{ "subdir", SHARD_STATE_SET_SUBDIR, .kind = KIND_TEXT, offsetof(struct view_options, view.subdir) },
	{ "chunk", SHARD_STATE_SET_CHUNK, .kind = KIND_SIZE, offsetof(struct view_options, view.chunk_bytes) },
	{ "pool", SHARD_STATE_SET_CHUNK, .kind = KIND_SIZE, offsetof(struct view_options, view.pool_bytes) },
	{ "groups", SHARD_STATE_SET_GROUPS, .kind = KIND_U64, offsetof(struct view_options, view.groups), 1,
	        SHARD_PERMUTE_MAX },
	{ "redeal", SHARD_STATE_SET_REDEAL, .kind = KIND_U64, offsetof(struct view_options, view.redeal), 1,
	        UINT64_MAX },
	{ "state", 0, .kind = KIND_CALL, .take = set_state },
	{ "on_bad", SHARD_STATE_SET_ON_BAD, .kind = KIND_CALL, .take = set_on_bad },
	{ "quarantine", 0, .kind = KIND_CALL, .take = set_quarantine },
};

static int take(struct view_options *options, const struct view_key *k, const char *value, struct base_err *err)
{
	void *at = (char *)options + k->at;
	uint64_t n;
	int rc;

	if (k->kind == KIND_CALL)
		return k->take(options, value, err);
	if (k->kind == KIND_TEXT) {
		*(const char **)at = value;
		return 0;
	}
	rc = k->kind == KIND_SIZE ? base_parse_size(value, &n) : base_parse_u64(value, k->max, &n);
	if (k->kind == KIND_SIZE && (rc < 0 || n < CHUNK_BYTES_MIN || n > POOL_BYTES_MAX))
		return bad(err, k->key, value, "must be a size from 512 to 1024T, such as 128K or 256M");
	if (rc == -ERANGE)
		return base_err_set(err, -EINVAL, "%s=%s: must be at most %" PRIu64, k->key, value, k->max);
	if (rc < 0)
		return bad(err, k->key, value, "must be a whole number, 0 or more");
	if (n < k->min)
		return bad(err, k->key, value, "must be at least 1");
	if (k->kind == KIND_U32)
		*(uint32_t *)at = (uint32_t)n;
	else
		*(uint64_t *)at = n;
	return 0;
}

int view_options_set(struct view_options *options, const char *key, const char *value, struct base_err *err)
{
	for (unsigned i = 0; i < sizeof(view_keys) / sizeof(view_keys[0]); i++) {
		int rc;

		if (strcmp(key, view_keys[i].key) != 0)
			continue;
		if (!value)
			return base_err_set(err, -EINVAL, "option '%s' needs a value: %s=...", key, key);
		rc = take(options, &view_keys[i], value, err);
		if (rc < 0)
			return rc;
		options->set |= view_keys[i].set;
		return 1;
	}
	return 0;
}

char *view_options_split(char **text, char **ret_value)
{
	char *item = *text;
	char *value = NULL;
	char *to = item;
	char *from = item;

	if (*from == '\0')
		return NULL;
	for (; *from != '\0' && *from != ','; from++) {
		if (*from == '\\' && (from[1] == ',' || from[1] == '\\')) {
			*to++ = *++from;
		} else if (*from == '=' && !value) {
			*to++ = '\0';
			value = to;
		} else {
			*to++ = *from;
		}
	}
	*text = *from == ',' ? from + 1 : from;
	*to = '\0';
	*ret_value = value;
	return item;
}

int view_options_parse(struct view_options *options, char *text, struct base_err *err)
{
	char *value;
	char *key;

	while ((key = view_options_split(&text, &value))) {
		int rc = key[0] == '\0' && !value ? 1 : view_options_set(options, key, value, err);

		if (rc < 0)
			return rc;
		if (rc == 0)
			return base_err_set(err, -EINVAL, "unknown option '%s'; there are: %s", base_quoted(key),
			        view_options_keys);
	}
	return 0;
}

static int read_quarantine(struct view_options *options, const struct shard_index *index, struct base_err *err)
{
	if (options->view.on_bad == SHARD_ON_BAD_EIO) {
		return options->quarantine_path ? base_err_set(err, -EINVAL,
		                                          "quarantine= is the list for on_bad=skip or "
		                                          "on_bad=substitute: add one of them")
		                                : 0;
	}
	int rc = shard_quarantine_read(index, options->quarantine_path, err, &options->quarantine);
	options->view.quarantine = options->quarantine;
	return rc < 0 && err ? base_err_prefix(err, "on_bad=%s", shard_on_bad_name(options->view.on_bad)) : rc;
}

void view_options_done(struct view_options *options)
{
	shard_quarantine_free(options->quarantine);
	options->quarantine = NULL;
	options->view.quarantine = NULL;
}

/* Whether the file is empty: an interrupted checkpoint made it but did not write it. */
static bool holds_nothing(const char *json, size_t len)
{
	while (len > 0 && strchr(" \t\r\n{}", json[len - 1]))
		len--;
	return len == 0;
}

static int read_state(struct view_options *options, const struct shard_index *index, struct base_err *err)
{
	cleanup_free char *json = NULL;
	unsigned given = options->set;
	size_t len;
	int rc = base_read_file(options->state_path, SHARD_STATE_MAX, &json, &len);

	const char *quoted = base_quoted(options->state_path);
	options->state_missing = rc == -ENOENT && options->state_optional;
	if (options->state_missing)
		return read_quarantine(options, index, err);
	if (rc < 0)
		return base_err_set(err, rc, "state file '%s': %s", quoted,
		        rc == -EFBIG ? "too large; this is not a state that ddpfs wrote" : base_err_str(rc));
	if (holds_nothing(json, len))
		return base_err_set(err, -EUCLEAN,
		        "state file '%s' holds no state: restore the one of a checkpoint, or remove it and give "
		        "state=-FILE to begin at epoch 0",
		        quoted);
	rc = shard_state_parse(json, len, err, &options->state);
	/* A restart has the command line of the first start.  Its chunk= and pool= are already in the state, as
	 * geometry. */
	if (options->state_optional)
		given &= ~(unsigned)SHARD_STATE_SET_CHUNK;
	if (rc == 0 && !(options->set & SHARD_STATE_SET_ON_BAD))
		options->view.on_bad = options->state.options.on_bad;
	if (rc == 0)
		rc = read_quarantine(options, index, err);
	if (rc == 0)
		rc = shard_state_apply(&options->state, index, given, &options->view, err);
	return rc < 0 && err ? base_err_prefix(err, "'%s'", quoted) : rc;
}

int view_options_finish(struct view_options *options, const struct shard_index *index, struct base_err *err)
{
	struct shard_view_options *view = &options->view;
	uint64_t sum = 0;

	if (options->state_path && options->set & VIEW_OPTIONS_SET_PAST)
		return base_err_set(err, -EINVAL, "past= and state= both say where the job stopped: give one of them");
	if (options->state_path)
		return read_state(options, index, err);
	int rc = read_quarantine(options, index, err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < view->n_past; i++)
		sum += view->past[i].steps;
	if (view->n_past > 0 && view->start == 0)
		view->start = sum;
	if (view->n_past > 0 && view->start != sum)
		return base_err_set(err, -EINVAL, "past= adds up to %" PRIu64 " steps, but start=%" PRIu64 " was given",
		        sum, view->start);
	return 0;
}
