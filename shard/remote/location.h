/* SPDX-License-Identifier: Apache-2.0 */
/* The name of a dataset that is not a path: s3://BUCKET/PREFIX, https://HOST/PATH or http://HOST/PATH.
 *
 * Threads: any; a location belongs to its caller. */
#ifndef DDPFS_SHARD_REMOTE_LOCATION_H
#define DDPFS_SHARD_REMOTE_LOCATION_H

#include <stdbool.h>
#include <stddef.h>

#include "shard/base/err.h"

enum {
	REMOTE_NAME_MAX = 2048, /* bytes of a name, NUL included */
	REMOTE_KEY_MAX = 1025,  /* bytes of a key, NUL included: S3's limit is 1024 */
};

struct remote_location {
	char *name;   /* the name without '/' at its end; messages show it; owned */
	char *origin; /* "https://HOST[:PORT]"; NULL for s3://; owned */
	char *bucket; /* of s3://, else NULL; owned */
	/* Of keys, without '/' at its end; "" for a whole bucket; owned.  That of s3://BUCKET//X begins with '/', as
	 * keys of S3 can; that of a http name is decoded and does not. */
	char *prefix;
};

/* Returns whether a name begins with s3://, https:// or http://, in any letters. */
bool remote_is_url(const char *name);

/* Returns whether a name begins like a URL of any kind: "gs://B/P", "s3:/B/P", "file:///x".  A path can, too. */
bool remote_resembles_url(const char *name);

/* Returns whether a name that begins like a URL of any kind seems to have a user or password: an '@', or "%40", in
 * front of the first '/', or anywhere behind a ':' that no port follows, because a secret key can have a '/' in it. */
bool remote_has_password(const char *name);
/* Writes a name for a message into room, as base_err_quote does; of one with a password, its scheme and "...".  Returns
 * room. */
const char *remote_quote(const char *name, char *room, size_t size);
/* The same as base_quoted. */
#define remote_quoted(name) remote_quote((name), (char[BASE_QUOTED_MAX]){ 0 }, BASE_QUOTED_MAX)

/* Returns how many bytes of a name, from its beginning, may be kept in a file: all of a path; of a URL with a password
 * only the scheme; and nothing from '?' on of another one, because a query may be a signature. */
size_t remote_public_len(const char *name);

/* Says why a name that is no path of this host cannot be that of a dataset, if it begins like a URL of a kind that
 * datasets do not have (remote_resembles_url).  Ask it when nothing lies at the path, because a directory
 * can have such a name.
 * Returns 0 (it does not begin so, or with what remote_is_url takes), or -ENOENT with a sentence. */
int remote_check_kind(const char *name, struct base_err *err);

/* Takes a name apart.
 * Returns 0; -EINVAL with a sentence: no host or bucket, a user or password (they would be seen by everybody), a query
 * or fragment, a component "." or "..", a control character, or too long; -ENOMEM. */
int remote_location_parse(const char *name, struct base_err *err, struct remote_location *ret_location);
/* Frees what a location owns. */
void remote_location_done(struct remote_location *location);

/* Writes the key of an object whose path is relative to the dataset.
 * Returns 0, or -ENAMETOOLONG. */
int remote_location_key(const struct remote_location *location, const char *path, char ret_key[REMOTE_KEY_MAX]);

#endif
