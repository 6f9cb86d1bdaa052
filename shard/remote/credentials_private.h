/* SPDX-License-Identifier: Apache-2.0 */
/* What credentials.c and credentials_http.c share: providers, and how a set is filled. */
#ifndef DDPFS_SHARD_REMOTE_CREDENTIALS_PRIVATE_H
#define DDPFS_SHARD_REMOTE_CREDENTIALS_PRIVATE_H

#include "shard/remote/aws_config.h"
#include "shard/remote/credentials.h"

/* Fill a set.  provider: a constant.  when: ISO 8601, UTC; NULL: never.  text: JSON with AccessKeyId, SecretAccessKey,
 * and perhaps SessionToken or Token, and Expiration.
 * Return 0, or -EPROTO with a sentence: something is missing or too long. */
int remote_credentials_put(struct remote_credentials *c, const char *provider, const char *access_key,
        const char *secret_key, const char *token, struct base_err *err);
int remote_credentials_expire(struct remote_credentials *c, const char *when, struct base_err *err);
int remote_credentials_take_json(
        struct remote_credentials *c, const char *provider, const char *text, struct base_err *err);

/* Providers that are asked by HTTP.  Each returns 1: found; 0: it is not configured, or there is no instance; or -errno
 * with a sentence: it is configured and failed. */
int remote_credentials_web_identity(
        struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err);
int remote_credentials_container(struct remote_credentials *c, struct base_err *err);
int remote_credentials_instance(struct remote_credentials *c, struct base_err *err);

#endif
