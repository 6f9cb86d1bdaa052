/* SPDX-License-Identifier: Apache-2.0 */
/* What the log says of a failed read: what its readers get, and what to do. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/errors.h"
#include "fs/log_queue.h"
#include "shard/base/log.h"
#include "tests/fs/dataset.h"

/* Returns the line that a failed read of a file led to. */
static const char *line_of(struct fs_log_queue *log, uint32_t file, int rc)
{
	static struct base_log_line lines[BASE_LOG_KEPT];
	fs_log_queue_read_failed(log, file, 0, rc);
	fs_log_queue_write(log);
	unsigned n = base_log_kept(lines);
	assert_true(n > 0);
	return lines[n - 1].text;
}

static void the_log_tells_the_error_that_readers_get(void **state)
{
	static const struct {
		int rc;
		int reader;
		const char *name, *advice;
	} cases[] = {
		{ -EBADMSG, -EIO, "readers get EIO", "--quarantine" },
		{ -EIO, -EIO, "readers get EIO", "--quarantine" },
		{ -ENOMEM, -ENOMEM, "readers get ENOMEM", "no memory" },
		{ -ESTALE, -ESTALE, "readers get ESTALE", "put the shard back" },
		{ -ETIMEDOUT, -EIO, "readers get EIO", "read again" },
		{ -EACCES, -EIO, "readers get EIO", "must be allowed" },
	};
	enum { N = sizeof(cases) / sizeof(cases[0]) };
	(void)state;
	struct shard_index *index = dataset_open_n(N, 1);
	struct fs_job_queue *jobs;
	struct fs_log_queue *log;
	assert_int_equal(fs_job_queue_new(&jobs), 0);
	assert_int_equal(fs_log_queue_new(index, jobs, &log), 0);
	for (uint32_t i = 0; i < N; i++) {
		const char *line = line_of(log, i, cases[i].rc);
		assert_int_equal(fs_read_errno(cases[i].rc), cases[i].reader);
		assert_non_null(strstr(line, cases[i].name));
		assert_non_null(strstr(line, cases[i].advice));
		assert_true(cases[i].rc == -ENOMEM || !strstr(line, "ENOMEM"));
	}
	fs_log_queue_free(log);
	fs_job_queue_free(jobs);
	shard_index_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_log_tells_the_error_that_readers_get),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
