/* SPDX-License-Identifier: Apache-2.0 */
/* Listings without a session: what they show, and how they go on; fs/dir.h first. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/dir.h"
#include "fs/job_queue.h"
#include "fs/name.h"
#include "fs/watch.h"
#include "tests/fs/dataset.h"
#include "tests/fs/fake_kernel.h"
#include "tests/fs/fake_server.h"

static const struct dataset_file files[] = {
	{ .path = "a/b/deep" },
	{ .path = "a/x" },
	{ .path = "a/y" },
	{ .path = "labels.csv", .common = true },
	{ .path = "z" },
};
enum { FILES = sizeof(files) / sizeof(files[0]), SAMPLES = FILES - 1, NAMES_MAX = 64, ALL = 64 << 10 };
static const struct fs_node root = { .kind = FS_ROOT };
static const struct fs_node all = { .kind = FS_ALL_DIR }, hidden = { .kind = FS_HIDDEN };

static struct shard_index *dataset;

/* What a listing showed. */
struct shown {
	unsigned n;
	struct entry {
		char name[256];
		uint64_t ino, nodeid, off;
	} entries[NAMES_MAX];
};

/* The kernel's layout of an entry: struct fuse_dirent, behind struct fuse_entry_out with READDIRPLUS. */
enum { ENTRY_OUT_BYTES = 128, DIRENT_BYTES = 24 };

static void take_entries(const uint8_t *bytes, size_t len, bool plus, struct shown *shown)
{
	for (size_t at = 0; at < len;) {
		struct entry *entry = &shown->entries[shown->n++];
		uint32_t name_len;
		assert_true(shown->n <= NAMES_MAX);
		*entry = (struct entry){ 0 };
		if (plus) {
			memcpy(&entry->nodeid, bytes + at, 8);
			at += ENTRY_OUT_BYTES;
		}
		memcpy(&entry->ino, bytes + at, 8);
		memcpy(&entry->off, bytes + at + 8, 8);
		memcpy(&name_len, bytes + at + 16, 4);
		assert_true(name_len < sizeof(entry->name) && at + DIRENT_BYTES + name_len <= len);
		memcpy(entry->name, bytes + at + DIRENT_BYTES, name_len);
		at += (DIRENT_BYTES + name_len + 7) / 8 * 8;
	}
}

/* Opens a directory. Returns the errno of the answer; *ret_fi is the handle. */
static int open_dir(struct fake_server *fake, struct fs_node node, int flags, pid_t pid, struct fuse_file_info *ret_fi)
{
	struct fake_request request;
	struct fuse_file_info fi = { .flags = flags };
	fuse_req_t req = fake_request_begin(&request, &fake->server);
	request.context.pid = pid;
	fs_dir_opendir(req, fs_ino(node), &fi);
	int rc = fake_request_wait(&request);
	*ret_fi = request.opened;
	fake_request_end(&request);
	return rc;
}

/* Reads one piece of at most @size bytes from @off on. Returns the errno of the answer. */
static int read_piece(struct fake_server *fake, struct fs_node node, const struct fuse_file_info *fi, size_t size,
        uint64_t off, bool plus, struct shown *shown)
{
	struct fake_request request;
	struct fuse_file_info copy = *fi;
	fuse_req_t req = fake_request_begin(&request, &fake->server);
	(plus ? fs_dir_readdirplus : fs_dir_readdir)(req, fs_ino(node), size, (off_t)off, &copy);
	int rc = fake_request_wait(&request);
	assert_true(request.len <= size);
	take_entries(request.bytes, request.len, plus, shown);
	fake_request_end(&request);
	return rc;
}

/* Reads a listing to its end. */
static void read_dir(struct fake_server *fake, struct fs_node node, const struct fuse_file_info *fi, size_t size,
        bool plus, struct shown *shown)
{
	unsigned before;
	*shown = (struct shown){ 0 };
	do {
		before = shown->n;
		uint64_t off = before ? shown->entries[before - 1].off : 0;
		assert_int_equal(read_piece(fake, node, fi, size, off, plus, shown), 0);
	} while (shown->n > before);
}

