/* SPDX-License-Identifier: Apache-2.0 */
/* Which open belongs to which entry, opens elsewhere, and when a list is split; fs/announced_reader.h first. */
#include "fs/announced_reader.h"

#include <string.h>

#include "fs/announced_list_private.h"
#include "shard/base/bits.h"

enum {
	JOIN = 2,          /* an open is sure if one of so many entries before it was used ... */
	JOIN_OPENS = 128,  /* ... at most so many opens ago: the readers side by side go on in turn */
	SURE_WORTH = 2,    /* opens that fit nothing are made good by a sure one */
	NEIGHBOUR = 4,     /* opens in the ring that are at most so far apart are neighbours */
	AGAIN_OPENS = 256, /* a file that is opened again before so many others counts once */
	RING_ENOUGH = 24,  /* the latest opens in the ring that are looked at, and ... */
	RING_SURE = 16,    /* ... so many of them must have a neighbour to move the reader */
	RUN_JOINS = 2,     /* a worker begins a batch far ahead: so many opens in a row */
	RUN_ENOUGH = 8,    /* another reader is elsewhere: so many opens in a row, while ... */
	GOES_ON = 4,       /* ... the reader of the list made so many sure ones */
	RUN_PAUSE = 128,   /* sure opens between two of a run at most */
	START_BUFFERS = 4, /* a shuffle buffer holds e^-4 of its files for longer than so many times its size */
	BUFFERS = 16,      /* a shuffle buffer holds e^-16 of its files for longer than so many times its size */
};
_Static_assert((int)RING_ENOUGH <= (int)FS_ANNOUNCED_RING && (int)RUN_ENOUGH <= (int)FS_ANNOUNCED_RING,
        "the places of the opens that move a reader are told");

static bool other_is_ahead(const struct fs_announced_list *list)
{
	return list->other.first > list->state.high && list->other.last + 1 < list->end;
}

/* Its entries must not have been given back, and the reader must have entries left. */
static bool other_is_behind(const struct fs_announced_list *list)
{
	uint64_t cursor = list->state.cursor;
	return list->other.first >= list->first && list->other.last < cursor && cursor < list->end;
}

void fs_announced_list_state(const struct fs_announced_list *list, struct fs_announced_state *ret_state)
{
	*ret_state = list->state;
	ret_state->end = list->end;
	ret_state->apart = list->state.apart && (other_is_ahead(list) || other_is_behind(list));
}

/* ---- entries that were used ---- */

static bool is_used(const struct fs_announced_list *list, uint64_t place)
{
	if (place < list->state.cursor)
		return true;
	return fs_announced_list_chunk(list, place / list->chunk_entries) &&
	       bit_get(list->used[place / list->chunk_entries % FS_ANNOUNCED_CHUNKS], place % list->chunk_entries);
}

static void set_used(struct fs_announced_list *list, uint64_t place, bool used)
{
	if (!fs_announced_list_chunk(list, place / list->chunk_entries))
		return;
	uint64_t *map = list->used[place / list->chunk_entries % FS_ANNOUNCED_CHUNKS];
	if (used)
		bit_set(map, place % list->chunk_entries);
	else
		bit_clear(map, place % list->chunk_entries);
}

static bool find_unused(
        const struct fs_announced_list *list, uint32_t sample, uint64_t from, uint64_t to, uint64_t *ret_place)
{
	while (fs_announced_list_find(list, sample, from, to, ret_place)) {
		if (!is_used(list, *ret_place))
			return true;
		from = *ret_place + 1;
	}
	return false;
}

static unsigned recent_of(uint32_t sample)
{
	return (sample * UINT32_C(0x9E3779B1)) >> (32 - RECENT_BITS);
}

/* Whether a sample was used at most so many opens ago. */
static bool lately(const struct fs_announced_list *list, uint32_t sample, uint64_t opens)
{
	unsigned i = recent_of(sample);
	return list->recent[i].open > 0 && list->recent[i].sample == sample &&
	       list->opens - list->recent[i].open < opens;
}

/* ---- opens that fit ---- */

/* Whether an entry just before this one was used a moment ago. The first open of all joins nothing. */
static bool joins(const struct fs_announced_list *list, uint64_t place)
{
	uint32_t sample;
	for (uint64_t k = 1; k <= JOIN && k <= place; k++) {
		if (is_used(list, place - k) && fs_announced_list_sample(list, place - k, &sample) &&
		        lately(list, sample, JOIN_OPENS))
			return true;
	}
	return false;
}

