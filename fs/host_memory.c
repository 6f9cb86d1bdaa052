/* SPDX-License-Identifier: Apache-2.0 */
/* What host and cgroups leave free, and how mounts share it; fs/host_memory.h first. */
#include "fs/host_memory.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/units.h"

enum { SMALL_FILE = 1 << 16 };

static bool read_number(const char *path, uint64_t *ret_value)
{
	cleanup_free char *text = NULL;
	size_t len;
	char *end;
	if (base_read_file(path, SMALL_FILE, &text, &len) < 0 || !isdigit((unsigned char)text[0]))
		return false; /* no such file, or "max" */
	*ret_value = strtoull(text, &end, 10);
	return true;
}

struct room {
	uint64_t free_bytes;
	uint64_t limit_bytes; /* all that there is */
};

static void take_least(uint64_t *bytes, uint64_t other)
{
	if (other < *bytes)
		*bytes = other;
}

/* The names of one version of the memory controller. */
struct controller {
	const char *limit, *usage;
	const char *inactive_file, *active_file; /* keys of memory.stat */
	const char *slab;                        /* a key of memory.stat; NULL: there is none, but ... */
	const char *kernel;                      /* ... a file: all that the kernel needs for itself */
};
static const struct controller v1 = {
	.limit = "memory.limit_in_bytes",
	.usage = "memory.usage_in_bytes",
	.inactive_file = "total_inactive_file",
	.active_file = "total_active_file",
	.kernel = "memory.kmem.usage_in_bytes",
};
static const struct controller v2 = {
	.limit = "memory.max",
	.usage = "memory.current",
	.inactive_file = "inactive_file",
	.active_file = "active_file",
	.slab = "slab_reclaimable",
};

/* Returns the value of a line "KEY VALUE"; 0 if there is none. */
static uint64_t stat_value(const char *text, const char *key)
{
	size_t len = strlen(key);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, len) == 0 && line[len] == ' ')
			return strtoull(line + len, NULL, 10);
	}
	return 0;
}

/* Returns the bytes of inodes and names, or more: what the kernel needs besides them. */
static uint64_t slab_bytes(const char *dir, const struct controller *names, const char *stat)
{
	char path[PATH_MAX + 64];
	uint64_t bytes;
	if (names->slab)
		return stat_value(stat, names->slab);
	snprintf(path, sizeof(path), "%s/%s", dir, names->kernel);
	return read_number(path, &bytes) ? bytes : 0;
}

/* Applies the limit of one cgroup directory. Free is the limit less the usage, plus what the kernel would give back
 * at once: inactive file pages, and what is the caller's own: file pages, active or not, inodes and names. */
static void take_limit(const char *dir, const struct controller *names, uint64_t own_bytes, struct room *room)
{
	char path[PATH_MAX + 64];
	uint64_t limit;
	uint64_t usage;
	uint64_t cache = 0;
	snprintf(path, sizeof(path), "%s/%s", dir, names->limit);
	if (!read_number(path, &limit))
		return;
	take_least(&room->limit_bytes, limit);
	snprintf(path, sizeof(path), "%s/%s", dir, names->usage);
	if (!read_number(path, &usage))
		return;
	cleanup_free char *stat = NULL;
	size_t len;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	if (base_read_file(path, SMALL_FILE, &stat, &len) == 0) {
		uint64_t most = stat_value(stat, names->active_file) + slab_bytes(dir, names, stat);
		cache = stat_value(stat, names->inactive_file) + (own_bytes < most ? own_bytes : most);
	}
	uint64_t used = usage > cache ? usage - cache : 0;
	take_least(&room->free_bytes, limit > used ? limit - used : 0);
}

/* Any cgroup above this process's can have a limit. */
static void walk_up(
        const char *base, const char *cgroup, const struct controller *names, uint64_t own_bytes, struct room *room)
{
	char dir[PATH_MAX];
	int n = snprintf(dir, sizeof(dir), "%s%s", base, strcmp(cgroup, "/") == 0 ? "" : cgroup);
	if (n < 0 || n >= (int)sizeof(dir))
		return;
	for (;;) {
		take_limit(dir, names, own_bytes, room);
		char *slash = strrchr(dir, '/');
		if (!slash || strlen(dir) <= strlen(base))
			return;
		*slash = '\0';
	}
}

static bool has_controller(const char *list, const char *name)
{
	size_t len = strlen(name);
	for (const char *at = list; (at = strstr(at, name)); at += len)
		if ((at == list || at[-1] == ',') && (at[len] == '\0' || at[len] == ','))
			return true;
	return false;
}

/* Lines "hierarchy:controllers:path"; v2 is "0::path". */
static void cgroup_limits(const char *root, uint64_t own_bytes, struct room *room)
{
	char path[PATH_MAX];
	cleanup_free char *text = NULL;
	size_t len;
	char *save;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	if (base_read_file(path, SMALL_FILE, &text, &len) < 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':');
		char *cgroup = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!cgroup)
			continue;
		*cgroup++ = '\0';
		controllers++;
		if (*controllers == '\0') {
			snprintf(path, sizeof(path), "%s/sys/fs/cgroup", root);
			walk_up(path, cgroup, &v2, own_bytes, room);
		} else if (has_controller(controllers, "memory")) {
			snprintf(path, sizeof(path), "%s/sys/fs/cgroup/memory", root);
			walk_up(path, cgroup, &v1, own_bytes, room);
		}
	}
}

static uint64_t meminfo(const char *text, const char *key)
{
	const char *line = strstr(text, key);
	return line ? strtoull(line + strlen(key), NULL, 10) * BASE_KIB : 0;
}

static struct room look(const char *root, uint64_t own_bytes)
{
	char path[PATH_MAX];
	cleanup_free char *text = NULL;
	size_t len;
	struct room room = { 0 };
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (base_read_file(path, SMALL_FILE, &text, &len) == 0)
		room = (struct room){ meminfo(text, "MemAvailable:"), meminfo(text, "MemTotal:") };
	cgroup_limits(root, own_bytes, &room);
	return room;
}

uint64_t fs_memory_free(const char *root, uint64_t own_bytes)
{
	return look(root, own_bytes).free_bytes;
}

uint64_t fs_memory_most(const char *root)
{
	uint64_t limit = look(root, 0).limit_bytes;
	if (limit == 0)
		return UINT64_MAX; /* the limit is not known */
	return limit > FS_MEMORY_BESIDES + FS_MEMORY_LEAST ? limit - FS_MEMORY_BESIDES : FS_MEMORY_LEAST;
}

uint64_t fs_memory_share(uint64_t room_bytes, const struct fs_memory_claim *claims, size_t n)
{
	size_t left = 0;
	if (claims[0].fixed)
		return claims[0].want_bytes;
	for (size_t i = 0; i < n; i++) {
		if (!claims[i].fixed)
			left++;
		else
			room_bytes -= claims[i].want_bytes < room_bytes ? claims[i].want_bytes : room_bytes;
	}
	/* Who wants less than an equal part leaves the rest to the others, whose part grows. The loop ends when no
	 * more claims fit. */
	for (uint64_t part = room_bytes / left, below = 0;;) {
		size_t more = 0;
		uint64_t taken = 0;
		for (size_t i = 0; i < n; i++) {
			if (claims[i].fixed || claims[i].want_bytes > part)
				continue;
			more++;
			taken += claims[i].want_bytes;
		}
		if (claims[0].want_bytes <= part)
			return claims[0].want_bytes;
		if (more == below)
			return part;
		below = more;
		part = (room_bytes - taken) / (left - more);
	}
}
