/* SPDX-License-Identifier: Apache-2.0 */
/* What one program's supervisor hands to another's, and what is made of text that is damaged. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tools/ddpfs/mount_options.h"
#include "tools/ddpfs/takeover.h"

static struct takeover full(void)
{
	struct takeover t = {
		.fs = { .dataset = "/data/\xff\"x",
		        .mountpoint = "/mnt",
		        .layout = FS_LAYOUT_TREE,
		        .view = SHARD_VIEW_OPTIONS_DEFAULT,
		        .n_ranks = 8,
		        .memory_bytes = UINT64_MAX,
		        .uid = 4294967294,
		        .umask = 077,
		        .set_uid = true,
		        .loaders_watched = true,
		        .watchdog_s = 20,
		        .timeout_s = 7,
		        .tier_dir = "/nvme",
		        .index_file = "/data/i,\xff",
		        .tier_bytes = (uint64_t)1 << 40,
		        .control_path = "/run/x" },
		.held = { .fuse_fd = 3,
		        .handover_fd = 4,
		        .inotify_fd = -1,
		        .control_fd = 6,
		        .control_path = "/run/ddpfs/1",
		        .mount = { .dev = 0x8000000000000001, .init_len = 104, .resends = true },
		        .first_start_ns = 123456789,
		        .restarts = 9 },
		.log_level = BASE_LOG_DEBUG,
		.owner_pidfd = -1,
	};
	t.fs.view.world = 16;
	t.fs.view.seed = UINT64_MAX;
	t.fs.view.subdir = "train";
	t.fs.view.n_past = 2;
	t.fs.view.past[0] = (struct shard_deal_segment){ .world = 4, .steps = 1000 };
	t.fs.view.past[1] = (struct shard_deal_segment){ .world = UINT32_MAX, .steps = INT64_MAX };
	memset(t.held.mount.init, 0xa5, t.held.mount.init_len);
	memset(t.held.mount.identity, 0x42, sizeof(t.held.mount.identity));
	return t;
}

static int read_text(const char *text, size_t len)
{
	struct takeover t;
	struct base_err err = { 0 };
	int rc = takeover_read(text, len, &err, &t);
	if (rc == 0)
		takeover_done(&t);
	else
		assert_true(err.text[0]); /* it says why */
	return rc;
}

static int read_object(json_t *object)
{
	char *text = json_dumps(object, JSON_COMPACT);
	int rc = read_text(text, strlen(text));
	free(text);
	return rc;
}

static json_t *object_of(const struct takeover *t)
{
	char *text = takeover_write(t);
	json_t *object = json_loads(text, 0, NULL);
	assert_non_null(object);
	free(text);
	return object;
}

static void test_all_comes_back(void **state)
{
	struct takeover t = full(), back;
	struct base_err err = { 0 };
	char *text = takeover_write(&t);
	(void)state;
	assert_int_equal(takeover_read(text, strlen(text), &err, &back), 0);
	assert_string_equal(back.fs.dataset, t.fs.dataset);
	assert_string_equal(back.fs.view.subdir, "train");
	assert_string_equal(back.held.control_path, t.held.control_path);
	assert_string_equal(back.fs.tier_dir, t.fs.tier_dir);
	assert_string_equal(back.fs.index_file, t.fs.index_file);
	assert_true(back.fs.tier_bytes == t.fs.tier_bytes);
	assert_int_equal(back.fs.uid, t.fs.uid);
	assert_int_equal(back.fs.timeout_s, 7);
	assert_int_equal(back.fs.n_ranks, 8);
	assert_true(back.fs.loaders_watched);
	assert_int_equal(back.held.first_start_ns, 123456789);
	assert_int_equal(back.fs.view.past[1].world, UINT32_MAX);
	assert_int_equal(back.held.mount.dev, t.held.mount.dev);
	assert_memory_equal(back.held.mount.init, t.held.mount.init, sizeof(t.held.mount.init));
	char *again = takeover_write(&back);
	assert_string_equal(again, text);
	free(again);
	free(text);
	takeover_done(&back);
}

static void test_no_part_of_a_text_is_read(void **state)
{
	struct takeover t = full();
	char *text = takeover_write(&t);
	(void)state;
	for (size_t len = 0; len < strlen(text); len++)
		assert_true(read_text(text, len) < 0);
	free(text);
}

static void test_another_version_is_refused(void **state)
{
	static const char *const versions[] = { "0", "2", "-1", "null", "\"1\"", "1.0", "[1]" };
	struct takeover t = full();
	json_t *object = object_of(&t);
	(void)state;
	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		json_object_set_new(object, "version", json_loads(versions[i], JSON_DECODE_ANY, NULL));
		assert_int_equal(read_object(object), -EPROTONOSUPPORT);
	}
	json_object_set_new(object, "version", json_integer(TAKEOVER_VERSION));
	assert_int_equal(read_object(object), 0);
	json_object_set_new(object, "fs.view.quarantine", json_string("0700000009000000"));
	assert_int_equal(read_object(object), 0);
	json_object_set_new(object, "something.new", json_true());
	assert_int_equal(read_object(object), -EPROTONOSUPPORT);
	json_decref(object);
}

