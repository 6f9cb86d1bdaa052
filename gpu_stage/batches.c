/* SPDX-License-Identifier: Apache-2.0 */
/* Puts batches together and gives them back; stage.h first, then stage_private.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpu_stage/pages.h"
#include "gpu_stage/stage_private.h"
#include "shard/base/cleanup.h"
#include "shard/block_sum.h"

enum {
	USES = 256,  /* uses told to the engine at once */
	TURNS = 256, /* turns looked up at once */
	/* A search for room fails for good when nobody can release anything, after at least ALONE_TRIES looks, one each
	 * ALONE_NS at most, and at least ALONE_MIN_NS.  Only writers hold pages then, for the time of a copy. */
	ALONE_TRIES = 50,
	ALONE_NS = 2000000,
};
static const uint64_t ALONE_MIN_NS = 1000000000;
/* While read-ahead has work, the device or the processor may only be slow.  So next demands single samples only after
 * nothing has come for GRACE_NS, GRACES times: demands give up the merged reads. */
static const uint64_t GRACE_NS = 5000000;
enum { GRACES = 20 };
static const uint64_t ASK_BYTES = 64 << 20; /* demanded at once, besides the first sample */

/* A batch that is being put together. */
struct assembly {
	struct ddpfs_stage *stage;
	unsigned flags;
	struct stage_batch *batch;
	uint64_t *keys, *steps; /* n of each; steps NULL: the batch is not of the order */
	uint32_t *turns;        /* n; 0 is the first turn of the batch */
	bool *doubtful;         /* n: a consumer may have changed the entry's bytes */
	uint32_t n;
	uint64_t pages;         /* of pinned entries */
	uint32_t waited, asked; /* samples waited for, and demanded */
	bool counted;           /* in batches_held */
	struct stage_demands demands;
	struct ddpfs_stage_error *error; /* the caller's, or own */
	struct ddpfs_stage_error own;
};

static int fail(struct assembly *a, int rc, uint32_t file, uint32_t sample, const char *text)
{
	struct base_err err;
	base_err_set(&err, rc, "%s", text);
	stage_error(a->error, &err);
	a->error->file = file;
	a->error->sample = sample;
	return rc;
}

/* Checks the index before something is handed out or refused that was made of its records.  Returns rc, or -ESTALE if
 * the index is not what it was when the stage was opened. */
static int check_index(struct assembly *a, int rc)
{
	struct base_err err = { 0 };
	if (shard_index_check_err(a->stage->index, &err) == 0)
		return rc;
	return stage_error(a->error, &err);
}

