/* SPDX-License-Identifier: Apache-2.0 */
/* Which node memory is near: a machine's sysfs as files, and the kernel's answer where it lets a test choose. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu_stage/numa.h"
#include "gpu_stage/stage.h"
#include "tests/prefetch/dataset.h"

static char sysfs[] = "/tmp/ddpfs-test.numa.XXXXXX";

/* A file below the copy of /sys, with its directories. */
static void put(const char *name, const char *text)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", sysfs, name);
	for (char *c = path + strlen(sysfs) + 1; (c = strchr(c, '/')); c++) {
		*c = '\0';
		assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
		*c = '/';
	}
	FILE *f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void a_device_has_the_node_that_sysfs_says(void **state)
{
	(void)state;
	put("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
	put("bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
	put("bus/pci/devices/0000:86:00.0/numa_node", "1024\n");
	put("bus/pci/devices/0000:af:00.0/numa_node", "none\n");
	put("bus/pci/devices/0001:00:00.0/numa_node", "1023\n");
	assert_int_equal(stage_numa_of_pci(sysfs, "0000:3B:00.0"), 1); /* CUDA writes capitals */
	assert_int_equal(stage_numa_of_pci(sysfs, "0001:00:00.0"), 1023);
	assert_int_equal(stage_numa_of_pci(sysfs, "0000:5E:00.0"), -1);
	assert_int_equal(stage_numa_of_pci(sysfs, "0000:86:00.0"), -1);
	assert_int_equal(stage_numa_of_pci(sysfs, "0000:AF:00.0"), -1);
	assert_int_equal(stage_numa_of_pci(sysfs, "FFFF:00:1F.7"), -1);
	char longer[300];
	memset(longer, '0', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(stage_numa_of_pci(sysfs, longer), -1);
}

static void one_node_is_no_choice(void **state)
{
	(void)state;
	put("devices/system/node/has_memory", "0\n");
	assert_int_equal(stage_numa_here(sysfs), -1);
	assert_int_equal(stage_numa_here("/nowhere"), -1);
}

/* The node of this processor, unless the process was told where to take memory from. */
static void several_nodes_are_told_apart(void **state)
{
	unsigned long mask = 1;
	int mode = -1;
	(void)state;
	put("devices/system/node/has_memory", "0-1\n");
	if (syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL) < 0 || mode != MPOL_DEFAULT)
		skip();
	int here = stage_numa_here(sysfs);
	assert_in_range(here, 0, STAGE_NUMA_MAX - 1);
	if (syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 65UL) < 0)
		skip();
	here = stage_numa_here(sysfs);
	assert_int_equal(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL), 0);
	assert_int_equal(here, -1);
}

static void memory_prefers_the_node(void **state)
{
	unsigned long mask[STAGE_NUMA_MAX / (8 * sizeof(unsigned long))] = { 0 };
	int mode = -1;
	size_t bytes = 1 << 20;
	(void)state;
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(base != MAP_FAILED);
	assert_int_equal(stage_numa_prefer(base, bytes, -1), -EINVAL);
	assert_int_equal(stage_numa_prefer(base, bytes, STAGE_NUMA_MAX), -EINVAL);
	int rc = stage_numa_prefer(base, bytes, 0);
	if (rc == -ENOSYS || rc == -EPERM) {
		munmap(base, bytes);
		puts("skip: no NUMA in this kernel, or it is not for containers");
		skip();
	}
	assert_int_equal(rc, 0);
	assert_true(stage_numa_prefer(base, bytes, STAGE_NUMA_MAX - 1) < 0); /* no machine of these tests has so many */
	assert_int_equal(
	        syscall(SYS_get_mempolicy, &mode, mask, STAGE_NUMA_MAX + 1UL, base, (unsigned long)MPOL_F_ADDR), 0);
	assert_int_equal(mode, MPOL_PREFERRED);
	assert_int_equal(mask[0], 1);
	munmap(base, bytes);
}

static void a_stage_says_where_its_arena_is(void **state)
{
	static const uint64_t sizes[] = { 5000 };
	struct dataset data;
	struct ddpfs_stage_stats stats;
	struct ddpfs_stage_error error;
	struct ddpfs_stage *stage;
	(void)state;
	dataset_new(&data, 10, 1, sizes, 1);
	int rc = ddpfs_stage_open(data.dir, NULL, &error, &stage);
	dataset_free(&data);
	assert_int_equal(rc, 0);
	int here = stage_numa_here("/sys");
	ddpfs_stage_stats_get(stage, &stats);
	if (here < 0)
		assert_int_equal(stats.numa_node, 0);
	else
		assert_in_range(stats.numa_node, 0, STAGE_NUMA_MAX); /* 0 where mbind is not allowed */
	assert_int_equal(ddpfs_stage_close(stage), 0);
}

static int setup(void **state)
{
	(void)state;
	return mkdtemp(sysfs) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[64];
	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", sysfs);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_device_has_the_node_that_sysfs_says),
		cmocka_unit_test(one_node_is_no_choice),
		cmocka_unit_test(several_nodes_are_told_apart),
		cmocka_unit_test(memory_prefers_the_node),
		cmocka_unit_test(a_stage_says_where_its_arena_is),
	};
	return cmocka_run_group_tests_name("numa", tests, setup, teardown);
}
