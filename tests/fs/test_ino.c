/* SPDX-License-Identifier: Apache-2.0 */
/* Inode numbers: a bijection between nodes and the numbers that are given out. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/ino.h"

static const uint64_t ids[] = { 0, 1, 2, 255, 65536, UINT32_MAX - 1 };
static const uint32_t views[] = { 0, 1, 17, FS_VIEWS_MAX - 1 };

static void root_is_the_kernels_root(void **state)
{
	(void)state;
	assert_int_equal(fs_ino((struct fs_node){ .kind = FS_ROOT }), 1);
	struct fs_node node;
	assert_int_equal(fs_ino_node(1, &node), 0);
	assert_int_equal(node.kind, FS_ROOT);
	assert_int_equal(node.view, 0);
}

static void there_and_back(void **state)
{
	(void)state;
	for (int kind = 0; kind < FS_KIND_COUNT; kind++) {
		for (size_t v = 0; v < sizeof(views) / sizeof(views[0]); v++) {
			for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
				struct fs_node node = { .kind = (enum fs_kind)kind, .view = views[v], .id = ids[i] };
				struct fs_node back;
				uint64_t ino = fs_ino(node);
				if (node.kind == FS_TREE_DIR && node.id == 0)
					continue; /* that directory is the root */
				if (node.kind == FS_RANKS)
					continue; /* 1, as an FS_ROOT: the server tells them apart */
				assert_int_equal(fs_ino_node(ino, &back), 0);
				assert_int_equal(back.kind, node.kind);
				assert_int_equal(fs_ino(back), ino);
				if (node.kind == FS_FILE)
					assert_int_equal(back.view, 0);
				else
					assert_int_equal(back.view, node.view);
			}
		}
	}
}

static void a_file_is_one_inode_in_every_view(void **state)
{
	(void)state;
	for (uint32_t view = 0; view < FS_VIEWS_MAX; view++)
		assert_int_equal(fs_ino((struct fs_node){ .kind = FS_FILE, .view = view, .id = 77 }),
		        fs_ino((struct fs_node){ .kind = FS_FILE, .id = 77 }));
}

static void a_directory_has_one_number_in_each_view(void **state)
{
	(void)state;
	static const struct fs_node dirs[] = { { .kind = FS_ROOT, .id = 1 }, { .kind = FS_TREE_DIR, .id = 5 },
		{ .kind = FS_ALL_DIR }, { .kind = FS_ALL_DIR, .id = 5 }, { .kind = FS_HIDDEN }, { .kind = FS_EPOCHS } };
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		struct fs_node other = dirs[i];
		other.view = 3;
		assert_int_not_equal(fs_ino(other), fs_ino(dirs[i]));
	}
}

static void the_root_of_ranks_is_the_kernels_root(void **state)
{
	(void)state;
	const struct fs_node rank = { .kind = FS_ROOT, .id = 1 };
	struct fs_node node;
	assert_int_equal(fs_ino((struct fs_node){ .kind = FS_RANKS }), 1);
	assert_int_not_equal(fs_ino(rank), 1);
	assert_int_equal(fs_ino_node(fs_ino(rank), &node), 0);
	assert_int_equal(node.kind, FS_ROOT);
	assert_int_equal(node.id, 1);
}

static void kinds_never_meet(void **state)
{
	(void)state;
	for (int a = 0; a < FS_KIND_COUNT; a++)
		for (int b = 0; b < FS_KIND_COUNT; b++)
			for (size_t i = 0; a != b && a != FS_RANKS && b != FS_RANKS && i < sizeof(ids) / sizeof(ids[0]);
			        i++)
				assert_int_not_equal(fs_ino((struct fs_node){ .kind = (enum fs_kind)a, .id = ids[i] }),
				        fs_ino((struct fs_node){ .kind = (enum fs_kind)b, .id = ids[i] }));
}

static void numbers_never_given_are_stale(void **state)
{
	(void)state;
	static const uint64_t bad[] = {
		0,                                                  /* root has id 1 */
		3,                                                  /* or, below a root of ranks, 2 */
		(uint64_t)FS_RANKS << 40,                           /* the root of ranks is 1 */
		(uint64_t)FS_KIND_COUNT << 40,                      /* no such kind */
		UINT64_MAX,                                         /* nor this */
		(uint64_t)FS_TREE_DIR << 40,                        /* directory 0 is the root */
		(uint64_t)FS_FILE << 40 | UINT32_MAX,               /* no such file id */
		UINT64_C(1) << 48 | (uint64_t)FS_FILE << 40 | 5,    /* files have no view */
		(uint64_t)FS_STATS << 40 | 1,                       /* nor stats an id */
		(uint64_t)FS_EPOCH_DIR << 40 | (UINT64_C(1) << 32), /* past the last epoch */
		UINT64_C(1) << 56 | 1,                              /* past the last view */
	};
	struct fs_node node = { .kind = FS_STATE };
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(fs_ino_node(bad[i], &node), -ESTALE);
	assert_int_equal(node.kind, FS_STATE); /* untouched */
}

static void any_number_is_decoded_or_refused(void **state)
{
	(void)state;
	uint64_t x = 88172645463325252ULL;
	for (int i = 0; i < 1000000; i++) {
		struct fs_node node;
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		uint64_t ino = i % 2 ? x : x & 0xffff0fffffffffff; /* half of them near valid kinds */
		if (fs_ino_node(ino, &node) == 0)
			assert_int_equal(fs_ino(node), ino);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(root_is_the_kernels_root),
		cmocka_unit_test(there_and_back),
		cmocka_unit_test(a_file_is_one_inode_in_every_view),
		cmocka_unit_test(a_directory_has_one_number_in_each_view),
		cmocka_unit_test(the_root_of_ranks_is_the_kernels_root),
		cmocka_unit_test(kinds_never_meet),
		cmocka_unit_test(numbers_never_given_are_stale),
		cmocka_unit_test(any_number_is_decoded_or_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