/* Makes the error of a bad block: which sample, where, why, what to do. */
static int fail_block(struct assembly *a, int rc, uint32_t file, uint32_t block)
{
	char path[SHARD_PATH_MAX + 1], text[DDPFS_STAGE_TEXT_MAX];
	struct shard_file f = { .sample = SHARD_NONE };
	struct shard_shard s = { 0 };
	uint64_t offset = 0, xxh3;
	uint32_t len;
	if (shard_index_file_path(a->stage->index, file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "file %u", file);
	if (shard_index_file(a->stage->index, file, &f) == 0)
		(void)shard_index_shard(a->stage->index, f.shard, &s);
	(void)shard_index_block(a->stage->index, file, block, &offset, &len, &xxh3);
	snprintf(text, sizeof(text), "'%s': %s (shard '%.*s' at byte %llu): repair the shard, or pass the sample over",
	        base_quoted(path), base_err_str(rc), (int)s.path_len, s.path ? s.path : "", (unsigned long long)offset);
	return fail(a, rc, file, f.common ? DDPFS_STAGE_NONE : f.sample, text);
}

static uint64_t held_bytes(struct ddpfs_stage *stage)
{
	struct stage_samples_stats stats;
	stage_samples_stats_get(stage->samples, &stats);
	return stats.held_bytes;
}

static int fail_room(struct assembly *a, const struct stage_layout *l, int rc)
{
	char path[SHARD_PATH_MAX + 1], text[DDPFS_STAGE_TEXT_MAX];
	uint32_t file = l->many ? l->many[0].file : l->one.file;
	if (shard_index_file_path(a->stage->index, file, path, sizeof(path)) < 0)
		snprintf(path, sizeof(path), "file %u", file);
	const char *quoted = base_quoted(path);
	unsigned long long need = (unsigned long long)l->pages * STAGE_PAGE, have = a->stage->bytes;
	if (rc == -EFBIG)
		snprintf(text, sizeof(text),
		        "'%s' takes %llu bytes, the arena has %llu: open the stage with more memory", quoted, need,
		        have);
	else if (rc == -EAGAIN)
		snprintf(text, sizeof(text),
		        "no room for '%s' (%llu bytes) until a batch is released: batches hold "
		        "%llu of the arena's %llu",
		        quoted, need, (unsigned long long)held_bytes(a->stage), have);
	else if (a->pages * STAGE_PAGE + need <= have)
		snprintf(text, sizeof(text),
		        "no room for '%s' (%llu bytes) in one piece of the arena's %llu: let the process have more "
		        "addresses (ulimit -v) and mappings (vm.max_map_count), take smaller batches or open the stage "
		        "with more memory",
		        quoted, need, have);
	else
		snprintf(text, sizeof(text),
		        "no room for '%s' (%llu bytes) in an arena of %llu bytes of which this batch holds %llu: take "
		        "smaller batches or open the stage with more memory",
		        quoted, need, have, (unsigned long long)a->pages * STAGE_PAGE);
	return fail(a, rc == -EFBIG ? -ENOBUFS : rc, file, l->sample, text);
}

/* Tells the engine at once which samples a batch has taken, so that it reads on. */
static void tell_used(struct assembly *a, uint32_t from, uint32_t n)
{
	struct ddpfs_stage *stage = a->stage;
	struct prefetch_use uses[USES];
	uint64_t epoch = shard_epoch_number(stage->epoch);
	while (n) {
		uint32_t k = n < USES ? n : USES;
		for (uint32_t i = 0; i < k; i++)
			uses[i] = (struct prefetch_use){ .epoch = epoch, .turn = stage->cursor + a->turns[from + i] };
		prefetch_stream_used(stage->stream, uses, k);
		from += k;
		n -= k;
	}
}

/* Gives the entry of a layout, pinned, as soon as there is room.  The layout is spent.
 *
 * There is no room while others hold more than the arena less this batch (arena_samples.h).  Others are finished
 * batches, which their consumers release; a batch that another thread puts together, which is finished or given up;
 * and, for a moment, writers. */
static int open_patiently(struct assembly *a, struct stage_layout *l, struct stage_entry **ret_entry)
{
	struct ddpfs_stage *stage = a->stage;
	bool kept = l->pages <= stage->keep_pages;
	uint64_t began = 0, alone_ns = 0;
	unsigned alone = 0;
	int rc;
	for (;;) {
		uint64_t freed = stage_samples_freed(stage->samples);
		rc = stage_samples_open(stage->samples, l, STAGE_ROOM_NOW, kept, ret_entry);
		if (rc != -ENOBUFS || (a->pages + l->pages) * STAGE_PAGE > stage->bytes)
			break;
		uint64_t now_ns = base_now_ns();
		began = began ? began : now_ns;
		uint64_t until_ns = a->flags & DDPFS_STAGE_BRIEFLY ? began + STAGE_BRIEF_NS : 0;
		bool held = atomic_load(&stage->batches_held) > a->counted;
		if (held && (a->flags & DDPFS_STAGE_NOWAIT || (until_ns && now_ns >= until_ns))) {
			rc = -EAGAIN;
			break;
		}
		alone = held ? 0 : alone + 1;
		alone_ns = alone > 1 ? alone_ns : now_ns;
		if (alone > ALONE_TRIES && now_ns - alone_ns > ALONE_MIN_NS)
			break; /* free pages are in pieces, and there is no place apart (space.h) */
		stage_samples_wait_freed(stage->samples, freed, held ? until_ns : now_ns + ALONE_NS);
	}
	if (began)
		atomic_fetch_add(&stage->wait_memory_ns, base_now_ns() - began);
	if (rc == -ENOMEM)
		fail(a, rc, DDPFS_STAGE_NONE, l->sample, "out of memory");
	else if (rc < 0)
		rc = fail_room(a, l, rc);
	if (rc < 0)
		stage_layout_done(l);
	return rc;
}

static int ask_entry(struct assembly *a, struct stage_entry *entry)
{
	int rc = stage_demands_add(&a->demands, entry);
	if (rc < 0) {
		stage_samples_unpin(a->stage->samples, &entry, 1);
		return fail(a, rc, DDPFS_STAGE_NONE, entry->sample, "out of memory");
	}
	return 0;
}

static int layout_of(struct assembly *a, uint32_t i, struct stage_layout *ret_layout)
{
	int rc = stage_layout_sample(a->stage->index, (uint32_t)a->keys[i], ret_layout);
	return rc < 0 ? fail(a, rc, DDPFS_STAGE_NONE, (uint32_t)a->keys[i], base_err_str(rc)) : 0;
}

static int wait_asked(struct assembly *a)
{
	uint32_t file, block;
	int rc = stage_demands_wait(&a->demands, &file, &block);
	return rc < 0 ? fail_block(a, rc, file, block) : 0;
}

/* Demands samples [i, n) as far as there is room; at least sample i, whose layout is given. */
static int ask_from(struct assembly *a, uint32_t i, struct stage_layout *first)
{
	struct ddpfs_stage *stage = a->stage;
	struct stage_entry *entry;
	int rc = open_patiently(a, first, &entry);
	if (rc == 0)
		rc = ask_entry(a, entry);
	if (rc < 0)
		return rc;
	uint64_t began = base_now_ns(), bytes = 0;
	a->asked++;
	while (++i < a->n && bytes < ASK_BYTES) {
		struct stage_layout l;
		rc = layout_of(a, i, &l);
		if (rc < 0)
			break;
		bytes += (uint64_t)l.pages * STAGE_PAGE;
		/* STAGE_ROOM_AHEAD: samples that were read ahead stay, because the rest of the batch may be among
		 * them. */
		rc = stage_samples_open(stage->samples, &l, STAGE_ROOM_AHEAD, l.pages <= stage->keep_pages, &entry);
		if (rc < 0) {
			stage_layout_done(&l);
			rc = 0;
			break;
		}
		a->asked += !stage_samples_ready(stage->samples, entry);
		rc = ask_entry(a, entry);
		if (rc < 0)
			break;
	}
	int waited = wait_asked(a);
	atomic_fetch_add(&stage->wait_ns, base_now_ns() - began);
	return rc < 0 ? rc : waited;
}

/* Waits for read-ahead to bring a sample.  Returns false if it will not. */
static bool comes(struct ddpfs_stage *stage, uint64_t key)
{
	uint64_t began = base_now_ns();
	enum stage_wait outcome = STAGE_WAIT_QUIET;
	bool idle = false;
	for (unsigned i = 0; outcome == STAGE_WAIT_QUIET && !idle && i < GRACES; i++) {
		idle = prefetch_idle(
		        stage->prefetch); /* first this, then the look: so samples that came meanwhile are seen */
		outcome = stage_samples_wait(stage->samples, key, idle ? 0 : GRACE_NS);
	}
	atomic_fetch_add(&stage->wait_ns, base_now_ns() - began);
	return outcome == STAGE_WAIT_READY;
}

/* Waits until read-ahead brings sample i, which is not ready, or demands it.  anew: it was discarded, and the engine
 * does not know. */
static int bring(struct assembly *a, uint32_t i, bool anew)
{
	struct ddpfs_stage *stage = a->stage;
	struct stage_layout l;
	int rc = layout_of(a, i, &l);
	if (rc < 0)
		return rc;
	bool expected = !anew && l.n_blocks && (uint64_t)l.pages * STAGE_PAGE <= stage->window_bytes / 2;
	if (expected && comes(stage, a->keys[i])) {
		a->waited++;
		stage_layout_done(&l);
		return 0;
	}
	a->demands.again = anew;
	return ask_from(a, i, &l);
}

/* Takes sample i out of the batch. */
static void leave_out(struct assembly *a, uint32_t i)
{
	tell_used(a, i, 1);
	a->n--;
	for (; i < a->n; i++) {
		a->keys[i] = a->keys[i + 1];
		a->steps[i] = a->steps[i + 1];
		a->turns[i] = a->turns[i + 1];
	}
	atomic_fetch_add(&a->stage->n_left_out, 1);
}

static bool is_found(const struct ddpfs_stage *stage, uint32_t sample)
{
	uint32_t i = 0;
	while (i < stage->n_found && stage->found[i] != sample)
		i++;
	return i < stage->n_found;
}

static int remember_bad(struct ddpfs_stage *stage, uint32_t sample)
{
	if (is_found(stage, sample))
		return 0;
	uint32_t *more = realloc(stage->found, (stage->n_found + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	more[stage->n_found++] = sample;
	stage->found = more;
	return 0;
}

/* Makes the list of samples in [first, end) that are listed or were found bad. */
static int bad_samples(
        const struct ddpfs_stage *stage, uint32_t first, uint32_t end, struct shard_quarantine **ret_list)
{
	uint32_t n_listed = stage->list ? stage->list->n : 0, n = 0;
	cleanup_free uint32_t *samples = malloc((n_listed + stage->n_found) * sizeof(*samples));
	if (!samples)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_listed + stage->n_found; i++) {
		uint32_t sample = i < n_listed ? stage->list->samples[i] : stage->found[i - n_listed];
		if (sample >= first && sample < end)
			samples[n++] = sample;
	}
	int rc = shard_quarantine_new(samples, n, ret_list);
	return rc;
}

/* Finds the stand-in of a sample in [first, end), the samples of its directory, by a list that has it. */
static int find_stand_in(const struct ddpfs_stage *stage, const struct shard_quarantine *list, uint32_t first,
        uint32_t end, uint32_t sample, struct base_err *err, uint32_t *ret_instead)
{
	cleanup_free uint32_t *all = malloc(list->n * sizeof(*all));
	if (!all)
		return base_err_set(err, -ENOMEM, "out of memory");
	int rc = shard_quarantine_stand_ins(list, stage->index, first, end, err, all);
	if (rc == 0)
		*ret_instead = all[shard_quarantine_below(list->samples, list->n, sample)];
	return rc;
}

/* Finds the stand-in that a sample would have if the list had it, and all others that were found bad. */
static int stand_in(struct ddpfs_stage *stage, uint32_t sample, struct base_err *err, uint32_t *ret_instead)
{
	struct shard_quarantine *list;
	struct shard_file f;
	uint32_t file, first, end;
	int rc = remember_bad(stage, sample);
	if (rc == 0)
		rc = shard_index_sample_first(stage->index, sample, &file);
	if (rc == 0)
		rc = shard_index_file(stage->index, file, &f);
	if (rc == 0)
		rc = shard_index_dir_samples(stage->index, f.dir, &first, &end);
	if (rc == 0)
		rc = bad_samples(stage, first, end, &list);
	if (rc < 0)
		return base_err_set(err, rc, "no stand-in: %s", base_err_str(rc));
	rc = find_stand_in(stage, list, first, end, sample, err, ret_instead);
	shard_quarantine_free(list);
	return rc;
}

/* Does what on_bad says about the sample that a->error names, if it is among samples from `from` on.  Returns false
 * if the error is no bad sample, or nothing can be done. */
static bool pass_over(struct assembly *a, int rc, uint32_t from)
{
	struct ddpfs_stage *stage = a->stage;
	struct base_err err = { 0 };
	uint32_t i = from, bad = a->error->sample, instead = SHARD_NONE;
	if (stage->on_bad == SHARD_ON_BAD_EIO || shard_index_explain(stage->index, NULL) < 0 ||
	        (rc != -EBADMSG && rc != -EIO && rc != -ESTALE && rc != -ENOENT))
		return false;
	while (i < a->n && a->keys[i] != stage_sample_key(bad))
		i++;
	if (i == a->n)
		return false;
	if (stage->on_bad == SHARD_ON_BAD_SUBSTITUTE && stand_in(stage, bad, &err, &instead) < 0) {
		fail(a, rc, a->error->file, bad, err.text);
		return false;
	}
	if (stage->bad)
		stage->bad(stage->bad_arg, a->error);
	if (stage->on_bad == SHARD_ON_BAD_SKIP) {
		leave_out(a, i);
	} else {
		a->keys[i] = stage_sample_key(instead);
		atomic_fetch_add(&stage->n_replaced, 1);
	}
	return true;
}

/* Tells whether an entry still has the bytes that its reads brought. */
static bool unchanged(const struct shard_index *index, const struct stage_entry *e)
{
	for (uint32_t p = 0; p < e->n_parts; p++) {
		const struct stage_part *part = &e->parts[p];
		const uint8_t *data = e->data + part->offset;
		uint32_t n = (uint32_t)shard_blocks(part->len);
		for (uint32_t b = 0; b < n; b++) {
			uint64_t offset, xxh3;
			uint32_t len;
			if (shard_index_block(index, part->file, b, &offset, &len, &xxh3) < 0 ||
			        len != stage_part_block_len(part, b) ||
			        shard_block_sum(data + (uint64_t)b * SHARD_BLOCK, len) != xxh3)
				return false;
		}
	}
	return true;
}

/* Takes the entries of samples [from, n) up to the first that is not ready or has changed.  All that have changed are
 * discarded at once, so that they are demanded together.  Returns how many entries it took. */
static uint32_t take_ready(struct assembly *a, uint32_t from, bool *ret_discarded)
{
	struct ddpfs_stage *stage = a->stage;
	struct stage_entry **entries = a->batch->entries + from;
	struct stage_take take = { .keys = a->keys + from,
		.n = a->n - from,
		.keep_pages = stage->keep_pages,
		.lend = a->flags & DDPFS_STAGE_LEND,
		.entries = entries,
		.doubtful = a->doubtful + from };
	uint32_t got = stage_samples_take(stage->samples, &take, ret_discarded), good = got;
	for (uint32_t i = 0; i < got; i++) {
		if (!take.doubtful[i] || unchanged(stage->index, entries[i]))
			continue;
		stage_samples_discard(stage->samples, entries[i]);
		atomic_fetch_add(&stage->n_changed, 1);
		*ret_discarded = true;
		good = i < good ? i : good;
	}
	stage_samples_give_back(stage->samples, entries + good, got - good);
	for (uint32_t i = 0; i < good; i++)
		a->pages += entries[i]->pages;
	a->batch->n_entries += good;
	return good;
}

/* Pins all entries of the batch; waits and demands until they are ready. */
static int collect(struct assembly *a)
{
	struct ddpfs_stage *stage = a->stage;
	struct stage_batch *b = a->batch;
	while (b->n_entries < a->n) {
		uint32_t from = b->n_entries;
		bool discarded = false;
		tell_used(a, from, take_ready(a, from, &discarded));
		if (b->n_entries == a->n)
			break;
		int rc = bring(a, b->n_entries, discarded);
		if (rc < 0 && !pass_over(a, rc, b->n_entries))
			return rc;
		if (rc < 0)
			stage_demands_unpin(&a->demands); /* the bad one is of no use, and it has memory */
	}
	uint32_t late = a->waited + a->asked;
	atomic_fetch_add(&stage->n_ready, late < a->n ? a->n - late : 0);
	atomic_fetch_add(&stage->n_waited, a->waited);
	atomic_fetch_add(&stage->n_asked, a->asked);
	return 0;
}

/* Fills the items of a batch whose entries are all pinned, and hands it to the backend. */
static int present(struct assembly *a)
{
	struct stage_batch *b = a->batch;
	struct base_err err = { 0 };
	uint32_t n = 0;
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < b->n_entries; i++)
		n += b->entries[i]->n_parts;
	b->items = malloc((n + 1) * sizeof(*b->items));
	if (!b->items)
		return fail(a, -ENOMEM, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE, "out of memory");
	struct ddpfs_item *item = b->items;
	for (uint32_t i = 0; i < b->n_entries; i++) {
		const struct stage_entry *e = b->entries[i];
		for (uint32_t p = 0; p < e->n_parts; p++, item++) {
			*item = (struct ddpfs_item){ .data = e->data + e->parts[p].offset,
				.len = e->parts[p].len,
				.step = a->steps ? a->steps[i] : 0,
				.file = e->parts[p].file,
				.sample = e->sample };
			bytes += item->len;
		}
	}
	b->public.n_samples = b->n_entries;
	b->public.n_items = n;
	b->public.items = b->items;
	int rc = check_index(a, 0);
	if (rc < 0)
		return rc;
	rc = a->stage->backend->ops->hand_out(a->stage->backend, b->items, n, a->flags, &err, &b->upload);
	if (rc < 0)
		return stage_error(a->error, &err);
	b->stage = a->stage;
	atomic_fetch_add(&a->stage->batches_out, 1);
	atomic_fetch_add(&a->stage->n_batches, 1);
	atomic_fetch_add(&a->stage->n_samples, b->n_entries);
	atomic_fetch_add(&a->stage->n_bytes, bytes);
	return 0;
}

/* Counts the batch: from now on it may have memory that others wait for. */
static void counted(struct assembly *a)
{
	atomic_fetch_add(&a->stage->batches_held, 1);
	a->counted = true;
}

/* Allocates what n samples need. */
static int begin(struct assembly *a, bool ordered)
{
	a->batch = calloc(1, sizeof(*a->batch) + a->n * sizeof(struct stage_entry *));
	a->keys = malloc(a->n * sizeof(uint64_t));
	a->steps = ordered ? malloc(a->n * sizeof(uint64_t)) : NULL;
	a->turns = ordered ? malloc(a->n * sizeof(uint32_t)) : NULL;
	a->doubtful = malloc(a->n * sizeof(bool));
	stage_demands_init(&a->demands, a->stage->prefetch, a->stage->samples);
	if (ordered)
		counted(a);
	if (a->batch && a->keys && a->doubtful && ((a->steps && a->turns) || !ordered))
		return 0;
	return fail(a, -ENOMEM, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE, "out of memory");
}

/* Frees what the batch needed.  If rc < 0, nothing of the batch stays.  Returns rc, or a better reason. */
static int end(struct assembly *a, int rc)
{
	if (rc < 0 && rc != -EAGAIN)
		rc = check_index(a, rc);
	if (rc < 0 && a->counted)
		atomic_fetch_sub(&a->stage->batches_held, 1); /* first, as in batch_done */
	if (rc < 0 && a->batch) {
		stage_samples_give_back(a->stage->samples, a->batch->entries, a->batch->n_entries);
		free(a->batch->items);
		free(a->batch);
	}
	stage_demands_done(&a->demands);
	free(a->keys);
	free(a->steps);
	free(a->turns);
	free(a->doubtful);
	return rc;
}

/* Puts the next batch of the order together.  Under turn. */
static int next(struct assembly *a, struct ddpfs_batch **ret_batch)
{
	struct ddpfs_stage *stage = a->stage;
	uint32_t n_turns = a->n;
	int rc = begin(a, true);
	for (uint32_t i = 0, some; rc == 0 && i < n_turns; i += some) {
		uint32_t samples[TURNS];
		some = n_turns - i < TURNS ? n_turns - i : TURNS;
		rc = shard_epoch_samples(stage->epoch, stage->rank, stage->cursor + i, some, samples, a->steps + i);
		if (rc < 0)
			fail(a, rc, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE, base_err_str(rc));
		for (uint32_t t = 0; rc == 0 && t < some; t++) {
			a->turns[i + t] = i + t;
			a->keys[i + t] = stage_sample_key(samples[t]);
		}
	}
	if (rc == 0)
		rc = collect(a);
	if (rc == 0) {
		a->batch->public.epoch = shard_epoch_number(stage->epoch);
		a->batch->public.turn = stage->cursor;
		a->batch->public.n_turns = n_turns;
		rc = present(a);
	}
	rc = end(a, rc);
	if (rc < 0)
		return rc;
	{
		lock_for_scope(&stage->lock);
		stage->cursor += n_turns;
	}
	if (stage->following) {
		a->batch->place.epoch = shard_epoch_number(stage->epoch);
		a->batch->place.steps = stage_steps(stage->epoch, stage->cursor - n_turns);
		stage_progress_out(stage->follow, &a->batch->place, stage_steps(stage->epoch, stage->cursor));
	}
	*ret_batch = &a->batch->public;
	return 1;
}

/* Takes the turn, or returns -EAGAIN if another thread has it for longer than the flags allow. */
static int take_turn(struct assembly *a)
{
	pthread_mutex_t *turn = &a->stage->turn;
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until); /* ThreadSanitizer does not know pthread_mutex_clocklock(3) */
	uint64_t nsec = (uint64_t)until.tv_nsec + STAGE_BRIEF_NS;
	until.tv_sec += (time_t)(nsec / 1000000000);
	until.tv_nsec = (long)(nsec % 1000000000);
	int rc = a->flags & DDPFS_STAGE_NOWAIT    ? pthread_mutex_trylock(turn)
	         : a->flags & DDPFS_STAGE_BRIEFLY ? pthread_mutex_timedlock(turn, &until)
	                                          : pthread_mutex_lock(turn);
	return rc ? fail(a, -EAGAIN, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE,
	                    "another thread is putting a batch together and waits for its samples or for room")
	          : 0;
}