/* Every key with every kind of value but its own. */
static void test_no_key_takes_another_kind(void **state)
{
	static const char *const values[] = { "true", "7", "\"0g\"", "\"012\"", "{}", "[[1]]", "1.5", "\"\\u0000\"",
		"[1,2]", "[[-1,2]]", "[[1,-2]]", "[[4294967296,2]]", "99999999999", "-99999999999" };
	struct takeover t = full();
	json_t *object = object_of(&t);
	const char *key;
	json_t *own;
	void *next;
	(void)state;
	json_object_foreach_safe(object, next, key, own)
	{
		json_incref(own);
		char *name = strdup(key);
		unsigned taken = 0;
		for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
			json_object_set_new(object, name, json_loads(values[i], JSON_DECODE_ANY, NULL));
			taken += read_object(object) == 0;
		}
		assert_true(taken <= 1); /* its own kind */
		json_object_set_new(object, name, own);
		free(name);
	}
	assert_int_equal(read_object(object), 0);
	json_decref(object);
}

static void test_what_cannot_be_done_without_is_asked_for(void **state)
{
	static const char *const needed[] = { "version", "fs.dataset", "fs.mountpoint", "held.fuse_fd",
		"held.handover_fd", "held.control_fd", "held.mount.init" };
	struct takeover t = full();
	(void)state;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		json_t *object = object_of(&t);
		json_object_del(object, needed[i]);
		assert_true(read_object(object) < 0);
		json_decref(object);
	}
}

static void test_numbers_are_what_they_stand_for(void **state)
{
	static const struct {
		const char *key;
		json_int_t value;
	} wrong[] = { { "fs.layout", 2 }, { "fs.layout", -1 }, { "fs.advance", 2 }, { "log_level", 4 },
		{ "log_level", -1 }, { "held.fuse_fd", -1 }, { "held.control_fd", -7 }, { "held.inotify_fd", -2 },
		{ "owner_pidfd", -2 }, { "fs.watchdog_s", -1 }, { "fs.watchdog_s", 2147484 }, { "fs.timeout_s", -1 },
		{ "fs.timeout_s", 2147484 }, { "fs.uid", (json_int_t)1 << 32 }, { "fs.n_ranks", 17 },
		{ "fs.view.rank", 9 } };
	struct takeover t = full();
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		json_t *object = object_of(&t);
		json_object_set_new(object, wrong[i].key, json_integer(wrong[i].value));
		assert_true(read_object(object) < 0);
		json_decref(object);
	}
	t.fs.view.world = 1000;
	t.fs.n_ranks = 257;
	json_t *many = object_of(&t);
	assert_true(read_object(many) < 0);
	json_decref(many);
	t.fs.n_ranks = 8;
	t.fs.view_all = true; /* such a mount has one view */
	json_t *all = object_of(&t);
	assert_true(read_object(all) < 0);
	json_decref(all);
}

static void test_texts_fit(void **state)
{
	static const char *const keys[] = { "fs.dataset", "held.control_path", "held.mount.init",
		"held.mount.identity" };
	struct takeover t = full();
	char *hex = malloc(2 * PATH_MAX + 3);
	(void)state;
	memset(hex, '6', 2 * PATH_MAX + 2);
	hex[2 * PATH_MAX + 2] = '\0';
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		json_t *object = object_of(&t);
		json_object_set_new(object, keys[i], json_string(hex));
		assert_int_equal(read_object(object), -EPROTONOSUPPORT);
		json_decref(object);
	}
	free(hex);
}

