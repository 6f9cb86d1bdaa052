/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and removes the directory of a tier; tests/cache/tier_dir.h first. */
#include "tests/cache/tier_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/base/io.h"

char tier_dir[64], tier_file[80];

int tier_dir_set_up(void **state)
{
	(void)state;
	strcpy(tier_dir, "/tmp/ddpfs-test-tier-XXXXXX");
	if (!mkdtemp(tier_dir))
		return -1;
	snprintf(tier_file, sizeof(tier_file), "%s/tier", tier_dir);
	return 0;
}

int tier_dir_tear_down(void **state)
{
	(void)state;
	base_io = &base_io_libc;
	unlink(tier_file);
	return rmdir(tier_dir);
}