int ddpfs_stage_next(struct ddpfs_stage *stage, uint32_t n, unsigned flags, struct ddpfs_stage_error *error,
        struct ddpfs_batch **ret_batch)
{
	struct assembly a = { .stage = stage, .flags = flags, .n = n };
	a.error = error ? error : &a.own;
	if (!n || n > DDPFS_STAGE_BATCH_MAX)
		return fail(&a, -EINVAL, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE, "a batch has 1 to 1048576 samples");
	int rc = take_turn(&a);
	if (rc < 0)
		return rc;
	cleanup_unlock __attribute__((unused)) struct base_lock turn = { .mutex = &stage->turn };
	uint64_t left = stage->turns - stage->cursor;
	a.n = n < left ? n : (uint32_t)left;
	return left ? next(&a, ret_batch) : 0;
}

/* Brings one file.  Its entry may be there already, or on its way: then others have claimed its blocks, and this
 * waits. */
static int get(struct assembly *a, uint32_t file)
{
	struct ddpfs_stage *stage = a->stage;
	struct stage_layout l;
	int rc = stage_layout_file(stage->index, file, &l);
	if (rc < 0)
		return fail(a, rc, file, DDPFS_STAGE_NONE, base_err_str(rc));
	a->keys[0] = l.key;
	stage_layout_done(&l);
	for (bool discarded = false; take_ready(a, 0, &discarded) == 0;) {
		struct stage_entry *entry;
		rc = stage_layout_file(stage->index, file, &l);
		if (rc < 0)
			return fail(a, rc, file, DDPFS_STAGE_NONE, base_err_str(rc));
		rc = open_patiently(a, &l, &entry);
		if (rc < 0)
			return rc;
		if (!a->counted)
			counted(a);
		bool ready = stage_samples_ready(stage->samples, entry);
		a->demands.again = discarded;
		rc = ask_entry(a, entry); /* it keeps the pin until the batch is put together */
		if (rc == 0 && !ready)
			rc = wait_asked(a);
		if (rc < 0)
			return rc;
		if (!ready && !stage_samples_ready(stage->samples, entry))
			nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL); /* another thread is copying it */
	}
	if (!a->counted)
		counted(a);
	return 0;
}

