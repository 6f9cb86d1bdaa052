/* SPDX-License-Identifier: Apache-2.0 */
/* The table of view options, and the state file; view_options.h first. */
#include "tools/common/view_options.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"

const char view_options_keys[] = "order deal tail seed epoch start past rank world subdir chunk pool state on_bad "
                                 "quarantine";

enum { CHUNK_BYTES_MIN = 512 };
#define POOL_BYTES_MAX (UINT64_C(1) << 50)

static int bad(struct base_err *err, const char *key, const char *value, const char *expected)
{

	return base_err_set(err, -EINVAL, "%s=%s: %s", key, base_quoted(value), expected);
}

static int number(struct base_err *err, const char *key, const char *value, uint64_t max, uint64_t *ret_number)
{
	int rc = base_parse_u64(value, max, ret_number);

	if (rc == -ERANGE)
		return base_err_set(err, -EINVAL, "%s=%s: must be at most %" PRIu64, key, value, max);
	return rc < 0 ? bad(err, key, value, "must be a whole number, 0 or more") : 0;
}

static int number32(struct base_err *err, const char *key, const char *value, uint32_t max, uint32_t *ret_number)
{
	uint64_t wide;
	int rc = number(err, key, value, max, &wide);

	if (rc == 0)
		*ret_number = (uint32_t)wide;
	return rc;
}

static int size(struct base_err *err, const char *key, const char *value, uint64_t *ret_bytes)
{
	uint64_t bytes;

	if (base_parse_size(value, &bytes) < 0 || bytes < CHUNK_BYTES_MIN || bytes > POOL_BYTES_MAX)
		return bad(err, key, value, "must be a size from 512 to 1024T, such as 128K or 256M");
	*ret_bytes = bytes;
	return 0;
}

/* WORLDxSTEPS[+WORLDxSTEPS...] */
static int past(struct base_err *err, const char *value, struct shard_view_options *view)
{
	static const char expected[] =
	        "must be WORLDxSTEPS, joined with '+' where the world changed, such as 8x40960+6x600";
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
			return bad(err, "past", value, expected);
		memcpy(text, at, len);
		text[len] = '\0';
		times = strchr(text, 'x');
		if (!times)
			return bad(err, "past", value, expected);
		*times++ = '\0';
		if (base_parse_u64(text, SHARD_WORLD_MAX, &world) < 0 || world == 0 ||
		        base_parse_u64(times, SHARD_PERMUTE_MAX, &view->past[count].steps) < 0 ||
		        view->past[count].steps == 0)
			return bad(err, "past", value, expected);
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

static int set_seed(struct view_options *o, const char *value, struct base_err *err)
{
	return number(err, "seed", value, UINT64_MAX, &o->view.seed);
}

static int set_epoch(struct view_options *o, const char *value, struct base_err *err)
{
	return number(err, "epoch", value, UINT64_MAX, &o->view.epoch);
}

static int set_start(struct view_options *o, const char *value, struct base_err *err)
{
	return number(err, "start", value, UINT64_MAX, &o->view.start);
}

static int set_past(struct view_options *o, const char *value, struct base_err *err)
{
	return past(err, value, &o->view);
}

static int set_rank(struct view_options *o, const char *value, struct base_err *err)
{
	return number32(err, "rank", value, SHARD_WORLD_MAX - 1, &o->view.rank);
}

static int set_world(struct view_options *o, const char *value, struct base_err *err)
{
	int rc = number32(err, "world", value, SHARD_WORLD_MAX, &o->view.world);

	return rc == 0 && o->view.world == 0 ? bad(err, "world", value, "must be at least 1") : rc;
}

static int set_subdir(struct view_options *o, const char *value, struct base_err *err)
{
	(void)err;
	o->view.subdir = value;
	return 0;
}

static int set_chunk(struct view_options *o, const char *value, struct base_err *err)
{
	return size(err, "chunk", value, &o->view.chunk_bytes);
}

static int set_pool(struct view_options *o, const char *value, struct base_err *err)
{
	return size(err, "pool", value, &o->view.pool_bytes);
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

static const struct {
	const char *key;
	unsigned set;
	int (*take)(struct view_options *options, const char *value, struct base_err *err);
} view_keys[] = {
	{ "order", SHARD_STATE_SET_ORDER, set_order },
	{ "deal", SHARD_STATE_SET_DEAL, set_deal },
	{ "tail", SHARD_STATE_SET_TAIL, set_tail },
	{ "seed", SHARD_STATE_SET_SEED, set_seed },
	{ "epoch", SHARD_STATE_SET_EPOCH, set_epoch },
	{ "start", SHARD_STATE_SET_START, set_start },
	{ "past", VIEW_OPTIONS_SET_PAST, set_past },
	{ "rank", VIEW_OPTIONS_SET_RANK, set_rank },
	{ "world", VIEW_OPTIONS_SET_WORLD, set_world },
	{ "subdir", SHARD_STATE_SET_SUBDIR, set_subdir },
	{ "chunk", SHARD_STATE_SET_CHUNK, set_chunk },
	{ "pool", SHARD_STATE_SET_CHUNK, set_pool },
	{ "state", 0, set_state },
	{ "on_bad", SHARD_STATE_SET_ON_BAD, set_on_bad },
	{ "quarantine", 0, set_quarantine },
};

int view_options_set(struct view_options *options, const char *key, const char *value, struct base_err *err)
{
	for (unsigned i = 0; i < sizeof(view_keys) / sizeof(view_keys[0]); i++) {
		int rc;

		if (strcmp(key, view_keys[i].key) != 0)
			continue;
		if (!value)
			return base_err_set(err, -EINVAL, "option '%s' needs a value: %s=...", key, key);
		rc = view_keys[i].take(options, value, err);
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
