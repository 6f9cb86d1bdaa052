/* SPDX-License-Identifier: Apache-2.0 */
/* The files ~/.aws/credentials and ~/.aws/config: one profile of them.
 *
 * Format: docs.aws.amazon.com/sdkref/latest/guide/file-format.html, read as botocore does.  Sections are "[NAME]" in
 * the credentials file, and "[profile NAME]", "[profile "NAME WITH SPACES"]", "[default]" or "[services NAME]" in the
 * config file.  A value may be nested settings, one a line, each with more space in front than their key:
 *     s3 =
 *       addressing_style = path
 *
 * Threads: any; a profile belongs to its caller. */
#ifndef DDPFS_SHARD_REMOTE_AWS_CONFIG_H
#define DDPFS_SHARD_REMOTE_AWS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "shard/base/err.h"

struct remote_profile; /* opaque */

/* Where a value may stand. */
enum remote_profile_file { REMOTE_PROFILE_CREDENTIALS = 1, REMOTE_PROFILE_CONFIG = 2, REMOTE_PROFILE_ANY = 3 };

/* Reads a profile.  name NULL: the one of DDPFS_S3_PROFILE, AWS_DEFAULT_PROFILE or AWS_PROFILE, else "default".
 * DDPFS_S3_CREDENTIALS and AWS_SHARED_CREDENTIALS_FILE name another credentials file, AWS_CONFIG_FILE another config
 * file; they may begin with "~/", and may be relative (shard/remote/start_directory.h).  Without HOME the home
 * directory is that of the user database.  A file that does not exist is empty, and so is one at HOME that the user may
 * not read.
 * Returns 0; -ENOENT with a sentence: the profile or DDPFS_S3_CREDENTIALS is named and neither file has the profile;
 * -EFBIG: a file has more than 1 MiB; -ENOMEM; errors of open(2) and read(2) with a sentence. */
int remote_profile_read(const char *name, struct base_err *err, struct remote_profile **ret_profile);
/* Clears and frees a profile; NULL is allowed. */
void remote_profile_free(struct remote_profile *profile);

/* Returns a value of the profile, or NULL.  The credentials file counts first.  Valid until remote_profile_free. */
const char *remote_profile_value(const struct remote_profile *profile, enum remote_profile_file files, const char *key);

/* Returns a nested setting of a value: of the first file that has it, the credentials file first.  NULL: none. */
const char *remote_profile_nested(const struct remote_profile *profile, const char *key, const char *nested);
/* Finds a setting of a service ("s3", "sts") in the section that `services` of the profile names.  *ret_value: NULL:
 * the profile names none, or it has no such setting.
 * Returns 0, or -ENOENT with a sentence: there is no such section. */
int remote_profile_service(const struct remote_profile *profile, const char *service, const char *key,
        struct base_err *err, const char **ret_value);

enum { REMOTE_PROFILE_LACKS_MAX = 900 };
/* Writes the end of a sentence: "; 'FILE' cannot be read: REASON" if a file at HOME is one that the user may not read,
 * and "; there is no file 'FILE'" for each that the environment names; else "". */
void remote_profile_lacks(const struct remote_profile *profile, char text[REMOTE_PROFILE_LACKS_MAX]);

/* Returns whether a name was given, or DDPFS_S3_PROFILE or DDPFS_S3_CREDENTIALS is set.  Then keys of the environment
 * do not count. */
bool remote_profile_chosen(const struct remote_profile *profile);

/* Returns the name of the profile. */
const char *remote_profile_name(const struct remote_profile *profile);

#endif
