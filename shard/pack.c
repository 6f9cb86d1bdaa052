/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a packing: sorts items, makes samples, shuffles, cuts shards; shard/pack.h first. */
#include "shard/pack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* needed for a state on the stack */
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/tar.h"

enum {
	TAR_TRAILER = 2 * SHARD_TAR_BLOCK, /* the two zero blocks that end an archive */
};

int shard_pack_compare(const char *a, bool a_dir, const char *b, bool b_dir)
{
	size_t i = 0;
	while (a[i] && a[i] == b[i])
		i++;
	if (!a[i] && !b[i])
		return (int)a_dir - (int)b_dir;
	/* The first component that differs.  If it is the last one of a file's path, that path comes before a
	 * directory. */
	size_t start = i;
	while (start > 0 && a[start - 1] != '/')
		start--;
	const char *a_slash = strchr(a + start, '/'), *b_slash = strchr(b + start, '/');
	bool a_sub = a_slash || a_dir, b_sub = b_slash || b_dir;
	if (a_sub != b_sub)
		return a_sub ? 1 : -1;
	size_t a_len = a_slash ? (size_t)(a_slash - (a + start)) : strlen(a + start);
	size_t b_len = b_slash ? (size_t)(b_slash - (b + start)) : strlen(b + start);
	int order = memcmp(a + start, b + start, a_len < b_len ? a_len : b_len);
	if (order)
		return order;
	if (a_len != b_len)
		return a_len < b_len ? -1 : 1;
	return a_slash ? 1 : -1; /* a directory comes before its contents */
}

static int compare_items(const void *pa, const void *pb)
{
	const struct shard_pack_item *a = pa, *b = pb;
	int order = shard_pack_compare(a->path, a->directory, b->path, b->directory);
	if (order)
		return order;
	if (a->source != b->source)
		return a->source < b->source ? -1 : 1;
	return a->source_offset < b->source_offset ? -1 : a->source_offset > b->source_offset;
}

int shard_pack_normalise(char *path, struct base_err *err)
{
	char quoted[512];
	if (path[0] == '/')
		return base_err_set(
		        err, -EINVAL, "'%s': an absolute name", base_err_quote(path, quoted, sizeof(quoted)));
	char *out = path;
	const char *in = path;
	while (*in) {
		const char *end = strchrnul(in, '/');
		size_t len = (size_t)(end - in);
		if (len == 2 && in[0] == '.' && in[1] == '.')
			return base_err_set(
			        err, -EINVAL, "'%s': '..' in a name", base_err_quote(path, quoted, sizeof(quoted)));
		if (len > SHARD_NAME_MAX)
			return base_err_set(err, -ENAMETOOLONG, "'%s': a name over %d bytes",
			        base_err_quote(in, quoted, sizeof(quoted)), SHARD_NAME_MAX);
		if (len > 0 && !(len == 1 && in[0] == '.')) {
			if (out != path)
				*out++ = '/';
			memmove(out, in, len);
			out += len;
		}
		in = *end ? end + 1 : end;
	}
	*out = '\0';
	if (out - path > SHARD_PATH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "'%s': a path over %d bytes",
		        base_err_quote(path, quoted, sizeof(quoted)), SHARD_PATH_MAX);
	return 0;
}

const char *shard_pack_shard_name(uint32_t shard, enum shard_container container, char buf[static 32])
{
	snprintf(buf, 32, "shard-%06u.%s", shard, container == SHARD_BARE ? "bare" : "tar");
	return buf;
}

/* ---- items ---- */

static uint64_t path_hash(const char *path, size_t len)
{
	return XXH3_64bits(path, len);
}

/* A hash table of files: path -> item number, by open addressing. */
struct table {
	uint32_t *cells; /* item number; SHARD_NONE = empty; owned */
	uint64_t mask;   /* number of cells - 1 */
};

static int table_init(struct table *table, const struct shard_pack_item *items, uint64_t n_items)
{
	uint64_t buckets = 16;
	while (buckets < n_items * 2)
		buckets *= 2;
	table->cells = malloc(buckets * sizeof(*table->cells));
	if (!table->cells)
		return -ENOMEM;
	memset(table->cells, 0xff, buckets * sizeof(*table->cells));
	table->mask = buckets - 1;
	for (uint64_t i = 0; i < n_items; i++) {
		if (items[i].directory)
			continue;
		uint64_t at = path_hash(items[i].path, strlen(items[i].path)) & table->mask;
		while (table->cells[at] != SHARD_NONE)
			at = (at + 1) & table->mask;
		table->cells[at] = (uint32_t)i;
	}
	return 0;
}