/* Returns the end of the entries that may be opened next. An empty buffer is filled before the next file is opened.
 * After that, the latest entries that it holds lie near the farthest used one: the probability that none of the latest
 * g entries was opened is about e^(-g^2 / 2B) behind a buffer of B. */
static uint64_t end_of_expected(const struct fs_announced_list *list)
{
	const struct fs_announced_state *s = &list->state;
	if (list->buffer == 0)
		return s->high + FS_ANNOUNCED_AHEAD;
	uint64_t filled = list->empty_at + list->buffer;
	return (filled > s->high ? filled : s->high) + FS_ANNOUNCED_NEAR + list->buffer / 8;
}

enum fs_announced_fit fs_announced_list_fit(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	const struct fs_announced_state *s = &list->state;
	bool again = lately(list, sample, AGAIN_OPENS);
	if (!find_unused(list, sample, s->cursor, end_of_expected(list), ret_place))
		return again ? FS_ANNOUNCED_AGAIN : FS_ANNOUNCED_ELSEWHERE;
	if (list->buffer > 0 && (!again || *ret_place < s->high))
		return FS_ANNOUNCED_SURELY;
	if (joins(list, *ret_place))
		return FS_ANNOUNCED_SURELY;
	if (again)
		return FS_ANNOUNCED_AGAIN;
	return *ret_place < s->high + FS_ANNOUNCED_NEAR ? FS_ANNOUNCED_LOOSE : FS_ANNOUNCED_ELSEWHERE;
}

/* Returns how many entries behind the farthest one are expected. Their chunks must be in use. */
static uint64_t held_behind(const struct fs_announced_list *list)
{
	uint64_t held = list->buffer * BUFFERS, most = (FS_ANNOUNCED_CHUNKS - 2) * list->chunk_entries;
	held = held < most ? held : most;
	return held > FS_ANNOUNCED_BEHIND ? held : FS_ANNOUNCED_BEHIND;
}

/* Entries far behind the farthest one are not expected to be opened. */
static void advance(struct fs_announced_list *list)
{
	struct fs_announced_state *s = &list->state;
	uint64_t behind = held_behind(list), least = s->high > behind ? s->high - behind : 0;
	if (s->cursor < least)
		s->cursor = least;
	while (s->cursor < s->high && fs_announced_list_chunk(list, s->cursor / list->chunk_entries) &&
	        is_used(list, s->cursor))
		s->cursor++;
	if (s->cursor == s->high)
		list->empty_at = s->high;
}

uint64_t fs_announced_list_start(const struct fs_announced_list *list)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t behind = list->buffer * START_BUFFERS + FS_ANNOUNCED_NEAR;
	if (list->buffer == 0 || s->high < behind || s->high - behind < s->cursor)
		return s->cursor;
	return s->high - behind;
}

static void book_use(struct fs_announced_list *list, uint64_t place)
{
	struct fs_announced_state *s = &list->state;
	uint32_t sample;
	if (!fs_announced_list_sample(list, place, &sample))
		return;
	unsigned i = recent_of(sample);
	set_used(list, place, true);
	list->recent[i].sample = sample;
	list->recent[i].open = ++list->opens;
	s->used++;
	if (place >= s->high)
		s->high = place + 1;
}

/* A reader of a confirmed list may pause while others read. But if it reads the list's files and none of them where it
 * should, it has another order. */
static void judge(struct fs_announced_list *list)
{
	struct fs_announced_state *s = &list->state;
	s->wrong = list->bad >= (s->confirmed ? FS_ANNOUNCED_LOST : FS_ANNOUNCED_DOUBT) ||
	           list->astray >= FS_ANNOUNCED_ASTRAY;
}

void fs_announced_list_use(struct fs_announced_list *list, uint64_t place, bool sure)
{
	struct fs_announced_state *s = &list->state;
	book_use(list, place);
	list->latest = place;
	advance(list);
	s->sure += sure;
	s->loose += !sure;
	if (sure) {
		list->bad = list->bad > SURE_WORTH ? list->bad - SURE_WORTH : 0;
		list->astray = list->astray > SURE_WORTH ? list->astray - SURE_WORTH : 0;
	} else {
		list->bad++;
		list->astray++;
	}
	s->confirmed |= s->sure >= FS_ANNOUNCED_SURE && s->sure >= 2 * s->loose;
	judge(list);
}

/* ---- opens elsewhere ---- */

/* Returns the place of the i-th latest open in the ring. */
static uint64_t ring_place(const struct fs_announced_list *list, unsigned i)
{
	return list->ring[(list->ring_n - i) % RING].place;
}

