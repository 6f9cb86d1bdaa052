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
#include "shard/base/io.h"
#include "shard/remote/credentials_private.h"
#include "shard/remote/fetch.h"

enum { BUSY_TRIES = 3, BUSY_PAUSE_MS = 200, TOKEN_FILE_MAX = 65536, INSTANCE_TIMEOUT_S = 2 };

int remote_credentials_ask(const struct remote_fetch *fetch, struct base_err *err, struct remote_answer *ret_answer)
{
	for (unsigned tries = 1;; tries++) {
		int rc = remote_fetch(fetch, err, ret_answer);
		bool busy = rc == 0 && (ret_answer->status == 429 || ret_answer->status >= 500);
		if (!busy || tries == BUSY_TRIES)
			return rc;
		remote_answer_done(ret_answer);
		nanosleep(&(struct timespec){ .tv_nsec = (long)tries * BUSY_PAUSE_MS * 1000000 }, NULL);
	}
}

/* Sends a request with at most two headers, which may be NULL. */
static int ask(struct remote_fetch *fetch, const char *first, const char *second, struct base_err *err,
        struct remote_answer *ret_answer)
{
	struct curl_slist *list = first ? curl_slist_append(NULL, first) : NULL;
	struct curl_slist *longer = second ? curl_slist_append(list, second) : list;
	int rc = (first && !list) || (second && !longer) ? base_err_set(err, -ENOMEM, "out of memory") : 0;
	fetch->headers = list ? list : longer;
	if (rc == 0)
		rc = remote_credentials_ask(fetch, err, ret_answer);
	curl_slist_free_all(fetch->headers);
	return rc;
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

/* Writes "Authorization: TOKEN" if the environment has a token; NULL if it has none. */
static int authorization(struct base_err *err, char **ret_header)
{
	const char *file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
	const char *token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
	cleanup_free char *text = NULL;
	size_t len = 0;
	*ret_header = NULL;
	if (file) {
		int rc = base_read_file(file, TOKEN_FILE_MAX, &text, &len);
		if (rc < 0)
			return base_err_set(err, rc, "container credentials: cannot read the token in '%s': %s", file,
			        base_err_str(rc));
		text[strcspn(text, "\r\n")] = 0;
		token = text;
	}
	if (!token)
		return 0;
	return asprintf(ret_header, "Authorization: %s", token) < 0 ? base_err_set(err, -ENOMEM, "out of memory") : 0;
}

int remote_credentials_container(struct remote_credentials *c, struct base_err *err)
{
	const char *relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
	const char *full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
	if (!relative && !full)
		return 0;
	cleanup_free char *url = NULL, *header = NULL;
	if ((relative ? asprintf(&url, "http://169.254.170.2%s", relative) : asprintf(&url, "%s", full)) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	if (!allowed_host(url))
		return base_err_set(
		        err, -EACCES, "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https:// nor on this host");
	int rc = authorization(err, &header);
	if (rc < 0)
		return rc;
	struct remote_answer answer;
	rc = ask(&(struct remote_fetch){ .method = "GET", .url = url, .timeout_s = REMOTE_PROVIDER_TIMEOUT_S },
	        "Accept: application/json", header, err, &answer);
	if (rc < 0)
		return rc;
	rc = answer.status == 200 ? remote_credentials_take_json(c, "the container", answer.body, err)
	                          : base_err_set(err, -EACCES, "container credentials: status %ld", answer.status);
	remote_answer_done(&answer);
	return rc < 0 ? rc : 1;
}

/* ---- instance metadata, version 2 ---- */

static int metadata(const char *method, const char *path, const char *header, struct remote_answer *ret_answer)
{
	const char *endpoint = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	cleanup_free char *url = NULL;
	if (asprintf(&url, "%s%s%s", endpoint ? endpoint : "http://169.254.169.254",
	            endpoint && endpoint[strlen(endpoint) - 1] == '/' ? "" : "/", path) < 0)
		return -ENOMEM;
	int rc = ask(&(struct remote_fetch){ .method = method, .url = url, .timeout_s = INSTANCE_TIMEOUT_S }, header,
	        NULL, NULL, ret_answer);
	if (rc == 0 && ret_answer->status != 200) {
		remote_answer_done(ret_answer);
		rc = -ENOENT;
	}
	return rc;
}

int remote_credentials_instance(struct remote_credentials *c, struct base_err *err)
{
	static const char roles[] = "latest/meta-data/iam/security-credentials/";
	const char *disabled = variable("AWS_EC2_METADATA_DISABLED");
	if (disabled && strcasecmp(disabled, "true") == 0)
		return 0;
	struct remote_answer token, role, answer;
	/* On a host that is no instance, nobody answers at this address. */
	if (metadata("PUT", "latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", &token) < 0)
		return 0;
	cleanup_free char *header = NULL, *path = NULL;
	int rc = asprintf(&header, "X-aws-ec2-metadata-token: %s", token.body) < 0 ? -ENOMEM : 0;
	remote_answer_done(&token);
	if (rc == 0)
		rc = metadata("GET", roles, header, &role);
	if (rc < 0)
		return 0; /* an instance without a role */
	role.body[strcspn(role.body, "\r\n")] = 0;
	rc = asprintf(&path, "%s%s", roles, role.body) < 0 ? -ENOMEM : 0;
	remote_answer_done(&role);
	if (rc == 0)
		rc = metadata("GET", path, header, &answer);
	if (rc < 0)
		return base_err_set(
		        err, rc, "instance metadata: the role's credentials cannot be fetched: %s", base_err_str(rc));
	rc = remote_credentials_take_json(c, "instance metadata", answer.body, err);
	remote_answer_done(&answer);
	return rc < 0 ? rc : 1;
}