static struct shard_pack_item *table_find(
        const struct table *table, struct shard_pack_item *items, const char *path, size_t len)
{
	uint64_t at = path_hash(path, len) & table->mask;
	for (; table->cells[at] != SHARD_NONE; at = (at + 1) & table->mask) {
		const char *other = items[table->cells[at]].path;
		if (!strncmp(other, path, len) && !other[len])
			return &items[table->cells[at]];
	}
	return NULL;
}

/* Handles an `item` that clashes with `kept`.  *ret_err is set only if that ends the planning. */
static int clash(const struct shard_pack_options *options, struct shard_pack_item *item,
        const struct shard_pack_item *kept, int code, struct base_err *ret_err)
{
	char quoted[512];
	struct base_err err;
	base_err_quote(item->path, quoted, sizeof(quoted));
	if (code == -EEXIST)
		base_err_set(&err, code,
		        "'%s' comes twice; give each file once, or pack the sources from a common parent", quoted);
	else
		base_err_set(&err, code,
		        "'%s' needs a directory where a file has the same name; rename one of them or pack them apart",
		        quoted);
	int rc = options->clash ? options->clash(options->clash_arg, item, kept, &err) : code;
	if (rc == 0)
		item->left_out = code;
	else if (ret_err)
		*ret_err = err;
	return rc;
}

static bool came_first(const struct shard_pack_item *a, const struct shard_pack_item *b)
{
	return a->source != b->source ? a->source < b->source : a->source_offset <= b->source_offset;
}

/* Checks that no parent directory of an item, nor the item itself if it is a directory, has the path of a file.  The
 * first `known` bytes of its path were checked with the previous item. */
static int check_parents(const struct shard_pack_options *options, const struct table *table,
        struct shard_pack_item *items, struct shard_pack_item *item, size_t known, struct base_err *err)
{
	for (size_t i = known; !item->left_out; i++) {
		bool end = !item->path[i];
		if (!end && item->path[i] != '/')
			continue;
		if (end && !item->directory)
			return 0;
		struct shard_pack_item *file = table_find(table, items, item->path, i);
		if (file && !file->left_out) {
			bool first = came_first(file, item);
			int rc = clash(options, first ? item : file, first ? file : item, -ENOTDIR, err);
			if (rc)
				return rc;
		}
		if (end)
			return 0;
	}
	return 0;
}

static int check_conflicts(
        const struct shard_pack_options *options, struct shard_pack_item *items, uint64_t n_items, struct base_err *err)
{
	struct table table;
	if (table_init(&table, items, n_items))
		return base_err_set(err, -ENOMEM, "out of memory for %llu names", (unsigned long long)n_items);
	int rc = 0;
	const char *last = "";
	for (uint64_t i = 0; i < n_items && rc == 0; i++) {
		size_t known = 0;
		for (size_t k = 0; last[k] && last[k] == items[i].path[k]; k++)
			if (last[k] == '/')
				known = k + 1;
		rc = check_parents(options, &table, items, &items[i], known, err);
		last = items[i].left_out ? "" : items[i].path; /* left out: check the whole path of the next */
	}
	free(table.cells);
	return rc;
}

/* Removes the items that are left out from the list.  Returns how many stay. */
static uint64_t drop_left_out(struct shard_pack_item *items, uint64_t n_items)
{
	uint64_t n = 0;
	for (uint64_t i = 0; i < n_items; i++)
		if (!items[i].left_out)
			items[n++] = items[i];
	return n;
}

int shard_pack_sort(const struct shard_pack_options *options, struct shard_pack_item *items, uint64_t *n_items,
        struct base_err *err)
{
	if (*n_items)
		qsort(items, *n_items, sizeof(*items), compare_items);
	uint64_t n = 0;
	for (uint64_t i = 0; i < *n_items; i++) {
		if (n && items[n - 1].directory == items[i].directory && !strcmp(items[n - 1].path, items[i].path)) {
			int rc = items[i].directory ? 0 : clash(options, &items[i], &items[n - 1], -EEXIST, err);
			if (rc)
				return rc;
			continue;
		}
		items[n++] = items[i];
	}
	int rc = check_conflicts(options, items, n, err);
	if (rc == 0)
		*n_items = drop_left_out(items, n);
	return rc;
}

