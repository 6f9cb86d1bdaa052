/* SPDX-License-Identifier: Apache-2.0 */
/* tools/doctor: the checks, with the files and values of machines that are not this one. */
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

#include "tools/ddpfs/doctor.h"

static char root[64];

static int make_root(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/ddpfs-test-doctor.XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[128];
	(void)state;
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	return system(command);
}

/* Writes a file below the root, with its directories. */
static void put(const char *path, const char *text)
{
	char whole[256];
	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(whole, 0755);
		*slash = '/';
	}
	FILE *file = fopen(whole, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static const char *member(const json_t *findings, size_t i, const char *key)
{
	const char *value = json_string_value(json_object_get(json_array_get(findings, i), key));
	return value ? value : "";
}

/* The first finding has this level, and the word in its text.  Frees the list. */
static void expect(json_t *findings, enum doctor_level level, const char *word)
{
	assert_true(json_array_size(findings) > 0);
	if (doctor_level_of(json_array_get(findings, 0)) != level || !strstr(member(findings, 0, "text"), word))
		fail_msg("%s: %s", member(findings, 0, "level"), member(findings, 0, "text"));
	assert_int_equal(level == DOCTOR_OK, *member(findings, 0, "advice") == '\0');
	json_decref(findings);
}

static void the_worst_come_first_and_equals_keep_their_order(void **state)
{
	json_t *findings = json_array();
	(void)state;
	doctor_say(findings, DOCTOR_OK, NULL, "a");
	doctor_say(findings, DOCTOR_WARNING, "do", "b");
	doctor_say(findings, DOCTOR_NOTE, "do", "c");
	doctor_say(findings, DOCTOR_FAILURE, "do", "d");
	doctor_say(findings, DOCTOR_WARNING, "do", "e");
	json_t *sorted = doctor_sorted(findings);
	char order[8] = "";
	for (size_t i = 0; i < json_array_size(sorted); i++)
		strcat(order, member(sorted, i, "text"));
	assert_string_equal(order, "dbeca");
	json_decref(sorted);
	json_decref(findings);
}

static void each_kernel_is_told_what_it_lacks(void **state)
{
	static const struct {
		const char *release;
		enum doctor_level level;
		const char *word;
	} kernels[] = {
		{ "4.18.0-553.el8", DOCTOR_FAILURE, "ddpfs exec" },
		{ "5.4.0", DOCTOR_FAILURE, "io_uring" },
		{ "5.6.0", DOCTOR_WARNING, "restricted" },
		{ "6.1.0-18-amd64", DOCTOR_WARNING, "ddpfs restart" },
		{ "6.12.9", DOCTOR_NOTE, "names of dropped samples" },
		{ "6.18.0", DOCTOR_OK, "all that ddpfs uses" },
		{ "7.0", DOCTOR_OK, "all that ddpfs uses" },
		{ "none", DOCTOR_NOTE, "no number" },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		json_t *findings = json_array();
		doctor_kernel(kernels[i].release, findings);
		expect(findings, kernels[i].level, kernels[i].word);
	}
}

static void a_device_must_be_a_device(void **state)
{
	char path[256];
	(void)state;
	json_t *findings = json_array();
	snprintf(path, sizeof(path), "%s/fuse", root);
	doctor_fuse(path, findings);
	expect(findings, DOCTOR_FAILURE, "nothing can be mounted");
	put("/fuse", "");
	findings = json_array();
	doctor_fuse(path, findings);
	expect(findings, DOCTOR_FAILURE, "not a device");
	findings = json_array();
	doctor_fuse("/dev/null", findings);
	expect(findings, DOCTOR_OK, "/dev/null");
}

static void rights_are_read_from_proc(void **state)
{
	struct doctor_process process;
	(void)state;
	put("/proc/self/status", "Name:\tx\nCapEff:\t0000000000200000\nNoNewPrivs:\t1\n");
	doctor_process_read(root, &process);
	assert_true(process.may_mount && process.no_new_privs);
	put("/proc/self/status", "Name:\tx\nCapEff:\t00000000ffdfffff\nNoNewPrivs:\t0\n");
	doctor_process_read(root, &process);
	assert_false(process.may_mount || process.no_new_privs);
	put("/proc/self/status", "");
	doctor_process_read(root, &process);
	assert_false(process.may_mount || process.no_new_privs);
}

static void who_may_mount_needs_no_helper(void **state)
{
	struct doctor_process process = { .uid = 1000, .may_mount = true };
	(void)state;
	json_t *findings = json_array();
	doctor_fusermount(NULL, &process, findings);
	expect(findings, DOCTOR_OK, "not needed");
	process = (struct doctor_process){ .uid = 0 };
	findings = json_array();
	doctor_fusermount("/usr/bin", &process, findings);
	expect(findings, DOCTOR_FAILURE, "CAP_SYS_ADMIN");
	process = (struct doctor_process){ .uid = 1000 };
	findings = json_array();
	doctor_fusermount(NULL, &process, findings);
	expect(findings, DOCTOR_FAILURE, "PATH");
	findings = json_array();
	doctor_fusermount("::/nowhere:", &process, findings);
	expect(findings, DOCTOR_FAILURE, "PATH");
}

static void damon_in_either_form(void **state)
{
	(void)state;
	json_t *findings = json_array();
	doctor_damon(root, findings);
	expect(findings, DOCTOR_OK, "DAMON");
	put("/sys/kernel/mm/damon/admin/kdamonds/0/state", "off\n");
	findings = json_array();
	doctor_damon(root, findings);
	expect(findings, DOCTOR_OK, "DAMON");
	put("/sys/kernel/mm/damon/admin/kdamonds/1/state", "on\n");
	findings = json_array();
	doctor_damon(root, findings);
	expect(findings, DOCTOR_NOTE, "takes pages back");
	put("/sys/kernel/mm/damon/admin/kdamonds/1/state", "off\n");
	put("/sys/module/damon_reclaim/parameters/enabled", "Y\n");
	findings = json_array();
	doctor_damon(root, findings);
	expect(findings, DOCTOR_NOTE, "takes pages back");
}

static void meminfo(unsigned long total_kib, unsigned long available_kib)
{
	char text[128];
	snprintf(text, sizeof(text), "MemTotal: %lu kB\nMemFree: %lu kB\nMemAvailable: %lu kB\n", total_kib,
	        available_kib, available_kib);
	put("/proc/meminfo", text);
}

static void memory_of_host_and_cgroup(void **state)
{
	(void)state;
	put("/proc/self/cgroup", "0::/job\n");
	meminfo(8 << 20, 7 << 20);
	json_t *findings = json_array();
	doctor_memory(root, 1 << 30, findings);
	expect(findings, DOCTOR_OK, "is free");
	findings = json_array();
	doctor_memory(root, UINT64_C(100) << 30, findings);
	expect(findings, DOCTOR_NOTE, "100.0 GiB");
	put("/sys/fs/cgroup/job/memory.max", "104857600\n");
	put("/sys/fs/cgroup/job/memory.current", "1048576\n");
	findings = json_array();
	doctor_memory(root, 0, findings);
	expect(findings, DOCTOR_WARNING, "36.0 MiB");
	put("/sys/fs/cgroup/job/memory.max", "max\n");
	meminfo(8 << 20, 10 << 10);
	findings = json_array();
	doctor_memory(root, 0, findings);
	expect(findings, DOCTOR_WARNING, "is free");
}

/* The first finding about a mount with these statistics. */
static void expect_mount(const char *stats, enum doctor_level level, const char *word)
{
	json_t *findings = json_array();
	json_t *object = json_loads(stats, 0, NULL);
	assert_non_null(object);
	doctor_mount(object, findings);
	json_decref(object);
	expect(findings, level, word);
}

#define OF_A_RANK "\"view\": \"rank\", \"order\": \"chunk\", \"world\": 8, \"content_bytes\": 99999999"

static void what_statistics_say(void **state)
{
	(void)state;
	expect_mount("{}", DOCTOR_OK, "0 opens");
	expect_mount("{\"opens\": 1000, \"misses\": 3, \"io\": \"io_uring\", \"order_source\": \"own\"}", DOCTOR_OK,
	        "1000 opens");
	expect_mount("{\"recognised_note\": \"the sampler shards this rank's part once more: mount with view=all\"}",
	        DOCTOR_FAILURE, "once more");
	expect_mount("{\"samplers\": [{\"repeated\": 0}, {\"repeated\": 2}]}", DOCTOR_FAILURE, "same permutation");
	expect_mount("{\"restarts\": 1, \"bad_blocks\": 2}", DOCTOR_FAILURE, "checksum");
	expect_mount("{\"io_errors\": 1, \"errors\": 1}", DOCTOR_FAILURE, "1 reads of shards failed");
	expect_mount("{\"errors\": 4}", DOCTOR_FAILURE, "4 reads of the trainer");
	expect_mount("{\"tier_off\": 28}", DOCTOR_WARNING, "the tier is off: No space left");
	expect_mount("{\"tier_off\": 0, \"tier_bad\": 7}", DOCTOR_WARNING, "7 blocks or entries");
	expect_mount("{\"store_away_ns\": 5000000000, \"store_error\": \"refused\"}", DOCTOR_FAILURE, "5 s: refused");
	expect_mount("{\"restarts\": 1}", DOCTOR_WARNING, "replaced 1 times");
	expect_mount(
	        "{\"read_ahead_note\": \"nothing recognised after 99 opens\"}", DOCTOR_WARNING, "nothing recognised");
	expect_mount(
	        "{\"opens\": 1000, \"misses\": 300, \"order_source\": \"unknown\"}", DOCTOR_WARNING, "nobody told");
	expect_mount("{\"opens\": 1000, \"misses\": 300, \"order_source\": \"unknown\", "
	             "\"order_note\": \"unknown: the trainer announces no order: it has no indices\"}",
	        DOCTOR_WARNING,
	        "30% of the opens waited, the order is unknown: the trainer announces no order: it has");
	expect_mount("{\"opens\": 1000, \"misses\": 300, \"order_source\": \"own\"}", DOCTOR_WARNING, "order is known");
	expect_mount("{\"opens\": 100, \"misses\": 100, \"order_source\": \"unknown\"}", DOCTOR_OK, "100 opens");
	expect_mount("{\"fetched\": 1000, \"lost\": 200}", DOCTOR_WARNING, "20%");
	expect_mount("{\"io\": \"pread\"}", DOCTOR_WARNING, "pread(2)");
	expect_mount("{\"io\": \"http\"}", DOCTOR_OK, "0 opens");
	expect_mount("{\"io\": \"pread\", \"store_requests\": 0}", DOCTOR_OK, "0 opens"); /* of an older server */
	expect_mount("{\"problems\": [{\"text\": \"a line\", \"time_s\": 1}]}", DOCTOR_WARNING, "a line");
	expect_mount("{" OF_A_RANK ", \"deal\": \"stride\", \"groups\": 1, \"store_requests\": 9}", DOCTOR_WARNING,
	        "8 times the bytes");
	expect_mount(
	        "{" OF_A_RANK ", \"deal\": \"block\", \"groups\": 1, \"store_requests\": 9}", DOCTOR_OK, "0 opens");
	expect_mount(
	        "{" OF_A_RANK ", \"deal\": \"stride\", \"groups\": 8, \"store_requests\": 9}", DOCTOR_OK, "0 opens");
	expect_mount("{" OF_A_RANK ", \"deal\": \"stride\", \"groups\": 1}", DOCTOR_OK, "0 opens"); /* on a disk */
	expect_mount("{" OF_A_RANK ", \"deal\": \"stride\", \"groups\": 1, \"store_requests\": 9, \"tier_hits\": 0}",
	        DOCTOR_OK, "0 opens");
	expect_mount("{\"quarantined\": 2}", DOCTOR_NOTE, "2 samples");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_root, remove_root)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_worst_come_first_and_equals_keep_their_order),
		TEST(each_kernel_is_told_what_it_lacks),
		TEST(a_device_must_be_a_device),
		TEST(rights_are_read_from_proc),
		TEST(who_may_mount_needs_no_helper),
		TEST(damon_in_either_form),
		TEST(memory_of_host_and_cgroup),
		TEST(what_statistics_say),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
