/* SPDX-License-Identifier: Apache-2.0 */
/* A view: resolves options, caches epochs, maps turns to samples and back; shard/view.h first. */
#include "shard/view.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/list.h"
#include "shard/base/units.h"

struct shard_epoch {
	struct shard_view *view;
	uint64_t number;
	struct shard_order order;
	struct shard_deal deal;
	void *given;          /* a given view: the epoch of its callbacks; NULL: the order is not known */
	uint64_t given_turns; /* a given view: turns */
	atomic_uint references;
};

/* An entry of the epoch cache.  `epoch` is NULL while the thread that set `building` builds it. */
struct cached_epoch {
	uint64_t number;
	uint64_t used; /* tick of the last use; 0 = the entry is empty */
	bool building;
	struct shard_epoch *epoch;
};

struct shard_view {
	const struct shard_index *index;
	struct shard_view_options options;    /* resolved; subdir points to subdir_path */
	char subdir_path[SHARD_PATH_MAX + 1]; /* as in the index: "a//b/" becomes "a/b" */
	uint32_t subdir;                      /* directory id; 0 = whole dataset */
	uint32_t first_sample;                /* the samples of the subtree are [first_sample, end_sample) */
	uint32_t end_sample;
	uint64_t n;          /* how many of them are dealt */
	uint32_t first_slot; /* order by slot: item i is in slot slots[i], or in first_slot + i if slots is NULL */
	uint32_t *slots;     /* ascending; owned */
	const uint32_t *bad; /* on_bad: quarantined samples of the subtree, ascending; points into options.quarantine */
	uint32_t n_bad;
	uint32_t *bad_slots;  /* skip with order by slot over the whole dataset: the slots of bad, ascending; owned */
	uint32_t *stand_ins;  /* substitute: the stand-in of bad[i]; owned */
	uint8_t key[16];      /* of the order: made from the identity and the subtree */
	uint64_t block_items; /* deal=block: positions of a block */
	bool is_given;        /* shard_view_new_given made it; `given` is set */
	struct shard_view_given given;
	unsigned n_cache; /* entries of `cache` that are used */

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t built; /* an epoch was built, or building failed */
	uint64_t tick;        /* counts uses of the cache */
	struct cached_epoch cache[SHARD_VIEW_EPOCHS_SHARED];
};

static int find_subdir(struct shard_view *view, const char *path, struct base_err *err)
{
	char quoted[512];
	enum shard_kind kind = SHARD_KIND_DIR;
	uint32_t end = 0;
	int rc;

	base_err_quote(path, quoted, sizeof(quoted));
	rc = shard_index_find_path(view->index, path, &kind, &view->subdir);
	if (rc == 0 && kind != SHARD_KIND_DIR)
		rc = -ENOTDIR;
	if (rc == 0)
		rc = shard_index_dir_samples(view->index, view->subdir, &view->first_sample, &end);
	if (rc == 0)
		rc = shard_index_dir_path(view->index, view->subdir, view->subdir_path, sizeof(view->subdir_path));
	if (rc == -ENOENT || rc == -ENOTDIR)
		return base_err_set(err, rc, "subdir '%s': %s in dataset '%s'; 'mkshard ls' shows what there is",
		        quoted, rc == -ENOENT ? "no such directory" : "is not a directory",
		        shard_index_dataset(view->index));
	if (rc < 0 && !*path)
		return base_err_set(err, rc, "dataset '%s': its index '%s' is damaged: %s; %s",
		        shard_index_dataset(view->index), shard_index_path(view->index), base_err_str(rc),
		        shard_index_advice(view->index));
	if (rc < 0)
		return base_err_set(err, rc, "dataset '%s': looking up subdir '%s': %s; check it with 'mkshard verify'",
		        shard_index_dataset(view->index), quoted, base_err_str(rc));
	view->end_sample = end;
	view->n = end - view->first_sample;
	if (view->n == 0 && view->subdir != 0)
		return base_err_set(err, -EINVAL, "subdir '%s' of dataset '%s' holds no samples to deal", quoted,
		        shard_index_dataset(view->index));
	return 0;
}

/* Applies on_bad: sets n, the bad samples, and their stand-ins. */
static int set_quarantine(struct shard_view *view, struct base_err *err)
{
	struct shard_view_options *o = &view->options;

	if (o->on_bad == SHARD_ON_BAD_EIO) {
		o->quarantine = NULL;
		return 0;
	}
	if (!o->quarantine)
		return base_err_set(
		        err, -EINVAL, "on_bad=%s needs the dataset's quarantine list", shard_on_bad_name(o->on_bad));
	const uint32_t *samples = o->quarantine->samples;
	uint32_t low = shard_quarantine_below(samples, o->quarantine->n, view->first_sample);
	view->bad = samples + low;
	view->n_bad = shard_quarantine_below(samples, o->quarantine->n, view->end_sample) - low;
	if (view->n_bad == 0)
		return 0;
	if (view->n_bad == view->n)
		return base_err_set(err, -EINVAL, "on_bad=%s: all %" PRIu64 " samples are quarantined",
		        shard_on_bad_name(o->on_bad), view->n);
	if (o->on_bad == SHARD_ON_BAD_SKIP) {
		view->n -= view->n_bad;
		return 0;
	}
	view->stand_ins = malloc(view->n_bad * sizeof(*view->stand_ins));
	if (!view->stand_ins)
		return base_err_set(err, -ENOMEM, "out of memory");
	return shard_quarantine_stand_ins(
	        o->quarantine, view->index, view->first_sample, view->end_sample, err, view->stand_ins);
}

