/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that hang, for tests; fs/hang_injection.h first. */
#include "fs/hang_injection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/name.h"
#include "shard/base/log.h"

#define ENVIRON "DDPFS_TEST_HANG"

static const char *const places[] = {
	[FS_HANG_MAIN] = "main",
	[FS_HANG_WORKER] = "worker",

	[FS_HANG_ENGINE] = "engine",
	[FS_HANG_STORE] = "store",
	[FS_HANG_DROP] = "drop",
};
enum { N_PLACES = sizeof(places) / sizeof(places[0]) };

int fs_hang_take(struct fs_server *server, struct base_err *err)
{
	const char *text = getenv(ENVIRON);
	uint64_t servers = 1;
	if (!text || !*text)
		return 0;
	size_t len = strcspn(text, ":");
	size_t where = FS_HANG_NOWHERE + 1;
	while (where < N_PLACES && (strlen(places[where]) != len || memcmp(places[where], text, len) != 0))
		where++;
	if (where == N_PLACES ||
	        (text[len] && fs_name_number(text + len + 1, strlen(text + len + 1), UINT32_MAX, &servers) < 0))
		return base_err_set(err, -EINVAL,
		        ENVIRON "=%s: this test hook takes main, worker, engine, store or drop, and :SERVERS; "
		                "unset it",
		        text);
	if (server->channel->restarts >= servers)
		return 0;
	server->test_hang = (enum fs_hang)where;
	log_warning("this server will hang (%s): " ENVIRON " is set, a hook for tests", places[where]);
	return 0;
}

void fs_hang_for_ever(void)
{
	for (;;)
		pause();
}
