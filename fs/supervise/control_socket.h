/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket of a mount (protocol: shard/base/control_client.h).  The supervisor makes it and keeps it over the death of servers.
 * Threads: main. */
#ifndef DDPFS_FS_SUPERVISE_CONTROL_SOCKET_H
#define DDPFS_FS_SUPERVISE_CONTROL_SOCKET_H

#include "shard/base/control_client.h"

/* Makes, binds and listens: at `path`, or (NULL) in the default place.  *ret_path: where.  -EADDRINUSE: another mount answers there;
 * -EACCES, -ENAMETOOLONG; each with its sentence. */
int fs_control_socket(const char *path, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX], int *ret_fd);

#endif