/* An option's value, in a text with what it needs and one without it. */
static const struct {
	const char *key;
	const char *with, *without;
} samples[] = {
	{ "rank", "rank=1,world=4", "rank=0,world=4" },
	{ "world", "rank=1,world=4", "rank=1,world=3" },
	{ "view", "view=all", "view=rank" },
	{ "layout", "layout=tree", "layout=flat" },
	{ "order", "order=torch", "order=full" },
	{ "deal", "deal=block", "deal=stride" },
	{ "tail", "tail=drop", "tail=pad" },
	{ "seed", "seed=7", "" },
	{ "epoch", "epoch=2", "" },
	{ "start", "start=64", "" },
	{ "past", "past=2x100", "" },
	{ "subdir", "subdir=a", "" },
	{ "index", "index=/data/i", "" },
	{ "chunk", "chunk=1M", "" },
	{ "pool", "pool=8M", "" },
	{ "groups", "groups=4", "" },
	{ "redeal", "redeal=4", "" },
	{ "fill_class", "fill_class=on", "" },
	{ "advance", "advance=off", "" },
	{ "memory", "memory=64M", "" },
	{ "tier", "tier=/nvme", "" },
	{ "tier_size", "tier_size=1T", "" },
	{ "on_bad", "on_bad=skip", "" },
	{ "uid", "uid=12", "" },
	{ "gid", "gid=34", "" },
	{ "umask", "umask=0077", "" },
	{ "allow_other", "allow_other", "" },
	{ "noexec", "noexec", "" },
	{ "threads", "threads=3", "" },
	{ "seed_search", "seed_search=1", "" },
	{ "control", "control=/run/x", "" },
	{ "timeout", "timeout=5", "" },
	{ "watchdog", "watchdog=5", "" },
	{ "log_level", "log_level=debug", "" },
	{ "debug", "debug", "" },
	{ "log", "log=/tmp/l", "" }, /* that there is a file; the file itself is a descriptor */
	/* What they stand for was read when it was mounted: of a state file what it says, of a list of bad samples
	 * these. */
	{ "state", NULL, NULL },
	{ "quarantine", NULL, NULL },
	/* Variables of the environment, which the next program inherits: remote/test_fstab.py restarts such a mount. */
	{ "s3_profile", NULL, NULL },
	{ "s3_credentials", NULL, NULL },
	{ "s3_endpoint", NULL, NULL },
	{ "s3_region", NULL, NULL },
	{ "s3_addressing", NULL, NULL },
	{ "s3_anonymous", NULL, NULL },
	{ "s3_requester_pays", NULL, NULL },
};

static char *text_with(const char *options)
{
	struct takeover t = full();
	struct base_err err = { 0 };
	struct options o;
	options_init(&o);
	if (options_parse(&o, options, &err) < 0)
		fail_msg("'%s': %s", options, err.text);
	t.fs = o.fs;
	t.fs.view = o.view.view;
	t.log_level = o.log_level;
	char *text = takeover_write(&t);
	options_done(&o);
	return text;
}

static void test_every_option_is_handed_over(void **state)
{
	char *help = NULL, *rest = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&help, &size);
	(void)state;
	assert_non_null(out);
	options_print_help(out);
	fclose(out);
	for (char *line = strtok_r(help, "\n", &rest); (line = strtok_r(NULL, "\n", &rest));) {
		if (line[2] == ' ') /* the second line of a text */
			continue;
		char *name = line + 2;
		name[strcspn(name, "= ")] = '\0';
		size_t k = 0;
		while (k < sizeof(samples) / sizeof(samples[0]) && strcmp(samples[k].key, name) != 0)
			k++;
		if (k == sizeof(samples) / sizeof(samples[0]))
			fail_msg("'%s' is new: add it to `samples` here and to `fields` in tools/ddpfs/takeover.c",
			        name);
		if (!samples[k].with)
			continue;
		char *with = text_with(samples[k].with);
		char *without = text_with(samples[k].without);
		if (strcmp(with, without) == 0)
			fail_msg("'%s' is lost at a restart: it is not in `fields` of tools/ddpfs/takeover.c", name);
		free(with);
		free(without);
	}
	free(help);
}

static void test_a_program_that_knew_no_timeout(void **state)
{
	struct takeover t = full(), back;
	struct base_err err = { 0 };
	json_t *object = object_of(&t);
	(void)state;
	json_object_del(object, "fs.timeout_s");
	json_object_del(object, "held.first_start_ns");
	char *text = json_dumps(object, JSON_COMPACT);
	assert_int_equal(takeover_read(text, strlen(text), &err, &back), 0);
	assert_int_equal(back.fs.timeout_s, FS_TIMEOUT_S);
	assert_int_equal(back.held.first_start_ns, 0);
	takeover_done(&back);
	free(text);
	json_decref(object);
}

/* Writes until nobody reads. */
static void *drip(void *arg)
{
	const int *fd = arg;
	while (write(*fd, "x", 1) == 1)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	return NULL;
}

static void test_who_never_ends_a_line_is_not_waited_for(void **state)
{
	char said[TAKEOVER_SAID_MAX];
	pthread_t thread;
	int ends[2];
	(void)state;
	signal(SIGPIPE, SIG_IGN);
	assert_int_equal(pipe(ends), 0);
	assert_int_equal(pthread_create(&thread, NULL, drip, &ends[1]), 0);
	takeover_listen(ends[0], 20, said);
	assert_true(strlen(said) < TAKEOVER_SAID_MAX - 1); /* the time was over, not the room */
	close(ends[0]);
	pthread_join(thread, NULL);
	close(ends[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_comes_back),
		cmocka_unit_test(test_no_part_of_a_text_is_read),
		cmocka_unit_test(test_another_version_is_refused),
		cmocka_unit_test(test_no_key_takes_another_kind),
		cmocka_unit_test(test_what_cannot_be_done_without_is_asked_for),
		cmocka_unit_test(test_numbers_are_what_they_stand_for),
		cmocka_unit_test(test_texts_fit),
		cmocka_unit_test(test_every_option_is_handed_over),
		cmocka_unit_test(test_a_program_that_knew_no_timeout),
		cmocka_unit_test(test_who_never_ends_a_line_is_not_waited_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