static void list(struct fake_server *fake, struct fs_node node, struct shown *shown)
{
	struct fuse_file_info fi;
	assert_int_equal(open_dir(fake, node, 0, 1, &fi), 0);
	read_dir(fake, node, &fi, ALL, false, shown);
}

/* Finds the inode number of a name, which must have come once. */
static uint64_t ino_of(const struct shown *shown, const char *name)
{
	uint64_t ino = 0;
	unsigned n = 0;
	for (unsigned i = 0; i < shown->n; i++) {
		if (strcmp(shown->entries[i].name, name) != 0)
			continue;
		ino = shown->entries[i].ino;
		n++;
	}
	assert_int_equal(n, 1);
	return ino;
}

static uint64_t file_ino(const char *path)
{
	enum shard_kind kind;
	uint32_t id;
	assert_int_equal(shard_index_find_path(dataset, path, &kind, &id), 0);
	return fs_ino((struct fs_node){ .kind = FS_FILE, .id = id });
}

/* The name of a turn in a flat directory. */
static void flat_name(struct fake_server *fake, uint64_t number, uint64_t turn, char ret_name[SHARD_NAME_MAX + 1])
{
	struct shard_epoch *epoch;
	char path[SHARD_PATH_MAX + 1];
	uint32_t sample, file;
	uint64_t step;
	assert_int_equal(shard_view_epoch(fake->server.views[0]->order, number, &epoch), 0);
	assert_int_equal(shard_epoch_turn(epoch, 0, turn, &sample, &step), 0);
	shard_epoch_put(epoch);
	assert_int_equal(shard_index_sample_first(dataset, sample, &file), 0);
	int len = shard_index_file_path(dataset, file, path, sizeof(path));
	assert_true(len > 0);
	fs_name_flat(number, step, path, (size_t)len, ret_name);
}

static void check_flat(struct fake_server *fake, const struct shown *shown, uint64_t epoch)
{
	assert_int_equal(shown->n, 2 + FILES);
	assert_string_equal(shown->entries[2].name, "labels.csv");
	for (uint64_t turn = 0; turn < SAMPLES; turn++) {
		char name[SHARD_NAME_MAX + 1];
		flat_name(fake, epoch, turn, name);
		assert_string_equal(shown->entries[3 + turn].name, name);
	}
}

static void a_tree_lists_each_file_and_directory_once(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
	struct shown shown;
	const struct fs_node tops[] = { root, all };
	for (unsigned i = 0; i < 2; i++) {
		list(fake, tops[i], &shown);
		assert_int_equal(shown.n, 5);
		assert_int_equal(ino_of(&shown, "."), fs_ino(tops[i]));
		assert_int_equal(ino_of(&shown, ".."), fs_ino(i == 0 ? root : hidden));
		assert_int_equal(ino_of(&shown, "labels.csv"), file_ino("labels.csv"));
		assert_int_equal(ino_of(&shown, "z"), file_ino("z"));
		struct fs_node node;
		assert_int_equal(fs_ino_node(ino_of(&shown, "a"), &node), 0);
		assert_int_equal(node.kind, i == 0 ? FS_TREE_DIR : FS_ALL_DIR);
		list(fake, node, &shown);
		assert_int_equal(shown.n, 5);
		assert_int_equal(ino_of(&shown, ".."), fs_ino(tops[i]));
		assert_int_equal(ino_of(&shown, "x"), file_ino("a/x"));
		assert_int_equal(ino_of(&shown, "y"), file_ino("a/y"));
		assert_true(ino_of(&shown, "b") > 0);
	}
	assert_int_equal(fs_counted(&fake->server.counters.listings), 4);
	assert_int_equal(fs_counted(&fake->server.counters.entries), 20);
	fake_server_free(fake);
}

static void a_flat_directory_lists_the_common_files_and_then_the_order(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_FLAT, -1);
	struct shown shown;
	list(fake, root, &shown);
	check_flat(fake, &shown, 0);
	list(fake, (struct fs_node){ .kind = FS_EPOCH_DIR, .id = 7 }, &shown);
	check_flat(fake, &shown, 7);
	fake_server_free(fake);
}

