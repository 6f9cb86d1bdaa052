/* SPDX-License-Identifier: Apache-2.0 */
/* The helpers below everything: errors, sizes, whole-file I/O, log lines. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/base/cleanup.h"
#include "shard/base/err.h"
#include "shard/base/io.h"
#include "shard/base/log.h"
#include "shard/base/syslog.h"
#include "shard/base/units.h"
#include "tests/shard/tree.h"

static void quoting_makes_any_bytes_printable(void **state)
{
	(void)state;
	static const struct {
		const char *name, *quoted;
	} cases[] = {
		{ "", "" },
		{ "plain name.jpg", "plain name.jpg" },
		{ "new\nline\ttab\x7f", "new\\x0aline\\x09tab\\x7f" },
		{ "back\\slash", "back\\\\slash" },
		{ "\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x90\xb1", "\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x90\xb1" },
		{ "\xff\xc3", "\\xff\\xc3" },
		{ "\xc0\xaf\xe0\x80\xaf\xed\xa0\x80", "\\xc0\\xaf\\xe0\\x80\\xaf\\xed\\xa0\\x80" },
		{ "\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80" },
		{ "\xc2\x9b", "\\xc2\\x9b" }, /* a control sequence introducer */
		{ "\x1b[2J", "\\x1b[2J" },
	};
	char buf[64];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_string_equal(base_err_quote(cases[i].name, buf, sizeof buf), cases[i].quoted);
	assert_string_equal(base_err_printable("a\\x0a\n\xff", buf, sizeof buf), "a\\x0a\\x0a\\xff");
}

static void quoting_cuts_between_characters(void **state)
{
	(void)state;
	char buf[64];
	const char *name = "ab\xc3\xa9"
	                   "cd\n\xe6\xbc\xa2"
	                   "efghij";
	char whole[64];
	base_err_quote(name, whole, sizeof whole);
	for (unsigned size = 0; size <= sizeof buf; size++) {
		memset(buf, 'Z', sizeof buf);
		base_err_quote(name, buf, size);
		if (size == 0) {
			assert_int_equal(buf[0], 'Z');
			continue;
		}
		size_t len = strlen(buf);
		assert_true(len < size);
		if (size > strlen(whole)) {
			assert_string_equal(buf, whole);
		} else if (size > 4) {
			assert_string_equal(buf + len - 3, "...");
			assert_memory_equal(buf, whole, len - 3);
			assert_true(((unsigned char)whole[len - 3] & 0xc0) != 0x80); /* not inside a character */
		}
	}
}

static void errors_keep_code_and_sentence(void **state)
{
	(void)state;
	struct base_err err = { 0 };
	assert_int_equal(base_err_set(NULL, -EIO, "nobody listens"), -EIO);
	assert_int_equal(base_err_set(&err, -EIO, "byte %d", 7), -EIO);
	assert_string_equal(err.text, "byte 7");
	assert_int_equal(base_err_prefix(&err, "'%s'", "a.tar"), -EIO);
	assert_string_equal(err.text, "'a.tar': byte 7");
	assert_int_equal(base_err_set(&err, -ENOENT, "again: %s", err.text), -ENOENT);
	assert_string_equal(err.text, "again: 'a.tar': byte 7");

	char longer[3000];
	memset(longer, 'x', sizeof longer - 1);
	longer[sizeof longer - 1] = '\0';
	base_err_set(&err, -EIO, "%s", longer);
	assert_int_equal(strlen(err.text), BASE_ERR_TEXT_MAX - 1);
	base_err_prefix(&err, "%s", longer);
	assert_int_equal(strlen(err.text), BASE_ERR_TEXT_MAX - 1);
	assert_string_equal(base_err_str(-EBADMSG), "checksum mismatch");
	assert_string_equal(base_err_str(-ENOENT), "No such file or directory");
	assert_string_equal(base_err_str(-100000), "unknown error");
}

static void sizes_are_read_as_people_write_them(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int rc;
		uint64_t bytes;
	} cases[] = {
		{ "0", 0, 0 },
		{ "4096", 0, 4096 },
		{ "64M", 0, 64 << 20 },
		{ "1.5G", 0, UINT64_C(3) << 29 },
		{ "256KiB", 0, 256 << 10 },
		{ "1kb", 0, 1024 },
		{ "2t", 0, UINT64_C(2) << 40 },
		{ "7B", 0, 7 },
		{ "0.5", 0, 0 },
		{ "0.0000000000000000000000001T", 0, 0 },
		{ "1.999999999999999999999999K", 0, 2047 },
		{ "9223372036854775807", 0, INT64_MAX },
		{ "9223372036854775808", -ERANGE, 0 },
		{ "8388608T", -ERANGE, 0 },
		{ "99999999999999999999999999", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "-1", -EINVAL, 0 },
		{ " 1", -EINVAL, 0 },
		{ "1 ", -EINVAL, 0 },
		{ "1.", -EINVAL, 0 },
		{ ".5", -EINVAL, 0 },
		{ "1Ki", -EINVAL, 0 },
		{ "1MM", -EINVAL, 0 },
		{ "1iB", -EINVAL, 0 },
		{ "M", -EINVAL, 0 },
		{ "0x10", -EINVAL, 0 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		uint64_t bytes = 4711;
		if (base_parse_size(cases[i].text, &bytes) != cases[i].rc)
			fail_msg("'%s'", cases[i].text);
		assert_int_equal(bytes, cases[i].rc == 0 ? cases[i].bytes : 4711);
	}
}