static unsigned ring_length(const struct fs_announced_list *list)
{
	return list->ring_n < RING ? (unsigned)list->ring_n : RING;
}

/* Finds the latest opens in the ring that have a neighbour there. Returns how many; their places are in order. */
static unsigned neighbours(const struct fs_announced_list *list, uint64_t ret_places[RING_ENOUGH])
{
	unsigned found = 0;
	for (unsigned i = 1; i <= RING_ENOUGH; i++) {
		uint64_t place = ring_place(list, i);
		bool near = false;
		for (unsigned k = 1; k <= RING_ENOUGH && !near; k++) {
			uint64_t other = ring_place(list, k);
			uint64_t between = other > place ? other - place : place - other;
			near = between > 0 && between <= NEIGHBOUR;
		}
		if (!near)
			continue;
		unsigned at = found++;
		for (; at > 0 && ret_places[at - 1] > place; at--)
			ret_places[at] = ret_places[at - 1];
		ret_places[at] = place;
	}
	return found;
}

/* Returns the latest open in the ring with those before it by which its reader came there. */
static struct run latest_run(const struct fs_announced_list *list)
{
	struct run run = { .first = ring_place(list, 1) + 1, .last = ring_place(list, 1), .sure = list->state.sure };
	for (unsigned i = 1; i <= ring_length(list) && run.n < FS_ANNOUNCED_RING; i++) {
		uint64_t place = ring_place(list, i), sure = list->ring[(list->ring_n - i) % RING].sure;
		if (run.sure - sure > RUN_PAUSE)
			break;
		if (place >= run.first || run.first - place > NEIGHBOUR)
			continue;
		run.first = place;
		run.sure = sure;
		run.n++;
	}
	return run;
}

/* Finds the entry with which an open of the sample goes on with a run. */
static bool find_next_of_run(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	for (unsigned i = 1; i <= ring_length(list); i++) {
		for (uint64_t k = 1; k <= JOIN && ring_place(list, i) != NOWHERE; k++) {
			uint32_t next;
			*ret_place = ring_place(list, i) + k;
			if (*ret_place >= list->begin && fs_announced_list_sample(list, *ret_place, &next) &&
			        next == sample)
				return true;
		}
	}
	return false;
}

/* Finds where else in the list the sample comes: behind a run, soon, near the latest such open, or from the beginning
 * on. */
static bool find_elsewhere(const struct fs_announced_list *list, uint32_t sample, uint64_t *ret_place)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t first, from = UINT64_MAX, latest = list->ring_n > 0 ? ring_place(list, 1) : NOWHERE;
	for (unsigned i = 0; i < FS_ANNOUNCED_CHUNKS; i++) {
		if (list->chunks[i] && list->chunks[i]->number * list->chunk_entries < from)
			from = list->chunks[i]->number * list->chunk_entries;
	}
	if (from == UINT64_MAX)
		return false;
	from = from > list->begin ? from : list->begin;
	if (!fs_announced_list_find(list, sample, from, s->end, &first))
		return false; /* most files that another program opens */
	if (find_next_of_run(list, sample, ret_place) ||
	        find_unused(list, sample, s->cursor, s->high + FS_ANNOUNCED_AHEAD, ret_place))
		return true;
	if (latest != NOWHERE &&
	        fs_announced_list_find(list, sample, latest > from + NEIGHBOUR ? latest - NEIGHBOUR : from,
	                latest + FS_ANNOUNCED_AHEAD, ret_place))
		return true;
	*ret_place = first;
	return true;
}

/* Counts the entries that the readers of one stream would have left unused if one of them was at `place`. */
static uint64_t unused_before(const struct fs_announced_list *list, uint64_t place)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t n = place - s->high;
	for (uint64_t p = s->cursor; p < s->high; p++)
		n += !is_used(list, p);
	return n;
}

/* Takes the places [low, high] out of the ring. */
static void forget_places(struct fs_announced_list *list, uint64_t low, uint64_t high)
{
	for (unsigned i = 0; i < RING; i++) {
		if (list->ring[i].place >= low && list->ring[i].place <= high)
			list->ring[i].place = NOWHERE;
	}
}

/* Books the latest opens in the ring as used that lie in [low, high], and takes them out of it. Those for which there
 * is no room in @places stay for fs_announced_list_reached. */
