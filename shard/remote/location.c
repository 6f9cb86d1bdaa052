/* SPDX-License-Identifier: Apache-2.0 */
/* Names of datasets in stores; shard/remote/location.h first. */
#include "shard/remote/location.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shard/base/cleanup.h"
#include "shard/remote/uri.h"

/* Returns the length of the scheme with "://", or 0. */
static size_t scheme_len(const char *name)
{
	static const char *const schemes[] = { "s3://", "https://", "http://" };
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		if (strncasecmp(name, schemes[i], strlen(schemes[i])) == 0)
			return strlen(schemes[i]);
	return 0;
}

bool remote_is_url(const char *name)
{
	return scheme_len(name) != 0;
}

/* Returns how long the scheme is of a name that begins like a URL of any kind, with "://" or ":/", or 0.  RFC 3986: a
 * scheme is a letter, then letters, digits and "+-.". */
static size_t any_scheme_len(const char *name)
{
	size_t len = 0;
	while (isalnum((unsigned char)name[len]) || (len > 0 && name[len] && strchr("+-.", name[len])))
		len++;
	if (!isalpha((unsigned char)name[0]) || strncmp(name + len, ":/", 2) != 0)
		return 0;
	return len + (name[len + 2] == '/' ? 3 : 2);
}

bool remote_resembles_url(const char *name)
{
	return any_scheme_len(name) != 0;
}

/* rest: behind the scheme. */
static bool has_password(const char *rest)
{
	size_t len = strcspn(rest, "/");
	if (memchr(rest, '@', len))
		return true;
	const char *host = rest[0] == '[' ? memchr(rest, ']', len) : rest; /* an IPv6 address has ':' */
	const char *colon = host ? memchr(host, ':', len - (size_t)(host - rest)) : NULL;
	return colon && strspn(colon + 1, "0123456789") < len - (size_t)(colon + 1 - rest) && strchr(colon, '@');
}

bool remote_has_password(const char *name)
{
	size_t scheme = any_scheme_len(name);
	if (!scheme)
		return false;
	cleanup_free char *decoded = strdup(name + scheme);
	if (decoded)
		remote_uri_decode(decoded);
	return !decoded || has_password(name + scheme) || has_password(decoded);
}

const char *remote_quote(const char *name, char *room, size_t size)
{
	char shown[64];
	if (!remote_has_password(name))
		return base_err_quote(name, room, size);
	snprintf(shown, sizeof(shown), "%.*s...", (int)any_scheme_len(name), name);
	return base_err_quote(shown, room, size);
}

size_t remote_public_len(const char *name)
{
	size_t scheme = any_scheme_len(name);
	return remote_has_password(name) ? scheme : scheme ? strcspn(name, "?") : strlen(name);
}

/* Writes the name that was meant, if a name of a store lacks the second '/' of its scheme; else "". */
static void add_slash(const char *name, char meant[REMOTE_NAME_MAX])
{
	size_t scheme = any_scheme_len(name);
	int n = snprintf(meant, REMOTE_NAME_MAX, "%.*s/%s", (int)scheme, name, name + scheme);
	if (n >= REMOTE_NAME_MAX || !remote_is_url(meant) || remote_has_password(name))
		meant[0] = '\0';
}

int remote_check_kind(const char *name, struct base_err *err)
{
	char meant[REMOTE_NAME_MAX], instead[BASE_QUOTED_MAX + 128] = "";
	if (!any_scheme_len(name) || remote_is_url(name))
		return 0;
	add_slash(name, meant);
	if (*meant)
		snprintf(instead, sizeof(instead), "; did you mean '%s'?", base_quoted(meant));
	else if (strncasecmp(name, "gs:", 3) == 0)
		snprintf(instead, sizeof(instead),
		        "; for Google Cloud Storage write s3:// and set "
		        "AWS_ENDPOINT_URL_S3=https://storage.googleapis.com");
	return base_err_set(err, -ENOENT,
	        "'%s': no dataset has a name that begins so: write s3://BUCKET/PREFIX, https://HOST/PATH, "
	        "http://HOST/PATH, or the path of a directory%s",
	        remote_quoted(name), instead);
}

static bool has_dots(const char *path)
{
	for (const char *at = path; *at;) {
		size_t len = strcspn(at, "/");
		if ((len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.'))
			return true;
		at += len;
		at += strspn(at, "/");
	}
	return false;
}

/* Returns what is wrong with a name, or NULL.  rest: behind the scheme. */
static const char *fault(const char *name, const char *rest, bool s3)
{
	size_t host_len = strcspn(rest, "/");
	if (remote_has_password(name))
		return "a user or password in the name would be seen by everybody; leave it out";
	if (strlen(name) >= REMOTE_NAME_MAX)
		return "the name is too long";
	if (!host_len)
		return s3 ? "the bucket is missing; write s3://BUCKET/PREFIX" : "the host is missing";
	for (const char *c = name; *c; c++)
		if (iscntrl((unsigned char)*c))
			return "it holds a control character";
	if (!s3 && strpbrk(rest, "?#"))
		return "a query ('?') or fragment ('#') cannot stand in a dataset's name";
	if (has_dots(rest + host_len))
		return "a part '.' or '..' cannot stand in it";
	return NULL;
}

int remote_location_parse(const char *name, struct base_err *err, struct remote_location *ret_location)
{
	size_t scheme = scheme_len(name);
	const char *rest = name + scheme;
	bool s3 = scheme == strlen("s3://");
	const char *wrong = scheme ? fault(name, rest, s3) : "it begins with neither s3:// nor https:// nor http://";
	size_t host_len = strcspn(rest, "/"), len = strlen(name);
	if (wrong) {
		/* A message may be logged: it has no password, and no query, which may be a signature. */
		char plain[512];
		snprintf(plain, sizeof(plain), "%.*s", (int)strcspn(name, "?"), name);
		return base_err_set(err, -EINVAL, "%s: not a dataset: %s",
		        remote_quoted(remote_has_password(name) ? name : plain), wrong);
	}
	while (len > scheme + host_len && name[len - 1] == '/')
		len--;
	/* A key of S3 may begin with '/', and each '/' of it counts.  Servers of HTTP merge several. */
	size_t slashes = strspn(rest + host_len, "/");
	const char *path = rest + host_len + (s3 && slashes ? 1 : slashes);
	size_t path_len = path < name + len ? (size_t)(name + len - path) : 0;
	struct remote_location made = {
		.name = strndup(name, len),
		.prefix = strndup(path, path_len),
		.bucket = s3 ? strndup(rest, host_len) : NULL,
		.origin = s3 ? NULL : strndup(name, scheme + host_len),
	};
	if (!made.name || !made.prefix || (s3 ? !made.bucket : !made.origin)) {
		remote_location_done(&made);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	for (char *c = made.name; c < made.name + scheme; c++)
		*c = (char)tolower((unsigned char)*c);
	if (!s3)
		remote_uri_decode(made.prefix);
	*ret_location = made;
	return 0;
}

void remote_location_done(struct remote_location *location)
{
	free(location->name);
	free(location->origin);
	free(location->bucket);
	free(location->prefix);
	*location = (struct remote_location){ 0 };
}

int remote_location_key(const struct remote_location *location, const char *path, char ret_key[REMOTE_KEY_MAX])
{
	int len = snprintf(ret_key, REMOTE_KEY_MAX, "%s%s%s", location->prefix, location->prefix[0] ? "/" : "", path);
	return len < 0 || len >= REMOTE_KEY_MAX ? -ENAMETOOLONG : 0;
}