/* ---- samples ---- */

/* A file with a key, for sorting. */
struct keyed {
	const char *key; /* a part of the item's path */
	uint32_t len;    /* bytes */
	uint32_t item;   /* its number */
};

static int compare_keyed(const void *pa, const void *pb)
{
	const struct keyed *a = pa, *b = pb;
	int order = memcmp(a->key, b->key, a->len < b->len ? a->len : b->len);
	if (order)
		return order;
	if (a->len != b->len)
		return a->len < b->len ? -1 : 1;
	return a->item < b->item ? -1 : a->item > b->item;
}

/* Joins files with equal keys: each gets the item number of the first of them as its preliminary sample. */
static int join_samples(struct shard_pack_plan *plan, struct base_err *err)
{
	struct shard_pack_item *items = plan->items;
	cleanup_free struct keyed *keyed = malloc((plan->n_items + 1) * sizeof(*keyed));
	if (!keyed)
		return base_err_set(err, -ENOMEM, "out of memory for %llu keys", (unsigned long long)plan->n_items);
	uint64_t n = 0;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		const char *key;
		size_t len;
		if (items[i].sample != SHARD_NONE && shard_pack_key(plan->rules, items[i].path, &key, &len))
			keyed[n++] = (struct keyed){ .key = key, .len = (uint32_t)len, .item = (uint32_t)i };
	}
	qsort(keyed, n, sizeof(*keyed), compare_keyed);
	for (uint64_t i = 0, first = 0; i < n; i++) {
		if (keyed[i].len != keyed[first].len || memcmp(keyed[i].key, keyed[first].key, keyed[i].len))
			first = i;
		if (i - first >= SHARD_SAMPLE_FILES_MAX) {
			char quoted[512], key[512];
			snprintf(key, sizeof(key), "%.*s", (int)keyed[i].len, keyed[i].key);
			return base_err_set(err, -E2BIG, "more than %d files have the key '%s'; choose a finer %s",
			        SHARD_SAMPLE_FILES_MAX, base_err_quote(key, quoted, sizeof(quoted)),
			        plan->rules->sample == SHARD_PACK_GROUP ? "--group" : "--sample");
		}
		items[keyed[i].item].sample = keyed[first].item;
	}
	return 0;
}

/* Numbers samples in path order and lists their items: list[start[s] .. start[s + 1]). */
static int number_samples(struct shard_pack_plan *plan, uint32_t **ret_list, uint64_t **ret_start, struct base_err *err)
{
	struct shard_pack_item *items = plan->items;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		items[i].common = !items[i].directory && shard_pack_is_common(plan->rules, items[i].path);
		items[i].sample = items[i].directory || items[i].common ? SHARD_NONE : (uint32_t)i;
	}
	int rc = plan->rules->sample == SHARD_PACK_FILE ? 0 : join_samples(plan, err);
	if (rc)
		return rc;
	uint32_t n_samples = 0;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		if (items[i].sample == SHARD_NONE)
			continue;
		/* The first item of a sample comes before its other items, so its final number is already set. */
		items[i].sample = items[i].sample == i ? n_samples++ : items[items[i].sample].sample;
	}
	plan->n_samples = n_samples;

	uint64_t *start = calloc((size_t)n_samples + 2, sizeof(*start));
	uint32_t *list = malloc((plan->n_items + 1) * sizeof(*list));
	if (!start || !list) {
		free(start);
		free(list);
		return base_err_set(err, -ENOMEM, "out of memory for %u samples", n_samples);
	}
	for (uint64_t i = 0; i < plan->n_items; i++)
		if (items[i].sample != SHARD_NONE)
			start[items[i].sample + 2]++;
	for (uint32_t s = 2; s < n_samples + 2; s++)
		start[s] += start[s - 1];
	for (uint64_t i = 0; i < plan->n_items; i++)
		if (items[i].sample != SHARD_NONE)
			list[start[items[i].sample + 1]++] = (uint32_t)i;
	*ret_list = list;
	*ret_start = start;
	return 0;
}

/* splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014). */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* Returns an unbiased number below `bound` (Lemire: "Fast Random Integer Generation in an Interval", 2019). */
static uint64_t random_below(uint64_t *state, uint64_t bound)
{
	unsigned __int128 product = (unsigned __int128)next_random(state) * bound;
	if ((uint64_t)product < bound) {
		uint64_t threshold = -bound % bound;
		while ((uint64_t)product < threshold)
			product = (unsigned __int128)next_random(state) * bound;
	}
	return (uint64_t)(product >> 64);
}

static void shuffle(uint32_t *values, uint32_t n, uint64_t seed)
{
	uint64_t state = seed;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)random_below(&state, i), swap = values[i - 1];
		values[i - 1] = values[j];
		values[j] = swap;
	}
}

/* ---- layout ---- */

static struct shard_tar_meta item_meta(const struct shard_pack_item *item)
{
	return (struct shard_tar_meta){
		.path = item->path,
		.length = item->length,
		.mtime_s = item->mtime_s,
		.mode = item->mode,
		.directory = item->directory,
	};
}

size_t shard_pack_header_size(const struct shard_pack_plan *plan, const struct shard_pack_item *item)
{
	if (plan->options.container == SHARD_BARE)
		return 0;
	struct shard_tar_meta meta = item_meta(item);
	return shard_tar_header_size(&meta);
}

static uint64_t stored_size(const struct shard_pack_plan *plan, const struct shard_pack_item *item)
{
	if (item->left_out)
		return 0;
	if (plan->options.container == SHARD_BARE)
		return item->length;
	return shard_pack_header_size(plan, item) + item->length + shard_tar_padding(item->length);
}

static uint64_t trailer_size(const struct shard_pack_plan *plan)
{
	return plan->options.container == SHARD_BARE ? 0 : TAR_TRAILER;
}

void shard_pack_plan_relay(struct shard_pack_plan *plan, uint32_t shard)
{
	uint64_t at = shard_pack_lead_size(plan, shard);
	for (uint64_t k = plan->first[shard]; k < plan->first[shard + 1]; k++) {
		struct shard_pack_item *item = &plan->items[plan->stored[k]];
		item->shard = shard;
		item->offset = at + (item->left_out ? 0 : shard_pack_header_size(plan, item));
		at += stored_size(plan, item);
	}
	plan->size_bytes[shard] = at + trailer_size(plan);
}

/* Cuts the stored sequence into shards.  A unit (a sample, a common file, a directory) is never cut. */
static int cut_shards(struct shard_pack_plan *plan, struct base_err *err)
{
	uint64_t capacity = 0, at = shard_pack_lead_size(plan, 0), in_shard = 0;
	uint32_t shard = 0;
	for (uint64_t k = 0; k < plan->n_items;) {
		uint32_t sample = plan->items[plan->stored[k]].sample;
		uint64_t unit = 0, n = 0;
		do
			unit += stored_size(plan, &plan->items[plan->stored[k + n++]]);
		while (sample != SHARD_NONE && k + n < plan->n_items &&
		        plan->items[plan->stored[k + n]].sample == sample);
		if (in_shard && at + unit + trailer_size(plan) > plan->options.shard_bytes) {
			shard++;
			at = in_shard = 0;
		}
		if (shard + 2 > capacity) {
			capacity = capacity ? capacity * 2 : 64;
			uint64_t *grown = realloc(plan->first, capacity * sizeof(*grown));
			if (!grown)
				return base_err_set(err, -ENOMEM, "out of memory for %u shards", shard);
			plan->first = grown;
		}
		if (!in_shard)
			plan->first[shard] = k;
		at += unit;
		in_shard += n;
		k += n;
		if (shard >= SHARD_SHARDS_MAX - 1)
			return base_err_set(
			        err, -E2BIG, "more than %u shards; choose a larger --shard-size", SHARD_SHARDS_MAX - 1);
	}
	plan->n_shards = shard + 1;
	plan->first[plan->n_shards] = plan->n_items;
	return 0;
}

