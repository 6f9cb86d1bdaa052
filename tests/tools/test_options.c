/* SPDX-License-Identifier: Apache-2.0 */
/* tools/options: mount options as text. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tools/ddpfs/mounts.h"
#include "tools/ddpfs/mount_options.h"

static int parse(struct options *o, const char *text, struct base_err *err)
{
	options_init(o);
	*err = (struct base_err){ 0 };
	return options_parse(o, text, err);
}

static void taken(const char *text, struct options *o)
{
	struct base_err err;
	int r = parse(o, text, &err);
	if (r < 0)
		fail_msg("'%s': %s", text, err.text);
}

static void refused(const char *text, const char *word)
{
	struct options o;
	struct base_err err;
	assert_int_equal(parse(&o, text, &err), -EINVAL);
	if (!strstr(err.text, word))
		fail_msg("'%s': '%s' does not say '%s'", text, err.text, word);
	assert_null(strchr(err.text, '\n'));
	options_done(&o);
}

static void assert_variable(const char *name, const char *value)
{
	const char *found = getenv(name);
	if (!found || strcmp(found, value) != 0)
		fail_msg("%s is '%s', not '%s'", name, found ? found : "unset", value);
	unsetenv(name);
}

/* shard/remote/credentials.h reads them. */
static void options_of_a_store_become_variables(void **state)
{
	struct options o;
	(void)state;
	taken("s3_profile=train,s3_credentials=/etc/keys,s3_endpoint=https://"
	      "h:9000,s3_region=eu-west-1,s3_addressing=path,"
	      "s3_anonymous,s3_requester_pays",
	        &o);
	options_done(&o);
	assert_variable("DDPFS_S3_PROFILE", "train");
	assert_variable("DDPFS_S3_CREDENTIALS", "/etc/keys");
	assert_variable("DDPFS_S3_ENDPOINT", "https://h:9000");
	assert_variable("DDPFS_S3_REGION", "eu-west-1");
	assert_variable("DDPFS_S3_ADDRESSING", "path");
	assert_variable("DDPFS_S3_ANONYMOUS", "1");
	assert_variable("DDPFS_S3_REQUESTER_PAYS", "1");
	refused("s3_addressing=host", "path or virtual");
	refused("s3_anonymous=1", "takes no value");
	refused("s3_profile", "needs a value");
}

static void every_option_reaches_its_field(void **state)
{
	struct options o;
	(void)state;
	taken("rank=1,world=4,seed=7,epoch=2,start=64,order=torch,deal=stride,tail=drop,layout=tree,fill_class=on,"
	      "advance=off,memory=64M,tier=/nvme,tier_size=1T,on_bad=skip,quarantine=/"
	      "q,uid=12,gid=34,umask=0077,allow_other,threads=3,control=/run/x.sock,"
	      "log_level=debug,log=/tmp/l,debug,subdir=/a/b/,chunk=1M,pool=8M,state=/s,index=/i/x",
	        &o);
	assert_int_equal(o.view.view.rank, 1);
	assert_int_equal(o.view.view.world, 4);
	assert_int_equal(o.view.view.seed, 7);
	assert_int_equal(o.view.view.epoch, 2);
	assert_int_equal(o.view.view.start, 64);
	assert_int_equal(o.view.view.order, SHARD_ORDER_TORCH);
	assert_int_equal(o.view.view.deal, SHARD_DEAL_STRIDE);
	assert_int_equal(o.view.view.tail, SHARD_TAIL_DROP);
	assert_string_equal(o.view.view.subdir, "a/b");
	assert_int_equal(o.view.view.chunk_bytes, 1 << 20);
	assert_int_equal(o.view.view.pool_bytes, 8 << 20);
	assert_string_equal(o.view.state_path, "/s");
	assert_string_equal(o.fs.index_file, "/i/x");
	assert_int_equal(o.view.view.on_bad, SHARD_ON_BAD_SKIP);
	assert_string_equal(o.view.quarantine_path, "/q");
	assert_int_equal(o.fs.layout, FS_LAYOUT_TREE);
	assert_true(o.fs.fill_class);
	assert_int_equal(o.fs.advance, FS_ADVANCE_OFF);
	assert_int_equal(o.fs.memory_bytes, 64 << 20);
	assert_string_equal(o.fs.tier_dir, "/nvme");
	assert_true(o.fs.tier_bytes == (uint64_t)1 << 40);
	assert_true(o.fs.set_uid && o.fs.set_gid);
	assert_int_equal(o.fs.uid, 12);
	assert_int_equal(o.fs.gid, 34);
	assert_int_equal(o.fs.umask, 077);
	assert_true(o.fs.allow_other);
	assert_int_equal(o.fs.threads, 3);
	assert_string_equal(o.fs.control_path, "/run/x.sock");
	assert_int_equal(o.log_level, BASE_LOG_DEBUG);
	assert_string_equal(o.log_file, "/tmp/l");
	assert_true(o.fs.debug);
	options_done(&o);
}

static void later_options_win(void **state)
{
	struct options o;
	struct base_err err = { 0 };
	(void)state;
	taken("seed=1,seed=2", &o);
	assert_int_equal(options_parse(&o, "seed=3", &err), 0);
	assert_int_equal(o.view.view.seed, 3);
	options_done(&o);
}

