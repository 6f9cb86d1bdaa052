/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket of a mount (protocol: shard/base/control_client.h).  The supervisor makes it and keeps it when a
 * server ends.
 *
 * Threads: main of the supervisor. */
#ifndef DDPFS_FS_SUPERVISE_CONTROL_SOCKET_H
#define DDPFS_FS_SUPERVISE_CONTROL_SOCKET_H

#include "shard/base/control_client.h"

/* Makes the socket with mode 0600 at `path`, or (NULL) under the first free default name, and listens.  A socket that
 * nobody answers is replaced.  *ret_path is where it is; *ret_fd is close-on-exec and does not block.
 * Returns 0; -EADDRINUSE: another mount answers there; -EACCES: a socket of another user is there, or the directory is
 * not writable; -EEXIST: a file that is not a socket is there; -ENAMETOOLONG; another -errno.  Each has its sentence
 * in `err`. */
int fs_control_socket(const char *path, struct base_err *err, char ret_path[BASE_CONTROL_PATH_MAX], int *ret_fd);

/* Returns the inode number of the socket at `path`; 0: there is none. */
uint64_t fs_control_ino(const char *path);

/* Removes the socket at `path` if its inode number is `ino`.  Another one is another mount's. */
void fs_control_remove(const char *path, uint64_t ino);

#endif
