/* SPDX-License-Identifier: Apache-2.0 */
/* Which errno a reader sees for an error of ours; fs/errors.h first. */
#include "fs/errors.h"

#include <errno.h>

#include "fs/log_queue.h"
#include "fs/server.h"

int fs_errno(int rc)
{
	switch (rc) {
	case -EBADMSG: /* checksum */
	case -EUCLEAN: /* damaged index */
	case -EPROTONOSUPPORT:
	case -ENODATA:   /* a shard that ends too early */
	case -ECANCELED: /* the server is ending */
		return -EIO;
	default:
		return rc;
	}
}

int fs_read_errno(int rc)
{
	/* A shard that is gone or unreadable: the file of the mount exists all the same, and cannot be read. */
	return rc == -ENOMEM || rc == -ESTALE ? rc : -EIO;
}

int fs_index_check(struct fs_server *server, int rc)
{
	int stale = shard_index_check(server->index);
	if (stale == 0)
		return rc;
	if (stale == -ESTALE)
		fs_log_queue_index_stale(server->log);
	return stale;
}