static bool skips(const struct shard_view *view)
{
	return view->n_bad > 0 && view->options.on_bad == SHARD_ON_BAD_SKIP;
}

/* Says whether a sample of the subtree is in the list. */
static bool is_bad(const struct shard_view *view, uint32_t sample, uint32_t *ret_at)
{
	*ret_at = shard_quarantine_below(view->bad, view->n_bad, sample);
	return *ret_at < view->n_bad && view->bad[*ret_at] == sample;
}

/* Returns the item-th number from `first` on that is not in `left_out` (ascending, none below first). */
static uint32_t nth_left(const uint32_t *left_out, uint32_t n, uint32_t first, uint32_t item)
{
	uint32_t low = 0, high = n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (left_out[middle] - first - middle > item)
			high = middle;
		else
			low = middle + 1;
	}
	return first + item + low;
}

static int slot_error(const struct shard_view *view, uint32_t sample, int rc, struct base_err *err)
{
	return base_err_set(err, rc, "dataset '%s': sample %" PRIu32 ": %s; check it with 'mkshard verify'",
	        shard_index_dataset(view->index), sample, base_err_str(rc));
}

static int collect_bad_slots(struct shard_view *view, struct base_err *err)
{
	view->bad_slots = malloc(view->n_bad * sizeof(*view->bad_slots));
	if (!view->bad_slots)
		return base_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < view->n_bad; i++) {
		int rc = shard_index_sample_slot(view->index, view->bad[i], &view->bad_slots[i]);

		if (rc < 0)
			return slot_error(view, view->bad[i], rc, err);
	}
	qsort(view->bad_slots, view->n_bad, sizeof(*view->bad_slots), base_compare_u32);
	return 0;
}

/* For orders by slot: finds the slots of the subtree, or the slots to leave out of the whole dataset. */
static int collect_slots(struct shard_view *view, struct base_err *err)
{
	cleanup_free uint32_t *slots = NULL;
	bool ascending = true;

	if (view->end_sample - view->first_sample == shard_index_info(view->index)->n_samples)
		return skips(view) ? collect_bad_slots(view, err) : 0;
	slots = malloc(view->n * sizeof(*slots));
	if (!slots)
		return base_err_set(err, -ENOMEM, "out of memory for %" PRIu64 " slots of subdir", view->n);
	for (uint64_t i = 0; i < view->n; i++) {
		uint32_t sample = nth_left(view->bad, skips(view) ? view->n_bad : 0, view->first_sample, (uint32_t)i);
		int rc = shard_index_sample_slot(view->index, sample, &slots[i]);

		if (rc < 0)
			return slot_error(view, sample, rc, err);
		ascending = ascending && (i == 0 || slots[i - 1] < slots[i]);
	}
	if (!ascending)
		qsort(slots, view->n, sizeof(*slots), base_compare_u32);
	view->first_slot = slots[0];
	if (slots[view->n - 1] - slots[0] != view->n - 1) /* else they are one stretch, and no array is needed */
		view->slots = steal_ptr(&slots);
	return 0;
}

/* Returns the world that this epoch began with. */
static uint32_t first_world(const struct shard_view_options *o)
{
	return o->n_past > 0 ? o->past[0].world : o->world;
}

/* Returns how many pools each rank of `world` gets. */
static uint64_t pools_a_rank(const struct shard_view *view, uint32_t world)
{
	const struct shard_view_options *o = &view->options;

	return view->n / o->chunk_items / o->pool_chunks / world;
}

/* Makes the error for a `start` without segments, which is enough for deal=stride only. */
static int start_is_not_enough(
        const struct shard_view_options *o, const char *deal, const char *or_stride, struct base_err *err)
{
	return base_err_set(err, -EINVAL,
	        "start=%" PRIu64 " with deal=%s: what is left depends on how many ranks there were: give state= of the "
	        "job that stopped, or past=WORLDxSTEPS to a mount%s",
	        o->start, deal, or_stride);
}

