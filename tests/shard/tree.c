/* SPDX-License-Identifier: Apache-2.0 */
/* Makes random trees, and says what an index of them must hold; tests/shard/tree.h first. */
#include "tests/shard/tree.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/base/io.h"

uint64_t tree_rand(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* Names that sort differently as whole paths than by components ('-' and '.' come before '/'), in UTF-8 and out of
 * it. */
static const char *const stems[] = { "a", "a-", "a.b", "ab", "B", "b", "0", "10", "2", "\xc3\xa9",
	"\xe6\xbc\xa2\xe5\xad\x97", "\xf0\x9f\x90\xb1", "with space", "\xff\xfe", "~", "!", "...", ".hidden",
	"new\nline", "a\\b" };

static void random_name(uint64_t *rng, bool dir, uint32_t unique, char *ret_name)
{
	char text[SHARD_NAME_MAX + 1];
	const char *stem = stems[tree_rand(rng) % (sizeof stems / sizeof stems[0])];
	/* files carry a number, directories never do: no path is both */
	int len = dir ? snprintf(text, sizeof text, "%s", stem) : snprintf(text, sizeof text, "%s=%u", stem, unique);
	if (tree_rand(rng) % 16 == 0) { /* long ones, up to the limit */
		size_t want = 200 + tree_rand(rng) % (SHARD_NAME_MAX - 199);
		char filled[SHARD_NAME_MAX + 1];
		memset(filled, 'L', want);
		memcpy(filled + want - (size_t)len, text, (size_t)len);
		filled[want] = '\0';
		memcpy(text, filled, want + 1);
	}
	strcpy(ret_name, text);
}

/* A directory: "", one made before, or a new one below one made before. */
static void random_dir(uint64_t *rng, char **known, uint32_t *n_known, char *ret_path)
{
	const char *base = known[tree_rand(rng) % *n_known];
	strcpy(ret_path, base);
	unsigned deeper = tree_rand(rng) % 64 == 0 ? 40 : tree_rand(rng) % 4 == 0;
	for (unsigned i = 0; i < deeper; i++) {
		char name[SHARD_NAME_MAX + 1];
		random_name(rng, true, 0, name);
		size_t len = strlen(ret_path);
		unsigned depth = 1;
		for (const char *s = ret_path; *s; s++)
			depth += *s == '/';
		if (len + strlen(name) + 2 * SHARD_NAME_MAX > SHARD_PATH_MAX || depth >= SHARD_DEPTH_MAX - 1)
			break;
		sprintf(ret_path + len, "%s%s", len ? "/" : "", name);
	}
	if (*n_known < 256)
		known[(*n_known)++] = strdup(ret_path);
}

/* ImageFolder's order: names by bytes, a directory's files before its subdirectories. */
static int compare_paths(const char *a, const char *b)
{
	for (;;) {
		const char *a_end = strchrnul(a, '/'), *b_end = strchrnul(b, '/');
		bool a_dir = *a_end, b_dir = *b_end;
		if (a_dir != b_dir)
			return a_dir ? 1 : -1;
		size_t a_len = (size_t)(a_end - a), b_len = (size_t)(b_end - b);
		int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
		if (c == 0)
			c = (a_len > b_len) - (a_len < b_len);
		if (c || !a_dir)
			return c;
		a = a_end + 1;
		b = b_end + 1;
	}
}

static int compare_file_ids(const void *pa, const void *pb, void *arg)
{
	const struct tree *t = arg;
	return compare_paths(t->files[*(const uint32_t *)pa].path, t->files[*(const uint32_t *)pb].path);
}

/* Directories in pre-order: their paths with a slash at the end of each component compare by components. */
static int compare_dirs(const void *pa, const void *pb)
{
	const char *a = ((const struct tree_dir *)pa)->path, *b = ((const struct tree_dir *)pb)->path;
	if (!*a || !*b)
		return (*a != 0) - (*b != 0);
	for (;;) {
		const char *a_end = strchrnul(a, '/'), *b_end = strchrnul(b, '/');
		size_t a_len = (size_t)(a_end - a), b_len = (size_t)(b_end - b);
		int c = memcmp(a, b, a_len < b_len ? a_len : b_len);
		if (c == 0)
			c = (a_len > b_len) - (a_len < b_len);
		if (c)
			return c;
		if (!*a_end || !*b_end)
			return (*a_end != 0) - (*b_end != 0);
		a = a_end + 1;
		b = b_end + 1;
	}
}

static struct tree_dir *add_dir(struct tree *t, const char *path, size_t len)
{
	for (uint32_t i = 0; i < t->n_dirs; i++)
		if (strlen(t->dirs[i].path) == len && memcmp(t->dirs[i].path, path, len) == 0)
			return &t->dirs[i];
	t->dirs = realloc(t->dirs, (t->n_dirs + 1) * sizeof *t->dirs);
	t->dirs[t->n_dirs] = (struct tree_dir){ .path = strndup(path, len), .mode = 0755 };
	return &t->dirs[t->n_dirs++];
}

static void add_parents(struct tree *t, const char *path)
{
	for (const char *s = strchr(path, '/'); s; s = strchr(s + 1, '/'))
		add_dir(t, path, (size_t)(s - path));
}

static bool below(const char *path, const char *dir)
{
	size_t n = strlen(dir);
	return n == 0 || (strncmp(path, dir, n) == 0 && path[n] == '/');
}

/* A directory nobody declared: the newest file below, else the newest of its children. */
static void model_dir_times(struct tree *t)
{
	for (uint32_t i = t->n_dirs; i-- > 0;) {
		struct tree_dir *d = &t->dirs[i];
		if (d->declared)
			continue;
		bool any = false;
		for (uint32_t f = 0; f < t->n_files; f++) {
			if (below(t->files[f].path, d->path) && (!any || t->files[f].mtime_s > d->mtime_s)) {
				d->mtime_s = t->files[f].mtime_s;
				any = true;
			}
		}
		bool any_dir = false;
		for (uint32_t c = i + 1; !any && c < t->n_dirs; c++) {
			if (below(t->dirs[c].path, d->path) && *t->dirs[c].path &&
			        !strchr(t->dirs[c].path + strlen(d->path) + (*d->path != 0), '/') &&
			        (!any_dir || t->dirs[c].mtime_s > d->mtime_s)) {
				d->mtime_s = t->dirs[c].mtime_s;
				any_dir = true;
			}
		}
	}
}

static bool stored_before(const struct tree_file *a, const struct tree_file *b)
{
	return a->shard < b->shard || (a->shard == b->shard && a->offset < b->offset);
}

static void model_ids(struct tree *t)
{
	t->by_id = calloc(t->n_files + 1, sizeof *t->by_id);
	for (uint32_t i = 0; i < t->n_files; i++)
		t->by_id[i] = i;
	qsort_r(t->by_id, t->n_files, sizeof *t->by_id, compare_file_ids, t);
	qsort(t->dirs, t->n_dirs, sizeof *t->dirs, compare_dirs);
	for (uint32_t id = 0; id < t->n_files; id++) {
		struct tree_file *f = &t->files[t->by_id[id]];
		f->id = id;
		f->sample = f->slot = SHARD_NONE;
		for (uint32_t before = 0; before < id && f->group && !f->common; before++) {
			const struct tree_file *g = &t->files[t->by_id[before]];
			if (g->group && !g->common && strcmp(g->group, f->group) == 0) {
				f->sample = g->sample;
				t->grouped = true;
			}
		}
		if (!f->common && f->sample == SHARD_NONE)
			f->sample = t->n_samples++;
	}
}

/* slot of a sample = number of samples stored before it */
static void model_slots(struct tree *t)
{
	struct tree_file **first = calloc(t->n_samples + 1, sizeof(void *));
	for (uint32_t i = 0; i < t->n_files; i++) {
		struct tree_file *f = &t->files[i];
		if (f->sample != SHARD_NONE && (!first[f->sample] || stored_before(f, first[f->sample])))
			first[f->sample] = f;
	}
	for (uint32_t i = 0; i < t->n_files; i++) {
		uint32_t s = t->files[i].sample, slot = 0;
		for (uint32_t o = 0; s != SHARD_NONE && o < t->n_samples; o++)
			slot += stored_before(first[o], first[s]) || (o < s && !stored_before(first[s], first[o]));
		if (s != SHARD_NONE)
			t->files[i].slot = slot;
	}
	free(first);
}

static void random_file(uint64_t *rng, const struct tree_options *o, struct tree *t, const char *dir, uint32_t number)
{
	struct tree_file *f = &t->files[number];
	char name[SHARD_NAME_MAX + 1], path[SHARD_PATH_MAX + SHARD_NAME_MAX + 3];
	random_name(rng, false, number, name);
	snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", name);
	*f = (struct tree_file){
		.path = strdup(path),
		.length = tree_rand(rng) % 8 == 0 ? 0 : tree_rand(rng) % 70000,
		.xxh3 = tree_rand(rng),
		.mtime_s = (int64_t)(tree_rand(rng) % (UINT64_C(1) << 34)) - (INT64_C(1) << 33),
		.mode = (uint32_t)tree_rand(rng) & 07777,
		.shard = (uint32_t)(tree_rand(rng) % t->n_shards),
		.common = o->commons && tree_rand(rng) % 8 == 0,
	};
	if (o->groups && tree_rand(rng) % 2) {
		char group[32];
		snprintf(group, sizeof group, "g%u", (unsigned)(tree_rand(rng) % (o->n_files / 3 + 1)));
		f->group = strdup(group);
	}
	if (o->big && tree_rand(rng) % 8 == 0) {
		f->length = SHARD_BLOCK + tree_rand(rng) % (4 * SHARD_BLOCK);
		size_t n = shard_units(f->length, SHARD_BLOCK);
		f->sums = calloc(n, sizeof *f->sums);
		for (size_t i = 0; i < n && f->length > SHARD_BLOCK; i++)
			f->sums[i] = tree_rand(rng);
	}
}

void tree_random(const struct tree_options *o, struct tree *ret_tree)
{
	uint64_t rng = o->seed * 1000003 + 17;
	struct tree t = { .n_files = (uint32_t)(tree_rand(&rng) % (o->n_files + 1)) };
	if (o->exact)
		t.n_files = o->n_files;
	char *known[256] = { strdup("") };
	uint32_t n_known = 1;

	t.n_shards = 1 + (uint32_t)(tree_rand(&rng) % 8);
	t.files = calloc(t.n_files + 1, sizeof *t.files);
	add_dir(&t, "", 0);
	for (uint32_t i = 0; i < t.n_files; i++) {
		char dir[SHARD_PATH_MAX + 1];
		random_dir(&rng, known, &n_known, dir);
		random_file(&rng, o, &t, dir, i);
		add_parents(&t, t.files[i].path);
	}
	/* places: behind one another in each shard, in the order of adding; bare ones touch, so empty files share a
	 * place */
	for (uint32_t i = 0; i < t.n_files; i++) {
		struct tree_file *f = &t.files[i];
		f->offset = t.shard_bytes[f->shard];
		t.shard_bytes[f->shard] += f->length + (f->shard % 2 ? 512 : 0);
	}
	/* declared directories: some that hold files, some that hold nothing */
	for (unsigned i = tree_rand(&rng) % 6; i > 0; i--) {
		char dir[SHARD_PATH_MAX + 1];
		random_dir(&rng, known, &n_known, dir);
		if (tree_rand(&rng) % 2 && *dir)
			strcat(dir, "/empty");
		add_parents(&t, dir);
		struct tree_dir *d = add_dir(&t, dir, strlen(dir));
		d->declared = true;
		d->mode = (uint32_t)tree_rand(&rng) & 01777;
		d->mtime_s = (int64_t)(tree_rand(&rng) % 2000000000);
	}
	for (uint32_t i = 0; i < n_known; i++)
		free(known[i]);
	model_ids(&t);
	model_slots(&t);
	model_dir_times(&t);
	*ret_tree = t;
}

void tree_done(struct tree *t)
{
	for (uint32_t i = 0; i < t->n_files; i++) {
		free(t->files[i].path);
		free(t->files[i].group);
		free(t->files[i].sums);
	}
	for (uint32_t i = 0; i < t->n_dirs; i++)
		free(t->dirs[i].path);
	free(t->files);
	free(t->dirs);
	free(t->by_id);
}

void tree_build(const struct tree *t, const uint32_t *order, bool shuffled, const char *path)
{
	struct shard_builder *b;
	struct base_err err = { 0 };
	assert_int_equal(shard_builder_new(&b), 0);
	for (uint32_t i = 0; i < t->n_shards; i++) {
		char name[32];
		snprintf(name, sizeof name, "shard-%06u.tar", i);
		assert_int_equal(shard_builder_add_shard(
		                         b, name, i % 2 ? SHARD_TAR : SHARD_BARE, t->shard_bytes[i], i * 1000, &err),
		        0);
	}
	for (uint32_t i = 0; i < t->n_files; i++) {
		const struct tree_file *f = &t->files[order ? order[i] : i];
		struct shard_build_file file = { .path = f->path,
			.shard = f->shard,
			.offset = f->offset,
			.length = f->length,
			.xxh3 = f->xxh3,
			.block_sums = f->sums,
			.mtime_s = f->mtime_s,
			.mode = f->mode,
			.common = f->common,
			.group = f->group };
		if (shard_builder_add_file(b, &file, &err) < 0)
			fail_msg("%s", err.text);
	}
	for (uint32_t i = 0; i < t->n_dirs; i++)
		if (t->dirs[i].declared &&
		        shard_builder_add_dir(b, t->dirs[i].path, t->dirs[i].mode, t->dirs[i].mtime_s, &err) < 0)
			fail_msg("%s", err.text);
	if (shard_builder_finish(b, path, shuffled, 12345, &err) < 0)
		fail_msg("%s", err.text);
	shard_builder_free(b);
}

uint8_t *tree_read(const char *path, size_t *ret_len)
{
	char *buf;
	if (base_read_file(path, SIZE_MAX / 2, &buf, ret_len) < 0)
		fail_msg("cannot read %s", path);
	return (uint8_t *)buf;
}

/* Scratch directories that a failed test left: removed at exit. */
static char *scratches[64];

static void remove_scratches(void)
{
	for (size_t i = 0; i < sizeof scratches / sizeof scratches[0]; i++) {
		char command[4200];
		if (!scratches[i])
			continue;
		snprintf(command, sizeof command, "rm -rf '%s'", scratches[i]);
		if (system(command) != 0)
			fprintf(stderr, "left behind: %s\n", scratches[i]);
		free(scratches[i]);
	}
}

char *tree_scratch(void)
{
	const char *tmp = getenv("TMPDIR");
	static bool registered;
	char *dir;
	if (asprintf(&dir, "%s/ddpfs-test.XXXXXX", tmp ? tmp : "/tmp") < 0 || !mkdtemp(dir))
		fail_msg("no scratch directory");
	if (!registered)
		atexit(remove_scratches);
	registered = true;
	for (size_t i = 0; i < sizeof scratches / sizeof scratches[0]; i++) {
		if (!scratches[i]) {
			scratches[i] = strdup(dir);
			break;
		}
	}
	return dir;
}

void tree_scratch_done(char *dir)
{
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		char path[4096 + 300];
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		unlink(path);
	}
	if (d)
		closedir(d);
	rmdir(dir);
	for (size_t i = 0; i < sizeof scratches / sizeof scratches[0]; i++) {
		if (scratches[i] && strcmp(scratches[i], dir) == 0) {
			free(scratches[i]);
			scratches[i] = NULL;
		}
	}
	free(dir);
}
