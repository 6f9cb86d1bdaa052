/* SPDX-License-Identifier: Apache-2.0 */
/* Finds credentials in the environment, in files and by programs; shard/remote/credentials.h first. */
#include "shard/remote/credentials.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "shard/base/cleanup.h"
#include "shard/remote/aws_config.h"
#include "shard/remote/credentials_private.h"
#include "shard/remote/location.h"
#include "shard/remote/secret_memory.h"
#include "shard/remote/start_directory.h"

enum {
	PROCESS_ANSWER_MAX = 65536,
	ROLES_MAX = 8, /* profiles, each the source of the one before */
};

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

/* ---- settings ---- */

static int copy(const char *value, char **ret_copy)
{
	*ret_copy = value ? strdup(value) : NULL;
	return value && !*ret_copy ? -ENOMEM : 0;
}

static const char *either(const char *a, const char *b)
{
	return a ? a : b;
}

const char *remote_credentials_region(const struct remote_profile *profile)
{
	const char *region = either(variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"));
	return region ? region : remote_profile_value(profile, REMOTE_PROFILE_ANY, "region");
}

int remote_credentials_ca_bundle(const struct remote_profile *profile, char **ret_path)
{
	const char *bundle = either(variable("AWS_CA_BUNDLE"), variable("SSL_CERT_FILE"));
	if (!bundle)
		bundle = remote_profile_value(profile, REMOTE_PROFILE_ANY, "ca_bundle");
	*ret_path = bundle ? remote_setting_path(bundle) : NULL;
	return bundle && !*ret_path ? -ENOMEM : 0;
}

static bool is_on(const char *name)
{
	const char *value = variable(name);
	return value && (strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0 || strcasecmp(value, "yes") == 0);
}

static int addressing(const struct remote_profile *profile, struct base_err *err, struct remote_settings *settings)
{
	const char *own = variable("DDPFS_S3_ADDRESSING");
	const char *style = own ? own : remote_profile_nested(profile, "s3", "addressing_style");
	if (!style || (!own && strcmp(style, "auto") == 0))
		return 0;
	settings->virtual_host = strcmp(style, "virtual") == 0;
	settings->path_style = strcmp(style, "path") == 0;
	return settings->virtual_host || settings->path_style
	               ? 0
	               : base_err_set(err, -EINVAL, "%s is neither 'virtual' nor 'path'",
	                         own ? "DDPFS_S3_ADDRESSING" : "addressing_style of the profile");
}

int remote_credentials_endpoint(const struct remote_profile *profile, const char *own, const char *service,
        struct base_err *err, const char **ret_endpoint)
{
	const char *ignore = variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
	if (!ignore)
		ignore = remote_profile_value(profile, REMOTE_PROFILE_ANY, "ignore_configured_endpoint_urls");
	*ret_endpoint = NULL;
	if (ignore && strcasecmp(ignore, "true") == 0)
		return 0;
	*ret_endpoint = either(variable(own), variable("AWS_ENDPOINT_URL"));
	int rc = *ret_endpoint ? 0 : remote_profile_service(profile, service, "endpoint_url", err, ret_endpoint);
	if (rc == 0 && !*ret_endpoint)
		*ret_endpoint = remote_profile_value(profile, REMOTE_PROFILE_ANY, "endpoint_url");
	return rc;
}

int remote_credentials_check_endpoint(const char *endpoint, const char *whose, struct base_err *err)
{
	size_t scheme = strncasecmp(endpoint, "https://", 8) == 0  ? 8
	                : strncasecmp(endpoint, "http://", 7) == 0 ? 7
	                                                           : 0;
	if (!scheme)
		return base_err_set(err, -EINVAL, "the endpoint of %s begins with neither https:// nor http://", whose);
	if (remote_has_password(endpoint))
		return base_err_set(err, -EINVAL,
		        "the endpoint of %s has a user or password, which would stand in messages; leave it out",
		        whose);
	return 0;
}

static int read_settings(const struct remote_profile *profile, struct base_err *err, struct remote_settings *made)
{
	const char *endpoint = variable("DDPFS_S3_ENDPOINT");
	int rc = addressing(profile, err, made);
	if (rc == 0 && !endpoint)
		rc = remote_credentials_endpoint(profile, "AWS_ENDPOINT_URL_S3", "s3", err, &endpoint);
	const char *region = either(variable("DDPFS_S3_REGION"), remote_credentials_region(profile));
	if (rc < 0)
		return rc;
	if (copy(endpoint, &made->endpoint) < 0 || copy(region, &made->region) < 0 ||
	        remote_credentials_ca_bundle(profile, &made->ca_bundle) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return endpoint ? remote_credentials_check_endpoint(endpoint, "S3 (s3_endpoint=, AWS_ENDPOINT_URL)", err) : 0;
}

int remote_settings_get(struct base_err *err, struct remote_settings *ret_settings)
{
	struct remote_profile *profile = NULL;
	struct remote_settings made = { .anonymous = is_on("DDPFS_S3_ANONYMOUS"),
		.requester_pays = is_on("DDPFS_S3_REQUESTER_PAYS") };
	int rc = remote_profile_read(NULL, err, &profile);
	if (rc == 0)
		rc = read_settings(profile, err, &made);
	remote_profile_free(profile);
	if (rc < 0) {
		remote_settings_done(&made);
		return rc;
	}
	*ret_settings = made;
	return 0;
}

void remote_settings_done(struct remote_settings *settings)
{
	free(settings->endpoint);
	free(settings->region);
	free(settings->ca_bundle);
	*settings = (struct remote_settings){ .endpoint = NULL };
}

/* ---- one set ---- */

struct remote_credentials *remote_credentials_new(void)
{
	return remote_secret_map(sizeof(struct remote_credentials));
}

void remote_credentials_free(struct remote_credentials *credentials)
{
	if (!credentials)
		return;
	explicit_bzero(credentials, sizeof(*credentials));
	munmap(credentials, sizeof(*credentials));
}

static int put(char *room, size_t size, const char *value)
{
	size_t len = value ? strlen(value) : 0;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)value[i] <= ' ' || value[i] == 0x7f)
			return -EPROTO;
	if (len >= size)
		return -EPROTO;
	memcpy(room, value ? value : "", len + 1);
	return 0;
}

