/* SPDX-License-Identifier: Apache-2.0 */
/* Reads .ddpfs/stats.json and .ddpfs/state of a mount; mounted.h first. */
#include "gpu_stage/mounted.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"

enum { FILE_MAX = 1 << 20 };

bool stage_mounted_is(const char *path)
{
	return getxattr(path, "user.ddpfs.view", NULL, 0) > 0;
}

bool stage_mounted_ranks(const char *path, char ret_rank[PATH_MAX])
{
	cleanup_closedir DIR *dir = opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "rank", 4) == 0 &&
		        snprintf(ret_rank, PATH_MAX, "%s/%s", path, entry->d_name) < PATH_MAX)
			return stage_mounted_is(ret_rank); /* such a root lists nothing else */
	}
	return false;
}

static int read_below(const char *root, const char *name, struct base_err *err, char **ret_text)
{
	char path[PATH_MAX];
	size_t len;
	int n = snprintf(path, sizeof(path), "%s/.ddpfs/%s", root, name);
	int rc = n < (int)sizeof(path) ? base_read_file(path, FILE_MAX, ret_text, &len) : -ENAMETOOLONG;
	return rc < 0 ? base_err_set(err, rc, "'%s': %s", base_quoted(path), base_err_str(rc)) : 0;
}

static int read_stats(const char *text, struct stage_mounted *m)
{
	json_t *stats = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL); /* padding follows the JSON */
	const char *dataset = json_string_value(json_object_get(stats, "dataset"));
	const char *index = json_string_value(json_object_get(stats, "index"));
	const char *control = json_string_value(json_object_get(stats, "control"));
	json_int_t rank = json_integer_value(json_object_get(stats, "rank"));
	json_int_t world = json_integer_value(json_object_get(stats, "world"));
	int rc = -EUCLEAN;
	if (dataset && dataset[0] && world > 0 && world <= UINT32_MAX && rank >= 0 && rank < world) {
		m->dataset = strdup(dataset);
		m->index = index ? strdup(index) : NULL;
		m->rank = (uint32_t)rank;
		m->world = (uint32_t)world;
		m->several = json_object_get(stats, "ranks") != NULL;
		m->control = control ? strdup(control) : NULL;
		rc = m->dataset && (m->index || !index) && (m->control || !control) ? 0 : -ENOMEM;
	}
	json_decref(stats);
	return rc;
}

int stage_mounted_read(const char *path, struct base_err *err, struct stage_mounted *ret_mounted)
{
	struct stage_mounted m = { 0 };
	cleanup_free char *stats = NULL;
	int rc = read_below(path, "stats.json", err, &stats);
	if (rc == 0) {
		rc = read_stats(stats, &m);
		if (rc < 0)
			base_err_set(err, rc, "'%s': its .ddpfs/stats.json is not that of a mount of this version",
			        base_quoted(path));
	}
	if (rc == 0)
		rc = read_below(path, "state", err, &m.state);
	if (rc < 0)
		stage_mounted_done(&m);
	else
		*ret_mounted = m;
	return rc;
}

void stage_mounted_done(struct stage_mounted *mounted)
{
	free(mounted->dataset);
	free(mounted->index);
	free(mounted->state);
	free(mounted->control);
	*mounted = (struct stage_mounted){ 0 };
}