/* Checks groups; without them sets both numbers to 0. */
static int resolve_groups(struct shard_view *view, struct base_err *err)
{
	struct shard_view_options *o = &view->options;

	if (o->redeal > 0 && o->groups == 0)
		return base_err_set(err, -EINVAL,
		        "redeal=%" PRIu64 " needs groups=G: it says for how many epochs groups keep their samples",
		        o->redeal);
	if (o->groups <= 1) {
		o->groups = o->redeal = 0;
		return 0;
	}
	if (!shard_order_has_groups(o->order))
		return base_err_set(err, -EINVAL,
		        "groups=%" PRIu64 " with order=%s: only order=full and order=chunk have groups", o->groups,
		        shard_order_mode_name(o->order));
	if (o->deal == SHARD_DEAL_BLOCK || o->n_past > 0)
		return base_err_set(err, -EINVAL,
		        "groups=%" PRIu64
		        " with deal=block: groups keep hosts apart already: leave out deal=, or give deal=stride",
		        o->groups);
	if (o->groups > view->n)
		return base_err_set(err, -EINVAL,
		        "groups=%" PRIu64 ": the epoch has %" PRIu64
		        " samples; each group needs at least one: give one group for each host",
		        o->groups, view->n);
	return 0;
}

static int resolve_deal(struct shard_view *view, struct base_err *err)
{
	struct shard_view_options *o = &view->options;

	if (o->deal != SHARD_DEAL_AUTO)
		return 0;
	if (o->n_past > 0) { /* only a state of deal=block has segments */
		o->deal = SHARD_DEAL_BLOCK;
		return 0;
	}
	o->deal = SHARD_DEAL_STRIDE;
	if (o->groups > 1)
		return 0;
	if (o->order != SHARD_ORDER_CHUNK || pools_a_rank(view, 2) < SHARD_VIEW_BLOCKS_MIN)
		return 0; /* stride for every world */
	if (o->start > 0)
		return start_is_not_enough(o, "auto",
		        " (auto is block for a dataset this large in order=chunk), or deal=stride if it had that", err);
	if (o->world > 1 && pools_a_rank(view, o->world) >= SHARD_VIEW_BLOCKS_MIN)
		o->deal = SHARD_DEAL_BLOCK;
	return 0;
}

/* For an explicit deal=block on a small dataset: makes pools smaller, so that every rank gets whole pools. */
static void shrink_pools(struct shard_view *view, bool pool_given)
{
	struct shard_view_options *o = &view->options;
	uint64_t chunks = view->n / o->chunk_items;
	uint64_t fitting = chunks / SHARD_VIEW_BLOCKS_MIN / first_world(o);

	if (pool_given || fitting >= o->pool_chunks)
		return;
	o->pool_chunks = fitting > 0 ? fitting : 1;
}

static int resolve(struct shard_view *view, struct base_err *err)
{
	struct shard_view_options *o = &view->options;
	const struct shard_info *info = shard_index_info(view->index);
	uint64_t chunk_items = 0;
	uint64_t pool_chunks = 0;
	bool pool_given = o->pool_bytes != 0 || o->pool_chunks != 0;
	int rc;

	/* A subtree uses the mean of the whole dataset, because that is O(1). */
	o->order = shard_order_resolve(o->order, info->n_samples, info->content_bytes);
	view->block_items = 1;
	if (o->order == SHARD_ORDER_CHUNK) {
		shard_order_chunk_defaults(info->n_samples, info->content_bytes, info->shuffled, o->chunk_bytes,
		        o->pool_bytes, &chunk_items, &pool_chunks);
		if (o->chunk_items > 0 && o->pool_chunks == 0) /* the pool keeps its bytes */
			pool_chunks = chunk_items * pool_chunks / o->chunk_items;
		o->chunk_items = o->chunk_items > 0 ? o->chunk_items : chunk_items;
		o->pool_chunks = o->pool_chunks > 0 ? o->pool_chunks : pool_chunks;
		o->chunk_items = o->chunk_items < view->n ? o->chunk_items : view->n;
		if (o->chunk_items == 0)
			o->chunk_items = 1;
		if (o->pool_chunks == 0)
			o->pool_chunks = 1;
	} else {
		o->chunk_items = o->pool_chunks = 0;
	}
	rc = resolve_groups(view, err);
	if (rc == 0)
		rc = resolve_deal(view, err);
	if (rc < 0)
		return rc;
	if (o->deal == SHARD_DEAL_BLOCK && o->order == SHARD_ORDER_CHUNK)
		shrink_pools(view, pool_given);
	/* A pool is at most the whole dataset. */
	if (o->order == SHARD_ORDER_CHUNK && o->pool_chunks > view->n / o->chunk_items)
		o->pool_chunks = view->n / o->chunk_items + 1;
	if (o->order == SHARD_ORDER_CHUNK)
		view->block_items = o->chunk_items * o->pool_chunks;
	else if (o->deal == SHARD_DEAL_BLOCK) /* any size is correct; this one gives each rank enough blocks */
		view->block_items = view->n / SHARD_VIEW_BLOCKS_MIN / first_world(o);
	if (view->block_items == 0)
		view->block_items = 1;
	return 0;
}