int ddpfs_stage_get(struct ddpfs_stage *stage, const char *path, unsigned flags, struct ddpfs_stage_error *error,
        struct ddpfs_batch **ret_batch)
{
	struct assembly a = { .stage = stage, .flags = flags, .n = 1 };
	a.error = error ? error : &a.own;
	enum shard_kind kind;
	uint32_t file;
	char text[DDPFS_STAGE_TEXT_MAX];
	int rc = shard_index_find_path(stage->index, path, &kind, &file);
	if (rc == 0 && kind == SHARD_KIND_DIR)
		rc = -EISDIR;
	if (rc < 0 && check_index(&a, 0) < 0)
		return a.error->code;
	if (rc < 0) {
		snprintf(text, sizeof(text), "'%s': %s", base_quoted(path), base_err_str(rc));
		return fail(&a, rc, DDPFS_STAGE_NONE, DDPFS_STAGE_NONE, text);
	}
	rc = begin(&a, false);
	if (rc == 0)
		rc = get(&a, file);
	if (rc == 0)
		rc = present(&a);
	rc = end(&a, rc);
	if (rc < 0)
		return rc;
	*ret_batch = &a.batch->public;
	return 1;
}

int ddpfs_batch_wait(struct ddpfs_batch *batch, void *stream, struct ddpfs_stage_error *error)
{
	struct stage_batch *b = (struct stage_batch *)batch;
	struct base_err err = { 0 };
	const struct stage_backend_ops *ops = b->stage->backend->ops;
	int rc = ops->wait ? ops->wait(b->stage->backend, b->upload, stream, &err) : 0;
	return rc < 0 ? stage_error(error, &err) : 0;
}

