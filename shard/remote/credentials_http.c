/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials from services of the host: a container's endpoint, the instance's metadata;
 * shard/remote/credentials.h first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/remote/credentials_private.h"
#include "shard/remote/fetch.h"
#include "shard/remote/secret_memory.h"
#include "shard/remote/start_directory.h"

enum { BUSY_TRIES = 3, BUSY_PAUSE_MS = 200, TOKEN_FILE_MAX = 65536, INSTANCE_TIMEOUT_S = 2 };

#define NS_PER_S UINT64_C(1000000000)

int remote_credentials_ask(const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *ret_answer)
{
	struct remote_fetch one = *fetch;
	const uint64_t end_ns = base_now_ns() + (uint64_t)fetch->timeout_s * NS_PER_S;
	for (unsigned tries = 1;; tries++) {
		int rc = remote_fetch(&one, err, ret_answer);
		bool busy = rc == 0 && (ret_answer->status == 429 || ret_answer->status >= 500);
		uint64_t again_ns = base_now_ns() + (uint64_t)tries * BUSY_PAUSE_MS * 1000000;
		if (!busy || tries == BUSY_TRIES || again_ns + NS_PER_S > end_ns)
			return rc;
		one.timeout_s = (long)((end_ns - again_ns) / NS_PER_S); /* the tries share the time of one */
		remote_answer_done(ret_answer);
		nanosleep(&(struct timespec){ .tv_nsec = (long)tries * BUSY_PAUSE_MS * 1000000 }, NULL);
	}
}

/* Asks with a list of headers, which is freed.  rc: that of the list. */
static int ask(struct remote_fetch *fetch, int rc, struct base_err *err, struct remote_answer *ret_answer)
{
	rc = rc < 0 ? base_err_set(err, rc, "out of memory") : remote_credentials_ask(fetch, err, ret_answer);
	curl_slist_free_all(fetch->headers);
	return rc;
}

int remote_credentials_read(const char *path, char **ret_token)
{
	cleanup_free char *absolute = remote_setting_path(path);
	char *text = NULL;
	size_t len = 0;
	int rc = absolute ? base_read_file(absolute, TOKEN_FILE_MAX, &text, &len) : -ENOMEM;
	if (rc < 0)
		return rc;
	text[strcspn(text, "\r\n")] = 0;
	*ret_token = remote_secret_join(text, "", NULL);
	explicit_bzero(text, len);
	free(text);
	return *ret_token ? 0 : -ENOMEM;
}

static const char *variable(const char *name)
{
	const char *value = getenv(name);
	return value && *value ? value : NULL;
}

/* ---- container: ECS, EKS Pod Identity ---- */

/* Plain http is safe only on this host, and at the addresses of ECS and EKS
 * (botocore.utils.ContainerMetadataFetcher). */
static bool allowed_host(const char *url)
{
	static const char *const hosts[] = { "localhost", "127.0.0.1", "[::1]", "169.254.170.2", "169.254.170.23",
		"[fd00:ec2::23]" };
	if (strncasecmp(url, "https://", 8) == 0)
		return true;
	if (strncasecmp(url, "http://", 7) != 0)
		return false;
	for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
		size_t len = strlen(hosts[i]);
		if (strncasecmp(url + 7, hosts[i], len) == 0 && strchr(":/", url[7 + len]))
			return true;
	}
	return false;
}

/* Adds "Authorization: TOKEN" if the environment has a token. */
static int add_authorization(struct curl_slist **list, struct base_err *err)
{
	const char *file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	cleanup_secret char *text = NULL;
	if (file) {
		int rc = remote_credentials_read(file, &text);
		if (rc < 0)
			return base_err_set(err, rc, "container credentials: cannot read the token in '%s': %s", file,
			        base_err_str(rc));
		token = text;
	}
	return token ? remote_header_add(list, "Authorization", token) : 0;
}

int remote_credentials_container(struct remote_credentials *c, struct base_err *err)
{
	const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	struct curl_slist *list = NULL;
	if (!relative && !full)
		return 0;
	cleanup_secret char *url =
	        remote_secret_join(relative ? "http://169.254.170.2" : "", relative ? relative : full, NULL);
	if (!url)
		return base_err_set(err, -ENOMEM, "out of memory");
	if (!allowed_host(url))
		return base_err_set(
		        err, -EACCES, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this host");
	int rc = add_authorization(&list, err);
	if (rc < 0)
		return rc;
	rc = remote_header_add(&list, "Accept", "application/json");
	struct remote_answer answer;
	rc = ask(
	        &(struct remote_fetch){
	                .method = "GET", .url = url, .headers = list, .timeout_s = REMOTE_PROVIDER_TIMEOUT_S },
	        rc, NULL, &answer);
	if (rc < 0) /* without the address, which can be all that is needed to ask */
		return base_err_set(err, rc, "the container's endpoint: %s", base_err_str(rc));
	rc = answer.status == 200 ? remote_credentials_take_json(c, "the container", answer.body, err)
	                          : base_err_set(err, -EACCES, "container credentials: status %ld", answer.status);
	remote_answer_done(&answer);
	return rc < 0 ? rc : 1;
}

/* ---- instance metadata, version 2 ---- */

static int metadata(
        const char *method, const char *path, const char *name, const char *value, struct remote_answer *ret_answer)
{
	const char *endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	struct curl_slist *list = NULL;
	cleanup_free char *url = NULL;
	if (asprintf(&url, "%s%s%s", endpoint ? endpoint : "http://169.254.169.254",
	            endpoint && endpoint[strlen(endpoint) - 1] == '/' ? "" : "/", path) < 0)
		return -ENOMEM;
	int rc = remote_header_add(&list, name, value);
	rc = ask(
	        &(struct remote_fetch){
	                .method = method, .url = url, .headers = list, .timeout_s = INSTANCE_TIMEOUT_S },
	        rc, NULL, ret_answer);
	if (rc == 0 && ret_answer->status != 200) {
		remote_answer_done(ret_answer);
		rc = -ENOENT;
	}
	return rc;
}

int remote_credentials_instance(struct remote_credentials *c, struct base_err *err)
{
	static const char token_name[] = "X-aws-ec2-metadata-token";
	static const char roles[] = "latest/meta-data/iam/security-credentials/";
	const char *disabled = variable("AWS_EC2_METADATA_DISABLED");
	if (disabled && strcasecmp(disabled, "true") == 0)
		return 0;
	struct remote_answer token, role, answer;
	/* On a host that is no instance, nobody answers at this address. */
	if (metadata("PUT", "latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "21600", &token) < 0)
		return 0;
	cleanup_free char *path = NULL;
	int rc = metadata("GET", roles, token_name, token.body, &role);
	if (rc < 0) {
		remote_answer_done(&token);
		return 0; /* an instance without a role */
	}
	role.body[strcspn(role.body, "\r\n")] = 0;
	rc = asprintf(&path, "%s%s", roles, role.body) < 0 ? -ENOMEM : 0;
	remote_answer_done(&role);
	if (rc == 0)
		rc = metadata("GET", path, token_name, token.body, &answer);
	remote_answer_done(&token);
	if (rc < 0)
		return base_err_set(
		        err, rc, "instance metadata: the role's credentials cannot be fetched: %s", base_err_str(rc));
	rc = remote_credentials_take_json(c, "instance metadata", answer.body, err);
	remote_answer_done(&answer);
	return rc < 0 ? rc : 1;
}
