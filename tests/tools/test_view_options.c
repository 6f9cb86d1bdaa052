/* SPDX-License-Identifier: Apache-2.0 */
/* The options that choose a view, as text. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tools/common/view_options.h"

static struct view_options parsed(char *text)
{
	struct view_options options = VIEW_OPTIONS_DEFAULT;
	struct base_err err = { 0 };

	if (view_options_parse(&options, text, &err) < 0)
		fail_msg("%s", err.text);
	return options;
}

static void every_key_is_read(void **state)
{
	char text[] = "order=chunk,deal=block,tail=short,seed=18446744073709551615,epoch=3,start=160,past=4x100+3x60,"
	              "rank=2,world=8,,subdir=a\\,b/c\\\\=d,chunk=128K,pool=1G,state=/s,groups=4,redeal=3";
	struct view_options o = parsed(text);
	(void)state;

	assert_int_equal(o.view.order, SHARD_ORDER_CHUNK);
	assert_int_equal(o.view.deal, SHARD_DEAL_BLOCK);
	assert_int_equal(o.view.tail, SHARD_TAIL_SHORT);
	assert_int_equal(o.view.seed, UINT64_MAX);
	assert_int_equal(o.view.epoch, 3);
	assert_int_equal(o.view.start, 160);
	assert_int_equal(o.view.n_past, 2);
	assert_int_equal(o.view.past[1].world, 3);
	assert_int_equal(o.view.past[1].steps, 60);
	assert_int_equal(o.view.rank, 2);
	assert_int_equal(o.view.world, 8);
	assert_string_equal(o.view.subdir, "a,b/c\\=d");
	assert_int_equal(o.view.chunk_bytes, 128 << 10);
	assert_int_equal(o.view.pool_bytes, 1 << 30);
	assert_int_equal(o.view.groups, 4);
	assert_int_equal(o.view.redeal, 3);
	assert_string_equal(o.state_path, "/s");
	assert_false(o.state_optional);
	assert_int_equal(o.set, 0xff | SHARD_STATE_SET_GROUPS | SHARD_STATE_SET_REDEAL | VIEW_OPTIONS_SET_RANK |
	                                VIEW_OPTIONS_SET_WORLD | VIEW_OPTIONS_SET_PAST);
}

static void what_is_not_given_is_not_set(void **state)
{
	char nothing[] = "";
	char one[] = "seed=1";
	(void)state;

	assert_int_equal(parsed(nothing).set, 0);
	assert_int_equal(parsed(nothing).view.world, 1);
	assert_int_equal(parsed(one).set, SHARD_STATE_SET_SEED);
}

static void every_key_is_listed(void **state)
{
	char keys[sizeof(
	        "order deal tail seed epoch start past rank world subdir chunk pool groups redeal state on_bad "
	        "quarantine")];
	char *rest = keys;
	char *key;
	(void)state;

	assert_int_equal(strlen(view_options_keys) + 1, sizeof(keys));
	strcpy(keys, view_options_keys);
	while ((key = strsep(&rest, " "))) {
		struct view_options options = VIEW_OPTIONS_DEFAULT;
		struct base_err err = { 0 };

		assert_int_equal(view_options_set(&options, key, NULL, &err), -EINVAL);
		assert_non_null(strstr(err.text, key));
	}
}

static void other_keys_are_left_to_the_caller(void **state)
{
	struct view_options options = VIEW_OPTIONS_DEFAULT;
	(void)state;

	assert_int_equal(view_options_set(&options, "memory", "1G", NULL), 0);
	assert_int_equal(view_options_set(&options, "", "", NULL), 0);
}

static void wrong_values_are_named(void **state)
{
	static const char *const wrong[] = { "order=Full", "order=", "deal=x", "tail=x", "seed=-1", "seed=1x",
		"seed=18446744073709551616", "epoch=", "start=1.5", "rank=1048576", "world=0", "world=1048577",
		"chunk=0", "chunk=511", "chunk=12Q", "pool=2000T", "past=4", "past=4x", "past=x4", "past=0x4",
		"past=4x0", "groups=0", "groups=-1", "groups=x", "groups=4611686018427387905", "redeal=0", "redeal=1.5",
		"past=4x1+", "past=1048577x1", "past=4x99999999999999999999999999999999", "state=", "state=-", "seed",
		"colour=red" };
	char many[SHARD_DEAL_SEGMENTS_MAX * 8 + 16] = "past=1x1";
	(void)state;

	for (unsigned i = 0; i <= sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct view_options options = VIEW_OPTIONS_DEFAULT;
		struct base_err err = { 0 };
		char text[256];
		size_t key;

		if (i == sizeof(wrong) / sizeof(wrong[0])) { /* one segment too many */
			for (unsigned s = 0; s < SHARD_DEAL_SEGMENTS_MAX; s++)
				strcat(many, "+1x1");
			strcpy(text, many);
		} else {
			strcpy(text, wrong[i]);
		}
		key = strcspn(text, "=");
		assert_int_equal(view_options_parse(&options, text, &err), -EINVAL);
		assert_non_null(memmem(
		        err.text, strlen(err.text), i < sizeof(wrong) / sizeof(wrong[0]) ? wrong[i] : many, key));
		assert_null(strchr(err.text, '\n'));
	}
}

static void a_state_may_be_missing(void **state)
{
	char missing[] = "epoch=3,state=-/nonexistent/state";
	char wanted[] = "epoch=3,state=/nonexistent/state";
	struct view_options o = parsed(missing);
	struct base_err err = { 0 };
	(void)state;

	assert_true(o.state_optional);
	assert_string_equal(o.state_path, "/nonexistent/state");
	assert_int_equal(view_options_finish(&o, NULL, &err), 0);
	assert_true(o.state_missing);
	assert_int_equal(o.view.epoch, 3);
	o = parsed(wanted);
	assert_int_equal(view_options_finish(&o, NULL, &err), -ENOENT);
}

static void past_fills_start_in(void **state)
{
	char text[] = "past=4x100+3x60";
	char differs[] = "past=4x100,start=99";
	char both[] = "past=4x100,state=/s";
	struct view_options o = parsed(text);
	(void)state;

	assert_int_equal(view_options_finish(&o, NULL, NULL), 0);
	assert_int_equal(o.view.start, 160);
	o = parsed(differs);
	assert_int_equal(view_options_finish(&o, NULL, NULL), -EINVAL);
	o = parsed(both);
	assert_int_equal(view_options_finish(&o, NULL, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_key_is_read),
		cmocka_unit_test(what_is_not_given_is_not_set),
		cmocka_unit_test(every_key_is_listed),
		cmocka_unit_test(other_keys_are_left_to_the_caller),
		cmocka_unit_test(wrong_values_are_named),
		cmocka_unit_test(a_state_may_be_missing),
		cmocka_unit_test(past_fills_start_in),
	};

	return cmocka_run_group_tests_name("view_options", tests, NULL, NULL);
}
