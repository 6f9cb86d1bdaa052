/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs READs with opens, in a table of the latest opens; fs/hit_counting.h first. */
#include "fs/hit_counting.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "fs/ino.h"
#include "shard/base/cleanup.h"

enum { WAYS = 4, SETS = FS_HIT_COUNTING_KEPT / WAYS };
_Static_assert((SETS & (SETS - 1)) == 0, "sets are found by a mask");
_Static_assert(FS_VIEWS_MAX == 256, "a place ends with the view");

struct kept {
	struct fs_hit_counting_key key;
	uint64_t opened_ns;    /* of the latest open; 0: this place is free */
	uint64_t read_ns;      /* of the latest READ that was paired; 0: none */
	uint32_t unread;       /* opens without a READ so far */
	uint64_t bytes;        /* of an open */
	uint64_t unread_bytes; /* of the latest opens, those that no READ asked for so far */
};

struct fs_hit_counting {
	uint64_t pair_ns;
	uint64_t on_ns;
	struct kept kept[SETS][WAYS];
	struct counts {
		uint64_t opens;
		uint64_t misses;             /* found so far */
		uint64_t shown_hits;         /* the largest number of hits that was shown */
		uint64_t bytes, read_bytes;  /* of opens, and of the READs that were paired with them */
		uint64_t shown_cached_bytes; /* the largest number that was shown */
	} all, views[FS_VIEWS_MAX];

	pthread_mutex_t lock; /* guards what follows */
	struct fs_hit_counting_read reads[2][FS_HIT_COUNTING_READS];
	size_t n_reads;
	unsigned filling; /* which of the two lists is being filled */
};

int fs_hit_counting_new(uint32_t pair_ms, struct fs_hit_counting **ret_opens)
{
	struct fs_hit_counting *opens = calloc(1, sizeof(*opens));
	if (!opens)
		return -ENOMEM;
	opens->pair_ns = pair_ms * UINT64_C(1000000);
	opens->on_ns = opens->pair_ns * (FS_HIT_COUNTING_ON_MS / FS_HIT_COUNTING_PAIR_MS);
	pthread_mutex_init(&opens->lock, NULL);
	*ret_opens = opens;
	return 0;
}

void fs_hit_counting_free(struct fs_hit_counting *opens)
{
	if (!opens)
		return;
	pthread_mutex_destroy(&opens->lock);
	free(opens);
}

bool fs_hit_counting_read(struct fs_hit_counting *opens, struct fs_hit_counting_read read)
{
	lock_for_scope(&opens->lock);
	bool room = opens->n_reads < FS_HIT_COUNTING_READS;
	if (room)
		opens->reads[opens->filling][opens->n_reads++] = read;
	return room;
}

size_t fs_hit_counting_take(struct fs_hit_counting *opens, const struct fs_hit_counting_read **ret_reads)
{
	lock_for_scope(&opens->lock);
	size_t n = opens->n_reads;
	*ret_reads = opens->reads[opens->filling];
	if (n) {
		opens->filling ^= 1;
		opens->n_reads = 0;
	}
	return n;
}

/* Turns are opened nearly in a row, so they spread over the sets without a hash. */
static struct kept *set_of(struct fs_hit_counting *opens, struct fs_hit_counting_key key)
{
	return opens->kept[(key.id + key.place * UINT64_C(0x9e3779b97f4a7c15)) & (SETS - 1)];
}

static struct counts *view_of(struct fs_hit_counting *opens, struct fs_hit_counting_key key)
{
	return &opens->views[key.place % FS_VIEWS_MAX];
}

static bool is_key(const struct kept *kept, struct fs_hit_counting_key key)
{
	return kept->opened_ns && kept->key.id == key.id && kept->key.place == key.place;
}

static bool within(uint64_t a_ns, uint64_t b_ns, uint64_t apart_ns)
{
	return (a_ns > b_ns ? a_ns - b_ns : b_ns - a_ns) <= apart_ns;
}

