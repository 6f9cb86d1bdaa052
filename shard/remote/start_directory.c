/* SPDX-License-Identifier: Apache-2.0 */
/* Makes relative paths of settings absolute; shard/remote/start_directory.h first. */
#include "shard/remote/start_directory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void remote_start_directory_keep(const char *dir)
{
	setenv(REMOTE_STARTED_IN, dir, 1);
}

char *remote_setting_path(const char *value)
{
	char room[PATH_MAX], *path = NULL;
	const char *dir = getenv(REMOTE_STARTED_IN);
	if (!dir || !*dir)
		dir = getcwd(room, sizeof(room));
	if (*value == '/' || !dir)
		return strdup(value);
	return asprintf(&path, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, value) < 0 ? NULL : path;
}
