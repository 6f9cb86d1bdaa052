/* SPDX-License-Identifier: Apache-2.0 */
/* From names to nodes and attributes, without a session; fs/node.h first. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "fs/name.h"
#include "fs/node.h"
#include "tests/fs/dataset.h"
#include "tests/fs/fake_server.h"

static const struct dataset_file files[] = {
	{ .path = "a/b/deep" },
	{ .path = "a/x" },
	{ .path = "a/y" },
	{ .path = "labels.csv", .common = true },
	{ .path = "z" },
};
enum { FILES = sizeof(files) / sizeof(files[0]), SAMPLES = FILES - 1 };

static struct fs_server *server_of(enum fs_layout layout)
{
	return &fake_server_new(dataset_open(files, FILES), layout, -1)->server;
}

static void free_server(struct fs_server *server)
{
	struct shard_index *index = server->index;
	fake_server_free((struct fake_server *)server); /* its first member */
	shard_index_close(index);
}

static const struct fs_node root = { .kind = FS_ROOT };

/* Looks up the names of a path one after the other. */
static int walk(struct fs_server *server, const char *path, struct fs_node *ret_node)
{
	char copy[256];
	char *rest = copy;
	int rc = 0;
	snprintf(copy, sizeof(copy), "%s", path);
	*ret_node = root;
	for (char *name; rc == 0 && (name = strsep(&rest, "/"));)
		rc = fs_node_lookup(server, *ret_node, name, ret_node);
	return rc;
}

static uint32_t file_of(struct fs_server *server, const char *path)
{
	enum shard_kind kind;
	uint32_t id;
	assert_int_equal(shard_index_find_path(server->index, path, &kind, &id), 0);
	assert_int_equal(kind, SHARD_KIND_FILE);
	return id;
}

static void names_of_a_tree_lead_to_files_and_directories(void **state)
{
	(void)state;
	struct fs_server *server = server_of(FS_LAYOUT_TREE);
	struct fs_node node;
	for (unsigned i = 0; i < FILES; i++) {
		char all[64];
		snprintf(all, sizeof(all), ".ddpfs/all/%s", files[i].path);
		assert_int_equal(walk(server, files[i].path, &node), 0);
		assert_int_equal(node.kind, FS_FILE);
		assert_int_equal(node.id, file_of(server, files[i].path));
		assert_int_equal(walk(server, all, &node), 0);
		assert_int_equal(node.kind, FS_FILE);
		assert_int_equal(node.id, file_of(server, files[i].path));
	}
	assert_int_equal(walk(server, "a/b", &node), 0);
	assert_int_equal(node.kind, FS_TREE_DIR);
	assert_int_equal(walk(server, ".ddpfs/all/a/b", &node), 0);
	assert_int_equal(node.kind, FS_ALL_DIR);
	assert_int_equal(walk(server, "a/nothing", &node), -ENOENT);
	assert_int_equal(walk(server, "z/under-a-file", &node), -ENOTDIR);
	assert_int_equal(fs_node_lookup(server, (struct fs_node){ .kind = FS_ROOT, .view = 1 }, "a", &node), -ESTALE);
	free_server(server);
}

static void hidden_names_are_exact(void **state)
{
	(void)state;
	static const struct {
		const char *path;
		enum fs_kind kind;
		uint64_t id;
	} there[] = {
		{ ".ddpfs", FS_HIDDEN, 0 },
		{ ".ddpfs/all", FS_ALL_DIR, 0 },
		{ ".ddpfs/epoch", FS_EPOCHS, 0 },
		{ ".ddpfs/stats.json", FS_STATS, 0 },
		{ ".ddpfs/metrics", FS_METRICS, 0 },
		{ ".ddpfs/state", FS_STATE, 0 },
		{ ".ddpfs/epoch/0", FS_EPOCH_DIR, 0 },
		{ ".ddpfs/epoch/4294967295", FS_EPOCH_DIR, UINT32_MAX },
		{ ".ddpfs/epoch/7.list", FS_EPOCH_LIST, 7 },
		{ ".ddpfs/epoch/7.list0", FS_EPOCH_LIST0, 7 },
	};
	static const char *absent[] = { ".ddpfs/epoch/4294967296", ".ddpfs/epoch/07", ".ddpfs/epoch/x",
		".ddpfs/epoch/.list", ".ddpfs/epoch/7.list1", ".ddpfs/stats", ".ddpfs/.ddpfs" };
	struct fs_server *server = server_of(FS_LAYOUT_TREE);
	struct fs_node node;
	for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++) {
		assert_int_equal(walk(server, there[i].path, &node), 0);
		assert_int_equal(node.kind, there[i].kind);
		assert_int_equal(node.id, there[i].id);
	}
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
		assert_int_equal(walk(server, absent[i], &node), -ENOENT);
	free_server(server);
}