static void pieces_of_any_size_make_the_same_listing(void **state)
{
	(void)state;
	const enum fs_layout layouts[] = { FS_LAYOUT_TREE, FS_LAYOUT_FLAT };
	for (unsigned i = 0; i < 2; i++) {
		struct fake_server *fake = fake_server_new(dataset, layouts[i], -1);
		struct fuse_file_info fi;
		struct shown whole, shown;
		assert_int_equal(open_dir(fake, root, 0, 1, &fi), 0);
		for (unsigned plus = 0; plus < 2; plus++) {
			read_dir(fake, root, &fi, ALL, plus, &whole);
			/* From one entry a piece on. */
			for (size_t size = 200; size < 1200; size += 8) {
				read_dir(fake, root, &fi, size, plus, &shown);
				assert_memory_equal(&shown, &whole, sizeof(shown));
			}
		}
		fake_server_free(fake);
	}
}

static void a_listing_keeps_the_epoch_of_its_opendir(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_FLAT, -1);
	struct fuse_file_info before;
	struct shown shown;
	assert_int_equal(open_dir(fake, root, 0, 1, &before), 0);
	assert_int_equal(fs_view_set_epoch(fake->server.views[0], 1), 0);
	read_dir(fake, root, &before, 256, false, &shown);
	check_flat(fake, &shown, 0);
	list(fake, root, &shown);
	check_flat(fake, &shown, 1);
	fake_server_free(fake);
}

struct invalidated {
	unsigned n;
	uint64_t ino;
	off_t offset;
};

static int count_invalidated(void *arg, uint64_t ino, off_t offset, off_t len)
{
	struct invalidated *i = arg;
	(void)len;
	i->n++;
	i->ino = ino;
	i->offset = offset;
	return 0;
}

static void a_listing_of_the_root_moves_on_when_half_of_the_turns_were_opened(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_FLAT, -1);
	struct invalidated invalidated = { 0 };
	struct shown shown;
	fake_notified = (struct fake_notified){ .inval = count_invalidated, .arg = &invalidated };
	fs_view_opened(fake->server.views[0], 0, 0);
	list(fake, root, &shown);
	check_flat(fake, &shown, 0);
	fs_view_opened(fake->server.views[0], 0, 3);
	/* Neither a listing of something else nor one of the server's own thread. */
	struct fuse_file_info fi;
	list(fake, all, &shown);
	assert_int_equal(open_dir(fake, root, FS_DIR_MARK, 1, &fi), 0);
	assert_int_equal(invalidated.n, 0);
	list(fake, root, &shown);
	check_flat(fake, &shown, 1);
	assert_int_equal(invalidated.n, 1);
	assert_int_equal(invalidated.ino, fs_ino(root));
	assert_true(invalidated.offset < 0);
	fake_notified = (struct fake_notified){ 0 };
	fake_server_free(fake);
}

static void only_the_lister_s_marked_listing_makes_inodes(void **state)
{
	(void)state;
	enum { LISTER = 77 };
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_FLAT, -1);
	const struct {
		int flags;
		pid_t pid;
		bool makes;
	} cases[] = { { 0, LISTER, false }, { FS_DIR_MARK, LISTER + 1, false }, { FS_DIR_MARK, LISTER, true } };
	fake->server.lister = LISTER;
	fake->server.lister_epoch = 2;
	for (unsigned i = 0; i < 3; i++) {
		struct fuse_file_info fi;
		struct shown shown;
		unsigned with = 0;
		assert_int_equal(open_dir(fake, root, cases[i].flags, cases[i].pid, &fi), 0);
		read_dir(fake, root, &fi, ALL, true, &shown);
		check_flat(fake, &shown, cases[i].makes ? 2 : 0);
		for (unsigned e = 0; e < shown.n; e++) {
			assert_true(shown.entries[e].nodeid == 0 || shown.entries[e].nodeid == shown.entries[e].ino);
			with += shown.entries[e].nodeid != 0;
		}
		assert_int_equal(with, cases[i].makes ? FILES : 0);
	}
	assert_int_equal(fs_counted(&fake->server.counters.listings), 1); /* a trainer's */
	fake_server_free(fake);
}

