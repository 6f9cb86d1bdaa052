/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials and settings for S3, found where botocore finds them.
 *
 * Order of providers (botocore.credentials.create_credential_resolver; docs.aws.amazon.com/sdkref):
 *   1. the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
 *   2. the role_arn of the profile (AWS_DEFAULT_PROFILE, AWS_PROFILE, else "default"), if it has no
 *      web_identity_token_file: assumed with credentials of its source_profile, which may have a role, too, or of its
 *      credential_source (Environment, EcsContainer, Ec2InstanceMetadata)
 *   3. web identity: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN (EKS), or web_identity_token_file and role_arn of
 *      the profile
 *   4. the profile in AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials): keys
 *   5. the profile in either file: credential_process; then keys in AWS_CONFIG_FILE (~/.aws/config)
 *   6. a container's endpoint: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or AWS_CONTAINER_CREDENTIALS_FULL_URI
 *   7. the instance's metadata (IMDSv2), if AWS_EC2_METADATA_DISABLED is not true
 *
 * A profile of IAM Identity Center or `aws login` (sso_session, sso_start_url, login_session) without keys or
 * credential_process is refused before 6, and one whose role needs a code (mfa_serial) in 2.  The `aws` program can
 * export their credentials for a credential_process of another profile.
 *
 * DDPFS_S3_PROFILE and DDPFS_S3_CREDENTIALS count before AWS_DEFAULT_PROFILE and AWS_SHARED_CREDENTIALS_FILE.  If one
 * of them is set, the variables of 1 and 3 do not count.  The mount options s3_* set the variables DDPFS_S3_*.
 *
 * Secrets are in no message.  Their memory is not in a core, nor that of requests and answers with them
 * (shard/remote/secret_memory.h; in a library libcurl, libcrypto and jansson have copies elsewhere).
 *
 * Threads: a set of credentials belongs to its caller.  The functions share no state, but read the environment. */
#ifndef DDPFS_SHARD_REMOTE_CREDENTIALS_H
#define DDPFS_SHARD_REMOTE_CREDENTIALS_H

#include <stdbool.h>
#include <time.h>

#include "shard/base/err.h"

enum {
	REMOTE_ACCESS_KEY_MAX = 256,
	REMOTE_SECRET_MAX = 256,
	REMOTE_TOKEN_MAX = 8192,        /* session tokens have about 1 KiB */
	REMOTE_RENEW_S = 10 * 60,       /* before they expire, credentials are renewed */
	REMOTE_PROVIDER_TIMEOUT_S = 10, /* for one question to a provider, with its further tries */
};

/* One set of credentials, in a page of its own. */
struct remote_credentials {
	char access_key[REMOTE_ACCESS_KEY_MAX];
	char secret_key[REMOTE_SECRET_MAX];
	char token[REMOTE_TOKEN_MAX]; /* session token; "": none */
	time_t expires;               /* CLOCK_REALTIME; 0: never */
	const char *provider;         /* which one of the list above, for messages; a constant */
};

/* What the environment and the profile say besides keys.  All strings may be NULL and are owned. */
struct remote_settings {
	/* DDPFS_S3_ENDPOINT; else, unless AWS_IGNORE_CONFIGURED_ENDPOINT_URLS or the profile's
	 * ignore_configured_endpoint_urls is true: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, endpoint_url of s3 in the
	 * section [services NAME] that the profile names, or the profile's endpoint_url. */
	char *endpoint;
	char *region;    /* DDPFS_S3_REGION, AWS_REGION, AWS_DEFAULT_REGION, or the profile's region */
	char *ca_bundle; /* AWS_CA_BUNDLE, or the profile's ca_bundle: a file of certificates */
	/* DDPFS_S3_ADDRESSING, or addressing_style of the profile's s3: */
	bool virtual_host;   /* "virtual": the bucket is in the host's name, with any endpoint */
	bool path_style;     /* "path" */
	bool anonymous;      /* DDPFS_S3_ANONYMOUS=1: requests are not signed */
	bool requester_pays; /* DDPFS_S3_REQUESTER_PAYS=1 */
};

/* Reads settings.  Returns 0; -ENOENT with a sentence: the profile that is named, or its services, are in no file;
 * -EINVAL: a setting cannot be right; -ENOMEM; errors of open(2) and read(2). */
int remote_settings_get(struct base_err *err, struct remote_settings *ret_settings);
void remote_settings_done(struct remote_settings *settings);

/* Finds credentials: asks the providers in their order.  Blocks: a question to STS or to a container takes at most
 * REMOTE_PROVIDER_TIMEOUT_S, so a chain of 8 roles 8 times that; each of three to the instance at most 2 s; a program
 * of credential_process as long as it runs.
 * ret_credentials is freed with remote_credentials_free.
 * Returns 0; -ENOKEY with a sentence: no provider has any, or the profile is refused; -EINVAL, -ENOENT with a sentence:
 * the profile's role cannot be assumed as it stands there; -EACCES, -EPROTO, -ETIMEDOUT,
 * -ECONNREFUSED with a sentence: the provider that is configured failed; -ENOMEM. */
int remote_credentials_get(struct base_err *err, struct remote_credentials **ret_credentials);
/* Makes an empty set.  Returns NULL: out of memory. */
struct remote_credentials *remote_credentials_new(void);
/* Clears and frees credentials; NULL is allowed. */
void remote_credentials_free(struct remote_credentials *credentials);

/* Moves the secrets of the environment, and addresses that may hold one, to memory that is not in a core, and clears
 * them where the kernel put them, on the stack.  getenv(3) and programs that are started still find them.  Without
 * memory for that nothing changes.  Call it at the begin of main(): it changes environ. */
void remote_credentials_hide_environment(void);

#endif