int remote_credentials_put(struct remote_credentials *c, const char *provider, const char *access_key,
        const char *secret_key, const char *token, struct base_err *err)
{
	c->provider = provider;
	c->expires = 0;
	if (!access_key || !secret_key || put(c->access_key, sizeof(c->access_key), access_key) < 0 ||
	        put(c->secret_key, sizeof(c->secret_key), secret_key) < 0 || put(c->token, sizeof(c->token), token) < 0)
		return base_err_set(
		        err, -EPROTO, "credentials of %s: a key is missing, too long, or has spaces", provider);
	return 0;
}

int remote_credentials_expire(struct remote_credentials *c, const char *when, struct base_err *err)
{
	struct tm tm = { 0 };
	if (!when)
		return 0;
	/* "2026-01-31T12:00:00Z", with or without a fraction, or "+00:00" in place of Z */
	const char *end = strptime(when, "%Y-%m-%dT%H:%M:%S", &tm);
	if (!end)
		return base_err_set(
		        err, -EPROTO, "credentials of %s: the time when they expire cannot be read", c->provider);
	c->expires = timegm(&tm);
	return 0;
}

int remote_credentials_take_json(
        struct remote_credentials *c, const char *provider, const char *text, struct base_err *err)
{
	json_error_t where;
	json_t *object = json_loads(text, 0, &where);
	const char *access_key = json_string_value(json_object_get(object, "AccessKeyId"));
	const char *secret_key = json_string_value(json_object_get(object, "SecretAccessKey"));
	const char *token = json_string_value(json_object_get(object, "SessionToken"));
	const char *expiration = json_string_value(json_object_get(object, "Expiration"));
	if (!token)
		token = json_string_value(json_object_get(object, "Token"));
	int rc = object ? remote_credentials_put(c, provider, access_key, secret_key, token, err)
	                : base_err_set(err, -EPROTO, "credentials of %s: the answer is not JSON", provider);
	if (rc == 0)
		rc = remote_credentials_expire(c, expiration, err);
	json_decref(object);
	return rc;
}

/* ---- secrets of the environment ---- */

/* Returns the value, if an element of environ is or may hold a secret; else NULL.  The address of a container's
 * endpoint can be all that is needed to ask it, and the address of a proxy can have a password. */
