/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as a request on the control socket, and as one of a guest.  Commands that act on more than a
 * view (info, stat, epoch, unmount, neighbour, restart) go as far as the check of their keys:
 * tests/mount/test_control.py sends them to real servers. */
#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "fs/control_server.h"
#include "fs/server.h"
#include "tests/fuzz/fuzz.h"
#include "tests/shard/tree.h"

static struct fs_server *make_server(void)
{
	static char memory[sizeof(struct fs_server)];
	struct fs_server *server = (struct fs_server *)(void *)memory;
	struct fs_options options = { .view = SHARD_VIEW_OPTIONS_DEFAULT, .view_all = true };
	struct tree_options what = { .seed = 4, .n_files = 50, .exact = true };
	struct shard_index *index;
	struct tree tree;
	char path[4200];
	char *dir = tree_scratch();
	snprintf(path, sizeof(path), "%s/%s", dir, SHARD_INDEX_NAME);
	tree_random(&what, &tree);
	tree_build(&tree, NULL, false, path);
	tree_done(&tree);
	options.view.order = SHARD_ORDER_FULL;
	if (shard_index_open(dir, NULL, &index) < 0 || fs_view_new(index, &options, 0, NULL, &server->views[0]) < 0)
		abort();
	server->n_views = 1;
	tree_scratch_done(dir); /* the index stays mapped */
	return server;
}

/* A command that would need the rest of a server, with keys that it knows. */
static bool acts(const uint8_t *data, size_t size)
{
	json_t *request = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	const char *cmd = json_string_value(json_object_get(request, "cmd"));
	bool is_other = cmd && strcmp(cmd, "state") != 0;
	bool has_strange_key = json_object_get(request, "strange") != NULL;
	json_decref(request);
	return is_other && !has_strange_key;
}

static void check(char *reply)
{
	size_t len = reply ? strlen(reply) : 0;
	assert(len > 2 && len <= BASE_CONTROL_LINE_MAX && reply[len - 1] == '\n' && !memchr(reply, '\n', len - 1));
	json_t *object = json_loads(reply, 0, NULL);
	json_t *ok = json_object_get(object, "ok");
	assert(json_is_boolean(ok) && (json_is_true(ok) || json_is_string(json_object_get(object, "error"))));
	json_decref(object);
	free(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fs_server *server;
	if (!server)
		server = make_server();
	if (size == 0)
		return 0;
	/* an exact allocation: one byte too far is seen */
	char *line = malloc(size);
	if (!line)
		abort();
	memcpy(line, data, size);
	check(fs_control_answer_guest(server, 1000, FUSE_ROOT_ID, line, size));
	if (!acts(data, size))
		check(fs_control_answer(server, line, size));
	free(line);
	return 0;
}
