/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials of a role, from AWS's Security Token Service: by web identity, or with other credentials;
 * shard/remote/credentials.h first.
 *
 * Source: AWS Security Token Service API Reference: AssumeRoleWithWebIdentity, which is not signed, and AssumeRole. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "shard/remote/credentials_private.h"
#include "shard/remote/fetch.h"
#include "shard/remote/secret_memory.h"
#include "shard/remote/sigv4.h"
#include "shard/remote/uri.h"
#include "shard/remote/xml.h"

enum { HOST_MAX = 512, CODE_MAX = 128 };

#define FORM "application/x-www-form-urlencoded"

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

/* ---- one request ---- */

/* Appends "&NAME=VALUE" to a form, encoded.  value NULL: nothing.  Returns 0 or -ENOMEM. */
static int add_field(char **form, const char *name, const char *value)
{
	if (!value)
		return 0;
	cleanup_free char *encoded = remote_uri_encode(value, strlen(value), false);
	cleanup_secret char *begun = remote_secret_join(*form, "&", name);
	char *longer = encoded && begun ? remote_secret_join(begun, "=", encoded) : NULL;
	if (encoded)
		explicit_bzero(encoded, strlen(encoded));
	if (!longer)
		return -ENOMEM;
	remote_secret_free(*form);
	*form = longer;
	return 0;
}

/* Where STS is: the endpoint and the region that requests are signed for. */
struct sts {
	char *url;                 /* ends with '/'; owned */
	const char *region;        /* of the profile or a constant */
	const char *host, *path;   /* parts of url */
	char *ca_bundle;           /* NULL: the system's certificates; owned */
	char host_value[HOST_MAX]; /* of the header `host` */
};

static void sts_done(struct sts *sts)
{
	free(sts->url);
	free(sts->ca_bundle);
}