static char *secret_of(char *element)
{
	static const char *const names[] = { "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
		"ALL_PROXY" };
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		size_t len = strlen(names[i]);
		if (strncmp(element, names[i], len) == 0 && element[len] == '=')
			return element + len + 1;
	}
	return NULL;
}

void remote_credentials_hide_environment(void)
{
	size_t bytes = 0;
	for (char **at = environ; at && *at; at++)
		bytes += secret_of(*at) ? strlen(*at) + 1 : 0;
	char *to = bytes ? remote_secret_map(bytes) : NULL;
	if (!to)
		return;
	for (char **at = environ; *at; at++) {
		char *value = secret_of(*at);
		if (!value)
			continue;
		size_t size = strlen(*at) + 1;
		memcpy(to, *at, size);
		explicit_bzero(value, strlen(value));
		*at = to;
		to += size;
	}
}

/* ---- providers: 1: found, 0: not configured, or -errno ---- */

static int from_environment(struct remote_credentials *c, struct base_err *err)
{
	const char *access_key = variable("AWS_ACCESS_KEY_ID");
	if (!access_key)
		return 0;
	if (!variable("AWS_SECRET_ACCESS_KEY"))
		return base_err_set(err, -ENOKEY, "AWS_ACCESS_KEY_ID is set and AWS_SECRET_ACCESS_KEY is not");
	const char *token = either(variable("AWS_SESSION_TOKEN"), variable("AWS_SECURITY_TOKEN"));
	int rc =
	        remote_credentials_put(c, "the environment", access_key, variable("AWS_SECRET_ACCESS_KEY"), token, err);
	return rc < 0 ? rc : 1;
}

static int from_profile(struct remote_credentials *c, const struct remote_profile *profile,
        enum remote_profile_file file, struct base_err *err)
{
	const char *provider = file == REMOTE_PROFILE_CONFIG ? "~/.aws/config" : "~/.aws/credentials";
	const char *access_key = remote_profile_value(profile, file, "aws_access_key_id");
	if (!access_key)
		return 0;
	int rc = remote_credentials_put(c, provider, access_key,
	        remote_profile_value(profile, file, "aws_secret_access_key"),
	        remote_profile_value(profile, file, "aws_session_token"), err);
	return rc < 0 ? rc : 1;
}

