/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a recognised trainer's uses; fs/trainer_uses.h first. */
#include "fs/trainer_uses.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "fs/announced_sampler.h"
#include "prefetch/sampler/perm.h"
#include "shard/base/bits.h"
#include "shard/base/clock.h"

enum { SLICE = 1 << 14 }; /* items of a permutation or a table: well under a millisecond */

struct fs_trainer_uses {
	const struct shard_index *index;
	struct cache_tier_uses *uses;
	struct fs_announced_sampler *announced;
	uint64_t others; /* opens since the last one that an announced list explained */

	bool follows; /* the tier knows the order of `track` */
	/* Of `track`, and of one that the tier does not take; NULL: none. It may have ended, and is only compared. */
	const struct prefetch_recognise *recognise;
	uint32_t id, generation; /* of `track` */
	struct prefetch_recognised track;
	uint64_t *ranks; /* of this host, a bit for each; by them tables are made */
	uint32_t n_ranks;
	uint64_t next; /* the epoch whose table is made next, or now */
	uint64_t end;  /* no tables from this epoch on before the present one ends: no memory, or not known */

	/* The table that is made; perm NULL: none. */
	struct prefetch_perm *perm;
	struct prefetch_list *list;
	struct cache_use_table *table;
	uint64_t position; /* the next one of the permutation, which goes on from the beginning at its end */
};

int fs_trainer_uses_new(const struct shard_index *index, const struct shard_view *shown, struct cache_tier_uses *uses,
        struct fs_trainer_uses **ret_tu)
{
	const struct prefetch_recognise_options options = {
		.index = index,
		.shown = shown,
		.search_burst_ns = PREFETCH_SEARCH_BURST_NS,
		.search_permille = PREFETCH_SEARCH_PERMILLE,
		.search_thread = true,
	};
	struct fs_trainer_uses *tu = calloc(1, sizeof(*tu));
	int rc = tu ? fs_announced_sampler_new(&options, &tu->announced) : -ENOMEM;
	if (rc < 0) {
		free(tu);
		return rc;
	}
	tu->index = index;
	tu->uses = uses;
	*ret_tu = tu;
	return 0;
}

static void drop_table(struct fs_trainer_uses *tu)
{
	prefetch_perm_put(tu->perm);
	prefetch_list_put(tu->list);
	free(tu->table);
	tu->perm = NULL;
	tu->list = NULL;
	tu->table = NULL;
}

static void leave(struct fs_trainer_uses *tu)
{
	drop_table(tu);
	free(tu->ranks);
	tu->ranks = NULL;
	if (tu->follows)
		cache_tier_uses_leave(tu->uses);
	tu->follows = false;
}

/* Tells whether a tier gains by knowing the order: the host reads another part of the list in each epoch. */
static bool is_worth_telling(const struct prefetch_recognised *t)
{
	return t->ready && !t->unverified && !t->shards_twice && !t->next_same && t->ranks < t->world &&
	       t->sampler != PREFETCH_SAMPLER_OWN && t->sampler != PREFETCH_SAMPLER_SORTED &&
	       t->sampler != PREFETCH_SAMPLER_UNSEEDED;
}

/* An order, and who has recognised it. */
struct choice {
	struct prefetch_recognise *recognise; /* NULL: none */
	struct prefetch_recognised track;
};

/* recognise: NULL: nothing is recognised. */
static struct choice choose(struct prefetch_recognise *recognise)
{
	struct choice best = { 0 };
	struct prefetch_recognised t;
	for (unsigned k = 0; recognise && prefetch_recognise_get(recognise, k, &t) == 0; k++) {
		if (is_worth_telling(&t) && (!best.recognise || t.turns > best.track.turns))
			best = (struct choice){ .recognise = recognise, .track = t };
	}
	return best;
}

/* Names an order. Mounts of a host that recognise a job in the same epoch count its epochs alike, so they have the same
 * name for it. Others have another one, and know less of each other. */
static uint64_t name_of(const struct fs_trainer_uses *tu, const struct prefetch_recognised *t)
{
	const uint64_t numbers[] = { XXH3_64bits(shard_index_info(tu->index)->identity, CACHE_TIER_IDENTITY),
		XXH3_64bits(t->list, strlen(t->list)), t->sampler, t->world, t->parts, t->seed - t->epoch };
	return XXH3_64bits(numbers, sizeof(numbers));
}

/* Begins to tell the order of tu->track. */
static void follow(struct fs_trainer_uses *tu)
{
	const struct prefetch_recognised *t = &tu->track;
	const struct cache_tier_told told = {
		.order = name_of(tu, t), .world = t->world, .first = t->first, .n = t->ranks
	};
	tu->id = t->id;
	tu->generation = t->generation;
	tu->ranks = bits_new(t->world);
	tu->n_ranks = 0;
	tu->follows = tu->ranks && cache_tier_uses_follow(tu->uses, &told) == 0;
}

/* Makes all tables anew if more ranks are read here now. */
static void look_at_ranks(struct fs_trainer_uses *tu)
{
	uint32_t n = cache_tier_uses_ranks(tu->uses, tu->ranks);
	if (n == tu->n_ranks)
		return;
	drop_table(tu);
	tu->n_ranks = n;
	tu->next = tu->track.epoch;
}