static void a_directory_s_parent_holds_it(void **state)
{
	(void)state;
	static const char *paths[][2] = { { "a", "" }, { "a/b", "a" }, { ".ddpfs/all", ".ddpfs" },
		{ ".ddpfs/all/a", ".ddpfs/all" }, { ".ddpfs/all/a/b", ".ddpfs/all/a" }, { ".ddpfs/epoch", ".ddpfs" },
		{ ".ddpfs/epoch/3", ".ddpfs/epoch" }, { ".ddpfs/epoch/3.list", ".ddpfs/epoch" },
		{ ".ddpfs/state", ".ddpfs" }, { ".ddpfs", "" } };
	struct fs_server *server = server_of(FS_LAYOUT_TREE);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct fs_node child, parent, expected = root;
		assert_int_equal(walk(server, paths[i][0], &child), 0);
		if (*paths[i][1])
			assert_int_equal(walk(server, paths[i][1], &expected), 0);
		assert_int_equal(fs_node_parent(server, child, &parent), 0);
		assert_int_equal(fs_ino(parent), fs_ino(expected));
	}
	free_server(server);
}

/* Writes the flat name of a step of an epoch; returns its file. */
static uint32_t flat_name(struct fs_server *server, uint64_t number, uint64_t step, char ret_name[SHARD_NAME_MAX + 1])
{
	struct shard_epoch *epoch;
	char path[SHARD_PATH_MAX + 1];
	uint32_t sample, file, n;
	assert_int_equal(shard_view_epoch(server->views[0]->order, number, &epoch), 0);
	assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
	shard_epoch_put(epoch);
	assert_int_equal(shard_index_sample_files(server->index, sample, &file, 1, &n), 0);
	int len = shard_index_file_path(server->index, file, path, sizeof(path));
	assert_true(len > 0);
	fs_name_flat(number, step, path, (size_t)len, ret_name);
	return file;
}

static void flat_names_of_any_epoch_are_found(void **state)
{
	(void)state;
	struct fs_server *server = server_of(FS_LAYOUT_FLAT);
	char name[SHARD_NAME_MAX + 1], other[SHARD_NAME_MAX + 8];
	struct fs_node node;
	for (uint64_t epoch = 0; epoch < 3; epoch++) {
		for (uint64_t step = 0; step < SAMPLES; step++) {
			uint64_t number = UINT64_MAX, turn = UINT64_MAX;
			uint32_t file = flat_name(server, epoch, step, name);
			assert_int_equal(fs_node_lookup(server, root, name, &node), 0);
			assert_int_equal(node.kind, FS_FILE);
			assert_int_equal(node.id, file);
			assert_int_equal(fs_flat_place(server->views[0], name, &number, &turn), 0);
			assert_int_equal(number, epoch);
			assert_int_equal(turn, step);
			snprintf(other, sizeof(other), "%sx", name);
			assert_int_equal(fs_node_lookup(server, root, other, &node), -ENOENT);
		}
	}
	free_server(server);
}

static void the_directory_of_an_epoch_has_its_own_names_only(void **state)
{
	(void)state;
	struct fs_server *server = server_of(FS_LAYOUT_FLAT);
	char name[SHARD_NAME_MAX + 1];
	struct fs_node node;
	uint32_t file = flat_name(server, 1, 2, name);
	const struct fs_node first = { .kind = FS_EPOCH_DIR, .id = 1 }, second = { .kind = FS_EPOCH_DIR, .id = 2 };
	assert_int_equal(fs_node_lookup(server, first, name, &node), 0);
	assert_int_equal(node.id, file);
	assert_int_equal(fs_node_lookup(server, second, name, &node), -ENOENT);
	/* A common file is in each of them, without a number. */
	assert_int_equal(fs_node_lookup(server, second, "labels.csv", &node), 0);
	assert_int_equal(node.id, file_of(server, "labels.csv"));
	assert_int_equal(fs_node_lookup(server, root, "z", &node), -ENOENT);
	free_server(server);
}