static void what_mount_brings_along_means_nothing(void **state)
{
	struct options o;
	(void)state;
	taken("rw,defaults,noauto,nofail,_netdev,user,user=joe,users,x-systemd.automount,X-mount.mkdir,nosuid,nodev,"
	      "relatime,,comment=a b",
	        &o);
	assert_int_equal(o.view.set, 0);
	options_done(&o);
}

static void commas_in_values(void **state)
{
	struct options o;
	(void)state;
	taken("log=/a\\,b\\\\c,seed=1", &o);
	assert_string_equal(o.log_file, "/a,b\\c");
	assert_int_equal(o.view.view.seed, 1);
	options_done(&o);
	taken("log=\"/a,b\",seed=2", &o);
	assert_string_equal(o.log_file, "/a,b");
	assert_int_equal(o.view.view.seed, 2);
	options_done(&o);
	refused("log=\"a,b", "not closed");
}

static void unknown_options_get_the_nearest(void **state)
{
	(void)state;
	refused("wrold=2", "did you mean world?");
	refused("memroy=1G", "did you mean memory?");
	refused("layuot=flat", "did you mean layout?");
	refused("meomry=1G", "did you mean memory?");
	refused("rnak=1", "did you mean rank?"); /* an exchange is one edit: two would be too many for four letters */
	refused("sede=1", "did you mean seed?");
	refused("edse=1", "--help");
	refused("foo=1", "'ddpfs mount --help' lists the options"); /* not: did you mean pool? */
	refused("nonsense", "--help");
	refused("nonsense=1", "--help");
	refused("remount", "unmount it");
	refused("fill-class=on", "did you mean fill_class?");
}

static void sloppy_skips_unknown_options_only(void **state)
{
	struct options o;
	struct base_err err = { 0 };
	(void)state;
	options_init(&o);
	o.sloppy = true;
	assert_int_equal(options_parse(&o, "nonsense=1,seed=5", &err), 0);
	assert_int_equal(o.view.view.seed, 5);
	assert_int_equal(options_parse(&o, "seed=x", &err), -EINVAL);
	options_done(&o);
}

static void wrong_values_are_named(void **state)
{
	(void)state;
	refused("rank", "rank=R");
	refused("rank=", "rank=R");
	refused("rank=-1", "-1");
	refused("rank=one", "one");
	refused("world=0", "at least 1");
	refused("world=99999999999999999999", "at most");
	refused("order=random", "full");
	refused("deal=cards", "stride");
	refused("tail=long", "pad");
	refused("layout=round", "tree");
	refused("view=none", "all");
	refused("advance=on", "auto");
	refused("watch=rest", "unknown option");
	refused("fill_class=maybe", "on or off");
	refused("memory=lots", "512M");
	refused("memory=1M", "at least 8M");
	refused("tier=/tmp,tier_size=lots", "from 64M");
	refused("tier=/tmp,tier_size=1M", "from 64M");
	refused("tier=/tmp,tier_size=65T", "to 64T");
	refused("on_bad=ignore", "eio");
	refused("uid=no-such-user-here", "user");
	refused("gid=no-such-group-here", "group");
	refused("umask=9", "octal");
	refused("umask=00000", "octal");
	refused("threads=0", "at least 1");
	refused("threads=1000", "at most 64");
	refused("log_level=loud", "debug");
	refused("allow_other=1", "no value");
}

