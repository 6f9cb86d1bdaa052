/* SPDX-License-Identifier: Apache-2.0 */
/* The resume state: what it keeps, what it refuses, and exactly once through it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shard/state.h"
#include "tests/shard/synth.h"

static const struct synth dataset = { .classes = 9, .val_classes = 2, .per_class = 67, .bytes = 500, .shuffled = true };
enum { N = 11 * 67 };

static struct shard_view *open_view(const struct shard_index *index, const struct shard_view_options *options)
{
	struct shard_view *view = NULL;
	struct base_err err = { 0 };

	if (shard_view_new(index, options, &err, &view) < 0)
		fail_msg("%s", err.text);
	return view;
}

static struct shard_state parse(const char *text)
{
	struct shard_state parsed = { 0 };
	struct base_err err = { 0 };

	if (shard_state_parse(text, strlen(text), &err, &parsed) < 0)
		fail_msg("%s: %s", text, err.text);
	return parsed;
}

static void text_is_as_documented(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .seed = 7, .epoch = 3 };
	struct shard_view *view = open_view(index, &o);
	char expected[256];
	char hex[33];
	char text[256];

	for (unsigned i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", shard_index_info(index)->identity[i]);
	snprintf(expected, sizeof(expected),
	        "{\"version\":1,\"dataset\":\"%s\",\"order\":\"full\",\"deal\":\"stride\",\"seed\":7,\"epoch\":3,"
	        "\"start\":400,\"tail\":\"pad\"}",
	        hex);
	assert_int_equal(shard_state_format(view, 3, 400, text, sizeof(text)), 0);
	assert_string_equal(text, expected);
	assert_int_equal(shard_state_format(view, 3, 400, text, strlen(expected)), -ERANGE);
	assert_int_equal(shard_state_format(view, 3, 400, text, strlen(expected) + 1), 0);
	shard_view_free(view);
}

/* The widest numbers that 32-bit ids allow, and one change of the world. */
static void stays_under_256_bytes(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = {
		.order = SHARD_ORDER_CHUNK,
		.deal = SHARD_DEAL_BLOCK,
		.tail = SHARD_TAIL_SHORT,
		.world = SHARD_WORLD_MAX,
		.seed = UINT64_MAX,
		.epoch = UINT32_MAX,
		.start = 700,
		.n_past = 1,
		.past = { { 1000000, 700 } },
	};
	struct shard_view *view = open_view(index, &o);
	char text[SHARD_STATE_MAX];

	assert_int_equal(shard_state_format(view, UINT32_MAX, 720, text, sizeof(text)), 0);
	assert_true(strlen(text) + 1 < 256);
	assert_int_equal(parse(text).options.seed, UINT64_MAX);
	assert_int_equal(parse(text).options.n_past, 2);
	shard_view_free(view);
}

static void a_finished_epoch_is_the_next_ones_beginning(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .tail = SHARD_TAIL_PAD };
	struct shard_view *view = open_view(index, &o);
	char text[SHARD_STATE_MAX];

	assert_int_equal(shard_state_format(view, 5, N - 1, text, sizeof(text)), 0);
	assert_int_equal(parse(text).options.epoch, 5);
	assert_int_equal(parse(text).options.start, N - 1);
	for (uint64_t steps = N; steps <= N + 3; steps += 3) {
		assert_int_equal(shard_state_format(view, 5, steps, text, sizeof(text)), 0);
		assert_int_equal(parse(text).options.epoch, 6);
		assert_int_equal(parse(text).options.start, 0);
	}
	shard_view_free(view);
	o.tail = SHARD_TAIL_DROP;
	view = open_view(index, &o);
	assert_int_equal(shard_state_format(view, 5, N / 4 * 4 - 1, text, sizeof(text)), 0);
	assert_int_equal(parse(text).options.epoch, 5);
	assert_int_equal(shard_state_format(view, 5, N / 4 * 4, text, sizeof(text)), 0);
	assert_int_equal(parse(text).options.epoch, 6);
	shard_view_free(view);
}

static void fewer_steps_than_start_are_refused(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .epoch = 2, .start = 100 };
	struct shard_view *view = open_view(index, &o);
	char text[SHARD_STATE_MAX];

	assert_int_equal(shard_state_format(view, 2, 99, text, sizeof(text)), -EINVAL);
	assert_int_equal(shard_state_format(view, 2, 100, text, sizeof(text)), 0);
	assert_int_equal(shard_state_format(view, 3, 99, text, sizeof(text)), 0);
	shard_view_free(view);
}

/* A job that is stopped again and again and goes on with another world each time, through its state only; then one more
 * epoch with the last state. */