static int check_ranks(const struct shard_view_options *o, struct base_err *err)
{
	if (o->world == 0 || o->world > SHARD_WORLD_MAX)
		return base_err_set(err, -EINVAL, "world=%" PRIu32 ": must be 1..%d", o->world, SHARD_WORLD_MAX);
	if (o->rank >= o->world)
		return base_err_set(err, -EINVAL, "rank=%" PRIu32 " with world=%" PRIu32 ": ranks are 0..%" PRIu32,
		        o->rank, o->world, o->world - 1);
	if (o->n_past > SHARD_DEAL_SEGMENTS_MAX)
		return base_err_set(err, -E2BIG,
		        "%" PRIu32 " changes of the world in one epoch: at most %d can be followed", o->n_past,
		        SHARD_DEAL_SEGMENTS_MAX);
	for (uint32_t i = 0; i < o->n_past; i++) {
		if (o->past[i].world == 0 || o->past[i].world > SHARD_WORLD_MAX)
			return base_err_set(err, -EINVAL, "past segment %" PRIu32 ": world=%" PRIu32 ": must be 1..%d",
			        i, o->past[i].world, SHARD_WORLD_MAX);
	}
	return 0;
}

/* Makes the deal of an epoch.  `start` and `past` belong to options.epoch only. */
static struct shard_deal make_deal(const struct shard_view *view, uint64_t epoch)
{
	const struct shard_view_options *o = &view->options;
	struct shard_deal deal = {
		.n = view->n,
		.world = o->world,
		.mode = o->deal,
		.tail = o->tail,
		.block_items = view->block_items,
		.groups = o->groups,
	};

	if (epoch == o->epoch) {
		deal.start = o->start;
		deal.n_past = o->n_past;
		memcpy(deal.past, o->past, sizeof(deal.past));
	}
	return deal;
}

static int check_deal(const struct shard_view *view, struct base_err *err)
{
	const struct shard_view_options *o = &view->options;
	struct shard_deal deal;

	if (o->start > view->n)
		return base_err_set(err, -EINVAL,
		        "start=%" PRIu64 ": the epoch has %" PRIu64 " samples; start counts those "
		        "that all ranks together have trained",
		        o->start, view->n);
	if (o->n_past > 0 && o->deal != SHARD_DEAL_BLOCK)
		return base_err_set(err, -EINVAL, "past segments belong to deal=block, not to deal=%s",
		        shard_deal_mode_name(o->deal));
	if (o->start > 0 && o->n_past == 0 && o->deal == SHARD_DEAL_BLOCK)
		return start_is_not_enough(o, "block", "", err);
	deal = make_deal(view, o->epoch);
	if (shard_deal_check(&deal) < 0)
		return base_err_set(err, -EINVAL, "past segments do not add up to start=%" PRIu64, o->start);
	return 0;
}

/* Makes the key of the order: the identity; for a subtree a hash of it and the path, so that its orders are unrelated
 * to those of the whole dataset. */
static void make_key(struct shard_view *view)
{
	const struct shard_info *info = shard_index_info(view->index);
	uint8_t text[sizeof(view->key) + SHARD_PATH_MAX + 1];
	size_t len = strlen(view->subdir_path);
	XXH128_canonical_t canonical;

	memcpy(view->key, info->identity, sizeof(view->key));
	if (view->subdir == 0)
		return;
	memcpy(text, view->key, sizeof(view->key));
	memcpy(text + sizeof(view->key), view->subdir_path, len);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, sizeof(view->key) + len));
	memcpy(view->key, canonical.digest, sizeof(view->key));
}

static int view_init(struct shard_view *view, struct base_err *err)
{
	struct shard_view_options *o = &view->options;
	int rc;

	rc = check_ranks(o, err);
	if (rc == 0)
		rc = find_subdir(view, o->subdir ? o->subdir : "", err);
	if (rc < 0)
		return rc;
	o->subdir = view->subdir_path;
	make_key(view);
	rc = set_quarantine(view, err);
	if (rc == 0)
		rc = resolve(view, err);
	if (rc == 0)
		rc = check_deal(view, err);
	if (rc == 0 && shard_order_by_slot(o->order))
		rc = collect_slots(view, err);
	return rc;
}

int shard_view_new(const struct shard_index *index, const struct shard_view_options *options, struct base_err *err,
        struct shard_view **ret_view)
{
	struct shard_view *view = calloc(1, sizeof(*view));
	int rc;

	if (!view)
		return base_err_set(err, -ENOMEM, "out of memory");
	view->index = index;
	view->options = *options;
	view->n_cache = SHARD_VIEW_EPOCHS_CACHED;
	pthread_mutex_init(&view->lock, NULL); /* these two cannot fail with default attributes */
	pthread_cond_init(&view->built, NULL);
	rc = view_init(view, err);
	if (rc < 0) {
		shard_view_free(view);
		return rc;
	}
	*ret_view = view;
	return 0;
}