static void numbers_are_read_strictly(void **state)
{
	(void)state;
	uint64_t v = 1;
	assert_int_equal(base_parse_u64("18446744073709551615", UINT64_MAX, &v), 0);
	assert_int_equal(v, UINT64_MAX);
	assert_int_equal(base_parse_u64("18446744073709551616", UINT64_MAX, &v), -ERANGE);
	assert_int_equal(base_parse_u64("11", 10, &v), -ERANGE);
	assert_int_equal(base_parse_u64("10", 10, &v), 0);
	assert_int_equal(base_parse_u64("", 10, &v), -EINVAL);
	assert_int_equal(base_parse_u64("+1", 10, &v), -EINVAL);
	assert_int_equal(base_parse_u64("1x", 10, &v), -EINVAL);
	assert_int_equal(v, 10);
}

static void sizes_are_written_short(void **state)
{
	(void)state;
	char buf[16];
	assert_string_equal(base_format_size(0, buf), "0 B");
	assert_string_equal(base_format_size(1023, buf), "1023 B");
	assert_string_equal(base_format_size(1024, buf), "1.0 KiB");
	assert_string_equal(base_format_size(1536, buf), "1.5 KiB");
	assert_string_equal(base_format_size((1 << 20) - 1, buf), "1.0 MiB");
	assert_string_equal(base_format_size(UINT64_MAX, buf), "16.0 EiB");
}

/* ------------------------------------------------------------------------------------------------ I/O */

static int interrupted;

static ssize_t stuttering_pread(int fd, void *buf, size_t len, off_t offset)
{
	if (interrupted++ % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	return pread(fd, buf, len > 7 ? 7 : len, offset);
}

static ssize_t stuttering_pwrite(int fd, const void *buf, size_t len, off_t offset)
{
	if (interrupted++ % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	return pwrite(fd, buf, len > 5 ? 5 : len, offset);
}

static void interrupted_and_short_transfers_are_continued(void **state)
{
	(void)state;
	const struct base_io stutter = { stuttering_pread, stuttering_pwrite, fsync, rename };
	char text[1000], back[1000];
	for (size_t i = 0; i < sizeof text; i++)
		text[i] = (char)(i * 7);
	FILE *f = tmpfile();
	base_io = &stutter;
	assert_int_equal(base_pwrite_full(fileno(f), text, sizeof text, 3), 0);
	assert_int_equal(base_pread_full(fileno(f), back, sizeof back, 3), 0);
	assert_memory_equal(text, back, sizeof text);
	assert_int_equal(base_pread_full(fileno(f), back, sizeof back, 4), -ENODATA);
	base_io = &base_io_libc;
	assert_int_equal(base_pread_full(-1, back, 1, 0), -EBADF);
	assert_int_equal(base_pread_full(fileno(f), back, 1, UINT64_MAX), -EFBIG);
	fclose(f);
}

static void small_files_are_read_whole_or_not_at_all(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200], *buf = NULL;
	size_t len = 0;
	snprintf(path, sizeof path, "%s/f", dir);
	assert_int_equal(base_read_file(path, 100, &buf, &len), -ENOENT);
	char *text = calloc(1, 20001);
	memset(text, 'q', 20000);
	assert_int_equal(base_write_file_atomic(path, text, 20000, 0640), 0);
	assert_int_equal(base_read_file(path, 20000, &buf, &len), 0);
	assert_int_equal(len, 20000);
	assert_string_equal(buf, text);
	free(buf);
	assert_int_equal(base_read_file(path, 19999, &buf, &len), -EFBIG);
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(base_read_file("/proc/self/status", 1 << 20, &buf, &len), 0); /* claims a size of 0 */
	assert_true(len > 100);
	free(buf);
	free(text);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes to it, and nobody is waited for */
	assert_int_equal(base_read_file(path, 100, &buf, &len), 0);
	assert_int_equal(len, 0);
	free(buf);
	tree_scratch_done(dir);
}

static int failing_rename(const char *from, const char *to)
{
	(void)from;
	(void)to;
	errno = EPERM;
	return -1;
}

static void an_atomic_write_that_fails_changes_nothing(void **state)
{
	(void)state;
	char *dir = tree_scratch(), path[4200], *buf;
	size_t len;
	const struct base_io broken = { pread, pwrite, fsync, failing_rename };
	snprintf(path, sizeof path, "%s/f", dir);
	assert_int_equal(base_write_file_atomic(path, "old", 3, 0644), 0);
	base_io = &broken;
	assert_int_equal(base_write_file_atomic(path, "new", 3, 0644), -EPERM);
	base_io = &base_io_libc;
	assert_int_equal(base_read_file(path, 10, &buf, &len), 0);
	assert_string_equal(buf, "old");
	free(buf);
	unlink(path);
	assert_int_equal(rmdir(dir), 0); /* nothing else was left */
	free(dir);
}

static bool there(const char *dir, const char *name)
{
	char path[4300];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static void what_a_killed_writer_left_goes_with_the_next_write(void **state)
{
	(void)state;
	static const char *const mine[] = { "f.tmp-0123456789abcdef", "f.tmp-ffffffffffffffff" };
	static const char *const others[] = { "f", "f.tmp-0123456789abcde", "f.tmp-0123456789abcdefa",
		"f.tmp-0123456789ABCDEF", "g.tmp-0123456789abcdef", "f.tmp", "ff.tmp-0123456789abcdef" };
	char *dir = tree_scratch(), path[4300], *living;
	int fd;
	for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, mine[i]);
		assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	}
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, others[i]);
		assert_int_equal(close(open(path, O_CREAT | O_WRONLY, 0600)), 0);
	}
	snprintf(path, sizeof path, "%s/f", dir);
	assert_int_equal(base_temp_open(path, 0600, &living, &fd), 0);
	for (size_t i = 0; i < sizeof mine / sizeof mine[0]; i++)
		assert_false(there(dir, mine[i]));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(base_write_file_atomic(path, "new", 3, 0600), 0);
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		assert_true(there(dir, others[i]));
	assert_int_equal(access(living, F_OK), 0); /* its writer lives */
	close(fd);
	assert_int_equal(base_write_file_atomic(path, "new", 3, 0600), 0);
	assert_int_equal(access(living, F_OK), -1);
	free(living);
	tree_scratch_done(dir);
}