/* Begins the table of the next epoch. Returns false if there is none to make now. */
static bool begin_table(struct fs_trainer_uses *tu, struct prefetch_recognise *recognise)
{
	struct prefetch_sequence *now;
	uint64_t epoch = tu->track.epoch;
	tu->next = tu->next > epoch ? tu->next : epoch;
	if (tu->n_ranks == tu->track.world || tu->next >= tu->end || tu->next > epoch + cache_tier_uses_ahead(tu->uses))
		return false;
	int rc = prefetch_recognise_sequence(recognise, tu->id, 0, &now);
	if (rc < 0)
		return false;
	tu->list = prefetch_list_get(prefetch_sequence_options_get(now)->list);
	prefetch_sequence_put(now);
	rc = prefetch_recognise_perm(recognise, tu->id, (unsigned)(tu->next - epoch), &tu->perm);
	tu->table = rc == 0 ? cache_use_table_new(shard_index_info(tu->index)->n_samples) : NULL;
	tu->position = 0;
	if (tu->table)
		return true;
	tu->end = rc == -EAGAIN ? tu->end : tu->next;
	drop_table(tu);
	return false;
}

/* Enters positions into the table. Returns true while there are more. */
static bool fill(struct fs_trainer_uses *tu)
{
	uint32_t n = tu->perm->n, world = tu->track.world, file;
	uint64_t turns =
	        ((uint64_t)n + world - 1) / world * world; /* the first ones come again at the end (tail=pad) */
	uint64_t end = turns - tu->position < SLICE ? turns : tu->position + SLICE;
	for (; tu->position < end; tu->position++) {
		struct shard_place place;
		if (bit_get(tu->ranks, tu->position % world) &&
		        prefetch_list_at(tu->list, tu->perm->at[tu->position % n], &file) == 0 &&
		        shard_index_place(tu->index, file, &place) == 0 && place.sample != SHARD_NONE)
			cache_use_table_set(tu->table, place.sample, tu->position, turns);
	}
	return tu->position < turns;
}

/* Does a slice of work. Returns false if there is none now. */
static bool work(struct fs_trainer_uses *tu, struct prefetch_recognise *recognise)
{
	if (!tu->perm)
		return begin_table(tu, recognise);
	if (prefetch_perm_step(tu->perm, SLICE) || fill(tu))
		return true;
	cache_tier_uses_tell(tu->uses, tu->next, tu->table);
	tu->table = NULL; /* it is theirs */
	drop_table(tu);
	tu->next++;
	return true;
}

void fs_trainer_uses_opened(struct fs_trainer_uses *tu, const uint32_t *files, size_t n, size_t others)
{
	if (!tu)
		return;
	tu->others = n > 0 ? 0 : tu->others + others;
	fs_announced_sampler_opened(tu->announced, files, n, base_now_ns());
}

void fs_trainer_uses_pause(struct fs_trainer_uses *tu)
{
	if (tu)
		fs_announced_sampler_pause(tu->announced);
}

/* Takes the order that was chosen now. Returns whether the tier knows it. */
static bool take(struct fs_trainer_uses *tu, const struct choice *chosen)
{
	const struct prefetch_recognised *t = &chosen->track;
	bool other = tu->recognise != chosen->recognise || tu->id != t->id;
	bool next_epoch = other || tu->track.epoch != t->epoch;
	other |= tu->generation != t->generation;
	tu->recognise = chosen->recognise;
	if (!chosen->recognise) {
		leave(tu);
		return false;
	}
	if (next_epoch)
		tu->end = UINT64_MAX;
	tu->track = *t;
	if (other || (next_epoch && !tu->follows)) {
		leave(tu);
		follow(tu);
	}
	return tu->follows;
}

int fs_trainer_uses_step(struct fs_trainer_uses *tu, struct prefetch_recognise *recognise, uint64_t max_ns)
{
	int rc = fs_announced_sampler_step(tu->announced, max_ns);
	uint64_t start_ns = base_now_ns();
	struct choice chosen = choose(fs_announced_sampler_recognise(tu->announced));
	fs_announced_sampler_judge(tu->announced, chosen.recognise != NULL, start_ns);
	if (!chosen.recognise || tu->others >= chosen.track.turns)
		chosen = choose(recognise);
	if (!take(tu, &chosen))
		return rc;
	cache_tier_uses_reach(tu->uses, chosen.track.epoch, chosen.track.turn, chosen.track.turns);
	look_at_ranks(tu);
	bool more = true;
	while (more && base_now_ns() - start_ns < max_ns)
		more = work(tu, chosen.recognise);
	return more ? 1 : rc;
}

uint64_t fs_trainer_uses_search_ns(const struct fs_trainer_uses *tu)
{
	return tu ? fs_announced_sampler_search_ns(tu->announced) : 0;
}

bool fs_trainer_uses_tells(
        const struct fs_trainer_uses *tu, const struct prefetch_recognise *recognise, uint32_t id, uint32_t generation)
{
	return tu->follows && tu->recognise == recognise && tu->id == id && tu->generation == generation;
}

void fs_trainer_uses_free(struct fs_trainer_uses *tu)
{
	if (!tu)
		return;
	leave(tu);
	fs_announced_sampler_free(tu->announced);
	free(tu);
}