static void attributes_are_those_of_the_record(void **state)
{
	(void)state;
	struct fs_server *server = server_of(FS_LAYOUT_TREE);
	struct fs_node node;
	struct stat st;
	double timeout_s;
	server->options.umask = 0044;
	assert_int_equal(walk(server, "a/x", &node), 0);
	assert_int_equal(fs_node_attr(server, node, &st, &timeout_s), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(st.st_size, 1);
	assert_int_equal(st.st_nlink, 1);
	assert_int_equal(st.st_ino, fs_ino(node));
	assert_int_equal(st.st_uid, FAKE_UID);
	assert_int_equal(st.st_gid, FAKE_GID);
	assert_true(timeout_s >= FS_FOREVER);
	assert_int_equal(walk(server, "a", &node), 0);
	assert_int_equal(fs_node_attr(server, node, &st, &timeout_s), 0);
	assert_true(S_ISDIR(st.st_mode));
	assert_int_equal(st.st_nlink, 3);
	assert_int_equal(
	        fs_node_attr(server, (struct fs_node){ .kind = FS_FILE, .id = FILES }, &st, &timeout_s), -ESTALE);
	assert_int_equal(
	        fs_node_attr(server, (struct fs_node){ .kind = FS_TREE_DIR, .id = 99 }, &st, &timeout_s), -ESTALE);
	free_server(server);
}

static void a_mount_of_several_ranks_has_a_directory_for_each(void **state)
{
	(void)state;
	static const char *absent[] = { "rank0", "rank4", "rank01", "rank", "rank1x", "a", FS_HIDDEN_NAME };
	struct fs_server *server = &fake_server_new_ranks(dataset_open(files, FILES), FS_LAYOUT_TREE, 1, 3, 5)->server;
	struct fs_node ranks, node, parent;
	struct stat st;
	double timeout_s;
	assert_int_equal(fs_server_node(server, 1, &ranks), 0);
	assert_int_equal(ranks.kind, FS_RANKS);
	assert_int_equal(fs_node_attr(server, ranks, &st, &timeout_s), 0);
	assert_int_equal(st.st_ino, 1);
	assert_int_equal(st.st_nlink, 2 + 3);
	assert_int_equal(fs_node_parent(server, ranks, &parent), 0);
	assert_int_equal(fs_ino(parent), 1);
	for (uint32_t view = 0; view < 3; view++) {
		static const char *below[] = { "a", FS_HIDDEN_NAME };
		char name[16];
		snprintf(name, sizeof(name), "rank%u", view + 1);
		assert_int_equal(fs_node_lookup(server, ranks, name, &node), 0);
		assert_int_equal(node.kind, FS_ROOT);
		assert_int_equal(node.view, view);
		assert_int_equal(server->views[view]->options.rank, view + 1);
		assert_int_equal(fs_node_parent(server, node, &parent), 0);
		assert_int_equal(fs_ino(parent), 1);
		struct fs_node back;
		assert_int_equal(fs_server_node(server, fs_ino(node), &back), 0);
		assert_memory_equal(&back, &node, sizeof(node));
		for (size_t i = 0; i < 2; i++) {
			struct fs_node child;
			assert_int_equal(fs_node_lookup(server, node, below[i], &child), 0);
			assert_int_equal(child.view, view);
			assert_int_equal(fs_node_parent(server, child, &parent), 0);
			assert_int_equal(fs_ino(parent), fs_ino(node));
		}
	}
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++)
		assert_int_equal(fs_node_lookup(server, ranks, absent[i], &node), -ENOENT);
	free_server(server);
}

static void the_root_of_a_rank_is_no_inode_of_a_mount_of_one(void **state)
{
	(void)state;
	struct fs_server *server = server_of(FS_LAYOUT_FLAT);
	struct fs_node node;
	assert_int_equal(fs_server_node(server, 1, &node), 0);
	assert_int_equal(node.kind, FS_ROOT);
	assert_int_equal(fs_server_node(server, fs_ino((struct fs_node){ .kind = FS_ROOT, .id = 1 }), &node), -ESTALE);
	free_server(server);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_of_a_tree_lead_to_files_and_directories),
		cmocka_unit_test(hidden_names_are_exact),
		cmocka_unit_test(a_directory_s_parent_holds_it),
		cmocka_unit_test(flat_names_of_any_epoch_are_found),
		cmocka_unit_test(the_directory_of_an_epoch_has_its_own_names_only),
		cmocka_unit_test(attributes_are_those_of_the_record),
		cmocka_unit_test(a_mount_of_several_ranks_has_a_directory_for_each),
		cmocka_unit_test(the_root_of_a_rank_is_no_inode_of_a_mount_of_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
