/* SPDX-License-Identifier: Apache-2.0 */
/* Relative paths in settings.
 *
 * As for botocore, they begin at the directory where the command was started, and so does a program that a profile
 * names.  The server of a mount works in "/".  So DDPFS_STARTED_IN of its environment has that directory.  Servers that
 * replace it get its environment.
 *
 * Threads: any; remote_start_directory_keep before there is a second one. */
#ifndef DDPFS_SHARD_REMOTE_START_DIRECTORY_H
#define DDPFS_SHARD_REMOTE_START_DIRECTORY_H

#define REMOTE_STARTED_IN "DDPFS_STARTED_IN"

/* Call it before chdir(2): from then on, relative paths begin at `dir`, which is absolute.  Without memory it changes
 * nothing. */
void remote_start_directory_keep(const char *dir);

/* Returns an absolute path for the value of a setting, which the caller frees; NULL: no memory.  If the working
 * directory is gone, a relative path stays as it is. */
char *remote_setting_path(const char *value);

#endif
