/* SPDX-License-Identifier: Apache-2.0 */
/* What credentials.c, credentials_http.c and credentials_sts.c share: providers, and how a set is filled. */
#ifndef DDPFS_SHARD_REMOTE_CREDENTIALS_PRIVATE_H
#define DDPFS_SHARD_REMOTE_CREDENTIALS_PRIVATE_H

#include "shard/remote/aws_config.h"
#include "shard/remote/credentials.h"
#include "shard/remote/fetch.h"

/* Fill a set.  provider: a constant.  when: ISO 8601, UTC; NULL: never.  text: JSON with AccessKeyId, SecretAccessKey,
 * and perhaps SessionToken or Token, and Expiration.
 * Return 0, or -EPROTO with a sentence: something is missing or too long. */
int remote_credentials_put(struct remote_credentials *c, const char *provider, const char *access_key,
        const char *secret_key, const char *token, struct base_err *err);
int remote_credentials_expire(struct remote_credentials *c, const char *when, struct base_err *err);
int remote_credentials_take_json(
        struct remote_credentials *c, const char *provider, const char *text, struct base_err *err);

/* Sends a request to a provider; up to twice more if it is busy (429, 5xx), all of them within timeout_s of the first.
 * Returns as remote_fetch does. */
int remote_credentials_ask(const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *ret_answer);

/* Reads the token in a file that a setting names: its first line.  *ret_token: for remote_secret_free.
 * Returns 0; -EFBIG: over 64 KiB; -ENOMEM; errors of open(2) and read(2). */
int remote_credentials_read(const char *path, char **ret_token);

/* Returns AWS_REGION, AWS_DEFAULT_REGION, or the profile's region; NULL: none. */
const char *remote_credentials_region(const struct remote_profile *profile);
/* Finds the file of certificates: that of AWS_CA_BUNDLE, SSL_CERT_FILE, or the profile's ca_bundle.  *ret_path: for
 * free(3); NULL: none of them says one.  Returns 0 or -ENOMEM. */
int remote_credentials_ca_bundle(const struct remote_profile *profile, char **ret_path);
/* Finds the endpoint of a service, as botocore does (configprovider.ConfiguredEndpointProvider).  own: the variable for
 * this service.  *ret_endpoint: NULL: none is configured.
 * Returns 0, or -ENOENT with a sentence: the profile's services are not there. */
int remote_credentials_endpoint(const struct remote_profile *profile, const char *own, const char *service,
        struct base_err *err, const char **ret_endpoint);

/* Checks the address of a service.  whose: for the sentence.
 * Returns 0, or -EINVAL with a sentence: it is no URL, or has a user or password. */
int remote_credentials_check_endpoint(const char *endpoint, const char *whose, struct base_err *err);

/* Providers that are asked by HTTP.  Each returns 1: found; 0: it is not configured, or there is no instance; or -errno
 * with a sentence: it is configured and failed. */
int remote_credentials_web_identity(
        struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err);
int remote_credentials_container(struct remote_credentials *c, struct base_err *err);
int remote_credentials_instance(struct remote_credentials *c, struct base_err *err);

/* Assumes the role_arn of a profile with the credentials in c, which those of the role replace.  first: the profile
 * that was asked for; STS is where it says.
 * Returns 0, or with a sentence: -EACCES: STS refuses; errors of remote_fetch; -EPROTO; -ENOMEM. */
int remote_credentials_assume(struct remote_credentials *c, const struct remote_profile *profile,
        const struct remote_profile *first, struct base_err *err);

#endif
