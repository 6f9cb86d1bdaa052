/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody writes into the file of an open index: nothing that is read of it passes shard_index_check. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/build.h"
#include "shard/index.h"
#include "shard/index_private.h"
#include "tests/shard/tree.h"

enum { FILES = 3000 }; /* an index of several blocks of sums */

struct specimen {
	char *dir;
	char path[4200];
	struct stat st;
	uint8_t *bytes, *other; /* of the index, and of one with the same names and length */
	size_t len;
	struct shard_index *index;
};

static void build(const char *path, uint64_t salt)
{
	struct shard_builder *b;
	assert_int_equal(shard_builder_new(&b), 0);
	assert_int_equal(shard_builder_add_shard(b, "s.tar", SHARD_TAR, FILES * 1024, 0, NULL), 0);
	for (uint32_t i = 0; i < FILES; i++) {
		char name[32];
		snprintf(name, sizeof name, "item_%06u", i);
		const struct shard_build_file file = {
			.path = name, .offset = i * UINT64_C(1024), .length = 1000, .xxh3 = i + 1 + salt, .mode = 0644
		};
		assert_int_equal(shard_builder_add_file(b, &file, NULL), 0);
	}
	assert_int_equal(shard_builder_finish(b, path, false, 0, NULL), 0);
	shard_builder_free(b);
}

static void specimen_make(struct specimen *s)
{
	char other[4300];
	struct base_err err = { 0 };
	size_t len;
	memset(s, 0, sizeof *s);
	s->dir = tree_scratch();
	snprintf(s->path, sizeof s->path, "%s/index.ddpfs", s->dir);
	snprintf(other, sizeof other, "%s/other", s->dir);
	build(s->path, 0);
	build(other, 1000000);
	s->bytes = tree_read(s->path, &s->len);
	s->other = tree_read(other, &len);
	assert_int_equal(len, s->len);
	assert_int_equal(chmod(s->path, 0644), 0);
	assert_int_equal(stat(s->path, &s->st), 0);
	if (shard_index_open(s->dir, &err, &s->index) < 0)
		fail_msg("%s", err.text);
}

static void specimen_done(struct specimen *s)
{
	shard_index_close(s->index);
	free(s->bytes);
	free(s->other);
	tree_scratch_done(s->dir);
}

/* As cp(1) or `rsync --inplace` does, with the old mtime or without. */
static void overwrite(const struct specimen *s, const uint8_t *bytes, size_t len, bool keep_mtime)
{
	int fd = open(s->path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	const struct timespec times[2] = { s->st.st_atim, s->st.st_mtim };
	if (keep_mtime)
		assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

/* Until a write has another ctime than what was seen before. */
static void wait_a_tick(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
}

static bool is_right(const struct specimen *s, uint32_t file)
{
	struct shard_place place;
	int r = shard_index_place(s->index, file, &place);
	return r == 0 && place.xxh3 == file + 1;
}

static void is_stale(const struct specimen *s)
{
	struct base_err err = { 0 };
	struct shard_place place;
	struct shard_file file;
	uint32_t id;
	assert_int_equal(shard_index_check(s->index), -ESTALE);
	assert_int_equal(shard_index_check(s->index), -ESTALE);
	assert_int_equal(shard_index_place(s->index, 0, &place), -ESTALE);
	assert_int_equal(shard_index_file(s->index, 0, &file), -ESTALE);
	assert_int_equal(shard_index_find_file(s->index, 0, "item_000001", 11, &id), -ESTALE);
	assert_int_equal(shard_index_explain(s->index, &err), -ESTALE);
	assert_non_null(strstr(err.text, s->path));
	assert_non_null(strstr(err.text, "mkshard verify"));
	assert_null(strchr(err.text, '\n'));
}

static void what_is_left_alone_is_not_stale(void **state)
{
	(void)state;
	struct specimen s;
	specimen_make(&s);
	for (int i = 0; i < 3; i++) {
		assert_true(is_right(&s, 1));
		assert_int_equal(shard_index_check(s.index), 0);
		assert_int_equal(shard_index_explain(s.index, NULL), 0);
		wait_a_tick();
	}
	specimen_done(&s);
}

/* Before the check has a say: sums are private, so a block that was not touched before cannot match what it is now. */
static void untouched_blocks_never_match_changed_sums(void **state)
{
	(void)state;
	for (int touched = 0; touched < 2; touched++) {
		struct specimen s;
		struct shard_place place;
		specimen_make(&s);
		if (touched)
			assert_true(is_right(&s, 0)); /* the sums are copied with it */
		overwrite(&s, s.other, s.len, true);
		assert_int_equal(shard_index_place(s.index, FILES - 1, &place), -EBADMSG);
		specimen_done(&s);
	}
}

static void an_overwritten_index_is_stale_for_good(void **state)
{
	(void)state;
	for (int i = 0; i < 8; i++) {
		bool keep_mtime = i & 1, ticks = i & 2, looked = i & 4;
		struct specimen s;
		specimen_make(&s);
		assert_true(is_right(&s, 0));
		if (ticks)
			wait_a_tick();
		if (looked)
			assert_int_equal(shard_index_check(s.index), 0);
		overwrite(&s, s.other, s.len, keep_mtime);
		assert_false(is_right(&s, 0)); /* what the check is for: the block is marked */
		is_stale(&s);
		overwrite(&s, s.bytes, s.len, true);
		is_stale(&s);
		specimen_done(&s);
	}
}

static void another_size_is_stale(void **state)
{
	(void)state;
	struct specimen s;
	specimen_make(&s);
	assert_true(is_right(&s, 0));
	assert_int_equal(truncate(s.path, (off_t)s.len + 1), 0);
	is_stale(&s);
	specimen_done(&s);
}

/* chmod, link, rename, a file that takes its name: the bytes are what they were. */
static void changed_attributes_stop_nothing(void **state)
{
	(void)state;
	struct specimen s;
	char beside[4300];
	specimen_make(&s);
	snprintf(beside, sizeof beside, "%s/beside", s.dir);
	for (int i = 0; i < 5; i++) {
		assert_true(is_right(&s, (uint32_t)i * 500));
		if (i == 1)
			assert_int_equal(chmod(s.path, 0600), 0);
		else if (i == 2)
			assert_int_equal(link(s.path, beside), 0);
		else if (i == 3)
			assert_int_equal(rename(beside, s.path), 0); /* two names of one file: nothing is done */
		else if (i == 4)
			assert_int_equal(unlink(s.path), 0);
		for (int look = 0; look < 3; look++) {
			assert_int_equal(shard_index_check(s.index), 0);
			assert_true(is_right(&s, (uint32_t)look));
			wait_a_tick();
		}
	}
	specimen_done(&s);
}

static void the_same_bytes_with_the_same_mtime_stop_nothing(void **state)
{
	(void)state;
	struct specimen s;
	specimen_make(&s);
	assert_true(is_right(&s, 0));
	overwrite(&s, s.bytes, s.len, true);
	assert_int_equal(shard_index_check(s.index), 0);
	assert_true(is_right(&s, FILES - 1));
	assert_int_equal(shard_index_check(s.index), 0);
	specimen_done(&s);
}

/* ---- faults ---- */

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (shard_index_fault(info->si_addr))
		return;
	signal(sig, SIG_DFL);
}

static void a_cut_index_is_stale_and_its_reader_lives(void **state)
{
	(void)state;
	const struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	struct sigaction before;
	assert_int_equal(sigaction(SIGBUS, &action, &before), 0);
	for (int i = 0; i < 4; i++) {
		struct specimen s, another;
		specimen_make(&s);
		specimen_make(&another);
		assert_true(is_right(&s, 0));
		assert_true(is_right(&another, 0));
		if (i & 1)
			assert_int_equal(shard_index_check(s.index), 0);
		assert_int_equal(truncate(s.path, i & 2 ? 4096 : 0), 0);
		assert_false(is_right(&s, 0));
		assert_false(is_right(&s, FILES - 1));
		is_stale(&s);
		assert_true(is_right(&another, FILES - 1));
		assert_int_equal(shard_index_check(another.index), 0);
		specimen_done(&s);
		specimen_done(&another);
	}
	assert_false(shard_index_fault(state)); /* nobody's */
	sigaction(SIGBUS, &before, NULL);
}

/* A page may be gone at the fault and there again, with every byte changed, when the handler looks. */
static void a_fault_in_an_index_that_was_written_is_no_disk_that_fails(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct specimen s;
		specimen_make(&s);
		assert_false(shard_index_fault(s.index->map)); /* nobody wrote: the disk */
		assert_true(is_right(&s, 0));
		wait_a_tick();
		overwrite(&s, i ? s.other : s.bytes, s.len, true);
		assert_int_equal(shard_index_check(s.index), i ? -ESTALE : 0);
		assert_true(shard_index_fault(s.index->map));
		is_stale(&s);
		specimen_done(&s);
	}
}

