/* SPDX-License-Identifier: Apache-2.0 */
/* Reads profiles of AWS's files; shard/remote/aws_config.h first. */
#include "shard/remote/aws_config.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/remote/secret_memory.h"
#include "shard/remote/start_directory.h"

enum { FILE_MAX_BYTES = 1 << 20, N_FILES = 2, PASSWD_MAX_BYTES = 16384 };

struct remote_profile {
	char *name;
	char *texts[N_FILES];   /* of the credentials file and the config file; lines end in NUL; NULL: no such file */
	size_t sizes[N_FILES];  /* bytes of texts */
	char *paths[N_FILES];   /* where they are looked for; NULL: nowhere, there is no home */
	bool named[N_FILES];    /* the environment names the path */
	const char *unreadable; /* one of paths: a file at HOME that the user may not read; NULL: none */
	bool chosen;            /* remote_profile_chosen */
};

/* Returns the first of two variables that is set, or NULL. */
static const char *either(const char *first, const char *second)
{
	const char *value = first ? getenv(first) : NULL;
	if (!value || !*value)
		value = getenv(second);
	return value && *value ? value : NULL;
}

/* Returns "HOME/FILE", which the caller frees; NULL: there is no home, or no memory. */
static char *path_at_home(const char *file)
{
	char room[PASSWD_MAX_BYTES];
	struct passwd entry, *found = NULL;
	const char *home = getenv("HOME");
	char *path = NULL;
	/* systemd starts mounts of /etc/fstab without HOME. */
	if ((!home || !*home) && getpwuid_r(geteuid(), &entry, room, sizeof(room), &found) == 0 && found)
		home = found->pw_dir;
	return home && *home && asprintf(&path, "%s/%s", home, file) >= 0 ? path : NULL;
}

/* Returns the path that a variable names, which the caller frees; NULL: no home, or no memory.  botocore expands "~"
 * (configloader.raw_config_parse), which a shell does not in AWS_CONFIG_FILE='~/x', nor a service file at all. */
static char *path_named(const char *value)
{
	return strncmp(value, "~/", 2) == 0 ? path_at_home(value + 2) : remote_setting_path(value);
}

/* named: somebody said that it is there, so that -EACCES has a sentence, too. */
static int read_text(const char *path, bool named, struct base_err *err, char **ret_text, size_t *ret_size)
{
	char quoted[512];
	char *text = NULL;
	size_t size = 0;
	int rc = base_read_file(path, FILE_MAX_BYTES, &text, &size);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return 0;
	if (rc == -EACCES && !named)
		return rc;
	if (rc < 0)
		return base_err_set(err, rc, "%s: cannot read it: %s", base_err_quote(path, quoted, sizeof(quoted)),
		        base_err_str(rc));
	char *moved = remote_secret_alloc(size + 1);
	if (moved)
		memcpy(moved, text, size + 1);
	explicit_bzero(text, size);
	free(text);
	text = moved;
	if (!text)
		return base_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < size; i++)
		if (text[i] == '\n' || text[i] == '\r')
			text[i] = 0;
	*ret_text = text;
	*ret_size = size;
	return 0;
}

static char *trim(char *text)
{
	text += strspn(text, " \t");
	size_t len = strlen(text);
	while (len && isspace((unsigned char)text[len - 1]))
		text[--len] = 0;
	return text;
}

/* What is looked for: the value of `key` in the section of that kind and name, or of `nested` within that value. */
struct place {
	const char *kind, *name; /* "profile" or "services" */
	const char *key;         /* NULL: the section itself */
	const char *nested;      /* NULL: the value of key */
};

enum { SECTION_MAX = 256 };

/* Takes words apart as a shell does, in place.  Returns how many there are, at most 3; 0: a quote is not closed. */
static size_t split_words(char *text, const char *words[2])
{
	char *to = text;
	size_t n = 0;
	while (*(text += strspn(text, " \t"))) {
		if (n == 2)
			return 3;
		words[n++] = to;
		char quote = 0;
		for (; *text && (quote || !strchr(" \t", *text)); text++) {
			if (quote && *text == quote)
				quote = 0;
			else if (!quote && strchr("'\"", *text))
				quote = *text;
			else if (*text == '\\' && quote != '\'' && text[1])
				*to++ = *++text;
			else
				*to++ = *text;
		}
		if (quote)
			return 0;
		text += *text != 0;
		*to++ = 0;
	}
	return n;
}

/* Returns whether a line "[...]" opens the section.  In the config file its name may be quoted (botocore.configloader);
 * the credentials file has names of profiles as they are. */