static void exactly_once_through_states(
        const struct shard_index *index, enum shard_order_mode order, enum shard_deal_mode deal, const char *subdir)
{
	static const uint32_t worlds[] = { 4, 3, 3, 2, 16, 1, 5 };
	static const uint64_t stops[] = { 100, 250, 301, 302, 398, 430, UINT64_MAX };
	struct shard_view_options options = {
		.order = order, .deal = deal, .tail = SHARD_TAIL_SHORT, .seed = 5, .epoch = 2, .subdir = subdir
	};
	struct shard_state saved = { 0 };
	unsigned counts[N] = { 0 };
	uint64_t total = 0;

	for (unsigned part = 0; part < 7; part++) {
		struct shard_view *view;
		struct shard_epoch *epoch;
		char text[SHARD_STATE_MAX];
		uint64_t step;
		uint64_t end;

		if (part > 0) {
			struct base_err err = { 0 };

			options = SHARD_VIEW_OPTIONS_DEFAULT;
			if (shard_state_apply(&saved, index, 0, &options, &err) < 0)
				fail_msg("%s", err.text);
		}
		options.world = worlds[part];
		view = open_view(index, &options);
		end = stops[part] < shard_view_samples(view) ? stops[part] : shard_view_samples(view);
		assert_int_equal(shard_view_epoch(view, 2, &epoch), 0);
		assert_int_equal(options.epoch, 2);
		for (step = options.start; step < end; step++) {
			uint32_t sample;

			assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
			assert_int_equal(counts[sample]++, 0);
			total++;
		}
		shard_epoch_put(epoch);
		assert_int_equal(shard_state_format(view, 2, end, text, sizeof(text)), 0);
		saved = parse(text);
		if (part == 6) {
			assert_int_equal(total, shard_view_samples(view));
			assert_int_equal(saved.options.epoch, 3);
			assert_int_equal(saved.options.start, 0);
			assert_int_equal(saved.options.n_past, 0);
		}
		shard_view_free(view);
	}
}

static void elastic_jobs_see_every_sample_once(void **state)
{
	static const enum shard_order_mode orders[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH,
		SHARD_ORDER_NONE };

	for (unsigned o = 0; o < 4; o++) {
		for (int deal = SHARD_DEAL_STRIDE; deal <= SHARD_DEAL_BLOCK; deal++) {
			exactly_once_through_states(*state, orders[o], (enum shard_deal_mode)deal, NULL);
			exactly_once_through_states(*state, orders[o], (enum shard_deal_mode)deal, "train");
		}
	}
}

static void too_many_changes_are_said(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = {
		.order = SHARD_ORDER_CHUNK, .deal = SHARD_DEAL_BLOCK, .world = 3, .n_past = SHARD_DEAL_SEGMENTS_MAX
	};
	struct shard_view *view;
	char text[SHARD_STATE_MAX];

	for (unsigned i = 0; i < SHARD_DEAL_SEGMENTS_MAX; i++)
		o.past[i] = (struct shard_deal_segment){ 1 + i % 2, 1 };
	o.start = SHARD_DEAL_SEGMENTS_MAX;
	view = open_view(index, &o);
	assert_int_equal(shard_state_format(view, 0, 16, text, sizeof(text)), 0);
	assert_int_equal(shard_state_format(view, 0, 20, text, sizeof(text)), -E2BIG);
	assert_int_equal(shard_state_format(view, 0, N, text, sizeof(text)), 0); /* the next epoch starts afresh */
	shard_view_free(view);
}

static void bad_text_is_refused_with_the_key(void **state)
{
#define GOOD                                                                                                           \
	"\"version\":1,\"dataset\":\"00112233445566778899aabbccddeeff\",\"order\":\"full\",\"deal\":\"stride\","       \
	"\"seed\":7,\"epoch\":3,\"start\":81920,\"tail\":\"pad\""
	static const struct {
		const char *text;
		int code;
		const char *word;
	} cases[] = {
		{ "", -EUCLEAN, "JSON" },
		{ "[1]", -EUCLEAN, "no object" },
		{ "{" GOOD, -EUCLEAN, "JSON" },
		{ "{" GOOD "} x", -EUCLEAN, "JSON" },
		{ "{" GOOD ",\"seed\":8}", -EUCLEAN, "JSON" },
		{ "{\"a\\\nb\":1}", -EUCLEAN, "JSON" }, /* jansson's sentence quotes what it cannot read */
		{ "{" GOOD ",\"colour\":8}", -EUCLEAN, "\"colour\"" },
		{ "{" GOOD ",\"a\\nb\":8}", -EUCLEAN, "unknown" },
		{ "{" GOOD ",\"subdir\":\"\"}", -EUCLEAN, "\"subdir\"" },
		{ "{" GOOD ",\"subdir\":7}", -EUCLEAN, "\"subdir\"" },
		{ "{" GOOD ",\"chunk\":[1,2]}", -EUCLEAN, "\"chunk\"" },
		{ "{" GOOD ",\"past\":[[4,100]]}", -EUCLEAN, "\"past\"" },
		{ "{" GOOD ",\"past\":[]}", -EUCLEAN, "\"past\"" },
		{ "{" GOOD ",\"past\":[[4]]}", -EUCLEAN, "\"past\"" },
		{ "{" GOOD ",\"past\":[[0,5]]}", -EUCLEAN, "\"past\"" },
		{ "{" GOOD ",\"past\":[[1048577,5]]}", -EUCLEAN, "\"past\"" },
		{ "{\"version\":1}", -EUCLEAN, "\"dataset\" is missing" },
		{ "{\"version\":2,\"anything\":true}", -EPROTONOSUPPORT, "version 2" },
		{ "{\"version\":\"1\"}", -EUCLEAN, "\"version\"" },
		{ "{\"seed\":-1}", -EUCLEAN, "\"seed\"" },
		{ "{\"seed\":1.5}", -EUCLEAN, "\"seed\"" },
		{ "{\"seed\":\"12x\"}", -EUCLEAN, "\"seed\"" },
		{ "{\"seed\":\"99999999999999999999999\"}", -EUCLEAN, "\"seed\"" },
		{ "{\"dataset\":\"0011\"}", -EUCLEAN, "\"dataset\"" },
		{ "{\"dataset\":\"zz112233445566778899aabbccddeeff\"}", -EUCLEAN, "\"dataset\"" },
		{ "{\"order\":\"auto\"}", -EUCLEAN, "\"order\"" },
		{ "{\"deal\":\"auto\"}", -EUCLEAN, "\"deal\"" },
		{ "{\"tail\":null}", -EUCLEAN, "\"tail\"" },
	};
	(void)state;

	assert_int_equal(parse("{" GOOD "}\n").options.start, 81920);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shard_state parsed;
		struct base_err err = { 0 };

		assert_int_equal(shard_state_parse(cases[i].text, strlen(cases[i].text), &err, &parsed), cases[i].code);
		if (!strstr(err.text, cases[i].word))
			fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.text, cases[i].word);
		assert_null(strchr(err.text, '\n'));
	}
}