int ddpfs_batch_sync(struct ddpfs_batch *batch, struct ddpfs_stage_error *error)
{
	struct stage_batch *b = (struct stage_batch *)batch;
	struct base_err err = { 0 };
	const struct stage_backend_ops *ops = b->stage->backend->ops;
	int rc = ops->sync ? ops->sync(b->stage->backend, b->upload, &err) : 0;
	return rc < 0 ? stage_error(error, &err) : 0;
}

int ddpfs_batch_copied(
        struct ddpfs_batch *batch, void *since, double *ret_begin_s, double *ret_end_s, struct ddpfs_stage_error *error)
{
	struct stage_batch *b = (struct stage_batch *)batch;
	struct base_err err = { 0 };
	const struct stage_backend_ops *ops = b->stage->backend->ops;
	int rc = ops->copied ? ops->copied(b->stage->backend, b->upload, since, &err, ret_begin_s, ret_end_s)
	                     : base_err_set(&err, -ENOTSUP,
	                               "a batch in host memory is not copied: only a GPU's has times of its copies");
	return rc < 0 ? stage_error(error, &err) : 0;
}

/* Nothing reads the batch from now on: gives its entries back and frees it. */
static void batch_done(void *arg)
{
	struct stage_batch *b = arg;
	struct ddpfs_stage *stage = b->stage;
	/* First, so that no thread waits for memory from a batch that has given all of it back. */
	atomic_fetch_sub(&stage->batches_held, 1);
	stage_samples_give_back(stage->samples, b->entries, b->n_entries);
	free(b->items);
	free(b);
}

void ddpfs_batch_release(struct ddpfs_batch *batch)
{
	if (!batch)
		return;
	struct stage_batch *b = (struct stage_batch *)batch;
	struct ddpfs_stage *stage = b->stage;
	stage_progress_back(stage->follow, &b->place);
	if (stage->backend->ops->take_back)
		stage->backend->ops->take_back(stage->backend, b->upload, batch_done, b);
	else
		batch_done(b);
	atomic_fetch_sub(&stage->batches_out, 1); /* last: ddpfs_stage_close looks at it */
}
