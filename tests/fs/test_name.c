/* SPDX-License-Identifier: Apache-2.0 */
/* The names of layout=flat. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "fs/ino.h"
#include "fs/name.h"

static uint64_t seed = 88172645463325252ULL;
static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void examples(void **state)
{
	(void)state;
	static const struct {
		uint64_t epoch;
		uint64_t step;
		const char *path;
		const char *name;
	} cases[] = {
		{ 0, 0, "a", "0000-0000000000-a" },
		{ 3, 81920, "cat/1.jpg", "0003-0000081920-cat%2F1.jpg" },
		{ 9999, 9999999999, "100%/x", "9999-9999999999-100%25%2Fx" },
		{ 10000, 10000000000, "x", "10000-10000000000-x" },
		{ FS_EPOCH_MAX, 1, "-", "4294967295-0000000001--" },
		{ 1, 2, "%2F", "0001-0000000002-%252F" },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char name[SHARD_NAME_MAX + 1];
		uint64_t epoch;
		uint64_t step;
		assert_int_equal(
		        fs_name_flat(cases[i].epoch, cases[i].step, cases[i].path, strlen(cases[i].path), name),
		        strlen(cases[i].name));
		assert_string_equal(name, cases[i].name);
		assert_int_equal(fs_name_parse(name, &epoch, &step), 0);
		assert_int_equal(epoch, cases[i].epoch);
		assert_int_equal(step, cases[i].step);
	}
}

static void other_spellings_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = { "", "-", "0000", "0000-", "0000-0000000000", "0000-0000000000-",
		"000-0000000000-a", "00000-0000000000-a", "0000-000000000-a", "0000-00000000000-a", "0000-000000000x-a",
		" 0000-0000000000-a", "+000-0000000000-a", "4294967296-0000000000-a", "9999999999999-0000000000-a",
		"0000-9999999999999-a", "0000_0000000000_a", "0000--000000000-a" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint64_t epoch = 7;
		uint64_t step = 8;
		assert_int_equal(fs_name_parse(bad[i], &epoch, &step), -ENOENT);
		assert_int_equal(epoch, 7);
		assert_int_equal(step, 8);
	}
}

static void sorting_names_sorts_steps(void **state)
{
	(void)state;
	for (int i = 0; i < 20000; i++) {
		char a[SHARD_NAME_MAX + 1];
		char b[SHARD_NAME_MAX + 1];
		uint64_t x = next_random() % 10000000000;
		uint64_t y = next_random() % 10000000000;
		fs_name_flat(5, x, "b", 1, a);
		fs_name_flat(5, y, "a", 1, b);
		assert_int_equal(x < y, strcmp(a, b) < 0);
	}
}

static size_t random_path(char *path, size_t max)
{
	static const char *const pieces[] = { "/", "%", "a", ".", "é", "日", "\xff", " ", "~", "-", "longer piece",
		"𝄞" };
	size_t want = 1 + next_random() % max;
	size_t n = 0;
	for (;;) {
		const char *piece = pieces[next_random() % (sizeof(pieces) / sizeof(pieces[0]))];
		size_t len = strlen(piece);
		if (n + len > want)
			break;
		memcpy(path + n, piece, len);
		n += len;
	}
	path[n] = '\0';
	return n;
}

static void short_names_decode_to_their_path(void **state)
{
	(void)state;
	for (int i = 0; i < 50000; i++) {
		char path[80];
		char name[SHARD_NAME_MAX + 1];
		char back[SHARD_NAME_MAX + 1];
		size_t len = random_path(path, 79);
		size_t n = fs_name_encode(path, len, SHARD_NAME_MAX, name);
		assert_int_equal(n, strlen(name));
		assert_null(strchr(name, '/'));
		assert_int_equal(fs_name_decode(name, n, back), 0);
		assert_string_equal(back, path);
	}
}

static void what_is_never_written_does_not_decode(void **state)
{
	(void)state;
	static const char *const bad[] = { "%", "a%", "%2", "%2f", "%20", "%%", "%26", "a%2" };
	char back[16];
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(fs_name_decode(bad[i], strlen(bad[i]), back), -ENOENT);
}

static bool whole_utf8(const char *s, size_t len)
{
	for (size_t i = 0; i < len;) {
		unsigned char c = (unsigned char)s[i];
		size_t more = c < 0x80             ? 0
		              : (c & 0xe0) == 0xc0 ? 1
		              : (c & 0xf0) == 0xe0 ? 2
		              : (c & 0xf8) == 0xf0 ? 3
		                                   : 9;
		if (more == 9 || i + more >= len)
			return false;
		for (size_t k = 1; k <= more; k++)
			if (((unsigned char)s[i + k] & 0xc0) != 0x80)
				return false;
		i += more + 1;
	}
	return true;
}

static void cut_names_fit_and_keep_hash_and_extension(void **state)
{
	(void)state;
	static const char *const ends[] = { ".jpg", ".tar.gz", "", ".averyveryverylongextension", "/.hidden", ".x%y",
		".é" };
	static const char *const kept[] = { ".jpg", ".gz", "", "", "", "", "" };
	for (size_t e = 0; e < sizeof(ends) / sizeof(ends[0]); e++) {
		for (size_t fill = 200; fill < 400; fill++) {
			char path[2048];
			char name[SHARD_NAME_MAX + 1];
			char tail[64];
			size_t n = 0;
			while (n < fill * 2)
				n += (size_t)sprintf(path + n, n % 3 ? "é" : "/ab");
			n += (size_t)sprintf(path + n, "%s", ends[e]);
			size_t len = fs_name_flat(0, 1, path, n, name);
			assert_int_equal(len, strlen(name));
			assert_in_range(len, SHARD_NAME_MAX - 8, SHARD_NAME_MAX);
			assert_true(whole_utf8(name, len));
			snprintf(tail, sizeof(tail), "~%08x%s", (unsigned)XXH3_64bits(path, n), kept[e]);
			assert_string_equal(name + len - strlen(tail), tail);
		}
	}
}

static void any_path_gives_a_valid_name(void **state)
{
	(void)state;
	for (int i = 0; i < 20000; i++) {
		char path[SHARD_PATH_MAX + 1];
		char name[SHARD_NAME_MAX + 1];
		uint64_t epoch;
		uint64_t step;
		size_t n = random_path(path, i % 2 ? 300 : SHARD_PATH_MAX - 16);
		if (n == 0)
			continue;
		size_t len = fs_name_flat(next_random() & FS_EPOCH_MAX, next_random() % 1000000000000, path, n, name);
		assert_in_range(len, 17, SHARD_NAME_MAX);
		assert_int_equal(strlen(name), len);
		assert_null(strchr(name, '/'));
		assert_int_equal(fs_name_parse(name, &epoch, &step), 0);
	}
}

static void numbers(void **state)
{
	(void)state;
	uint64_t value = 9;
	assert_int_equal(fs_name_number("0", 1, 10, &value), 0);
	assert_int_equal(value, 0);
	assert_int_equal(fs_name_number("4294967295.list", 10, FS_EPOCH_MAX, &value), 0);
	assert_int_equal(value, FS_EPOCH_MAX);
	value = 9;
	static const char *const bad[] = { "", "00", "01", "-1", "+1", "1 ", "x", "4294967296",
		"99999999999999999999" };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(fs_name_number(bad[i], strlen(bad[i]), FS_EPOCH_MAX, &value), -ENOENT);
	assert_int_equal(value, 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(examples),
		cmocka_unit_test(other_spellings_are_refused),
		cmocka_unit_test(sorting_names_sorts_steps),
		cmocka_unit_test(short_names_decode_to_their_path),
		cmocka_unit_test(what_is_never_written_does_not_decode),
		cmocka_unit_test(cut_names_fit_and_keep_hash_and_extension),
		cmocka_unit_test(any_path_gives_a_valid_name),
		cmocka_unit_test(numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