static void use_ring(struct fs_announced_list *list, unsigned latest, uint64_t low, uint64_t high,
        uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	*ret_n = 0;
	for (unsigned i = latest; i >= 1; i--) {
		uint64_t place = ring_place(list, i);
		if (place < low || place > high)
			continue;
		if (*ret_n == FS_ANNOUNCED_RING) {
			list->soon = place < list->soon ? place : list->soon;
			continue;
		}
		list->ring[(list->ring_n - i) % RING].place = NOWHERE;
		if (is_used(list, place))
			continue;
		book_use(list, place);
		places[(*ret_n)++] = place;
	}
	advance(list);
}

/* Files that were drawn twice, not far apart, looked like files that are opened twice. Their reader has gone on. Behind
 * a shuffle buffer the entries before the latest one may still be held. */
static void use_drawn_again(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	if (list->buffer > 0)
		return;
	uint32_t sample;
	for (uint64_t place = list->latest; place > list->begin && *ret_n < FS_ANNOUNCED_RING; place--) {
		if (is_used(list, place - 1) || !fs_announced_list_sample(list, place - 1, &sample) ||
		        !lately(list, sample, AGAIN_OPENS))
			break;
		book_use(list, place - 1);
		places[(*ret_n)++] = place - 1;
	}
	advance(list);
}

void fs_announced_list_reached(struct fs_announced_list *list, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	const struct fs_announced_state *s = &list->state;
	*ret_n = 0;
	if (list->soon < s->high)
		use_ring(list, ring_length(list), s->cursor, s->high - 1, places, ret_n);
	use_drawn_again(list, places, ret_n);
	if (list->soon >= s->high)
		return;
	list->soon = NOWHERE;
	for (unsigned i = 1; i <= ring_length(list); i++) {
		uint64_t place = ring_place(list, i);
		list->soon = place >= s->cursor && place < list->soon ? place : list->soon;
	}
}

/* Moves the reader to where the latest opens in the ring lie, if they lie together and it has made no others. If they
 * are opens of several readers, it is moved to the latest one, and the others get parts of the list later: one stream
 * would give up what the hindmost reads. */
static bool move_reader(
        struct fs_announced_list *list, uint64_t apart, uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	struct fs_announced_state *s = &list->state;
	uint64_t near[RING_ENOUGH], left = s->high;
	if (list->ring_n < RING_ENOUGH || list->ring[(list->ring_n - RING_ENOUGH) % RING].sure < s->sure)
		return false;
	unsigned n = neighbours(list, near);
	if (n < RING_SURE)
		return false;
	uint64_t low = near[0], high = near[n - 1];
	bool several = false;
	for (unsigned i = 1; i < n; i++)
		several |= near[i] - near[i - 1] >= apart;
	if (several) {
		struct run run = latest_run(list);
		if (run.n < RUN_ENOUGH)
			return false;
		low = run.first;
		high = run.last;
	}
	if (high - low >= FS_ANNOUNCED_BEHIND || low < list->first)
		return false; /* `first`: those entries were given back meanwhile */
	for (uint64_t p = low; p < (s->high > high ? s->high : high + 1); p++)
		set_used(list, p, false);
	s->cursor = low;
	s->high = low;
	s->moves++;
	s->apart = false;
	list->restored_high = 0; /* what it comes to again is known */
	list->left = left;
	list->left_opens = list->opens;
	list->moved_to = low;
	use_ring(list, several ? ring_length(list) : RING_ENOUGH, low, high, places, ret_n);
	if (!several)
		list->ring_n = 0;
	list->bad = list->astray = 0;
	s->wrong = false;
	return true;
}

/* Whether the reader was moved, and somebody goes on where it was: then there are two, who read by turns. */
static bool comes_back(const struct fs_announced_list *list, const struct run *run)
{
	return list->state.moves > 0 && list->opens - list->left_opens < FS_ANNOUNCED_BEHIND &&
	       run->first < list->left + FS_ANNOUNCED_NEAR && run->first + FS_ANNOUNCED_AHEAD >= list->left;
}

bool fs_announced_list_missed(struct fs_announced_list *list, uint32_t sample, uint64_t apart,
        uint64_t places[FS_ANNOUNCED_RING], size_t *ret_n)
{
	struct fs_announced_state *s = &list->state;
	uint64_t place;
	bool has = find_elsewhere(list, sample, &place);
	list->bad++;
	list->astray += has;
	list->silent.gone_on += has;
	judge(list);
	if (!has || list->buffer > 0)
		return false;
	list->soon = place >= s->high && place < list->soon ? place : list->soon;
	list->ring[list->ring_n % RING].place = place;
	list->ring[list->ring_n++ % RING].sure = s->sure;
	struct run run = latest_run(list);
	if (run.n >= RUN_JOINS && run.first >= s->high && run.last < s->high + FS_ANNOUNCED_AHEAD &&
	        unused_before(list, run.first) < apart) {
		use_ring(list, ring_length(list), s->cursor, run.last, places, ret_n);
		return true;
	}
	if (apart < UINT64_MAX && run.n >= RUN_ENOUGH && (s->sure - run.sure >= GOES_ON || comes_back(list, &run))) {
		list->other = run;
		s->apart = other_is_ahead(list) || other_is_behind(list);
		if (s->apart)
			return false;
	}
	return move_reader(list, apart, places, ret_n);
}

