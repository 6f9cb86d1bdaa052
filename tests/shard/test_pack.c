/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a packing: every byte of every file has one place, whatever the order in which the files were found. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shard/pack.h"
#include "shard/tar.h"

enum { N = 1000 };

struct set {
	struct shard_pack_item items[N + 20];
	char paths[N + 20][64];
	uint64_t n;
	struct shard_pack_rules rules;
};

static void add(struct set *set, const char *path, uint64_t length, bool directory)
{
	snprintf(set->paths[set->n], sizeof(set->paths[0]), "%s", path);
	set->items[set->n] = (struct shard_pack_item){
		.path = set->paths[set->n],
		.length = length,
		.mtime_s = 1000,
		.mode = 0644,
		.directory = directory,
	};
	set->n++;
}

/* Classes of images with a label file for each, some common files, directories. */
static struct set *make_set(void)
{
	struct set *set = calloc(1, sizeof(*set));
	char path[64];
	shard_pack_rules_init(&set->rules);
	assert_int_equal(shard_pack_rules_common_default(&set->rules, NULL), 0);
	for (unsigned i = 0; i < N / 2; i++) {
		snprintf(path, sizeof(path), "c%02u/%04u.jpg", i % 10, i);
		add(set, path, i * 37 % 9001, false);
		snprintf(path, sizeof(path), "c%02u/%04u.cls", i % 10, i);
		add(set, path, 2, false);
	}
	for (unsigned c = 0; c < 10; c++) {
		snprintf(path, sizeof(path), "c%02u", c);
		add(set, path, 0, true);
	}
	add(set, "labels.csv", 100, false);
	add(set, "c00/inner.csv", 100, false);
	return set;
}

static void free_set(struct set *set)
{
	shard_pack_rules_done(&set->rules);
	free(set);
}

static struct shard_pack_options options(enum shard_container container)
{
	return (struct shard_pack_options){ .container = container, .shard_bytes = 100000, .shuffle = true, .seed = 7 };
}

/* What is true of every plan. */
static void check_plan(const struct shard_pack_plan *plan)
{
	bool *seen = calloc(plan->n_items, sizeof(*seen));
	uint64_t total = 0;
	assert_int_equal(plan->first[0], 0);
	assert_int_equal(plan->first[plan->n_shards], plan->n_items);
	for (uint32_t s = 0; s < plan->n_shards; s++) {
		uint64_t at = shard_pack_lead_size(plan, s);
		assert_true(plan->first[s] < plan->first[s + 1]);
		for (uint64_t k = plan->first[s]; k < plan->first[s + 1]; k++) {
			const struct shard_pack_item *item = &plan->items[plan->stored[k]];
			assert_false(seen[plan->stored[k]]);
			seen[plan->stored[k]] = true;
			assert_int_equal(item->shard, s);
			if (item->left_out)
				continue;
			at += shard_pack_header_size(plan, item);
			assert_int_equal(item->offset, at);
			at += item->length;
			if (plan->options.container == SHARD_TAR)
				at += shard_tar_padding(item->length);
		}
		at += plan->options.container == SHARD_TAR ? 1024 : 0;
		assert_int_equal(plan->size_bytes[s], at);
		total += at;
	}
	assert_int_equal(plan->total_bytes, total);
	for (uint64_t i = 1; i < plan->n_items; i++)
		assert_true(shard_pack_compare(plan->items[i - 1].path, plan->items[i - 1].directory,
		                    plan->items[i].path, plan->items[i].directory) < 0);
	free(seen);
}

static void every_file_has_one_place(void **state)
{
	(void)state;
	for (int container = SHARD_TAR; container <= SHARD_BARE; container++) {
		struct set *set = make_set();
		struct shard_pack_options opts = options(container);
		struct shard_pack_plan plan;
		assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
		check_plan(&plan);
		assert_true(plan.n_shards > 5);
		assert_int_equal(plan.n_files, N + 2);
		assert_int_equal(plan.n_samples, N + 1);
		shard_pack_plan_done(&plan);
		free_set(set);
	}
}