void shard_view_free(struct shard_view *view)
{
	if (!view)
		return;
	for (unsigned i = 0; i < view->n_cache; i++) {
		assert(!view->cache[i].building);
		shard_epoch_put(view->cache[i].epoch);
	}
	pthread_cond_destroy(&view->built);
	pthread_mutex_destroy(&view->lock);
	free(view->slots);
	free(view->bad_slots);
	free(view->stand_ins);
	free(view);
}

void shard_view_share(struct shard_view *view)
{
	view->n_cache = SHARD_VIEW_EPOCHS_SHARED;
}

const struct shard_view_options *shard_view_options_get(const struct shard_view *view)
{
	return &view->options;
}

const struct shard_index *shard_view_index(const struct shard_view *view)
{
	return view->index;
}

uint64_t shard_view_samples(const struct shard_view *view)
{
	return view->n;
}

uint32_t shard_view_n_bad(const struct shard_view *view)
{
	return view->n_bad;
}

int shard_view_instead(const struct shard_view *view, uint32_t sample, uint32_t *ret_sample)
{
	uint32_t at;

	if (view->n_bad == 0 || !is_bad(view, sample, &at)) {
		*ret_sample = sample;
		return 0;
	}
	if (!view->stand_ins)
		return -ENOENT;
	*ret_sample = view->stand_ins[at];
	return 0;
}

int shard_view_instead_file(const struct shard_view *view, uint32_t file, uint32_t *ret_file)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX], n = 0, place = 0, sample;
	struct shard_place at = { .sample = SHARD_NONE };
	int rc = view->n_bad > 0 ? shard_index_place(view->index, file, &at) : 0;
	sample = at.sample;
	if (rc == 0 && at.sample != SHARD_NONE)
		rc = shard_view_instead(view, at.sample, &sample);
	if (rc < 0)
		return rc;
	if (sample == at.sample) {
		*ret_file = file;
		return 0;
	}
	rc = shard_index_sample_files(view->index, at.sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	while (rc == 0 && place < n && files[place] != file)
		place++;
	if (rc == 0 && place == n)
		return -EUCLEAN; /* the file names a sample that does not have the file */
	if (rc == 0)
		rc = shard_index_sample_files(view->index, sample, files, SHARD_SAMPLE_FILES_MAX, &n);
	if (rc == 0 && place >= n)
		return -EUCLEAN;
	if (rc == 0)
		*ret_file = files[place];
	return rc;
}

uint32_t shard_view_subdir(const struct shard_view *view)
{
	return view->subdir;
}

void shard_view_identity(const struct shard_view *view, char ret_hex[static SHARD_VIEW_ID_SIZE])
{
	const struct shard_view_options *o = &view->options;
	const struct shard_info *info = shard_index_info(view->index);
	char text[384 + 48 * SHARD_DEAL_SEGMENTS_MAX + SHARD_PATH_MAX + 1];
	XXH128_canonical_t canonical;
	size_t len;

	memcpy(text, info->identity, sizeof(info->identity));
	len = sizeof(info->identity);
	len += (size_t)snprintf(text + len, sizeof(text) - len,
	        " ddpfs view 1 order=%s %" PRIu64 " %" PRIu64 " deal=%s %" PRIu64 " seed=%" PRIu64 " epoch=%" PRIu64
	        " start=%" PRIu64 " tail=%s world=%" PRIu32,
	        shard_order_mode_name(o->order), o->chunk_items, o->pool_chunks, shard_deal_mode_name(o->deal),
	        view->block_items, o->seed, o->epoch, o->start, shard_tail_name(o->tail), o->world);
	for (uint32_t i = 0; i < o->n_past; i++)
		len += (size_t)snprintf(
		        text + len, sizeof(text) - len, " %" PRIu32 "x%" PRIu64, o->past[i].world, o->past[i].steps);
	if (o->groups > 1)
		len += (size_t)snprintf(
		        text + len, sizeof(text) - len, " groups=%" PRIu64 " redeal=%" PRIu64, o->groups, o->redeal);
	len += (size_t)snprintf(text + len, sizeof(text) - len, " subdir=%s", view->subdir_path);
	if (o->on_bad != SHARD_ON_BAD_EIO)
		len += (size_t)snprintf(text + len, sizeof(text) - len, " on_bad=%s %016" PRIx64,
		        shard_on_bad_name(o->on_bad), o->quarantine->hash);
	assert(len < sizeof(text));
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, len));
	base_format_hex(canonical.digest, sizeof(canonical.digest), ret_hex);
}