/* Reads a marked listing of the root, as the toucher does. Returns how many of its names are files. */
static unsigned list_marked(struct fake_server *fake, size_t size, struct shown *shown)
{
	struct fuse_file_info fi;
	unsigned n = 0;
	fake->server.lister = 77;
	assert_int_equal(open_dir(fake, root, FS_DIR_MARK, fake->server.lister, &fi), 0);
	read_dir(fake, root, &fi, size, true, shown);
	for (unsigned e = 0; e < shown->n; e++)
		n += shown->entries[e].nodeid != 0;
	return n;
}

static uint32_t file_id(const char *path)
{
	enum shard_kind kind;
	uint32_t id;
	assert_int_equal(shard_index_find_path(dataset, path, &kind, &id), 0);
	return id;
}

static void a_marked_listing_has_the_picked_files_only(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
	const uint32_t z = file_id("z"), labels = file_id("labels.csv"), elsewhere = file_id("a/x");
	const struct {
		uint32_t files[2], n;
		unsigned shows;
		const char *name;
	} cases[] = {
		{ { z }, 1, 1, "z" },
		{ { labels }, 1, 1, "labels.csv" },
		{ { labels < z ? labels : z, labels < z ? z : labels }, 2, 2, "z" },
		{ { elsewhere }, 1, 0, NULL },
	};
	struct shown shown;
	for (unsigned i = 0; i < 4; i++) {
		for (size_t size = 256; size <= ALL; size *= 16) {
			fs_listing_picks_set(&fake->server.picks, cases[i].files, cases[i].n);
			assert_int_equal(list_marked(fake, size, &shown), cases[i].shows);
			assert_int_equal(shown.n, 2 + cases[i].shows);
			if (cases[i].name)
				assert_int_equal(ino_of(&shown, cases[i].name), file_ino(cases[i].name));
			list(fake, root, &shown); /* a trainer's */
			assert_int_equal(shown.n, 5);
			fs_listing_picks_clear(&fake->server.picks);
			assert_int_equal(list_marked(fake, size, &shown), 2);
		}
	}
	fake_server_free(fake);
}

struct toucher {
	struct fs_listing_picks *picks;
	_Atomic bool stop;
};

/* The session of a server that stops is aborted: the toucher's listings return before their answers are made. */
static void *touch_and_go(void *arg)
{
	struct toucher *t = arg;
	while (!t->stop) {
		uint32_t *picked = malloc(2 * sizeof(*picked));
		assert_non_null(picked);
		picked[0] = file_id("a/x");
		picked[1] = file_id("a/y");
		fs_listing_picks_set(t->picks, picked, 2);
		fs_listing_picks_clear(t->picks);
		free(picked);
	}
	return NULL;
}

static void picks_may_go_while_their_listing_is_answered(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
	struct toucher t = { .picks = &fake->server.picks };
	struct shown shown;
	struct fs_node a;
	struct fuse_file_info fi;
	pthread_t thread;
	list(fake, root, &shown);
	assert_int_equal(fs_ino_node(ino_of(&shown, "a"), &a), 0);
	fake->server.lister = 77;
	assert_int_equal(open_dir(fake, a, FS_DIR_MARK, fake->server.lister, &fi), 0);
	assert_int_equal(pthread_create(&thread, NULL, touch_and_go, &t), 0);
	for (unsigned i = 0; i < 5000; i++) {
		shown = (struct shown){ 0 };
		assert_int_equal(read_piece(fake, a, &fi, ALL, 0, true, &shown), 0);
		assert_in_range(shown.n, 2, 5);
	}
	t.stop = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	fake_server_free(fake);
}

static void nothing(void *arg)
{
	(void)arg;
}

