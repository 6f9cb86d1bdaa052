/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether a proxy is the reason of a failure; shard/remote/proxy.h first. */
#include "shard/remote/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *value_of(const char *variable)
{
	const char *value = getenv(variable);
	return value && *value ? value : NULL;
}

/* Returns the variable that names the proxy of a URL, or NULL.  libcurl does not take HTTP_PROXY, which a client of a
 * CGI program could set. */
static const char *variable_of(const char *url)
{
	static const char *const all[] = { "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", NULL };
	static const char *const plain[] = { "http_proxy", "all_proxy", "ALL_PROXY", NULL };
	const char *const *name = strncasecmp(url, "https:", 6) == 0 ? all : plain;
	while (*name && !value_of(*name))
		name++;
	return *name;
}

/* Writes "HOST:PORT" of a proxy's address.  Returns false if it is no address. */
static bool show_place(const char *address, char *room, size_t size)
{
	CURLU *url = curl_url();
	char *host = NULL, *port = NULL;
	bool tls = strncasecmp(address, "https:", 6) == 0;
	bool good = url && !curl_url_set(url, CURLUPART_URL, address, CURLU_GUESS_SCHEME | CURLU_NON_SUPPORT_SCHEME) &&
	            !curl_url_get(url, CURLUPART_HOST, &host, 0);
	if (good && curl_url_get(url, CURLUPART_PORT, &port, 0))
		port = NULL;
	if (good)
		snprintf(room, size, "%.200s:%.8s", host, port ? port : tls ? "443" : "1080");
	curl_free(host);
	curl_free(port);
	curl_url_cleanup(url);
	return good;
}

/* Returns whether libcurl asked the proxy: always, if no variable excludes hosts. */
static bool was_asked(const char *place, const char *detail)
{
	char text[256];
	const char *colon = strrchr(place, ':');
	if (!value_of("no_proxy") && !value_of("NO_PROXY"))
		return true;
	snprintf(text, sizeof(text), " %.*s port %s ", (int)(colon - place), place, colon + 1);
	return strstr(detail, "Unsupported proxy") || strstr(detail, text);
}

/* Returns what the proxy does, or NULL: the failure is not its. */
static const char *fault(CURL *handle, CURLcode code, const char *place, const char *detail)
{
	long status = 0;
	curl_off_t connected_us = 0;
	curl_easy_getinfo(handle, CURLINFO_HTTP_CONNECTCODE, &status);
	curl_easy_getinfo(handle, CURLINFO_CONNECT_TIME_T, &connected_us);
	if (code == CURLE_COULDNT_RESOLVE_PROXY)
		return "has no address";
	if (code == CURLE_PROXY || status >= 300)
		return "refuses to connect to the store";
	if ((code != CURLE_COULDNT_CONNECT && code != CURLE_OPERATION_TIMEDOUT) || connected_us ||
	        !was_asked(place, detail))
		return NULL;
	return code == CURLE_COULDNT_CONNECT ? "takes no connection" : "does not answer";
}

bool remote_proxy_failed(CURL *handle, CURLcode code, const char *detail, char ret_text[static REMOTE_PROXY_TEXT_MAX])
{
	const char *url = NULL;
	char place[256] = "?:?";
	curl_easy_getinfo(handle, CURLINFO_EFFECTIVE_URL, &url);
	const char *variable = url ? variable_of(url) : NULL;
	if (!variable)
		return false;
	bool good = show_place(value_of(variable), place, sizeof(place));
	const char *does = fault(handle, code, place, detail);
	if (does && good)
		snprintf(ret_text, REMOTE_PROXY_TEXT_MAX,
		        "the proxy %s %s: look at the variable %s, or add the store's host to no_proxy", place, does,
		        variable);
	else if (does)
		snprintf(ret_text, REMOTE_PROXY_TEXT_MAX,
		        "the variable %s is no address of a proxy: correct it, or unset it", variable);
	return does != NULL;
}