/* The format is that of docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html. */
static int from_process(struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err)
{
	const char *command = remote_profile_value(profile, REMOTE_PROFILE_ANY, "credential_process");
	if (!command)
		return 0;
	cleanup_free char *line = NULL;
	const char *in = variable(REMOTE_STARTED_IN) ? "cd \"$" REMOTE_STARTED_IN "\" 2>/dev/null; " : "";
	if (asprintf(&line, "%s%s", in, command) < 0) {
		line = NULL;
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	FILE *pipe = popen(line, "re");
	if (!pipe)
		return base_err_set(err, -errno, "credential_process of profile '%s' cannot be started",
		        remote_profile_name(profile));
	cleanup_secret char *answer = remote_secret_alloc(PROCESS_ANSWER_MAX);
	setvbuf(pipe, NULL, _IONBF, 0); /* or its buffer would keep a copy */
	size_t len = answer ? fread(answer, 1, PROCESS_ANSWER_MAX - 1, pipe) : 0;
	int status = pclose(pipe);
	if (!answer)
		return base_err_set(err, -ENOMEM, "out of memory");
	answer[len] = 0;
	int rc = status == 0 ? remote_credentials_take_json(c, "credential_process", answer, err)
	                     : base_err_set(err, -EACCES, "credential_process of profile '%s' failed (status %d)",
	                               remote_profile_name(profile), WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	explicit_bzero(answer, len);
	return rc < 0 ? rc : 1;
}

static int from_files(struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err)
{
	int rc = from_profile(c, profile, REMOTE_PROFILE_CREDENTIALS, err);
	if (rc == 0)
		rc = from_process(c, profile, err);
	return rc == 0 ? from_profile(c, profile, REMOTE_PROFILE_CONFIG, err) : rc;
}

/* ---- roles ---- */

static const char *setting(const struct remote_profile *profile, const char *key)
{
	return remote_profile_value(profile, REMOTE_PROFILE_ANY, key);
}

static bool has_keys(const struct remote_profile *profile)
{
	return setting(profile, "aws_access_key_id") || setting(profile, "aws_secret_access_key");
}

static bool has_role(const struct remote_profile *profile)
{
	return setting(profile, "role_arn") && !setting(profile, "web_identity_token_file");
}

/* A profile whose credentials only AWS's own programs can get.  Without this sentence, a container or an instance would
 * be asked, and the store would refuse somebody else's credentials.
 * Returns 0: it is no such profile; -ENOKEY with a sentence. */
static int refuse_login(const struct remote_profile *profile, struct base_err *err)
{
	static const char *const keys[] = { "sso_session", "sso_start_url", "login_session" };
	char quoted[256];
	const char *name = base_err_quote(remote_profile_name(profile), quoted, sizeof(quoted));
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (setting(profile, keys[i]))
			return base_err_set(err, -ENOKEY,
			        "profile '%s' has %s, and ddpfs cannot log in: give another profile that has the line "
			        "'credential_process = aws configure export-credentials --profile %s --format process'",
			        name, keys[i], name);
	return 0;
}

/* Nobody is there to type the code of a device while a mount renews credentials. */
static int refuse_code(const struct remote_profile *profile, struct base_err *err)
{
	char quoted[256];
	const char *name = base_err_quote(remote_profile_name(profile), quoted, sizeof(quoted));
	return base_err_set(err, -ENOKEY,
	        "profile '%s' has mfa_serial, and ddpfs cannot ask for a code: give another profile that has the line "
	        "'credential_process = aws configure export-credentials --profile %s --format process', and run that "
	        "command in a terminal first",
	        name, name);
}

static int from_credential_source(
        struct remote_credentials *c, const struct remote_profile *profile, const char *source, struct base_err *err)
{
	char quoted[2][256];
	base_err_quote(remote_profile_name(profile), quoted[0], sizeof(quoted[0]));
	base_err_quote(source, quoted[1], sizeof(quoted[1]));
	int rc;
	if (strcmp(source, "Environment") == 0)
		rc = from_environment(c, err);
	else if (strcmp(source, "EcsContainer") == 0)
		rc = remote_credentials_container(c, err);
	else if (strcmp(source, "Ec2InstanceMetadata") == 0)
		rc = remote_credentials_instance(c, err);
	else
		return base_err_set(err, -EINVAL,
		        "profile '%s': credential_source = %s: write Environment, EcsContainer or Ec2InstanceMetadata",
		        quoted[0], quoted[1]);
	return rc == 0 ? base_err_set(err, -ENOKEY, "profile '%s': credential_source = %s has no credentials",
	                         quoted[0], quoted[1])
	               : rc;
}

/* What a profile says itself, without roles. */
static int from_own(struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err)
{
	char quoted[256];
	/* Variables for a web identity do not count here. */
	bool token = setting(profile, "web_identity_token_file");
	int rc = token ? remote_credentials_web_identity(c, profile, err) : 0;
	if (rc == 0)
		rc = from_files(c, profile, err);
	if (rc == 0)
		rc = refuse_login(profile, err);
	return rc == 0 ? base_err_set(err, -ENOKEY,
	                         "source_profile '%s' has no credentials: give it aws_access_key_id and "
	                         "aws_secret_access_key, or credential_process",
	                         base_err_quote(remote_profile_name(profile), quoted, sizeof(quoted)))
	               : rc;
}

/* A chain of profiles, each with the role that is assumed with the credentials of the next one. */
struct chain {
	struct remote_profile *profiles[ROLES_MAX]; /* the first is not owned */
	size_t n;
	bool own; /* the last one has credentials of its own, and no role counts */
};

/* Appends the source_profile of the last one.  Returns 0; -EINVAL with a sentence: a loop, or too many; errors of
 * remote_profile_read. */
static int add_source(struct chain *chain, const char *source, struct base_err *err)
{
	char quoted[2][256];
	const char *first = remote_profile_name(chain->profiles[0]);
	base_err_quote(first, quoted[0], sizeof(quoted[0]));
	base_err_quote(source, quoted[1], sizeof(quoted[1]));
	for (size_t i = 0; i < chain->n; i++)
		if (strcmp(remote_profile_name(chain->profiles[i]), source) == 0)
			return base_err_set(err, -EINVAL,
			        "profile '%s': its source_profile leads to profile '%s' a second time: name a profile "
			        "with credentials of its own",
			        quoted[0], quoted[1]);
	if (chain->n == ROLES_MAX)
		return base_err_set(err, -EINVAL,
		        "profile '%s': more than %d profiles, each the source_profile of "
		        "the one before",
		        quoted[0], ROLES_MAX);
	int rc = remote_profile_read(source, err, &chain->profiles[chain->n]);
	chain->n += rc == 0;
	return rc;
}

/* Goes along the profiles to the one with credentials, which are put into c.  Returns 1 or -errno. */
static int follow_sources(struct remote_credentials *c, struct chain *chain, struct base_err *err)
{
	for (;;) {
		const struct remote_profile *profile = chain->profiles[chain->n - 1];
		const char *source = setting(profile, "source_profile"), *other = setting(profile, "credential_source");
		char quoted[256];
		base_err_quote(remote_profile_name(profile), quoted, sizeof(quoted));
		if (setting(profile, "mfa_serial"))
			return refuse_code(profile, err);
		if (!source == !other)
			return base_err_set(err, -EINVAL,
			        "profile '%s' has role_arn and %s source_profile %s credential_source: give one of "
			        "them",
			        quoted, source ? "both" : "neither", source ? "and" : "nor");
		if (other)
			return from_credential_source(c, profile, other, err);
		/* A profile may name itself: its keys assume its role. */
		if (strcmp(source, remote_profile_name(profile)) == 0 && has_keys(profile))
			return from_own(c, profile, err);
		int rc = add_source(chain, source, err);
		if (rc < 0)
			return rc;
		const struct remote_profile *next = chain->profiles[chain->n - 1];
		if (has_keys(next) || !has_role(next)) {
			chain->own = true;
			return from_own(c, next, err);
		}
	}
}

/* A profile with role_arn, as botocore's AssumeRoleProvider. */
static int from_role(struct remote_credentials *c, struct remote_profile *profile, struct base_err *err)
{
	if (!has_role(profile))
		return 0;
	struct chain chain = { .profiles = { profile }, .n = 1 };
	int rc = follow_sources(c, &chain, err);
	for (size_t i = chain.own ? chain.n - 1 : chain.n; i-- > 0 && rc > 0;) {
		rc = remote_credentials_assume(c, chain.profiles[i], profile, err);
		rc = rc == 0 ? 1 : rc;
	}
	while (chain.n-- > 1)
		remote_profile_free(chain.profiles[chain.n]);
	return rc;
}

static int ask_all(struct remote_credentials *c, struct remote_profile *profile, struct base_err *err)
{
	int rc = remote_profile_chosen(profile) ? 0 : from_environment(c, err);
	if (rc == 0) /* before the profile's keys, which are those that the role is assumed with */
		rc = from_role(c, profile, err);
	if (rc == 0)
		rc = remote_credentials_web_identity(c, profile, err);
	if (rc == 0)
		rc = from_files(c, profile, err);
	if (rc == 0)
		rc = refuse_login(profile, err);
	if (rc == 0)
		rc = remote_credentials_container(c, err);
	if (rc == 0)
		rc = remote_credentials_instance(c, err);
	if (rc > 0)
		return 0;
	char lacks[REMOTE_PROFILE_LACKS_MAX];
	remote_profile_lacks(profile, lacks);
	return rc < 0 ? rc
	              : base_err_set(err, -ENOKEY,
	                        "no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile "
	                        "in ~/.aws/credentials; for a public bucket set DDPFS_S3_ANONYMOUS=1%s",
	                        lacks);
}

int remote_credentials_get(struct base_err *err, struct remote_credentials **ret_credentials)
{
	struct remote_profile *profile = NULL;
	struct remote_credentials *made = remote_credentials_new();
	if (!made)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = remote_profile_read(NULL, err, &profile);
	if (rc == 0)
		rc = ask_all(made, profile, err);
	remote_profile_free(profile);
	if (rc < 0) {
		remote_credentials_free(made);
		return rc;
	}
	*ret_credentials = made;
	return 0;
}
