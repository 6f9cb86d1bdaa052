/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes quarantine lists, and finds stand-ins; shard/quarantine.h first. */
#include "shard/quarantine.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/base/list.h"
#include "shard/base/units.h"
#include "shard/remote/store_objects.h"

enum { PATH_SHOWN_MAX = 256 }; /* bytes of a path in a line, for people */
_Static_assert((int)SHARD_QUARANTINE_OBJECT_MAX <= (int)REMOTE_FETCH_MAX, "an answer has room for a list");
static const char first_line[] = "ddpfs quarantine 1";

static const char *const names[] = {
	[SHARD_ON_BAD_EIO] = "eio",
	[SHARD_ON_BAD_SKIP] = "skip",
	[SHARD_ON_BAD_SUBSTITUTE] = "substitute",
};

int shard_on_bad_parse(const char *text, enum shard_on_bad *ret_on_bad)
{
	int i = base_find_name(names, sizeof(names) / sizeof(names[0]), text);
	if (i >= 0)
		*ret_on_bad = (enum shard_on_bad)i;
	return i < 0 ? i : 0;
}

const char *shard_on_bad_name(enum shard_on_bad on_bad)
{
	return names[on_bad];
}

int shard_quarantine_new(uint32_t *samples, size_t n, struct shard_quarantine **ret_list)
{
	size_t kept = 0;
	if (n > 0)
		qsort(samples, n, sizeof(*samples), base_compare_u32);
	for (size_t i = 0; i < n; i++)
		if (kept == 0 || samples[kept - 1] != samples[i])
			samples[kept++] = samples[i];
	if (kept > SHARD_QUARANTINE_MAX)
		return -E2BIG;
	struct shard_quarantine *list = malloc(sizeof(*list) + kept * sizeof(*samples));
	if (!list)
		return -ENOMEM;
	for (size_t i = 0; i < kept; i++)
		list->samples[i] = htole32(samples[i]);
	list->hash = XXH3_64bits(list->samples, kept * sizeof(*samples));
	for (size_t i = 0; i < kept; i++)
		list->samples[i] = samples[i];
	list->n = (uint32_t)kept;
	*ret_list = list;
	return 0;
}

void shard_quarantine_free(struct shard_quarantine *list)
{
	free(list);
}