/* After an error, too, call sts_done. */
static int find_sts(const struct remote_profile *profile, struct base_err *err, struct sts *ret_sts)
{
	const char *endpoint = NULL, *region = remote_credentials_region(profile);
	const char *own = variable("DDPFS_S3_REGION");
	int rc = remote_credentials_endpoint(profile, "AWS_ENDPOINT_URL_STS", "sts", err, &endpoint);
	if (rc == 0 && endpoint)
		rc = remote_credentials_check_endpoint(endpoint, "STS (AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL)", err);
	if (rc < 0)
		return rc;
	region = region ? region : own;
	bool slash = endpoint && endpoint[strlen(endpoint) - 1] == '/';
	const char *china = region && strncmp(region, "cn-", 3) == 0 ? ".cn" : "";
	ret_sts->region = region ? region : "us-east-1";
	if (remote_credentials_ca_bundle(profile, &ret_sts->ca_bundle) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	if ((endpoint ? asprintf(&ret_sts->url, "%s%s", endpoint, slash ? "" : "/")
	              : asprintf(&ret_sts->url, "https://sts%s%s.amazonaws.com%s/", region ? "." : "",
	                        region ? region : "", china)) < 0) {
		ret_sts->url = NULL;
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	ret_sts->host = strstr(ret_sts->url, "://") + 3;
	ret_sts->path = ret_sts->host + strcspn(ret_sts->host, "/");
	size_t len = (size_t)(ret_sts->path - ret_sts->host);
	if (len >= HOST_MAX)
		return base_err_set(err, -EINVAL, "the endpoint of STS has a name of more than %d bytes", HOST_MAX - 1);
	snprintf(ret_sts->host_value, HOST_MAX, "%.*s", (int)len, ret_sts->host);
	return 0;
}

/* Makes the headers of a form, signed by `keys` unless it is NULL. */
static int make_headers(
        const struct sts *sts, const char *form, const struct remote_credentials *keys, struct curl_slist **ret_headers)
{
	char date[REMOTE_SIGV4_DATE_SIZE], hash[REMOTE_SIGV4_HASH_SIZE], authorization[REMOTE_SIGV4_AUTHORIZATION_MAX];
	struct remote_header headers[4] = { { "content-type", FORM }, { "host", sts->host_value },
		{ "x-amz-date", date } };
	size_t n = 3;
	int rc = 0;
	if (keys && keys->token[0])
		headers[n++] = (struct remote_header){ "x-amz-security-token", keys->token };
	remote_sigv4_date(time(NULL), date);
	remote_sigv4_hash(form, strlen(form), hash);
	if (keys)
		rc = remote_sigv4_sign(&(struct remote_sigv4){ .access_key = keys->access_key,
		                               .secret_key = keys->secret_key,
		                               .region = sts->region,
		                               .service = "sts",
		                               .method = "POST",
		                               .path = sts->path,
		                               .headers = headers,
		                               .n_headers = n,
		                               .payload_hash = hash,
		                               .date = date },
		        authorization);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = remote_header_add(ret_headers, headers[i].name, headers[i].value);
	if (rc == 0 && keys)
		rc = remote_header_add(ret_headers, "Authorization", authorization);
	explicit_bzero(authorization, sizeof(authorization));
	return rc;
}

static int take_xml(struct remote_credentials *c, const char *provider, const char *xml, struct base_err *err)
{
	cleanup_free char *access_key = remote_xml_element(xml, "AccessKeyId", NULL);
	cleanup_free char *secret_key = remote_xml_element(xml, "SecretAccessKey", NULL);
	cleanup_free char *token = remote_xml_element(xml, "SessionToken", NULL);
	cleanup_free char *expiration = remote_xml_element(xml, "Expiration", NULL);
	int rc = remote_credentials_put(c, provider, access_key, secret_key, token, err);
	if (rc == 0)
		rc = remote_credentials_expire(c, expiration, err);
	if (secret_key)
		explicit_bzero(secret_key, strlen(secret_key));
	if (token)
		explicit_bzero(token, strlen(token));
	return rc;
}

/* Sends a form, and takes the credentials of the answer into c.  keys: what signs it; NULL: nothing;
 * may be c. */
static int ask_sts(struct remote_credentials *c, const char *provider, const struct remote_profile *profile,
        const char *role, const char *form, const struct remote_credentials *keys, struct base_err *err)
{
	struct sts sts = { 0 };
	struct remote_answer answer;
	struct curl_slist *headers = NULL;
	char quoted[512];
	int rc = find_sts(profile, err, &sts);
	if (rc < 0) {
		sts_done(&sts);
		return rc;
	}
	rc = make_headers(&sts, form, keys, &headers);
	if (rc < 0)
		base_err_set(err, rc, "%s: the request cannot be signed: %s", sts.url, base_err_str(rc));
	else
		rc = remote_credentials_ask(&(struct remote_fetch){ .method = "POST",
		                                    .url = sts.url,
		                                    .headers = headers,
		                                    .body = form,
		                                    .body_len = strlen(form),
		                                    .timeout_s = REMOTE_PROVIDER_TIMEOUT_S,
		                                    .ca_bundle = sts.ca_bundle },
		        err, &answer);
	curl_slist_free_all(headers);
	sts_done(&sts);
	if (rc < 0)
		return rc;
	if (answer.status == 200) {
		rc = take_xml(c, provider, answer.body, err);
	} else {
		char code[CODE_MAX];
		remote_xml_quoted(answer.body, "Code", code, sizeof(code));
		rc = base_err_set(err, -EACCES, "%s: STS refuses role '%s' (status %ld%s%s)", provider,
		        base_err_quote(role, quoted, sizeof(quoted)), answer.status, *code ? ", " : "", code);
	}
	remote_answer_done(&answer);
	return rc;
}

/* ---- web identity ---- */

static int with_token(struct remote_credentials *c, const struct remote_profile *profile, const char *role,
        const char *token, struct base_err *err)
{
	const char *session = variable("AWS_ROLE_SESSION_NAME");
	cleanup_secret char *form = remote_secret_join("Action=AssumeRoleWithWebIdentity", "&Version=2011-06-15", NULL);
	if (!session)
		session = remote_profile_value(profile, REMOTE_PROFILE_ANY, "role_session_name");
	if (!form || add_field(&form, "RoleArn", role) < 0 ||
	        add_field(&form, "RoleSessionName", session ? session : "ddpfs") < 0 ||
	        add_field(&form, "WebIdentityToken", token) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return ask_sts(c, "web identity", profile, role, form, NULL, err);
}

int remote_credentials_web_identity(
        struct remote_credentials *c, const struct remote_profile *profile, struct base_err *err)
{
	bool chosen = remote_profile_chosen(profile);
	const char *file = chosen ? NULL : variable("AWS_WEB_IDENTITY_TOKEN_FILE"), *role = variable("AWS_ROLE_ARN");
	if (!file) {
		file = remote_profile_value(profile, REMOTE_PROFILE_ANY, "web_identity_token_file");
		role = remote_profile_value(profile, REMOTE_PROFILE_ANY, "role_arn");
	}
	if (!file)
		return 0;
	if (!role)
		return base_err_set(err, -ENOKEY, "web identity: the role is missing; set AWS_ROLE_ARN");
	cleanup_secret char *token = NULL;
	int rc = remote_credentials_read(file, &token);
	if (rc < 0)
		return base_err_set(err, rc, "web identity: cannot read the token in '%s': %s", file, base_err_str(rc));
	rc = with_token(c, profile, role, token, err);
	return rc < 0 ? rc : 1;
}

/* ---- a role that is assumed with the credentials in c ---- */

/* Returns the profile's duration_seconds, or NULL; botocore passes over one that is no number. */
static const char *duration_of(const struct remote_profile *profile)
{
	const char *duration = remote_profile_value(profile, REMOTE_PROFILE_ANY, "duration_seconds");
	return duration && duration[strspn(duration, "0123456789")] == 0 ? duration : NULL;
}

int remote_credentials_assume(struct remote_credentials *c, const struct remote_profile *profile,
        const struct remote_profile *first, struct base_err *err)
{
	const char *role = remote_profile_value(profile, REMOTE_PROFILE_ANY, "role_arn");
	const char *session = remote_profile_value(profile, REMOTE_PROFILE_ANY, "role_session_name");
	cleanup_secret char *form = remote_secret_join("Action=AssumeRole", "&Version=2011-06-15", NULL);
	if (!form || add_field(&form, "RoleArn", role) < 0 ||
	        add_field(&form, "RoleSessionName", session ? session : "ddpfs") < 0 ||
	        add_field(&form, "ExternalId", remote_profile_value(profile, REMOTE_PROFILE_ANY, "external_id")) < 0 ||
	        add_field(&form, "DurationSeconds", duration_of(profile)) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	return ask_sts(c, "an assumed role", first, role, form, c, err);
}
