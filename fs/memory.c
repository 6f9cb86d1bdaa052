#include "fs/memory.h"

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
	uint64_t limit_bytes; /* what there is at all */
};

static void take_least(uint64_t *bytes, uint64_t other)
{
	if (other < *bytes)
		*bytes = other;
}

/* Under one cgroup directory; free: limit - usage + what the kernel would give back of it at once. */
static void take_limit(
        const char *dir, const char *limit_name, const char *usage_name, const char *cache_key, struct room *room)
{
	char path[PATH_MAX + 64];
	uint64_t limit;
	uint64_t usage;
	uint64_t cache = 0;
	snprintf(path, sizeof(path), "%s/%s", dir, limit_name);
	if (!read_number(path, &limit))
		return;
	take_least(&room->limit_bytes, limit);
	snprintf(path, sizeof(path), "%s/%s", dir, usage_name);
	if (!read_number(path, &usage))
		return;
	cleanup_free char *stat = NULL;
	size_t len;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	if (base_read_file(path, SMALL_FILE, &stat, &len) == 0) {
		char *line = strstr(stat, cache_key);
		if (line && (line == stat || line[-1] == '\n'))
			cache = strtoull(line + strlen(cache_key), NULL, 10);
	}
	uint64_t used = usage > cache ? usage - cache : 0;
	take_least(&room->free_bytes, limit > used ? limit - used : 0);
}

/* A limit may stand on any cgroup above this process's. */
static void walk_up(const char *base, const char *cgroup, const char *limit_name, const char *usage_name,
        const char *cache_key, struct room *room)
{
	char dir[PATH_MAX];
	int n = snprintf(dir, sizeof(dir), "%s%s", base, strcmp(cgroup, "/") == 0 ? "" : cgroup);
	if (n < 0 || n >= (int)sizeof(dir))
		return;
	for (;;) {
		take_limit(dir, limit_name, usage_name, cache_key, room);
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
static void cgroup_limits(const char *root, struct room *room)
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
			walk_up(path, cgroup, "memory.max", "memory.current", "inactive_file ", room);
		} else if (has_controller(controllers, "memory")) {
			snprintf(path, sizeof(path), "%s/sys/fs/cgroup/memory", root);
			walk_up(path, cgroup, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
			        room);
		}
	}
}

static uint64_t meminfo(const char *text, const char *key)
{
	const char *line = strstr(text, key);
	return line ? strtoull(line + strlen(key), NULL, 10) * BASE_KIB : 0;
}

static struct room look(const char *root)
{
	char path[PATH_MAX];
	cleanup_free char *text = NULL;
	size_t len;
	struct room room = { 0 };
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (base_read_file(path, SMALL_FILE, &text, &len) == 0)
		room = (struct room){ meminfo(text, "MemAvailable:"), meminfo(text, "MemTotal:") };
	cgroup_limits(root, &room);
	return room;
}

uint64_t fs_memory_free(const char *root)
{
	return look(root).free_bytes;
}

uint64_t fs_memory_most(const char *root)
{
	uint64_t limit = look(root).limit_bytes;
	if (limit == 0)
		return UINT64_MAX; /* not known */
	return limit > FS_MEMORY_BESIDES + FS_MEMORY_LEAST ? limit - FS_MEMORY_BESIDES : FS_MEMORY_LEAST;
}

uint64_t fs_memory_default(uint32_t others)
{
	uint64_t mounts = (uint64_t)others + 1;
	const char *local = getenv("LOCAL_WORLD_SIZE");
	uint64_t ranks;
	if (local && base_parse_u64(local, UINT32_MAX, &ranks) == 0 && ranks > mounts)
		mounts = ranks;
	uint64_t bytes = fs_memory_free("") / 4 / mounts;
	return bytes > FS_MEMORY_MIN ? bytes : FS_MEMORY_MIN;
}
