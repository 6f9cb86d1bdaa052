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

enum { FILE_MAX_BYTES = 1 << 20, N_FILES = 2, PASSWD_MAX_BYTES = 16384 };

struct remote_profile {
	char *name;
	char *texts[N_FILES];  /* of the credentials file and the config file; lines end in NUL; NULL: no such file */
	size_t sizes[N_FILES]; /* bytes of texts */
	bool found[N_FILES];   /* the file has the profile */
	bool chosen;           /* remote_profile_chosen */
};

/* Returns the first of two variables that is set, or NULL. */
static const char *either(const char *first, const char *second)
{
	const char *value = first ? getenv(first) : NULL;
	if (!value || !*value)
		value = getenv(second);
	return value && *value ? value : NULL;
}

/* Returns "HOME/.aws/FILE", which the caller frees; NULL: there is no home, or no memory. */
static char *path_at_home(const char *file)
{
	char room[PASSWD_MAX_BYTES];
	struct passwd entry, *found = NULL;
	const char *home = getenv("HOME");
	char *path = NULL;
	/* systemd starts mounts of /etc/fstab without HOME. */
	if ((!home || !*home) && getpwuid_r(geteuid(), &entry, room, sizeof(room), &found) == 0 && found)
		home = found->pw_dir;
	return home && *home && asprintf(&path, "%s/.aws/%s", home, file) >= 0 ? path : NULL;
}

static int read_text(const char *path, struct base_err *err, char **ret_text, size_t *ret_size)
{
	char quoted[512];
	char *text = NULL;
	size_t size = 0;
	int rc = base_read_file(path, FILE_MAX_BYTES, &text, &size);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return 0;
	if (rc < 0)
		return base_err_set(err, rc, "%s: cannot read it: %s", base_err_quote(path, quoted, sizeof(quoted)),
		        base_err_str(rc));
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

/* Returns whether a line "[...]" opens the section of a profile. */
static bool opens_section(const char *line, const char *name, bool config)
{
	char section[256];
	if (sscanf(line, "[%255[^]]", section) != 1)
		return false;
	char *at = trim(section);
	if (config && strncmp(at, "profile", 7) == 0 && isspace((unsigned char)at[7]))
		at = trim(at + 7);
	else if (config && strcmp(at, "default") != 0)
		return false;
	return strcmp(at, name) == 0;
}

/* Visits the lines "key = value" of the profile.  Returns the value of key, or NULL.  key NULL: returns a text when the
 * section exists. */
static const char *find(const struct remote_profile *profile, int file, const char *key)
{
	const char *text = profile->texts[file];
	const char *found = NULL;
	bool inside = false;
	for (size_t at = 0; text && at < profile->sizes[file]; at += strlen(text + at) + 1) {
		const char *line = text + at;
		if (line[0] == '[') {
			inside = opens_section(line, profile->name, file == 1);
			if (inside && !key)
				return line;
		}
		if (!inside || !key || !*line || strchr("[#; \t", line[0]))
			continue;
		size_t len = strcspn(line, " \t=");
		const char *value = line + len + strspn(line + len, " \t");
		if (*value == '=' && len == strlen(key) && strncasecmp(line, key, len) == 0)
			found = value + 1 + strspn(value + 1, " \t"); /* the last one counts */
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

int remote_profile_read(struct base_err *err, struct remote_profile **ret_profile)
{
	static const struct {
		const char *own, *variable, *file;
	} files[N_FILES] = { { "DDPFS_S3_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "credentials" },
		{ NULL, "AWS_CONFIG_FILE", "config" } };
	const char *name = either("DDPFS_S3_PROFILE", "AWS_PROFILE");
	struct remote_profile *profile = calloc(1, sizeof(*profile));
	if (!profile || !(profile->name = strdup(name ? name : "default"))) {
		free(profile);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	const char *file = getenv("DDPFS_S3_CREDENTIALS"), *own = getenv("DDPFS_S3_PROFILE");
	profile->chosen = (file && *file) || (own && *own);
	int rc = 0;
	for (int i = 0; i < N_FILES && rc == 0; i++) {
		const char *set = either(files[i].own, files[i].variable);
		cleanup_free char *path = set ? strdup(set) : path_at_home(files[i].file);
		if (path)
			rc = read_text(path, err, &profile->texts[i], &profile->sizes[i]);
		if (rc == 0 && profile->texts[i]) {
			trim_lines(profile->texts[i], profile->sizes[i]);
			profile->found[i] = find(profile, i, NULL) != NULL;
		}
	}
	if (rc == 0 && (name || profile->chosen) && !profile->found[0] && !profile->found[1]) {
		char quoted[2][256];
		const char *first = file && *file ? file : "~/.aws/credentials";
		rc = base_err_set(err, -ENOENT, "profile '%s': neither %s nor ~/.aws/config has it%s",
		        base_err_quote(profile->name, quoted[0], sizeof(quoted[0])),
		        base_err_quote(first, quoted[1], sizeof(quoted[1])),
		        own && *own ? " (s3_profile)"
		        : name      ? " (AWS_PROFILE)"
		                    : " (s3_credentials)");
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
		free(profile->texts[i]);
	}
	free(profile->name);
	free(profile);
}

const char *remote_profile_value(const struct remote_profile *profile, enum remote_profile_file files, const char *key)
{
	const char *value = files & REMOTE_PROFILE_CREDENTIALS ? find(profile, 0, key) : NULL;
	return value || !(files & REMOTE_PROFILE_CONFIG) ? value : find(profile, 1, key);
}

bool remote_profile_chosen(const struct remote_profile *profile)
{
	return profile->chosen;
}

const char *remote_profile_name(const struct remote_profile *profile)
{
	return profile->name;
}