static void a_value_of_any_length_is_bounded(void **state)
{
	char text[9000];
	(void)state;
	memset(text, 'a', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	refused(text, "longer than");
	memcpy(text, "log=", 4);
	refused(text, "longer than");
	memcpy(text, "control=", 8);
	text[200] = '\0';
	refused(text, "unix socket");
	for (size_t i = 0; i + 6 < sizeof(text); i += 6)
		memcpy(text + i, "log=x,", 7);
	struct options o;
	struct base_err err;
	assert_int_equal(parse(&o, text, &err), -E2BIG);
	options_done(&o);
}

static void finish_wants_rank_and_world_or_all(void **state)
{
	static const struct {
		const char *text, *words[2];
	} wrong[] = {
		{ "seed=1", { "rank=R,world=W", "view=all" } },
		{ "rank=0", { "world is missing", "world=W" } },
		{ "world=2", { "rank is missing", "from 0 to 1" } },
		{ "rank=2,world=2", { "rank=2", "0 to 1" } },
		{ "view=all,rank=0,world=2", { "view=all", "leave out" } },
		{ "view=all,state=-data.json", { "state= is for rank views", "Leave state= out" } },
		{ "start=560,view=all", { "start= is for rank views", "own sampler" } },
		{ "view=all,deal=block,past=2x4", { "past= is for rank views", "own sampler" } },
		{ "view=all,fill_class=on", { "fill_class", "layout=tree" } },
		{ "rank=0,world=2,fill_class=on", { "fill_class", "layout=tree" } },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct options o;
		struct base_err err = { 0 };
		taken(wrong[i].text, &o);
		assert_int_equal(options_finish(&o, &err), -EINVAL);
		assert_non_null(strstr(err.text, wrong[i].words[0]));
		assert_non_null(strstr(err.text, wrong[i].words[1]));
		options_done(&o);
	}
}

static void several_ranks_are_a_range_or_all(void **state)
{
	static const struct {
		const char *text;
		uint32_t first, n; /* n 0: one rank, without a directory */
	} right[] = {
		{ "rank=0-7,world=8", 0, 8 },
		{ "rank=8-15,world=64", 8, 8 },
		{ "rank=3-3,world=4", 3, 1 },
		{ "rank=3,world=4", 3, 0 },
		{ "rank=all,world=4", 0, 4 },
		{ "world=256,rank=all", 0, 256 },
		{ "rank=1000-1255,world=4000", 1000, 256 },
		{ "rank=all,world=4,rank=2", 2, 0 },
		{ "rank=0-1,world=4,rank=all", 0, 4 },
		{ "rank=all,rank=1-2,world=4", 1, 2 },
	};
	static const struct {
		const char *text, *word;
	} wrong[] = {
		{ "rank=0-8,world=8", "rank=8" },
		{ "rank=all", "world is missing" },
		{ "rank=all,world=257", "at most 256" },
		{ "rank=all,world=4,view=all", "leave out rank" },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
		struct options o;
		struct base_err err = { 0 };
		taken(right[i].text, &o);
		assert_int_equal(options_finish(&o, &err), 0);
		assert_int_equal(o.view.view.rank, right[i].first);
		assert_int_equal(o.fs.n_ranks, right[i].n);
		options_done(&o);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct options o;
		struct base_err err = { 0 };
		taken(wrong[i].text, &o);
		assert_int_equal(options_finish(&o, &err), -EINVAL);
		if (!strstr(err.text, wrong[i].word))
			fail_msg("'%s': %s", wrong[i].text, err.text);
		options_done(&o);
	}
	refused("rank=7-0", "0-7");
	refused("rank=0-", "0-7");
	refused("rank=-7", "0-7");
	refused("rank=1-2-3", "0-7");
	refused("rank=0-256", "at most 256");
	refused("rank=0-18446744073709551615", "0-7");
}

static void finish_chooses_the_layout(void **state)
{
	struct options o;
	struct base_err err = { 0 };
	(void)state;
	taken("view=all", &o);
	assert_int_equal(options_finish(&o, &err), 0);
	assert_int_equal(o.fs.layout, FS_LAYOUT_TREE);
	options_done(&o);
	taken("view=all,layout=flat", &o);
	assert_int_equal(options_finish(&o, &err), 0);
	assert_int_equal(o.fs.layout, FS_LAYOUT_FLAT);
	options_done(&o);
	taken("view=all,layout=flat,start=40", &o); /* one reader, whose order is the mount's */
	assert_int_equal(options_finish(&o, &err), 0);
	options_done(&o);
	taken("rank=0,world=1", &o);
	assert_int_equal(options_finish(&o, &err), 0);
	assert_int_equal(o.fs.layout, FS_LAYOUT_FLAT);
	options_done(&o);
}

static void help_fits_80_columns_and_lists_each_option(void **state)
{
	char *text = NULL;
	size_t size = 0;
	int lines = 0;
	(void)state;
	FILE *out = open_memstream(&text, &size);
	options_print_help(out);
	fclose(out);
	assert_non_null(strstr(text, "fill_class=on|off"));
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
		assert_true(strlen(line) <= 80);
	assert_true(lines > 25);
	free(text);
}

static void absolute_paths(void **state)
{
	static const struct {
		const char *in, *out;
	} cases[] = { { "/a/b", "/a/b" }, { "//a///b//", "/a/b" }, { "/a/./b/../c", "/a/c" }, { "/..", "/" },
		{ "/", "/" }, { "/a/..", "/" } };
	char path[PATH_MAX];
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(mounts_absolute(cases[i].in, path), 0);
		assert_string_equal(path, cases[i].out);
	}
	assert_int_equal(mounts_absolute("x", path), 0);
	assert_int_equal(path[0], '/');
	struct mounts_entry entry;
	assert_int_equal(mounts_find("/", &entry), 0);
	assert_int_equal(mounts_find("/no/such/mount", &entry), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_option_reaches_its_field),
		cmocka_unit_test(options_of_a_store_become_variables),
		cmocka_unit_test(later_options_win),
		cmocka_unit_test(what_mount_brings_along_means_nothing),
		cmocka_unit_test(commas_in_values),
		cmocka_unit_test(unknown_options_get_the_nearest),
		cmocka_unit_test(sloppy_skips_unknown_options_only),
		cmocka_unit_test(wrong_values_are_named),
		cmocka_unit_test(a_value_of_any_length_is_bounded),
		cmocka_unit_test(finish_wants_rank_and_world_or_all),
		cmocka_unit_test(several_ranks_are_a_range_or_all),
		cmocka_unit_test(finish_chooses_the_layout),
		cmocka_unit_test(help_fits_80_columns_and_lists_each_option),
		cmocka_unit_test(absolute_paths),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