/* ---- the end ---- */

/* Whether so few entries are left that they do not keep the list, and it is no list of a few entries. Of entries before
 * restored_high nobody knows if they were used: nearly all were. */
static bool few_are_left(const struct fs_announced_list *list)
{
	const struct fs_announced_state *s = &list->state;
	uint64_t left = list->end - s->high, most = (list->end - list->begin) / 2;
	most = most < FS_ANNOUNCED_LEFT ? most : FS_ANNOUNCED_LEFT;
	for (uint64_t p = s->cursor > list->restored_high ? s->cursor : list->restored_high;
	        p < s->high && left <= most; p++)
		left += !is_used(list, p);
	return left <= most;
}

void fs_announced_list_passed(struct fs_announced_list *list, uint32_t sample, bool part)
{
	uint64_t place, begin = list->begin > list->first ? list->begin : list->first;
	/* It counts only if the last few entries are unused, and looking takes time. */
	if (list->state.high == list->end || list->end - list->state.high > FS_ANNOUNCED_LEFT)
		return;
	list->silent.gone_on += part || fs_announced_list_find(list, sample, begin, list->end, &place);
}

bool fs_announced_list_over(struct fs_announced_list *list, uint64_t now_ns)
{
	if (list->state.cursor == list->end)
		return true;
	if (list->silent.since_ns == 0 || list->silent.opens != list->opens || list->silent.end != list->end) {
		list->silent.opens = list->opens;
		list->silent.end = list->end;
		list->silent.since_ns = now_ns;
		list->silent.gone_on = 0;
		return false;
	}
	if (now_ns - list->silent.since_ns < FS_ANNOUNCED_SILENT_S * UINT64_C(1000000000) ||
	        (list->state.high < list->end && list->silent.gone_on < FS_ANNOUNCED_GONE_ON))
		return false;
	if (few_are_left(list))
		return true;
	list->silent.since_ns = now_ns; /* the entries are counted again only after that time: there may be millions */
	return false;
}

/* ---- splitting ---- */

uint64_t fs_announced_list_part_bytes(const struct fs_announced_list *list)
{
	uint64_t kept = list->end - list->first, most = FS_ANNOUNCED_CHUNKS * list->chunk_entries;
	return sizeof(uint32_t) * (kept < most ? kept : most);
}

/* The part is as far as the list, and knows where further readers are. */
static void copy_reader(const struct fs_announced_list *list, struct fs_announced_list *part)
{
	uint64_t end = part->end;
	part->soon = list->soon;
	memcpy(part->ring, list->ring, sizeof(part->ring));
	part->ring_n = list->ring_n;
	part->state = list->state;
	part->state.end = end;
	part->state.used = part->state.moves = 0;
}

int fs_announced_list_split(struct fs_announced_list *list, struct fs_announced_list **ret_other)
{
	struct fs_announced_list *part;
	const struct run *other = &list->other;
	bool is_ahead = other_is_ahead(list);
	/* Where the second part begins: what the list's reader has read since it was moved is its own. */
	uint64_t own = list->moved_to > other->last && list->moved_to < list->state.cursor ? list->moved_to
	                                                                                   : list->state.cursor;
	uint64_t at = is_ahead ? other->first : own;
	list->state.apart = false;
	int rc = fs_announced_list_part(list, is_ahead ? at : list->begin, is_ahead ? list->end : at, &part);
	if (rc < 0)
		return rc;
	copy_reader(list, part);
	part->state.cursor = part->state.high = other->last + 1;
	forget_places(list, other->first, other->last);
	forget_places(part, other->first, other->last);
	forget_places(is_ahead ? list : part, at, NOWHERE);
	forget_places(is_ahead ? part : list, 0, at - 1); /* the first part has entries */
	if (is_ahead)
		fs_announced_list_shorten(list, at);
	else
		list->begin = at;
	list->bad = list->astray = 0;
	*ret_other = part;
	return 0;
}