static void plan_does_not_depend_on_the_order_found(void **state)
{
	(void)state;
	struct set *a = make_set(), *b = make_set();
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan pa, pb;
	for (uint64_t i = 0; i < b->n / 2; i++) {
		struct shard_pack_item swap = b->items[i];
		b->items[i] = b->items[b->n - 1 - i];
		b->items[b->n - 1 - i] = swap;
	}
	assert_int_equal(shard_pack_plan_init(&pa, a->items, a->n, &a->rules, &opts, NULL), 0);
	assert_int_equal(shard_pack_plan_init(&pb, b->items, b->n, &b->rules, &opts, NULL), 0);
	assert_memory_equal(pa.fingerprint, pb.fingerprint, 16);
	assert_memory_equal(pa.stored, pb.stored, pa.n_items * sizeof(*pa.stored));
	for (uint64_t i = 0; i < pa.n_items; i++)
		assert_int_equal(pa.items[i].offset, pb.items[i].offset);
	shard_pack_plan_done(&pa);
	shard_pack_plan_done(&pb);
	free_set(a);
	free_set(b);
}

static void fingerprint_sees_every_change(void **state)
{
	(void)state;
	uint8_t prints[8][16];
	for (int change = 0; change < 8; change++) {
		struct set *set = make_set();
		struct shard_pack_options opts = options(SHARD_TAR);
		struct shard_pack_plan plan;
		if (change == 1)
			set->items[500].mtime_s++;
		else if (change == 2)
			set->items[500].mtime_nsec++;
		else if (change == 3)
			set->items[500].length++;
		else if (change == 4)
			set->paths[500][3]++;
		else if (change == 5)
			opts.seed++;
		else if (change == 6)
			opts.shard_bytes++;
		else if (change == 7)
			set->rules.sample = SHARD_PACK_KEY;
		assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
		memcpy(prints[change], plan.fingerprint, 16);
		for (int before = 0; before < change; before++)
			assert_memory_not_equal(prints[before], prints[change], 16);
		shard_pack_plan_done(&plan);
		free_set(set);
	}
}

static void samples_are_never_cut(void **state)
{
	(void)state;
	struct set *set = make_set();
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan plan;
	set->rules.sample = SHARD_PACK_KEY;
	assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
	check_plan(&plan);
	assert_int_equal(plan.n_samples, N / 2 + 1);
	/* A sample's files are neighbours in one shard, in path order. */
	for (uint64_t k = 1; k < plan.n_items; k++) {
		const struct shard_pack_item *a = &plan.items[plan.stored[k - 1]], *b = &plan.items[plan.stored[k]];
		if (strstr(b->path, ".jpg")) {
			assert_int_equal(a->sample, b->sample);
			assert_int_equal(a->shard, b->shard);
			assert_memory_equal(a->path, b->path, strlen(a->path) - 3);
		}
	}
	shard_pack_plan_done(&plan);
	free_set(set);
}

static void groups_by_expression(void **state)
{
	(void)state;
	struct set *set = make_set();
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan plan;
	struct base_err err = { 0 };
	assert_int_equal(shard_pack_rules_group(&set->rules, "[", &err), -EINVAL);
	assert_int_equal(shard_pack_rules_group(&set->rules, "c[0-9]+", &err), -EINVAL);
	assert_non_null(strstr(err.text, "parentheses"));
	assert_int_equal(shard_pack_rules_group(&set->rules, "^(c[0-9]+)/.*jpg$", &err), 0);
	assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, &err), 0);
	check_plan(&plan);
	assert_int_equal(plan.n_samples, 10 + N / 2 + 1); /* ten groups of 50, the .cls files alone, inner.csv */
	shard_pack_plan_done(&plan);
	free_set(set);
}

static void too_large_a_group_is_refused(void **state)
{
	(void)state;
	struct shard_pack_item *items = calloc(SHARD_SAMPLE_FILES_MAX + 1, sizeof(*items));
	char(*paths)[32] = calloc(SHARD_SAMPLE_FILES_MAX + 1, sizeof(*paths));
	for (int extra = 0; extra <= 1; extra++) {
		struct shard_pack_rules rules;
		struct shard_pack_options opts = options(SHARD_TAR);
		struct shard_pack_plan plan;
		struct base_err err = { 0 };
		for (unsigned i = 0; i < SHARD_SAMPLE_FILES_MAX + 1; i++) {
			snprintf(paths[i], sizeof(paths[i]), "x.%05u", i);
			items[i] = (struct shard_pack_item){ .path = paths[i], .length = 1, .mode = 0644 };
		}
		shard_pack_rules_init(&rules);
		rules.sample = SHARD_PACK_KEY;
		int rc = shard_pack_plan_init(&plan, items, SHARD_SAMPLE_FILES_MAX + extra, &rules, &opts, &err);
		assert_int_equal(rc, extra ? -E2BIG : 0);
		shard_pack_plan_done(&plan);
	}
	free(items);
	free(paths);
}

