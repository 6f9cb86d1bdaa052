/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of a packing: a lack of memory costs none of its records.  malloc is wrapped by the linker. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tools/mkshard/pack.h"

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static unsigned fails_at; /* the number of the call of malloc that fails, from 1; 0: none */

void *__wrap_malloc(size_t size)
{
	return fails_at && --fails_at == 0 ? NULL : __real_malloc(size);
}

static void make_shard(const char *dir, const struct shard_pack_plan *plan)
{
	char path[512], name[32];
	snprintf(path, sizeof(path), "%s/%s", dir, shard_pack_shard_name(0, plan->options.container, name));
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)plan->size_bytes[0]), 0);
	close(fd);
}

static void sums_free(struct pack_shard_sums *sums)
{
	free(sums->xxh3);
	free(sums->left_out);
	free(sums->blocks);
	*sums = (struct pack_shard_sums){ 0 };
}

static void a_journal_keeps_its_records_when_memory_is_short(void **state)
{
	char dir[] = "/tmp/ddpfs-journal.XXXXXX", path[64];
	static struct shard_pack_item items[] = { { .path = "a", .length = 10 }, { .path = "b", .length = 20 } };
	struct shard_pack_rules rules;
	const struct shard_pack_options options = { .container = SHARD_TAR, .shard_bytes = 1 << 20 };
	struct shard_pack_plan plan;
	struct pack_shard_sums sums = { 0 };
	struct pack_journal *journal;
	struct base_err err = { 0 };
	struct stat before, after;
	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/journal", dir);
	shard_pack_rules_init(&rules);
	assert_int_equal(shard_pack_plan_init(&plan, items, 2, &rules, &options, &err), 0);
	assert_int_equal(plan.n_shards, 1);
	make_shard(dir, &plan);

	assert_int_equal(pack_journal_open(dir, NULL, NULL, &plan, &sums, &err, &journal), 0);
	uint64_t xxh3[2] = { 1, 2 };
	int32_t left_out[2] = { 0 };
	const struct pack_shard_sums written = { .xxh3 = xxh3, .left_out = left_out, .size_bytes = plan.size_bytes[0] };
	assert_int_equal(pack_journal_add(journal, &plan, 0, &written, &err), 0);
	pack_journal_close(journal);
	assert_int_equal(stat(path, &before), 0);

	for (unsigned n = 1; n <= 3; n++) {
		fails_at = n;
		assert_int_equal(pack_journal_open(dir, NULL, NULL, &plan, &sums, &err, &journal), -ENOMEM);
		assert_int_equal(fails_at, 0);
		assert_false(sums.complete);
		sums_free(&sums);
		assert_int_equal(stat(path, &after), 0);
		assert_int_equal(after.st_size, before.st_size);
	}
	assert_int_equal(pack_journal_open(dir, NULL, NULL, &plan, &sums, &err, &journal), 0);
	assert_true(sums.complete);
	assert_int_equal(sums.xxh3[1], 2);
	pack_journal_close(journal);
	sums_free(&sums);
	shard_pack_plan_done(&plan);
	shard_pack_rules_done(&rules);
	snprintf(path, sizeof(path), "%s/journal", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/shard-000000.tar", dir);
	unlink(path);
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_journal_keeps_its_records_when_memory_is_short),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
