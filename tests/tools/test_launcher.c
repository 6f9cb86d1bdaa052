/* SPDX-License-Identifier: Apache-2.0 */
/* tools/launcher: which rank is taken from which launcher's variables. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tools/ddpfs/launcher.h"

static const char *const all_names[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "HOROVOD_RANK",
	"HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
	"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_STEP_ID", NULL };

/* name, value, name, value, ..., NULL; everything else is unset. */
static void environment(const char *first, ...)
{
	va_list ap;
	for (int i = 0; all_names[i]; i++)
		unsetenv(all_names[i]);
	va_start(ap, first);
	for (const char *name = first; name; name = va_arg(ap, const char *))
		setenv(name, va_arg(ap, const char *), 1);
	va_end(ap);
}

static void expect(const char *name, uint32_t rank, uint32_t world)
{
	struct launcher found;
	struct base_err err = { 0 };
	assert_int_equal(launcher_find(NULL, &err, &found), 0);
	assert_string_equal(found.name, name);
	assert_int_equal(found.rank, rank);
	assert_int_equal(found.world, world);
}

/* A refusal with both words in its sentence, and the result untouched. */
static void expect_refused(const char *only, const char *word_a, const char *word_b)
{
	struct launcher found = { .rank = 77 };
	struct base_err err = { 0 };
	assert_int_equal(launcher_find(only, &err, &found), -EINVAL);
	assert_non_null(strstr(err.text, word_a));
	assert_non_null(strstr(err.text, word_b));
	assert_int_equal(found.rank, 77);
}

static void nothing_set_is_no_launcher(void **state)
{
	struct launcher found;
	struct base_err err = { 0 };
	(void)state;
	environment(NULL);
	assert_int_equal(launcher_find(NULL, &err, &found), -ENOENT);
}

static void each_launcher_alone(void **state)
{
	(void)state;
	environment("RANK", "3", "WORLD_SIZE", "8", NULL);
	expect("torchrun", 3, 8);
	environment("HOROVOD_RANK", "0", "HOROVOD_SIZE", "2", NULL);
	expect("horovod", 0, 2);
	environment("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", NULL);
	expect("ompi", 1, 2);
	environment("PMI_RANK", "4", "PMI_SIZE", "5", NULL);
	expect("pmi", 4, 5);
	environment("SLURM_STEP_ID", "0", "SLURM_PROCID", "6", "SLURM_NTASKS", "7", NULL);
	expect("slurm", 6, 7);
}

static void a_batch_script_is_no_task(void **state)
{
	struct launcher found;
	struct base_err err = { 0 };
	(void)state;
	environment("SLURM_PROCID", "0", "SLURM_NTASKS", "4", NULL);
	assert_int_equal(launcher_find(NULL, &err, &found), -ENOENT);
	/* batch script 0xfffffffb, interactive step 0xfffffffa */
	environment("SLURM_STEP_ID", "4294967291", "SLURM_PROCID", "0", "SLURM_NTASKS", "4", NULL);
	assert_int_equal(launcher_find(NULL, &err, &found), -ENOENT);
	environment("SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_NTASKS", "4", NULL);
	assert_int_equal(launcher_find(NULL, &err, &found), -ENOENT);
}

static void the_steps_tasks_count_not_the_jobs(void **state)
{
	(void)state;
	environment("SLURM_STEP_ID", "1", "SLURM_PROCID", "1", "SLURM_NTASKS", "16", "SLURM_STEP_NUM_TASKS", "2", NULL);
	expect("slurm", 1, 2);
}

static void launchers_that_agree_are_one(void **state)
{
	(void)state;
	environment(
	        "RANK", "1", "WORLD_SIZE", "2", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_NTASKS", "2", NULL);
	expect("torchrun", 1, 2);
}

static void torchrun_inside_srun_wins(void **state)
{
	struct launcher found;
	struct base_err err = { 0 };
	(void)state;
	environment("TORCHELASTIC_RUN_ID", "none", "RANK", "5", "WORLD_SIZE", "8", "SLURM_STEP_ID", "0", "SLURM_PROCID",
	        "1", "SLURM_NTASKS", "2", NULL);
	expect("torchrun", 5, 8);
	assert_int_equal(launcher_find(NULL, &err, &found), 0);
	assert_non_null(strstr(found.note, "SLURM_PROCID=1 of 2"));
}

static void mpirun_inside_srun_wins(void **state)
{
	(void)state;
	environment("OMPI_COMM_WORLD_RANK", "5", "OMPI_COMM_WORLD_SIZE", "8", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1",
	        "SLURM_NTASKS", "2", NULL);
	expect("ompi", 5, 8);
}

static void a_bare_rank_that_disagrees_is_refused(void **state)
{
	struct launcher found;
	struct base_err err = { 0 };
	(void)state;
	environment(
	        "RANK", "0", "WORLD_SIZE", "1", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_NTASKS", "2", NULL);
	expect_refused(NULL, "RANK=0, WORLD_SIZE=1", "SLURM_PROCID=1, SLURM_NTASKS=2");
	assert_int_equal(launcher_find("slurm", &err, &found), 0);
	assert_int_equal(found.rank, 1);
	assert_int_equal(launcher_find("torchrun", &err, &found), 0);
	assert_int_equal(found.rank, 0);
}

static void half_a_launcher_is_refused_when_alone(void **state)
{
	(void)state;
	environment("RANK", "1", NULL);
	expect_refused(NULL, "RANK is set", "WORLD_SIZE is not");
	environment("RANK", "1", "PMI_RANK", "0", "PMI_SIZE", "4", NULL);
	expect("pmi", 0, 4);
}

static void nonsense_is_refused(void **state)
{
	static const char *const bad[] = { "", "-1", "1x", " 1", "99999999999999999999", "1048577" };
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		environment("RANK", bad[i], "WORLD_SIZE", "8", NULL);
		expect_refused(NULL, "RANK=", "not a number");
	}
	environment("RANK", "8", "WORLD_SIZE", "8", NULL);
	expect_refused(NULL, "RANK=8", "WORLD_SIZE=8");
	environment("RANK", "0", "WORLD_SIZE", "0", NULL);
	expect_refused(NULL, "RANK=0", "WORLD_SIZE=0");
	expect_refused("mpirun", "mpirun", "ompi");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_set_is_no_launcher),
		cmocka_unit_test(each_launcher_alone),
		cmocka_unit_test(a_batch_script_is_no_task),
		cmocka_unit_test(the_steps_tasks_count_not_the_jobs),
		cmocka_unit_test(launchers_that_agree_are_one),
		cmocka_unit_test(torchrun_inside_srun_wins),
		cmocka_unit_test(mpirun_inside_srun_wins),
		cmocka_unit_test(a_bare_rank_that_disagrees_is_refused),
		cmocka_unit_test(half_a_launcher_is_refused_when_alone),
		cmocka_unit_test(nonsense_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
