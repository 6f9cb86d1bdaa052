/* SPDX-License-Identifier: Apache-2.0 */
/* The files ~/.aws/credentials and ~/.aws/config: one profile of them.
 *
 * Format: docs.aws.amazon.com/sdkref/latest/guide/file-format.html.  Sections are "[NAME]" in the credentials file, and
 * "[profile NAME]" or "[default]" in the config file.  Lines that begin with a space continue a value; they hold
 * settings of one service, and are not read.
 *
 * Threads: any; a profile belongs to its caller. */
#ifndef DDPFS_SHARD_REMOTE_AWS_CONFIG_H
#define DDPFS_SHARD_REMOTE_AWS_CONFIG_H

#include <stdbool.h>

#include "shard/base/err.h"

struct remote_profile; /* opaque */

/* Where a value may stand. */
enum remote_profile_file { REMOTE_PROFILE_CREDENTIALS = 1, REMOTE_PROFILE_CONFIG = 2, REMOTE_PROFILE_ANY = 3 };

/* Reads the profile of DDPFS_S3_PROFILE or AWS_PROFILE, else "default".  DDPFS_S3_CREDENTIALS and
 * AWS_SHARED_CREDENTIALS_FILE name another credentials file, AWS_CONFIG_FILE another config file.  Without HOME the
 * home directory is that of the user database.  A file that does not exist is empty.
 * Returns 0; -ENOENT with a sentence: the profile or DDPFS_S3_CREDENTIALS is named and neither file has the profile;
 * -EFBIG: a file has more than 1 MiB; -ENOMEM; errors of open(2) and read(2) with a sentence. */
int remote_profile_read(struct base_err *err, struct remote_profile **ret_profile);
/* Clears and frees a profile; NULL is allowed. */
void remote_profile_free(struct remote_profile *profile);

/* Returns a value of the profile, or NULL.  The credentials file counts first.  Valid until remote_profile_free. */
const char *remote_profile_value(const struct remote_profile *profile, enum remote_profile_file files, const char *key);

/* Returns whether DDPFS_S3_PROFILE or DDPFS_S3_CREDENTIALS is set.  Then keys of the environment do not count. */
bool remote_profile_chosen(const struct remote_profile *profile);

/* Returns the name of the profile. */
const char *remote_profile_name(const struct remote_profile *profile);

#endif