static int lay_out(struct shard_pack_plan *plan, struct base_err *err)
{
	cleanup_free uint32_t *list = NULL;
	cleanup_free uint64_t *start = NULL;
	int rc = number_samples(plan, &list, &start, err);
	if (rc)
		return rc;
	cleanup_free uint32_t *sequence = malloc(((size_t)plan->n_samples + 1) * sizeof(*sequence));
	plan->stored = malloc((plan->n_items + 1) * sizeof(*plan->stored));
	if (!sequence || !plan->stored)
		return base_err_set(err, -ENOMEM, "out of memory for %u samples", plan->n_samples);
	for (uint32_t s = 0; s < plan->n_samples; s++)
		sequence[s] = s;
	if (plan->options.shuffle)
		shuffle(sequence, plan->n_samples, plan->options.seed);

	uint64_t k = 0;
	for (uint64_t i = 0; i < plan->n_items; i++)
		if (plan->items[i].common)
			plan->stored[k++] = (uint32_t)i;
	for (uint32_t s = 0; s < plan->n_samples; s++)
		for (uint64_t m = start[sequence[s]]; m < start[sequence[s] + 1]; m++)
			plan->stored[k++] = list[m];
	for (uint64_t i = 0; i < plan->n_items; i++)
		if (plan->items[i].directory)
			plan->stored[k++] = (uint32_t)i;

	rc = cut_shards(plan, err);
	if (rc)
		return rc;
	plan->size_bytes = calloc(plan->n_shards, sizeof(*plan->size_bytes));
	if (!plan->size_bytes)
		return base_err_set(err, -ENOMEM, "out of memory for %u shards", plan->n_shards);
	for (uint32_t s = 0; s < plan->n_shards; s++) {
		shard_pack_plan_relay(plan, s);
		plan->total_bytes += plan->size_bytes[s];
	}
	return 0;
}

static void take_fingerprint(struct shard_pack_plan *plan)
{
	XXH3_state_t state;
	XXH3_INITSTATE(&state);
	XXH3_128bits_reset(&state);
	XXH3_128bits_update(&state, plan->record, strlen(plan->record));
	uint64_t options[] = { plan->options.container, plan->options.shard_bytes, plan->options.shuffle,
		plan->options.seed };
	XXH3_128bits_update(&state, options, sizeof(options));
	for (uint64_t i = 0; i < plan->n_items; i++) {
		const struct shard_pack_item *item = &plan->items[i];
		uint64_t facts[] = { item->length, (uint64_t)item->mtime_s, item->mtime_nsec, item->mode,
			item->directory, item->source_offset };
		XXH3_128bits_update(&state, item->path, strlen(item->path) + 1);
		XXH3_128bits_update(&state, facts, sizeof(facts));
	}
	XXH128_canonical_t canonical;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
	memcpy(plan->fingerprint, canonical.digest, sizeof(plan->fingerprint));
}

int shard_pack_plan_init(struct shard_pack_plan *plan, struct shard_pack_item *items, uint64_t n_items,
        const struct shard_pack_rules *rules, const struct shard_pack_options *options, struct base_err *err)
{
	*plan = (struct shard_pack_plan){ .options = *options, .rules = rules, .items = items, .n_items = n_items };
	if (n_items >= SHARD_FILES_MAX)
		return base_err_set(err, -E2BIG, "%llu files; a dataset holds at most %u", (unsigned long long)n_items,
		        SHARD_FILES_MAX);
	int rc = shard_pack_sort(&plan->options, items, &plan->n_items, err);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < plan->n_items; i++) {
		if (items[i].length > SHARD_FILE_BYTES_MAX - plan->content_bytes) {
			char quoted[512];
			return base_err_set(err, -EFBIG, "'%s': the dataset grows over 2^48 bytes",
			        base_err_quote(items[i].path, quoted, sizeof(quoted)));
		}
		plan->n_files += !items[i].directory;
		plan->content_bytes += items[i].length;
	}
	if (!plan->n_files)
		return base_err_set(err, -ENOENT, "the source holds no files");
	/* The record is made twice.  Cutting needs its length, which is fixed, as the number of shards in it has a
	 * fixed width.  Its text needs the number of shards, which is known after cutting. */
	rc = shard_pack_record_make(plan, err);
	if (rc == 0)
		rc = lay_out(plan, err);
	if (rc == 0)
		rc = shard_pack_record_make(plan, err);
	if (rc)
		return rc;
	take_fingerprint(plan);
	return 0;
}

void shard_pack_plan_done(struct shard_pack_plan *plan)
{
	free(plan->stored);
	free(plan->first);
	free(plan->size_bytes);
	free(plan->record);
	*plan = (struct shard_pack_plan){ 0 };
}