static int plan_paths(const char *const *paths, const bool *directory, unsigned n, struct base_err *err)
{
	struct shard_pack_item items[8] = { 0 };
	struct shard_pack_rules rules;
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan plan;
	for (unsigned i = 0; i < n; i++)
		items[i] = (struct shard_pack_item){ .path = paths[i], .directory = directory && directory[i] };
	shard_pack_rules_init(&rules);
	int rc = shard_pack_plan_init(&plan, items, n, &rules, &opts, err);
	shard_pack_plan_done(&plan);
	return rc;
}

static void conflicts_are_found(void **state)
{
	(void)state;
	struct base_err err = { 0 };
	assert_int_equal(plan_paths((const char *[]){ "a/b", "c", "a/b" }, NULL, 3, &err), -EEXIST);
	assert_non_null(strstr(err.text, "'a/b'"));
	assert_int_equal(plan_paths((const char *[]){ "a", "a/b" }, NULL, 2, &err), -ENOTDIR);
	assert_int_equal(plan_paths((const char *[]){ "a/b/c/d", "x", "a/b" }, NULL, 3, &err), -ENOTDIR);
	assert_int_equal(plan_paths((const char *[]){ "a", "a" }, (bool[]){ true, false }, 2, &err), -ENOTDIR);
	assert_int_equal(plan_paths((const char *[]){ "d", "d", "d/f" }, (bool[]){ true, true, false }, 3, &err), 0);
	assert_int_equal(plan_paths((const char *[]){ "d" }, (bool[]){ true }, 1, &err), -ENOENT);
	assert_int_equal(plan_paths((const char *[]){ "ab", "a/b", "a.b", "a-/b" }, NULL, 4, &err), 0);
}

static void leaving_files_out_moves_one_shard_only(void **state)
{
	(void)state;
	struct set *set = make_set();
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan plan;
	assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
	uint64_t size = plan.size_bytes[1], next = plan.size_bytes[2];
	struct shard_pack_item *gone = &plan.items[plan.stored[plan.first[1]]];
	uint64_t stored = shard_pack_header_size(&plan, gone) + gone->length + shard_tar_padding(gone->length);
	gone->left_out = -EACCES;
	shard_pack_plan_relay(&plan, 1);
	assert_int_equal(plan.size_bytes[1], size - stored);
	assert_int_equal(plan.size_bytes[2], next);
	plan.total_bytes -= stored;
	check_plan(&plan);
	shard_pack_plan_done(&plan);
	free_set(set);
}

static void record_comes_back(void **state)
{
	(void)state;
	struct set *set = make_set();
	struct shard_pack_options opts = options(SHARD_TAR), back;
	struct shard_pack_rules rules;
	struct shard_pack_plan plan;
	uint32_t n_shards = 0;
	char *json = NULL;
	opts.seed = UINT64_MAX;
	assert_int_equal(shard_pack_rules_group(&set->rules, "(a\"b\\\\c|\xc3\xa9)", NULL), 0);
	assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
	size_t len = shard_pack_lead_size(&plan, 0);
	assert_int_equal(len % 512, 0);
	assert_int_equal(shard_pack_lead_size(&plan, 1), 0);
	uint8_t *lead = malloc(len);
	shard_pack_lead(&plan, lead);
	assert_int_equal(shard_pack_lead_parse(lead, len, &json), 0);
	assert_string_equal(json, plan.record);
	for (size_t cut = 0; cut < len; cut += 511)
		if (cut < 512 + strlen(plan.record))
			assert_int_equal(shard_pack_lead_parse(lead, cut, &json), -ENOENT);
	shard_pack_rules_init(&rules);
	assert_int_equal(shard_pack_record_parse(plan.record, &rules, &back, &n_shards, NULL), 0);
	assert_int_equal(n_shards, plan.n_shards);
	assert_true(back.seed == UINT64_MAX && back.shuffle);
	assert_string_equal(rules.group, set->rules.group);
	assert_int_equal(rules.n_common, set->rules.n_common);
	shard_pack_rules_done(&rules);
	assert_int_equal(shard_pack_record_parse("{\"ddpfs\":1}", &rules, &back, &n_shards, NULL), -EUCLEAN);
	assert_int_equal(shard_pack_record_parse("garbage", &rules, &back, &n_shards, NULL), -EUCLEAN);
	free(json);
	free(lead);
	shard_pack_plan_done(&plan);
	free_set(set);
}