static int epoch_build(struct shard_view *view, uint64_t number, struct shard_epoch **ret_epoch)
{
	const struct shard_view_options *o = &view->options;
	struct shard_order_params params = {
		.mode = o->order,
		.n = view->n,
		.seed = o->seed,
		.epoch = number,
		.chunk_items = o->chunk_items,
		.pool_chunks = o->pool_chunks,
		.groups = o->groups,
		.redeal = o->redeal,
	};
	struct shard_epoch *epoch = calloc(1, sizeof(*epoch));
	int rc;

	if (!epoch)
		return -ENOMEM;
	memcpy(params.key, view->key, sizeof(params.key));
	rc = shard_order_init(&epoch->order, &params);
	if (rc < 0) {
		free(epoch);
		return rc;
	}
	epoch->view = view;
	epoch->number = number;
	epoch->deal = make_deal(view, number);
	atomic_init(&epoch->references, 1);
	*ret_epoch = epoch;
	return 0;
}

/* Returns the entry of this epoch, or the entry to use for it: an empty one, else the least recently used, never one
 * that is being built.  NULL: all are being built. */
static struct cached_epoch *cache_place(struct shard_view *view, uint64_t number)
{
	struct cached_epoch *oldest = NULL;

	for (unsigned i = 0; i < view->n_cache; i++) {
		struct cached_epoch *place = &view->cache[i];

		if (place->used > 0 && place->number == number)
			return place;
		if (!place->building && (!oldest || place->used < oldest->used))
			oldest = place;
	}
	return oldest;
}

int shard_view_new_given(
        const struct shard_index *index, const struct shard_view_given *given, struct shard_view **ret_view)
{
	struct shard_view *view = calloc(1, sizeof(*view));
	if (!view)
		return -ENOMEM;
	view->index = index;
	view->options = SHARD_VIEW_OPTIONS_DEFAULT;
	view->options.subdir = view->subdir_path;
	view->is_given = true;
	view->given = *given;
	pthread_mutex_init(&view->lock, NULL);
	pthread_cond_init(&view->built, NULL);
	*ret_view = view;
	return 0;
}

bool shard_view_is_given(const struct shard_view *view)
{
	return view->is_given;
}

static int given_epoch(struct shard_view *view, uint64_t number, struct shard_epoch **ret_epoch)
{
	struct shard_epoch *epoch = calloc(1, sizeof(*epoch));
	if (!epoch)
		return -ENOMEM;
	epoch->view = view;
	epoch->number = number;
	atomic_init(&epoch->references, 1);
	int rc = view->given.get(view->given.user, number, &epoch->given, &epoch->given_turns);
	if (rc < 0 && rc != -ENODATA) {
		free(epoch);
		return rc;
	}
	*ret_epoch = epoch;
	return 0;
}

int shard_view_epoch(struct shard_view *view, uint64_t number, struct shard_epoch **ret_epoch)
{
	if (view->is_given)
		return given_epoch(view, number, ret_epoch);
	struct cached_epoch *place;
	struct shard_epoch *epoch = NULL;
	struct shard_epoch *dropped;
	int rc;

	{
		lock_for_scope(&view->lock);
		for (;;) {
			place = cache_place(view, number);
			if (place && !(place->used > 0 && place->number == number && place->building))
				break;
			pthread_cond_wait(&view->built, &view->lock);
		}
		if (place->used > 0 && place->number == number) {
			place->used = ++view->tick;
			*ret_epoch = shard_epoch_get(place->epoch);
			return 0;
		}
		dropped = place->epoch;
		*place = (struct cached_epoch){ .number = number, .used = ++view->tick, .building = true };
	}

	shard_epoch_put(dropped);
	rc = epoch_build(view, number, &epoch);

	lock_for_scope(&view->lock);
	if (rc < 0)
		*place = (struct cached_epoch){ 0 };
	else
		*place = (struct cached_epoch){ .number = number, .used = view->tick, .epoch = shard_epoch_get(epoch) };
	pthread_cond_broadcast(&view->built);
	if (rc == 0)
		*ret_epoch = epoch;
	return rc;
}

int shard_view_epoch_once(struct shard_view *view, uint64_t number, struct shard_epoch **ret_epoch)
{
	{
		lock_for_scope(&view->lock);
		const struct cached_epoch *place = cache_place(view, number);
		if (place && place->epoch && place->number == number) {
			*ret_epoch = shard_epoch_get(place->epoch);
			return 0;
		}
	}
	return epoch_build(view, number, ret_epoch);
}

struct shard_epoch *shard_epoch_get(struct shard_epoch *epoch)
{
	atomic_fetch_add_explicit(&epoch->references, 1, memory_order_relaxed);
	return epoch;
}

void shard_epoch_put(struct shard_epoch *epoch)
{
	if (!epoch || atomic_fetch_sub_explicit(&epoch->references, 1, memory_order_acq_rel) > 1)
		return;
	if (!epoch->view->is_given)
		shard_order_done(&epoch->order);
	else if (epoch->given)
		epoch->view->given.put(epoch->given);
	free(epoch);
}