/* ---- at once ---- */

struct reader {
	struct specimen *s;
	_Atomic bool *stop;
	uint64_t seed;
	int wrong, looks;
};

static void *read_and_check(void *arg)
{
	struct reader *r = arg;
	while (!*r->stop) {
		uint32_t file = (uint32_t)(tree_rand(&r->seed) % FILES);
		struct shard_place place;
		int rc = shard_index_place(r->s->index, file, &place);
		if (rc < 0 || shard_index_check(r->s->index) < 0)
			continue;
		r->looks++;
		r->wrong += place.xxh3 != file + 1;
	}
	return NULL;
}

/* Attributes change all the time, and at some moment the bytes do. */
static void no_thread_believes_what_was_overwritten(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		struct specimen s;
		_Atomic bool stop = false;
		pthread_t threads[3];
		struct reader readers[3];
		specimen_make(&s);
		assert_true(is_right(&s, 0));
		for (unsigned t = 0; t < 3; t++) {
			readers[t] = (struct reader){ .s = &s, .stop = &stop, .seed = (uint64_t)i * 7 + t };
			assert_int_equal(pthread_create(&threads[t], NULL, read_and_check, &readers[t]), 0);
		}
		for (int j = 0; j < 20; j++)
			assert_int_equal(chmod(s.path, j & 1 ? 0600 : 0644), 0);
		overwrite(&s, s.other, s.len, true);
		for (int j = 0; j < 20; j++)
			assert_int_equal(chmod(s.path, j & 1 ? 0600 : 0644), 0);
		stop = true;
		for (unsigned t = 0; t < 3; t++) {
			pthread_join(threads[t], NULL);
			assert_int_equal(readers[t].wrong, 0);
		}
		is_stale(&s);
		specimen_done(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_left_alone_is_not_stale),
		cmocka_unit_test(untouched_blocks_never_match_changed_sums),
		cmocka_unit_test(an_overwritten_index_is_stale_for_good),
		cmocka_unit_test(another_size_is_stale),
		cmocka_unit_test(changed_attributes_stop_nothing),
		cmocka_unit_test(the_same_bytes_with_the_same_mtime_stop_nothing),
		cmocka_unit_test(a_cut_index_is_stale_and_its_reader_lives),
		cmocka_unit_test(a_fault_in_an_index_that_was_written_is_no_disk_that_fails),
		cmocka_unit_test(no_thread_believes_what_was_overwritten),
	};
	return cmocka_run_group_tests_name("shard/change", tests, NULL, NULL);
}