/* The lead must be a header that tar programs accept: the parser of this project skips it. */
static void lead_is_tar(void **state)
{
	(void)state;
	struct set *set = make_set();
	struct shard_pack_options opts = options(SHARD_TAR);
	struct shard_pack_plan plan;
	assert_int_equal(shard_pack_plan_init(&plan, set->items, set->n, &set->rules, &opts, NULL), 0);
	size_t len = shard_pack_lead_size(&plan, 0);
	const struct shard_pack_item *item = &plan.items[plan.stored[0]];
	uint8_t *bytes = calloc(1, len + 512);
	shard_pack_lead(&plan, bytes);
	struct shard_tar_meta meta = { .path = item->path, .length = item->length, .mode = 0644 };
	shard_tar_header(&meta, bytes + len);
	struct shard_tar_parser *parser;
	struct shard_tar_member member;
	uint64_t next;
	size_t need;
	assert_int_equal(shard_tar_parser_new(&parser), 0);
	assert_int_equal(shard_tar_parse(parser, bytes, len + 512, 0, false, NULL, &member, &next, &need), 1);
	assert_string_equal(member.path, item->path);
	assert_int_equal(member.content_offset, item->offset);
	shard_tar_parser_free(parser);
	free(bytes);
	shard_pack_plan_done(&plan);
	free_set(set);
}

static void compare_is_imagefolders_order(void **state)
{
	(void)state;
	static const char *const sorted[] = { "a.txt", "z.txt", "a/x", "a/z", "a/b/c", "a-b/c", "a.b/c", "aa/c" };
	/* "a" < "a-b" < "a.b" < "aa" as names; files of a directory before its subdirectories. */
	for (int i = 0; i < 8; i++)
		for (int j = 0; j < 8; j++) {
			int order = shard_pack_compare(sorted[i], false, sorted[j], false);
			assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
		}
	assert_true(shard_pack_compare("a", true, "a/b", false) < 0);
	assert_true(shard_pack_compare("a", true, "b", false) > 0);
	assert_true(shard_pack_compare("a", true, "a", true) == 0);
}

static void names_are_normalised(void **state)
{
	(void)state;
	static const struct {
		const char *in, *out; /* out NULL: refused */
	} cases[] = {
		{ "a/b", "a/b" },
		{ "./a//b/", "a/b" },
		{ ".", "" },
		{ "./", "" },
		{ "", "" },
		{ "a/./b/.", "a/b" },
		{ "..a/b..", "..a/b.." },
		{ "/a", NULL },
		{ "..", NULL },
		{ "a/../b", NULL },
		{ "a/..", NULL },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char path[64];
		snprintf(path, sizeof(path), "%s", cases[i].in);
		assert_int_equal(shard_pack_normalise(path, NULL), cases[i].out ? 0 : -EINVAL);
		if (cases[i].out)
			assert_string_equal(path, cases[i].out);
	}
	char *name = calloc(1, 300);
	memset(name, 'n', 255);
	assert_int_equal(shard_pack_normalise(name, NULL), 0);
	name[255] = 'n';
	assert_int_equal(shard_pack_normalise(name, NULL), -ENAMETOOLONG);
	free(name);
}

static void common_globs_stay_in_their_directory(void **state)
{
	(void)state;
	struct shard_pack_rules rules;
	shard_pack_rules_init(&rules);
	assert_int_equal(shard_pack_rules_common_default(&rules, NULL), 0);
	assert_true(shard_pack_is_common(&rules, "labels.csv"));
	assert_false(shard_pack_is_common(&rules, "a/labels.csv"));
	assert_false(shard_pack_is_common(&rules, "x.jpg"));
	assert_int_equal(shard_pack_rules_common(&rules, "meta/*", NULL), 0);
	assert_true(shard_pack_is_common(&rules, "meta/x"));
	assert_false(shard_pack_is_common(&rules, "meta/a/x"));
	shard_pack_rules_done(&rules);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_file_has_one_place),
		cmocka_unit_test(plan_does_not_depend_on_the_order_found),
		cmocka_unit_test(fingerprint_sees_every_change),
		cmocka_unit_test(samples_are_never_cut),
		cmocka_unit_test(groups_by_expression),
		cmocka_unit_test(too_large_a_group_is_refused),
		cmocka_unit_test(conflicts_are_found),
		cmocka_unit_test(leaving_files_out_moves_one_shard_only),
		cmocka_unit_test(record_comes_back),
		cmocka_unit_test(lead_is_tar),
		cmocka_unit_test(compare_is_imagefolders_order),
		cmocka_unit_test(names_are_normalised),
		cmocka_unit_test(common_globs_stay_in_their_directory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