uint64_t shard_epoch_number(const struct shard_epoch *epoch)
{
	return epoch->number;
}

const struct shard_deal *shard_epoch_deal(const struct shard_epoch *epoch)
{
	return &epoch->deal;
}

uint64_t shard_epoch_turns(const struct shard_epoch *epoch, uint32_t rank)
{
	if (epoch->view->is_given)
		return rank == 0 ? epoch->given_turns : 0;
	return shard_deal_turns(&epoch->deal, rank);
}

/* Returns the sample of an item.  An item is a number in the subtree, or the index of a slot among those of the
 * subtree. */
static int item_sample(const struct shard_view *view, uint32_t item, uint32_t *ret_sample)
{
	uint32_t sample = 0;
	int rc = 0;

	if (!shard_order_by_slot(view->options.order))
		sample = nth_left(view->bad, skips(view) ? view->n_bad : 0, view->first_sample, item);
	else if (view->bad_slots)
		rc = shard_index_slot_sample(view->index, nth_left(view->bad_slots, view->n_bad, 0, item), &sample);
	else
		rc = shard_index_slot_sample(
		        view->index, view->slots ? view->slots[item] : view->first_slot + item, &sample);
	return rc < 0 ? rc : shard_view_instead(view, sample, ret_sample);
}

static int sample_at(const struct shard_epoch *epoch, uint64_t position, uint32_t *ret_sample)
{
	return item_sample(epoch->view, (uint32_t)shard_order_at(&epoch->order, position), ret_sample);
}

int shard_view_step_turn(
        const struct shard_view *view, uint64_t epoch, uint64_t step, uint32_t *ret_rank, uint64_t *ret_turn)
{
	struct shard_deal deal = make_deal(view, epoch);

	if (step < deal.start)
		return -ENOENT;
	*ret_rank = shard_deal_rank(&deal, step);
	*ret_turn = (step - deal.start) / deal.world;
	return 0;
}

int shard_epoch_step_sample(const struct shard_epoch *epoch, uint64_t step, uint32_t *ret_sample)
{
	if (step < epoch->deal.start || step >= shard_deal_end(&epoch->deal))
		return -ERANGE;
	return sample_at(epoch, shard_deal_step_position(&epoch->deal, step), ret_sample);
}

int shard_epoch_turn(
        const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t *ret_sample, uint64_t *ret_step)
{
	uint64_t step;
	int rc;

	if (epoch->view->is_given) {
		rc = rank == 0 && k < epoch->given_turns ? epoch->view->given.turn(epoch->given, k, ret_sample)
		                                         : -ERANGE;
		if (rc == 0 && ret_step)
			*ret_step = k;
		return rc;
	}
	if (rank >= epoch->deal.world || k >= shard_deal_turns(&epoch->deal, rank))
		return -ERANGE;
	rc = sample_at(epoch, shard_deal_position(&epoch->deal, rank, k, &step), ret_sample);
	if (rc == 0 && ret_step)
		*ret_step = step;
	return rc;
}

/* Returns the first of the turns [from, to) of a rank at or behind a position; `to` if there is none.  Without padding,
 * a later turn always has a greater position. */