void fs_hit_counting_opened(
        struct fs_hit_counting *opens, struct fs_hit_counting_key key, uint64_t bytes, uint64_t now_ns)
{
	struct kept *set = set_of(opens, key);
	struct kept *at = &set[0];
	opens->all.opens++;
	opens->all.bytes += bytes;
	view_of(opens, key)->opens++;
	view_of(opens, key)->bytes += bytes;
	for (int i = 0; i < WAYS; i++) {
		if (is_key(&set[i], key)) {
			if (!within(now_ns, set[i].opened_ns, opens->pair_ns))
				set[i].unread = 0;
			if (!within(now_ns, set[i].opened_ns, opens->on_ns))
				set[i].unread_bytes = 0;
			set[i].unread++;
			set[i].unread_bytes += bytes;
			set[i].opened_ns = now_ns;
			return;
		}
		if (set[i].opened_ns < at->opened_ns)
			at = &set[i];
	}
	*at = (struct kept){ .key = key, .opened_ns = now_ns, .unread = 1, .bytes = bytes, .unread_bytes = bytes };
}

static struct kept *find(struct fs_hit_counting *opens, struct fs_hit_counting_key key)
{
	struct kept *set = set_of(opens, key);
	for (int i = 0; i < WAYS; i++)
		if (is_key(&set[i], key))
			return &set[i];
	return NULL;
}

/* Counts the bytes of a READ, but those of a file once for each open. */
static void count_bytes(struct fs_hit_counting *opens, struct kept *at, const struct fs_hit_counting_read *read)
{
	uint64_t bytes = read->length ? (uint64_t)((unsigned __int128)at->bytes * read->bytes / read->length) : 0;
	bytes = bytes < at->unread_bytes ? bytes : at->unread_bytes;
	at->unread_bytes -= bytes;
	opens->all.read_bytes += bytes;
	view_of(opens, at->key)->read_bytes += bytes;
}

bool fs_hit_counting_pair(struct fs_hit_counting *opens, const struct fs_hit_counting_key *keys, size_t n_keys,
        const struct fs_hit_counting_read *read)
{
	struct kept *fresh = NULL; /* the latest open that was not read */
	struct kept *on = NULL;    /* an open that is being read */
	for (size_t i = 0; i < n_keys; i++) {
		struct kept *at = view_of(opens, keys[i])->opens ? find(opens, keys[i]) : NULL;
		if (!at)
			continue;
		if (at->read_ns && within(read->ns, at->read_ns, opens->on_ns))
			on = at;
		if (at->unread && within(read->ns, at->opened_ns, opens->pair_ns) &&
		        (!fresh || at->opened_ns > fresh->opened_ns))
			fresh = at;
	}
	if (fresh && (read->first || !on)) {
		fresh->unread--;
		fresh->read_ns = read->ns;
		opens->all.misses++;
		view_of(opens, fresh->key)->misses++;
		count_bytes(opens, fresh, read);
		return true;
	}
	if (!on)
		return false;
	on->read_ns = read->ns;
	count_bytes(opens, on, read);
	return true;
}

void fs_hit_counting_count(struct fs_hit_counting *opens, uint32_t view, struct fs_hit_counting_count *ret_count)
{
	struct counts *of = view == FS_HIT_COUNTING_ALL ? &opens->all : &opens->views[view];
	assert(of->misses <= of->opens && of->read_bytes <= of->bytes);
	uint64_t hits = of->opens - of->misses;
	if (hits > of->shown_hits)
		of->shown_hits = hits;
	if (of->bytes - of->read_bytes > of->shown_cached_bytes)
		of->shown_cached_bytes = of->bytes - of->read_bytes;
	*ret_count = (struct fs_hit_counting_count){
		.opens = of->opens,
		.hits = of->shown_hits,
		.misses = of->opens - of->shown_hits,
		.bytes = of->bytes,
		.cached_bytes = of->shown_cached_bytes,
	};
}