static bool opens_section(const char *line, const struct place *place, bool config)
{
	char section[SECTION_MAX];
	const char *words[2], *end = strrchr(line, ']');
	if (!end || end - line > SECTION_MAX)
		return false;
	snprintf(section, sizeof(section), "%.*s", (int)(end - line - 1), line + 1);
	char *header = trim(section);
	bool profile = strcmp(place->kind, "profile") == 0;
	if (!config || (profile && strcmp(header, "default") == 0))
		return profile && strcmp(header, place->name) == 0;
	return split_words(header, words) == 2 && strcmp(words[0], place->kind) == 0 &&
	       strcmp(words[1], place->name) == 0;
}

/* Returns the value of a line "key = value" if it has that key, else NULL. */
static const char *value_of(const char *line, const char *key)
{
	size_t len = strcspn(line, "=:");
	if (!line[len])
		return NULL;
	const char *value = line + len + 1;
	while (len && isspace((unsigned char)line[len - 1]))
		len--;
	return len == strlen(key) && strncasecmp(line, key, len) == 0 ? value + strspn(value, " \t") : NULL;
}

/* Reads a file as Python's configparser does, which botocore uses: a line that begins further right than the one that
 * began a value continues it, and comments are whole lines.  Returns the value at the place, or NULL.  If the place is
 * a section, returns a text when it exists. */
static const char *find(const struct remote_profile *profile, int file, const struct place *place)
{
	const char *text = profile->texts[file], *found = NULL;
	bool inside = false, in_value = false, matches = false; /* in the section; in a value; in that of key */
	size_t indent = 0;                                      /* of the line that began the value */
	for (size_t at = 0; text && at < profile->sizes[file]; at += strlen(text + at) + 1) {
		size_t here = strspn(text + at, " \t");
		const char *line = text + at + here, *value = NULL;
		if (!*line || strchr("#;", *line))
			continue;
		if (in_value && here > indent) {
			value = matches && place->nested ? value_of(line, place->nested) : NULL;
			found = value ? value : found;
			continue;
		}
		indent = here;
		in_value = *line != '[';
		if (!in_value)
			inside = opens_section(line, place, file == 1);
		if (!in_value && inside && !place->key)
			return line;
		value = in_value && inside && place->key ? value_of(line, place->key) : NULL;
		matches = value && (!place->nested || !*value);
		if (matches && !place->nested)
			found = value; /* the last one counts */
	}
	return found && *found ? found : NULL;
}

/* Removes spaces at the ends of lines, so that a value is a string. */
static void trim_lines(char *text, size_t size)
{
	for (size_t at = 0; at < size;) {
		size_t len = strlen(text + at);
		for (size_t end = at + len; end > at && isspace((unsigned char)text[end - 1]); end--)
			text[end - 1] = 0;
		at += len + 1;
	}
}

/* Returns the name of the profile that the environment chooses, and the variable that says so; NULL: none does.
 * botocore, too, lets AWS_DEFAULT_PROFILE count first (configprovider.py). */
static const char *chosen_name(const char **ret_variable)
{
	static const char *const variables[] = { "DDPFS_S3_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_PROFILE" };
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *value = getenv(variables[i]);
		*ret_variable = i == 0 ? "s3_profile" : variables[i];
		if (value && *value)
			return value;
	}
	*ret_variable = "s3_credentials";
	return NULL;
}

static bool has_profile(const struct remote_profile *profile)
{
	const struct place section = { .kind = "profile", .name = profile->name };
	return find(profile, 0, &section) || find(profile, 1, &section);
}

static int read_files(struct remote_profile *profile, struct base_err *err)
{
	static const struct {
		const char *own, *variable, *file;
	} files[N_FILES] = { { "DDPFS_S3_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials" },
		{ NULL, "AWS_CONFIG_FILE", ".aws/config" } };
	int rc = 0;
	for (int i = 0; i < N_FILES && rc == 0; i++) {
		const char *set = either(files[i].own, files[i].variable);
		const char *path = profile->paths[i] = set ? path_named(set) : path_at_home(files[i].file);
		profile->named[i] = set != NULL;
		if (path)
			rc = read_text(path, set != NULL, err, &profile->texts[i], &profile->sizes[i]);
		if (rc == -EACCES && !set) {
			/* Nobody named it: HOME may be another user's, as in containers. */
			rc = 0;
			if (!profile->unreadable)
				profile->unreadable = path;
		}
		if (rc == 0 && profile->texts[i])
			trim_lines(profile->texts[i], profile->sizes[i]);
	}
	return rc;
}