static uint64_t turn_at_position(
        const struct shard_deal *deal, uint32_t rank, uint64_t from, uint64_t to, uint64_t position)
{
	while (from < to) {
		uint64_t middle = from + (to - from) / 2;

		if (shard_deal_position(deal, rank, middle, NULL) < position)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

int shard_epoch_pool(const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint64_t *ret_first, uint64_t *ret_end)
{
	const struct shard_deal *deal = &epoch->deal;
	uint64_t turns;
	uint64_t own; /* turns before the padding */
	uint64_t lane;
	uint64_t first;
	uint64_t end;

	if (epoch->view->is_given || epoch->view->options.order != SHARD_ORDER_CHUNK)
		return -EOPNOTSUPP;
	if (rank >= deal->world || k >= shard_deal_turns(deal, rank))
		return -ERANGE;
	turns = shard_deal_turns(deal, rank);
	lane = shard_deal_lane(deal, rank);
	own = deal->n - deal->start > lane ? (deal->n - deal->start - lane - 1) / deal->world + 1 : 0;
	if (own > turns)
		own = turns;
	if (k >= own) {
		*ret_first = own;
		*ret_end = turns;
		return 0;
	}
	shard_order_pool(&epoch->order, shard_deal_position(deal, rank, k, NULL), &first, &end);
	*ret_first = turn_at_position(deal, rank, 0, k, first);
	*ret_end = turn_at_position(deal, rank, k + 1, own, end);
	return 0;
}

enum { TAKEN = 64 /* turns in one pass */ };

/* Two loops: the first computes items, the second reads their samples.  So the computation does not separate the cache
 * misses of the second loop, and the processor handles several misses at the same time. */
static int take_samples(const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t n, uint32_t *ret_samples,
        uint64_t *ret_steps)
{
	uint32_t items[TAKEN];
	int rc = 0;

	assert(n <= TAKEN);
	for (uint32_t i = 0; i < n; i++)
		items[i] = (uint32_t)shard_order_at(
		        &epoch->order, shard_deal_position(&epoch->deal, rank, k + i, &ret_steps[i]));
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = item_sample(epoch->view, items[i], &ret_samples[i]);
	return rc;
}

int shard_epoch_samples(const struct shard_epoch *epoch, uint32_t rank, uint64_t k, uint32_t n, uint32_t *ret_samples,
        uint64_t *ret_steps)
{
	uint64_t turns = !epoch->view->is_given && rank >= epoch->deal.world ? 0 : shard_epoch_turns(epoch, rank);
	int rc = 0;

	if (k > turns || n > turns - k)
		return -ERANGE;
	for (uint32_t i = 0, some; i < n && rc == 0; i += some) {
		some = epoch->view->is_given ? 1 : n - i < TAKEN ? n - i : TAKEN;
		rc = epoch->view->is_given ? shard_epoch_turn(epoch, rank, k + i, &ret_samples[i], &ret_steps[i])
		                           : take_samples(epoch, rank, k + i, some, ret_samples + i, ret_steps + i);
	}
	return rc;
}

/* Finds the item of a sample of this view: its number in the subtree, or the index of its slot among those of the
 * subtree.  slot: SHARD_NONE = read it from the index. */
static int find_item(const struct shard_view *view, uint32_t sample, uint32_t slot, uint64_t *ret_item)
{
	uint64_t low = 0;
	uint64_t high = view->n;
	int rc = 0;

	if (!shard_order_by_slot(view->options.order)) {
		*ret_item = sample - view->first_sample;
		if (skips(view))
			*ret_item -= shard_quarantine_below(view->bad, view->n_bad, sample);
		return 0;
	}
	if (slot == SHARD_NONE)
		rc = shard_index_sample_slot(view->index, sample, &slot);
	if (rc < 0)
		return rc;
	if (view->bad_slots) {
		*ret_item = slot - shard_quarantine_below(view->bad_slots, view->n_bad, slot);
		return *ret_item < view->n ? 0 : -EUCLEAN;
	}
	if (!view->slots) {
		*ret_item = (uint64_t)slot - view->first_slot;
		return slot >= view->first_slot && *ret_item < view->n ? 0 : -EUCLEAN;
	}
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;

		if (view->slots[middle] < slot)
			low = middle + 1;
		else
			high = middle;
	}
	*ret_item = low;
	return low < view->n && view->slots[low] == slot ? 0 : -EUCLEAN;
}

int shard_epoch_find_from(const struct shard_epoch *epoch, uint32_t sample, uint64_t from, uint64_t *ret_turn)
{
	const struct shard_view *view = epoch->view;
	if (!view->is_given || !view->given.find_from)
		return -EOPNOTSUPP;
	return epoch->given ? view->given.find_from(epoch->given, sample, from, ret_turn) : -ENOENT;
}

int shard_epoch_find(
        const struct shard_epoch *epoch, uint32_t sample, uint64_t *ret_step, uint32_t *ret_rank, uint64_t *ret_turn)
{
	return shard_epoch_find_stored(epoch, sample, SHARD_NONE, ret_step, ret_rank, ret_turn);
}

int shard_epoch_find_stored(const struct shard_epoch *epoch, uint32_t sample, uint32_t slot, uint64_t *ret_step,
        uint32_t *ret_rank, uint64_t *ret_turn)
{
	const struct shard_view *view = epoch->view;
	uint64_t item;
	uint64_t step;
	uint32_t at;
	int rc;

	if (sample >= shard_index_info(view->index)->n_samples)
		return -EINVAL;
	if (view->is_given) {
		rc = epoch->given ? view->given.find(epoch->given, sample, &step) : -ENOENT;
		if (rc < 0)
			return rc;
		if (ret_step)
			*ret_step = step;
		if (ret_rank)
			*ret_rank = 0;
		if (ret_turn)
			*ret_turn = step;
		return 0;
	}
	if (sample < view->first_sample || sample >= view->end_sample || (skips(view) && is_bad(view, sample, &at)))
		return -ENOENT;
	rc = find_item(view, sample, slot, &item);
	if (rc < 0)
		return rc;
	step = shard_deal_step(&epoch->deal, shard_order_position(&epoch->order, item));
	if (step == UINT64_MAX || step >= shard_deal_end(&epoch->deal))
		return -ENOENT;
	if (ret_step)
		*ret_step = step;
	if (ret_rank)
		*ret_rank = shard_deal_rank(&epoch->deal, step);
	if (ret_turn)
		*ret_turn = (step - epoch->deal.start) / epoch->deal.world;
	return 0;
}
