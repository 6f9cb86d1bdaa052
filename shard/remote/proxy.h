/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about the proxy that libcurl takes from the environment (libcurl-env(3)): if it is away, it looks as if the
 * store were.
 *
 * Threads: any; the environment does not change meanwhile. */
#ifndef DDPFS_SHARD_REMOTE_PROXY_H
#define DDPFS_SHARD_REMOTE_PROXY_H

#include <curl/curl.h>
#include <stdbool.h>

enum { REMOTE_PROXY_TEXT_MAX = 512 };

/* Writes a sentence that names the proxy and its variable, without its user and password, if a transfer failed because
 * of it.  code: the transfer's result.  detail: libcurl's own sentence (CURLOPT_ERRORBUFFER), or "".  It may show the
 * proxy's password, if the address is wrong.
 * Returns false, and leaves ret_text alone, if the proxy is not the reason, or if that is not known: no_proxy is set,
 * and detail does not tell. */
bool remote_proxy_failed(CURL *handle, CURLcode code, const char *detail, char ret_text[static REMOTE_PROXY_TEXT_MAX]);

#endif