/* ------------------------------------------------------------------------------------------------ log */

static void log_lines_carry_name_and_level(void **state)
{
	(void)state;
	FILE *f = tmpfile();
	pid_t pid = fork();
	if (pid == 0) {
		dup2(fileno(f), STDERR_FILENO);
		base_log_init("tool", BASE_LOG_WARNING, false);
		log_error("disk %d", 1);
		log_warning("slow");
		log_info("dropped");
		char big[5000];
		memset(big, 'y', sizeof big - 1);
		big[sizeof big - 1] = '\0';
		log_error("%s", big);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	char text[8192] = { 0 };
	rewind(f);
	size_t n = fread(text, 1, sizeof text - 1, f);
	const char *want = "tool: error: disk 1\ntool: warning: slow\ntool: error: yyyy";
	assert_memory_equal(text, want, strlen(want));
	assert_int_equal(text[n - 1], '\n');
	assert_true(n < 4096 + strlen(want)); /* the long line was cut, not split */
	fclose(f);
}

/* A socket of its own instead of /dev/log; returns the listening end. */
static int listen_at(const char *path, int type)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
	if (type == SOCK_STREAM)
		assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static void syslog_gets_a_line_and_is_not_waited_for(void **state)
{
	(void)state;
	char dir[] = "/tmp/ddpfs-test-XXXXXX", path[64], want[64], got[8192];
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/log", dir);
	assert_int_equal(base_syslog(path, "tool", 3, "nobody"), -ENOENT);
	int fd = listen_at(path, SOCK_DGRAM);
	assert_int_equal(base_syslog(path, "tool", 3, "disk 1"), 0);
	ssize_t n = recv(fd, got, sizeof got, 0);
	snprintf(want, sizeof want, "<27>tool[%d]: disk 1", (int)getpid());
	assert_int_equal(n, strlen(want));
	assert_memory_equal(got, want, strlen(want));
	char big[2 * BASE_SYSLOG_BYTES_MAX];
	memset(big, 'y', sizeof big - 1);
	big[sizeof big - 1] = '\0';
	assert_int_equal(base_syslog(path, "tool", 6, big), 0);
	assert_int_equal(recv(fd, got, sizeof got, 0), BASE_SYSLOG_BYTES_MAX - 1);
	int r;
	do /* it does not read: its queue is full some time */
		r = base_syslog(path, "tool", 3, "flood");
	while (r == 0);
	assert_int_equal(r, -EAGAIN);
	close(fd);
	assert_int_equal(base_syslog(path, "tool", 3, "nobody"), -ECONNREFUSED);
	unlink(path);
	fd = listen_at(path, SOCK_STREAM);
	assert_int_equal(base_syslog(path, "tool", 3, "disk 1"), 0);
	int client = accept(fd, NULL, NULL);
	assert_int_equal(recv(client, got, sizeof got, 0), strlen(want) + 1);
	assert_string_equal(got, want);
	close(client);
	close(fd);
	unlink(path);
	rmdir(dir);
}

static enum base_log_level relayed_level;
static char relayed[64];

static void keep_relayed(enum base_log_level level, const char *line)
{
	relayed_level = level;
	snprintf(relayed, sizeof relayed, "%s", line);
}

static void lines_for_syslog_can_go_elsewhere(void **state)
{
	(void)state;
	base_log_relay(keep_relayed);
	base_log_init("tool", BASE_LOG_WARNING, true);
	log_warning("disk %d", 1);
	log_info("dropped");
	base_log_init("ddpfs", BASE_LOG_INFO, false);
	base_log_relay(NULL);
	assert_int_equal(relayed_level, BASE_LOG_WARNING);
	assert_string_equal(relayed, "disk 1");
}

static void log_keeps_the_last_errors_and_warnings(void **state)
{
	(void)state;
	struct base_log_line lines[BASE_LOG_KEPT];
	FILE *f = tmpfile();
	int old = dup(STDERR_FILENO);
	dup2(fileno(f), STDERR_FILENO);
	base_log_init("tool", BASE_LOG_ERROR, false);
	log_error("first");
	for (int i = 0; i < BASE_LOG_KEPT; i++) {
		log_info("no problem");
		log_warning("slow %d", i); /* above the level, and kept all the same */
	}
	dup2(old, STDERR_FILENO);
	close(old);
	fclose(f);
	base_log_init("ddpfs", BASE_LOG_INFO, false);
	assert_int_equal(base_log_kept(lines), BASE_LOG_KEPT);
	assert_string_equal(lines[0].text, "warning: slow 0");
	assert_string_equal(lines[BASE_LOG_KEPT - 1].text, "warning: slow 7");
	assert_true(lines[0].time_s > 0);
}

static void cleanup_releases_what_was_not_stolen(void **state)
{
	(void)state;
	int kept, gone;
	{
		cleanup_close int a = open("/dev/null", O_RDONLY), b = open("/dev/null", O_RDONLY);
		gone = a;
		kept = steal_fd(&b);
	}
	assert_int_equal(fcntl(gone, F_GETFD), -1);
	assert_true(fcntl(kept, F_GETFD) >= 0);
	close(kept);
	cleanup_free char *text = strdup("x");
	char *mine = steal_ptr(&text);
	assert_null(text);
	free(mine);
}

static int return_locked(pthread_mutex_t *mutex, bool early)
{
	lock_for_scope(mutex);
	if (mutex)
		assert_int_equal(pthread_mutex_trylock(mutex), EBUSY);
	if (early)
		return 1;
	return 2;
}

static void a_lock_for_the_scope_ends_at_each_return(void **state)
{
	pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

	(void)state;
	for (int early = 0; early < 2; early++) {
		assert_int_equal(return_locked(&mutex, early), 2 - early);
		assert_int_equal(pthread_mutex_trylock(&mutex), 0);
		pthread_mutex_unlock(&mutex);
	}
	assert_int_equal(return_locked(NULL, false), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quoting_makes_any_bytes_printable),
		cmocka_unit_test(quoting_cuts_between_characters),
		cmocka_unit_test(errors_keep_code_and_sentence),
		cmocka_unit_test(sizes_are_read_as_people_write_them),
		cmocka_unit_test(numbers_are_read_strictly),
		cmocka_unit_test(sizes_are_written_short),
		cmocka_unit_test(interrupted_and_short_transfers_are_continued),
		cmocka_unit_test(small_files_are_read_whole_or_not_at_all),
		cmocka_unit_test(an_atomic_write_that_fails_changes_nothing),
		cmocka_unit_test(what_a_killed_writer_left_goes_with_the_next_write),
		cmocka_unit_test(log_lines_carry_name_and_level),
		cmocka_unit_test(syslog_gets_a_line_and_is_not_waited_for),
		cmocka_unit_test(lines_for_syslog_can_go_elsewhere),
		cmocka_unit_test(log_keeps_the_last_errors_and_warnings),
		cmocka_unit_test(cleanup_releases_what_was_not_stolen),
		cmocka_unit_test(a_lock_for_the_scope_ends_at_each_return),
	};
	return cmocka_run_group_tests_name("shard/base", tests, NULL, NULL);
}