static void an_opendir_before_the_watches_are_set_is_answered_by_the_helper(void **state)
{
	(void)state;
	const struct fs_job_queue_hooks hooks = { .begin = nothing, .woken = nothing };
	for (unsigned ends = 0; ends < 2; ends++) {
		struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
		struct fs_watch *ready = fake->server.watch;
		struct fake_request request;
		struct fuse_file_info fi = { 0 };
		assert_int_equal(fs_watch_new(&fake->server, &fake->server.watch), 0);
		fs_dir_opendir(fake_request_begin(&request, &fake->server), fs_ino(root), &fi);
		assert_false(fake_request_answered(&request));
		if (ends)
			fs_job_queue_stop(fake->server.jobs);
		else
			assert_int_equal(fs_job_queue_start(fake->server.jobs, hooks), 0);
		assert_int_equal(fake_request_wait(&request), ends ? EIO : 0);
		fake_request_end(&request);
		fs_watch_free(fake->server.watch);
		fake->server.watch = ready;
		fake_server_free(fake);
	}
}

static void what_is_no_directory_is_refused(void **state)
{
	(void)state;
	struct fake_server *fake = fake_server_new(dataset, FS_LAYOUT_TREE, -1);
	struct fuse_file_info fi;
	struct shown shown = { 0 };
	assert_int_equal(open_dir(fake, (struct fs_node){ .kind = FS_FILE, .id = 1 }, 0, 1, &fi), ENOTDIR);
	assert_int_equal(open_dir(fake, (struct fs_node){ .kind = FS_ROOT, .view = 1, .id = 1 }, 0, 1, &fi), ESTALE);
	assert_int_equal(open_dir(fake, root, 0, 1, &fi), 0);
	assert_int_equal(read_piece(fake, root, &fi, ALL, UINT64_MAX, false, &shown), EINVAL);
	assert_int_equal(fs_counted(&fake->server.counters.listings), 1);
	assert_int_equal(fs_counted(&fake->server.counters.entries), 0);
	fake_server_free(fake);
}

static int set_up(void **state)
{
	(void)state;
	dataset = dataset_open(files, FILES);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	shard_index_close(dataset);
	return 0;
}

static void a_mount_of_several_ranks_lists_them(void **state)
{
	(void)state;
	for (int layout = FS_LAYOUT_FLAT; layout <= FS_LAYOUT_TREE; layout++) {
		struct fake_server *fake = fake_server_new_ranks(dataset, (enum fs_layout)layout, 0, 2, 2);
		struct shown shown, in;
		unsigned listed = 0;
		list(fake, (struct fs_node){ .kind = FS_RANKS }, &shown);
		assert_int_equal(shown.n, 4);
		assert_int_equal(ino_of(&shown, ".."), 1);
		for (uint32_t view = 0; view < 2; view++) {
			struct fs_node rank = fs_server_root(&fake->server, view);
			assert_int_equal(ino_of(&shown, view ? "rank1" : "rank0"), fs_ino(rank));
			list(fake, rank, &in);
			assert_int_equal(ino_of(&in, "."), fs_ino(rank));
			assert_int_equal(ino_of(&in, ".."), 1);
			assert_int_equal(ino_of(&in, "labels.csv"), file_ino("labels.csv"));
			listed += in.n - 3;
		}
		if (layout == FS_LAYOUT_FLAT)
			assert_int_equal(listed, SAMPLES);
		fake_server_free(fake);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_tree_lists_each_file_and_directory_once),
		cmocka_unit_test(a_flat_directory_lists_the_common_files_and_then_the_order),
		cmocka_unit_test(pieces_of_any_size_make_the_same_listing),
		cmocka_unit_test(a_listing_keeps_the_epoch_of_its_opendir),
		cmocka_unit_test(a_listing_of_the_root_moves_on_when_half_of_the_turns_were_opened),
		cmocka_unit_test(only_the_lister_s_marked_listing_makes_inodes),
		cmocka_unit_test(a_marked_listing_has_the_picked_files_only),
		cmocka_unit_test(picks_may_go_while_their_listing_is_answered),
		cmocka_unit_test(an_opendir_before_the_watches_are_set_is_answered_by_the_helper),
		cmocka_unit_test(what_is_no_directory_is_refused),
		cmocka_unit_test(a_mount_of_several_ranks_lists_them),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