static void large_text_is_refused(void **state)
{
	char *text = malloc(SHARD_STATE_MAX);
	struct shard_state parsed;
	(void)state;

	memset(text, ' ', SHARD_STATE_MAX);
	assert_int_equal(shard_state_parse(text, SHARD_STATE_MAX, NULL, &parsed), -EFBIG);
	free(text);
}

static void applying_checks_what_was_given(void **state)
{
	const struct shard_index *index = *state;
	struct shard_view_options o = { .order = SHARD_ORDER_FULL, .world = 4, .seed = 7, .subdir = "train" };
	struct shard_view *view = open_view(index, &o);
	char text[SHARD_STATE_MAX];
	static const struct {
		unsigned set;
		const char *word; /* NULL: agrees */
	} cases[] = {
		{ 0, NULL }, { SHARD_STATE_SET_ORDER, "order=chunk" }, { SHARD_STATE_SET_DEAL, "deal=block" },
		{ SHARD_STATE_SET_SEED, "seed=8" }, { SHARD_STATE_SET_TAIL, "tail=drop" },
		{ SHARD_STATE_SET_EPOCH, "epoch=9" }, { SHARD_STATE_SET_START, "start=5" },
		{ SHARD_STATE_SET_SUBDIR, NULL }, /* "/train/" is "train" */
	};
	struct shard_state saved;

	assert_int_equal(shard_state_format(view, 0, 400, text, sizeof(text)), 0);
	shard_view_free(view);
	saved = parse(text);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shard_view_options given = {
			.order = SHARD_ORDER_CHUNK,
			.deal = SHARD_DEAL_BLOCK,
			.tail = SHARD_TAIL_DROP,
			.seed = 8,
			.epoch = 9,
			.start = 5,
			.world = 3,
			.rank = 2,
			.subdir = "/train/",
		};
		struct base_err err = { 0 };
		int rc = shard_state_apply(&saved, index, cases[i].set, &given, &err);

		assert_int_equal(rc, cases[i].word ? -EINVAL : 0);
		if (cases[i].word && !strstr(err.text, cases[i].word))
			fail_msg("'%s' does not say '%s'", err.text, cases[i].word);
		assert_int_equal(given.start, cases[i].word ? 5 : 400);
		assert_int_equal(given.world, 3);
		assert_int_equal(given.rank, 2);
		if (!cases[i].word)
			assert_string_equal(given.subdir, "train");
	}
	saved.dataset[0] ^= 1;
	o = SHARD_VIEW_OPTIONS_DEFAULT;
	assert_int_equal(shard_state_apply(&saved, index, 0, &o, NULL), -ESTALE);
}

static int open_index(void **state)
{
	*state = synth_open(&dataset);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_is_as_documented),
		cmocka_unit_test(stays_under_256_bytes),
		cmocka_unit_test(a_finished_epoch_is_the_next_ones_beginning),
		cmocka_unit_test(fewer_steps_than_start_are_refused),
		cmocka_unit_test(elastic_jobs_see_every_sample_once),
		cmocka_unit_test(too_many_changes_are_said),
		cmocka_unit_test(bad_text_is_refused_with_the_key),
		cmocka_unit_test(large_text_is_refused),
		cmocka_unit_test(applying_checks_what_was_given),
	};

	return cmocka_run_group_tests_name("state", tests, open_index, synth_teardown);
}