uint32_t shard_quarantine_below(const uint32_t *numbers, uint32_t n, uint32_t x)
{
	uint32_t low = 0, high = n;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (numbers[middle] < x)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool shard_quarantine_has(const struct shard_quarantine *list, uint32_t sample)
{
	uint32_t at = shard_quarantine_below(list->samples, list->n, sample);
	return at < list->n && list->samples[at] == sample;
}

/* ---- the text ---- */

/* A line of the text, not NUL-terminated. */
struct line {
	const char *text;
	size_t len;
};

/* Takes the next line of a text, without its newline.  A last line without a newline is incomplete and does not
 * count. */
static bool next_line(const char **text, size_t *len, struct line *ret_line)
{
	const char *end = *len > 0 ? memchr(*text, '\n', *len) : NULL;
	if (!end)
		return false;
	*ret_line = (struct line){ .text = *text, .len = (size_t)(end - *text) };
	*len -= ret_line->len + 1;
	*text = end + 1;
	return true;
}

static bool is_text(const struct line *line, const char *text)
{
	return line->len == strlen(text) && memcmp(line->text, text, line->len) == 0;
}

static int check_dataset(const struct line *line, const struct shard_info *info, struct base_err *err)
{
	static const char key[] = "dataset ";
	char here[33];
	if (line->len != strlen(key) + 32 || memcmp(line->text, key, strlen(key)) != 0)
		return base_err_set(err, -EUCLEAN, "line 2 is not 'dataset' and 32 hexadecimal digits");
	base_format_hex(info->identity, 16, here);
	if (memcmp(line->text + strlen(key), here, 32) != 0)
		return base_err_set(err, -ESTALE,
		        "it is of another dataset, whose samples have other numbers; 'mkshard verify --quarantine' "
		        "writes one for "
		        "this dataset");
	return 0;
}

/* Parses the id at the front of a line.  Returns 0 or -EUCLEAN. */
static int parse_id(const struct line *line, uint32_t *ret_id)
{
	uint64_t id = 0;
	size_t i = 0;
	for (; i < line->len && line->text[i] >= '0' && line->text[i] <= '9' && id <= UINT32_MAX; i++)
		id = id * 10 + (uint64_t)(line->text[i] - '0');
	if (i == 0 || id > UINT32_MAX || (i < line->len && line->text[i] != ' ' && line->text[i] != '\t'))
		return -EUCLEAN;
	*ret_id = (uint32_t)id;
	return 0;
}

/* A growing array of sample ids. */
struct ids {
	uint32_t *samples;
	size_t n, room; /* entries in use, and allocated */
};

static int keep_id(struct ids *ids, uint32_t id)
{
	int rc = base_grow(&ids->samples, ids->n, &ids->room, sizeof(*ids->samples));
	if (rc == 0)
		ids->samples[ids->n++] = id;
	return rc;
}

static int parse_ids(const char *text, size_t len, const struct shard_info *info, struct base_err *err, struct ids *ids)
{
	struct line line;
	for (uint64_t number = 3; next_line(&text, &len, &line); number++) {
		uint32_t id;
		if (is_text(&line, "end"))
			return len == 0 ? 0 : base_err_set(err, -EUCLEAN, "there are bytes behind its end");
		if (line.len == 0 || line.text[0] == '#')
			continue;
		if (parse_id(&line, &id) < 0)
			return base_err_set(err, -EUCLEAN,
			        "line %" PRIu64 " does not begin with the number of a sample and a space", number);
		if (id >= info->n_samples)
			return base_err_set(err, -EUCLEAN,
			        "line %" PRIu64 ": sample %" PRIu32 ": the dataset has %" PRIu32, number, id,
			        info->n_samples);
		if (keep_id(ids, id) < 0)
			return base_err_set(err, -ENOMEM, "out of memory");
	}
	return base_err_set(err, -EUCLEAN, "its end is missing: the file is not complete");
}

int shard_quarantine_parse(const char *text, size_t len, const struct shard_info *info, struct base_err *err,
        struct shard_quarantine **ret_list)
{
	struct ids ids = { 0 };
	struct line line;
	if (!next_line(&text, &len, &line) || !is_text(&line, first_line))
		return base_err_set(
		        err, -EUCLEAN, "not a quarantine list of this version: line 1 is not '%s'", first_line);
	if (!next_line(&text, &len, &line))
		line = (struct line){ 0 };
	int rc = check_dataset(&line, info, err);
	if (rc == 0)
		rc = parse_ids(text, len, info, err, &ids);
	if (rc == 0) {
		rc = shard_quarantine_new(ids.samples, ids.n, ret_list);
		if (rc < 0)
			base_err_set(err, rc, rc == -E2BIG ? "over %d samples: copy the dataset anew" : "out of memory",
			        SHARD_QUARANTINE_MAX);
	}
	free(ids.samples);
	return rc;
}

/* Returns a copy of path, or the path of the list in the dataset.  NULL: out of memory. */
static char *list_path(const struct shard_index *index, const char *path)
{
	char *made = NULL;
	if (path)
		return strdup(path);
	return asprintf(&made, "%s/%s", shard_index_dataset(index), SHARD_QUARANTINE_NAME) < 0 ? NULL : made;
}

static int object_too_large(const char *quoted, struct base_err *err)
{
	return base_err_set(err, -EFBIG,
	        "quarantine list '%s': over %d MiB, the most that is read from a store; give a file of this host: "
	        "'mkshard verify --quarantine=FILE' and quarantine=FILE",
	        quoted, SHARD_QUARANTINE_OBJECT_MAX >> 20);
}

int shard_quarantine_read(
        const struct shard_index *index, const char *path, struct base_err *err, struct shard_quarantine **ret_list)
{
	cleanup_free char *at = list_path(index, path);
	cleanup_free char *text = NULL;
	char quoted[512];
	size_t len;
	if (!at)
		return base_err_set(err, -ENOMEM, "out of memory");
	base_err_quote(at, quoted, sizeof(quoted));
	struct remote_store *store = path ? NULL : shard_index_store(index);
	int rc = store ? remote_object_read(store, SHARD_QUARANTINE_NAME, SHARD_QUARANTINE_OBJECT_MAX, err, &text, &len)
	               : base_read_file(at, SHARD_QUARANTINE_BYTES_MAX, &text, &len);
	if (store && rc == -EFBIG)
		return object_too_large(quoted, err);
	if (store && rc < 0 && rc != -ENOENT)
		return rc; /* err has the sentence */
	if (rc == -ENOENT)
		return base_err_set(err, rc,
		        "quarantine list '%s': there is none; 'mkshard verify --quarantine' writes it, empty where all "
		        "is well",
		        quoted);
	if (rc < 0)
		return base_err_set(err, rc, "quarantine list '%s': %s", quoted, base_err_str(rc));
	rc = shard_quarantine_parse(text, len, shard_index_info(index), err, ret_list);
	return rc < 0 && err ? base_err_prefix(err, "quarantine list '%s'", quoted) : rc;
}

static int print_list(FILE *out, const struct shard_index *index, const struct shard_quarantine *list)
{
	char identity[33], path[SHARD_PATH_MAX + 1], quoted[PATH_SHOWN_MAX];
	base_format_hex(shard_index_info(index)->identity, 16, identity);
	fprintf(out, "%s\ndataset %s\n", first_line, identity);
	for (uint32_t i = 0; i < list->n; i++) {
		uint32_t file;
		int rc = shard_index_sample_first(index, list->samples[i], &file);
		if (rc == 0)
			rc = shard_index_file_path(index, file, path, sizeof(path));
		if (rc < 0)
			return rc;
		fprintf(out, "%" PRIu32 " %s\n", list->samples[i], base_err_quote(path, quoted, sizeof(quoted)));
	}
	fprintf(out, "end\n");
	return 0;
}

/* Writes the list to the store of the dataset. */
static int write_object(struct remote_store *store, const char *text, size_t len, struct base_err *err)
{
	cleanup_close int fd = memfd_create("quarantine", MFD_CLOEXEC);
	int rc = fd < 0 ? -errno : base_pwrite_full(fd, text, len, 0);
	if (rc < 0)
		return base_err_set(err, rc, "quarantine list: %s", base_err_str(rc));
	return remote_object_write(store, SHARD_QUARANTINE_NAME, fd, len, err, NULL);
}

int shard_quarantine_write(
        const struct shard_index *index, const struct shard_quarantine *list, const char *path, struct base_err *err)
{
	cleanup_free char *at = list_path(index, path);
	char quoted[512], *text = NULL;
	size_t len = 0;
	FILE *out = at ? open_memstream(&text, &len) : NULL;
	if (!out)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = print_list(out, index, list);
	if (fclose(out) != 0 && rc == 0)
		rc = -ENOMEM;
	struct remote_store *store = path ? NULL : shard_index_store(index);
	if (rc == 0 && store) {
		rc = len > SHARD_QUARANTINE_OBJECT_MAX
		             ? object_too_large(base_err_quote(at, quoted, sizeof(quoted)), err)
		             : write_object(store, text, len, err);
		free(text);
		return rc;
	}
	if (rc == 0)
		rc = base_write_file_atomic(at, text, len, 0644);
	free(text);
	return rc < 0 ? base_err_set(err, rc, "quarantine list '%s': %s", base_err_quote(at, quoted, sizeof(quoted)),
	                        base_err_str(rc))
	              : 0;
}

/* ---- stand-ins ---- */

/* What a stand-in must have in common with its sample. */
struct shape {
	uint32_t dir; /* of the first file */
	uint32_t n_files;
	uint64_t hash; /* over the directories and suffixes of all files */
};

static int add_file(const struct shard_index *index, uint32_t id, struct shape *shape)
{
	struct shard_file file;
	int rc = shard_index_file(index, id, &file);
	if (rc < 0)
		return rc;
	const char *dot = memrchr(file.name, '.', file.name_len);
	size_t len = dot ? file.name_len - (size_t)(dot - file.name) : 0;
	if (shape->n_files++ == 0)
		shape->dir = file.dir;
	shape->hash = XXH3_64bits_withSeed(dot ? dot : "", len, shape->hash ^ (((uint64_t)file.dir << 32) | len));
	return 0;
}

static int shape_of(const struct shard_index *index, uint32_t sample, struct shape *ret_shape)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0;
	struct shape shape = { 0 };
	int rc = shard_index_sample_files(index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = add_file(index, files[i], &shape);
	*ret_shape = shape;
	return rc;
}

/* Finds the first sample of [from, to) that can be the stand-in.  -ENOENT: none before the directory ends. */
static int look(const struct shard_quarantine *list, const struct shard_index *index, const struct shape *wanted,
        uint32_t from, uint32_t to, uint32_t *ret_sample)
{
	for (uint32_t sample = from; sample < to; sample++) {
		struct shape shape;
		int rc = shape_of(index, sample, &shape);
		if (rc < 0)
			return rc;
		if (shape.dir != wanted->dir)
			break;
		if (shape.n_files == wanted->n_files && shape.hash == wanted->hash &&
		        !shard_quarantine_has(list, sample)) {
			*ret_sample = sample;
			return 0;
		}
	}
	return -ENOENT;
}

/* Finds the first sample of a directory, by going back from `sample`. */
static int dir_begin(
        const struct shard_index *index, uint32_t dir, uint32_t first, uint32_t sample, uint32_t *ret_begin)
{
	while (sample > first) {
		struct shape shape;
		int rc = shape_of(index, sample - 1, &shape);
		if (rc < 0)
			return rc;
		if (shape.dir != dir)
			break;
		sample--;
	}
	*ret_begin = sample;
	return 0;
}

static int no_stand_in(const struct shard_index *index, uint32_t sample, int rc, struct base_err *err)
{
	char path[SHARD_PATH_MAX + 1], quoted[512];
	uint32_t file;
	if (shard_index_sample_first(index, sample, &file) < 0 ||
	        shard_index_file_path(index, file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "sample %" PRIu32, sample);
	base_err_quote(path, quoted, sizeof(quoted));
	if (rc == -ENOENT)
		return base_err_set(err, rc,
		        "on_bad=substitute: '%s' is quarantined and no good sample of its directory, with files of the "
		        "same "
		        "suffixes, can stand in for it: use on_bad=skip",
		        quoted);
	return base_err_set(err, rc,
	        "on_bad=substitute: a stand-in for '%s': %s; check the index with 'mkshard verify'", quoted,
	        base_err_str(rc));
}

int shard_quarantine_stand_ins(const struct shard_quarantine *list, const struct shard_index *index, uint32_t first,
        uint32_t end, struct base_err *err, uint32_t *ret_stand_ins)
{
	uint32_t low = shard_quarantine_below(list->samples, list->n, first);
	uint32_t high = shard_quarantine_below(list->samples, list->n, end);
	struct shape after = { 0 }; /* of the next listed sample */
	/* Backwards, because the stand-in of a sample is also that of its bad neighbour before it.  So many bad
	 * neighbours, as in a lost shard, cost one search. */
	for (uint32_t i = high; i > low; i--) {
		uint32_t sample = list->samples[i - 1], begin, found;
		struct shape shape;
		int rc = shape_of(index, sample, &shape);
		if (rc == 0 && i < high && list->samples[i] == sample + 1 && shape.dir == after.dir &&
		        shape.n_files == after.n_files && shape.hash == after.hash) {
			ret_stand_ins[i - 1 - low] = ret_stand_ins[i - low];
			continue;
		}
		after = shape;
		if (rc == 0)
			rc = look(list, index, &shape, sample + 1, end, &found);
		if (rc == -ENOENT) {
			rc = dir_begin(index, shape.dir, first, sample, &begin);
			if (rc == 0)
				rc = look(list, index, &shape, begin, sample, &found);
		}
		if (rc < 0)
			return no_stand_in(index, sample, rc, err);
		ret_stand_ins[i - 1 - low] = found;
	}
	return 0;
}