/* Writes the name of a file for a sentence. */
static const char *shown(const struct remote_profile *profile, int file, char *quoted, size_t size)
{
	if (profile->named[file] && profile->paths[file])
		return base_err_quote(profile->paths[file], quoted, size);
	return file == 0 ? "~/.aws/credentials" : "~/.aws/config";
}

int remote_profile_read(const char *name, struct base_err *err, struct remote_profile **ret_profile)
{
	const char *why = "source_profile", *file = getenv("DDPFS_S3_CREDENTIALS"), *own = getenv("DDPFS_S3_PROFILE");
	const char *named = name ? name : chosen_name(&why);
	struct remote_profile *profile = calloc(1, sizeof(*profile));
	if (!profile || !(profile->name = strdup(named ? named : "default"))) {
		free(profile);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	profile->chosen = name || (file && *file) || (own && *own);
	int rc = read_files(profile, err);
	if (rc == 0 && (named || profile->chosen) && !has_profile(profile)) {
		char quoted[3][256], also[REMOTE_PROFILE_LACKS_MAX];
		remote_profile_lacks(profile, also);
		rc = base_err_set(err, -ENOENT, "profile '%s': neither %s nor %s has it (%s)%s",
		        base_err_quote(profile->name, quoted[0], sizeof(quoted[0])),
		        shown(profile, 0, quoted[1], sizeof(quoted[1])),
		        shown(profile, 1, quoted[2], sizeof(quoted[2])), why, also);
	}
	if (rc < 0) {
		remote_profile_free(profile);
		return rc;
	}
	*ret_profile = profile;
	return 0;
}

void remote_profile_free(struct remote_profile *profile)
{
	if (!profile)
		return;
	for (int i = 0; i < N_FILES; i++) {
		if (profile->texts[i])
			explicit_bzero(profile->texts[i], profile->sizes[i]);
		remote_secret_free(profile->texts[i]);
	}
	for (int i = 0; i < N_FILES; i++)
		free(profile->paths[i]);
	free(profile->name);
	free(profile);
}

static const char *find_any(
        const struct remote_profile *profile, enum remote_profile_file files, const struct place *place)
{
	const char *value = files & REMOTE_PROFILE_CREDENTIALS ? find(profile, 0, place) : NULL;
	return value || !(files & REMOTE_PROFILE_CONFIG) ? value : find(profile, 1, place);
}

const char *remote_profile_value(const struct remote_profile *profile, enum remote_profile_file files, const char *key)
{
	return find_any(profile, files, &(struct place){ .kind = "profile", .name = profile->name, .key = key });
}

const char *remote_profile_nested(const struct remote_profile *profile, const char *key, const char *nested)
{
	return find_any(profile, REMOTE_PROFILE_ANY,
	        &(struct place){ .kind = "profile", .name = profile->name, .key = key, .nested = nested });
}

int remote_profile_service(const struct remote_profile *profile, const char *service, const char *key,
        struct base_err *err, const char **ret_value)
{
	char quoted[3][256];
	struct place place = { .kind = "services",
		.name = remote_profile_value(profile, REMOTE_PROFILE_ANY, "services") };
	*ret_value = NULL;
	if (!place.name)
		return 0;
	if (!find(profile, 1, &place))
		return base_err_set(err, -ENOENT, "profile '%s' has services = %s, and %s has no section [services %s]",
		        base_err_quote(profile->name, quoted[0], sizeof(quoted[0])),
		        base_err_quote(place.name, quoted[1], sizeof(quoted[1])),
		        shown(profile, 1, quoted[2], sizeof(quoted[2])), quoted[1]);
	place.key = service;
	place.nested = key;
	*ret_value = find(profile, 1, &place);
	return 0;
}

void remote_profile_lacks(const struct remote_profile *profile, char text[REMOTE_PROFILE_LACKS_MAX])
{
	char quoted[256];
	size_t len = 0;
	*text = 0;
	if (profile->unreadable)
		len = (size_t)snprintf(text, REMOTE_PROFILE_LACKS_MAX, "; '%s' cannot be read: %s",
		        base_err_quote(profile->unreadable, quoted, sizeof(quoted)), base_err_str(-EACCES));
	for (int i = 0; i < N_FILES && len < REMOTE_PROFILE_LACKS_MAX; i++)
		if (profile->named[i] && profile->paths[i] && !profile->texts[i])
			len += (size_t)snprintf(text + len, REMOTE_PROFILE_LACKS_MAX - len, "; there is no file '%s'",
			        base_err_quote(profile->paths[i], quoted, sizeof(quoted)));
}

bool remote_profile_chosen(const struct remote_profile *profile)
{
	return profile->chosen;
}

const char *remote_profile_name(const struct remote_profile *profile)
{
	return profile->name;
}
