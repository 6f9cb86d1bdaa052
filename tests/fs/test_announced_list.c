/* SPDX-License-Identifier: Apache-2.0 */
/* Announced lists: entries in pieces and with repetitions, where the reader is, and what a successor finds. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "fs/announced_list_private.h"
#include "fs/announced_reader.h"

enum { SAMPLES = 200000, BLOCK = FS_ORDER_BLOCK, APART = 1000 };

static int fd = -1;
static struct fs_handover_head *head;
static struct fs_handover *handover;
static struct fs_order_memory *memory;
static uint64_t state = 1; /* of random numbers */

static uint32_t draw(uint32_t below)
{
	state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)((state >> 33) % below);
}

static int set_up(void **unused)
{
	const struct fs_handover_sizes sizes = { .n_views = 1, .view_bits = 100, .samples = SAMPLES };
	bool kept;
	(void)unused;
	assert_int_equal(fs_handover_new(&fd, &head), 0);
	assert_int_equal(fs_handover_open(fd, &sizes, &handover, &kept), 0);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	return 0;
}

static int tear_down(void **unused)
{
	(void)unused;
	assert_int_equal(fs_order_memory_bytes(memory), 0);
	fs_order_memory_free(memory);
	fs_handover_close(handover);
	munmap(head, FS_HANDOVER_HEAD_BYTES);
	close(fd);
	return 0;
}

static struct fs_announced_list *make_buffered(uint32_t chunk_blocks, uint64_t buffer)
{
	struct fs_announced_list *list;
	struct fs_announced_list_options options = { .memory = memory,
		.name = "train",
		.id = 7,
		.chunk_blocks = chunk_blocks,
		.n_samples = SAMPLES,
		.buffer = buffer };
	assert_int_equal(fs_announced_list_new(&options, &list), 0);
	return list;
}

static struct fs_announced_list *make(uint32_t chunk_blocks)
{
	return make_buffered(chunk_blocks, 0);
}

static void append(struct fs_announced_list *list, const uint32_t *samples, size_t n)
{
	struct fs_announced_piece piece;
	fs_announced_piece_begin(list, &piece);
	assert_int_equal(fs_announced_piece_add(&piece, samples, n), 0);
	assert_int_equal(fs_announced_list_commit(&piece), 0);
}

static struct fs_announced_list *made_of(uint32_t chunk_blocks, const uint32_t *samples, size_t n)
{
	struct fs_announced_list *list = make(chunk_blocks);
	append(list, samples, n);
	fs_announced_list_build(list);
	return list;
}

static uint32_t *drawn(size_t n, uint32_t below)
{
	uint32_t *samples = malloc(n * sizeof(*samples));
	for (size_t i = 0; i < n; i++)
		samples[i] = draw(below);
	return samples;
}

static uint32_t *shuffled(uint32_t n)
{
	uint32_t *samples = malloc(n * sizeof(*samples));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = draw(i + 1);
		samples[i] = samples[at];
		samples[at] = i;
	}
	return samples;
}

/* An open as fs/announced_orders.c takes it in. */
static enum fs_announced_fit open_one(struct fs_announced_list *list, uint32_t sample)
{
	uint64_t place, places[FS_ANNOUNCED_RING];
	size_t n;
	enum fs_announced_fit fit = fs_announced_list_fit(list, sample, &place);
	if (fit == FS_ANNOUNCED_LOOSE || fit == FS_ANNOUNCED_SURELY) {
		fs_announced_list_use(list, place, fit == FS_ANNOUNCED_SURELY);
		fs_announced_list_reached(list, places, &n);
	} else if (fit == FS_ANNOUNCED_ELSEWHERE)
		fs_announced_list_missed(list, sample, APART, places, &n);
	return fit;
}

static struct fs_announced_state state_of(const struct fs_announced_list *list)
{
	struct fs_announced_state s;
	fs_announced_list_state(list, &s);
	return s;
}

/* The callbacks say what a search through the entries says. */
static void check_epochs(struct fs_announced_list *list, const uint32_t *samples, uint64_t n, uint64_t chunk)
{
	struct shard_view_given given;
	fs_announced_list_given(list, &given);
	for (uint64_t number = 0; number * chunk < n && number < FS_ANNOUNCED_CHUNKS; number++) {
		void *epoch;
		uint64_t turns, turn;
		const uint32_t *own = samples + number * chunk;
		uint64_t want = n - number * chunk < chunk ? n - number * chunk : chunk;
		assert_int_equal(given.get(given.user, number, &epoch, &turns), 0);
		assert_int_equal(turns, want);
		for (int i = 0; i < 300; i++) {
			uint32_t at = draw((uint32_t)turns), from = draw((uint32_t)turns), sample;
			assert_int_equal(given.turn(epoch, at, &sample), 0);
			assert_int_equal(sample, own[at]);
			uint64_t next = from;
			while (next < turns && own[next] != sample)
				next++;
			int rc = given.find_from(epoch, sample, from, &turn);
			assert_int_equal(rc, next < turns ? 0 : -ENOENT);
			if (rc == 0)
				assert_int_equal(turn, next);
			assert_int_equal(given.find(epoch, sample, &turn), 0);
			assert_true(turn <= at && own[turn] == sample);
		}
		assert_int_equal(given.find(epoch, SAMPLES - 1, &turn), -ENOENT);
		given.put(epoch);
	}
}

static void entries_come_in_pieces_of_any_size(void **unused)
{
	static const size_t sizes[] = { 1, 31, 1, 4000, BLOCK - 4033, 1, BLOCK - 1, BLOCK + 1, 3, 3 * BLOCK, 77 };
	(void)unused;
	for (uint32_t chunk_blocks = 1; chunk_blocks <= 3; chunk_blocks += 2) {
		struct fs_announced_list *list = make(chunk_blocks);
		uint32_t *samples = drawn(8 * BLOCK, 5000);
		uint64_t n = 0;
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			append(list, samples + n, sizes[i]);
			n += sizes[i];
			int rc = fs_announced_list_build(list);
			assert_true(rc == 1 || n > (uint64_t)FS_ANNOUNCED_CHUNKS * chunk_blocks * BLOCK);
			assert_int_equal(fs_announced_list_build(list), 0);
			check_epochs(list, samples, n, (uint64_t)chunk_blocks * BLOCK);
		}
		assert_int_equal(state_of(list).end, n);
		free(samples);
		fs_announced_list_free(list);
	}
}

static void a_piece_that_is_undone_leaves_nothing(void **unused)
{
	struct fs_announced_piece piece;
	struct fs_announced_list *list = make(1);
	uint32_t *samples = drawn(3 * BLOCK, SAMPLES - 1);
	(void)unused;
	append(list, samples, 100);
	uint64_t bytes = fs_order_memory_bytes(memory);
	fs_announced_piece_begin(list, &piece);
	assert_int_equal(fs_announced_piece_add(&piece, samples + 100, 2 * BLOCK), 0);
	fs_announced_piece_undo(&piece);
	assert_int_equal(fs_order_memory_bytes(memory), bytes);
	/* No room: what was taken before is given back, too. */
	fs_order_memory_limit(memory, bytes + BLOCK * sizeof(uint32_t));
	fs_announced_piece_begin(list, &piece);
	assert_int_equal(fs_announced_piece_add(&piece, samples + 100, 2 * BLOCK), -ENOSPC);
	fs_announced_piece_undo(&piece);
	fs_order_memory_limit(memory, UINT64_MAX);
	append(list, samples + 100, BLOCK);
	fs_announced_list_build(list);
	check_epochs(list, samples, BLOCK + 100, BLOCK);
	free(samples);
	fs_announced_list_free(list);
}

/* Workers side by side, each batch in order: every open belongs to its entry, and memory is given back behind them. */
static void workers_side_by_side_follow_a_draw_with_replacement(void **unused)
{
	enum { N = 6 * BLOCK, BATCH = 32, WORKERS = 4 };
	struct fs_announced_list *list = make(1);
	uint32_t *samples = drawn(N, 3000); /* each about 130 times */
	uint64_t at[WORKERS], fits[4] = { 0 }, most = 0;
	(void)unused;
	append(list, samples, N);
	for (unsigned w = 0; w < WORKERS; w++)
		at[w] = (uint64_t)w * BATCH;
	for (uint64_t n = 0; n < N; n++) {
		unsigned w = draw(WORKERS);
		if (n % 1000 == 0)
			fs_announced_list_build(list);
		/* No worker is more than two batches ahead of the last one. */
		for (unsigned k = 0; k < WORKERS; k++)
			w = at[k] + 2 * BATCH * WORKERS < at[w] || at[w] >= N ? k : w;
		fits[open_one(list, samples[at[w]])]++;
		at[w] += (at[w] + 1) % BATCH ? 1 : (uint64_t)BATCH * (WORKERS - 1) + 1;
		uint64_t bytes = fs_order_memory_bytes(memory);
		most = n == 2 * BLOCK ? bytes : most;
		assert_true(n < 3 * BLOCK || bytes <= most);
	}
	struct fs_announced_state s = state_of(list);
	assert_true(s.confirmed && !s.wrong);
	assert_true(s.used >= N - 16); /* also files that are drawn again soon */
	assert_true(fits[FS_ANNOUNCED_SURELY] > N / 100 * 90);
	assert_int_equal(s.moves, 0);
	assert_true(s.high == N);
	free(samples);
	fs_announced_list_free(list);
}

static void a_file_that_is_opened_twice_counts_once(void **unused)
{
	enum { N = 5000 };
	struct fs_announced_list *list = make(1);
	uint32_t *first = shuffled(N), *second = shuffled(N);
	(void)unused;
	append(list, first, N);
	append(list, second, N); /* the next epoch is near for files at the end of this one */
	fs_announced_list_build(list);
	for (uint64_t i = 0; i < N; i++) {
		open_one(list, first[i]);
		assert_int_equal(open_one(list, first[i]), FS_ANNOUNCED_AGAIN);
	}
	assert_int_equal(state_of(list).used, N);
	assert_int_equal(state_of(list).cursor, N);
	free(first);
	free(second);
	fs_announced_list_free(list);
}

static void opens_in_a_row_elsewhere_move_the_reader(void **unused)
{
	enum { N = 100000, FAR = 70000 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(2, samples, N);
	(void)unused;
	for (uint64_t i = 0; i < 500; i++)
		assert_true(open_one(list, samples[i]) >= FS_ANNOUNCED_LOOSE);
	unsigned missed = 0;
	for (uint64_t i = FAR; i < FAR + 500; i++)
		missed += open_one(list, samples[i]) == FS_ANNOUNCED_ELSEWHERE;
	assert_in_range(missed, 16, 40);
	assert_int_equal(state_of(list).moves, 1);
	assert_int_equal(state_of(list).high, FAR + 500);
	/* And back, as a trainer that was started again. */
	for (uint64_t i = FAR / 2; i < FAR / 2 + 500; i++)
		missed += open_one(list, samples[i]) == FS_ANNOUNCED_ELSEWHERE;
	assert_true(missed <= 80);
	assert_int_equal(state_of(list).moves, 2);
	assert_int_equal(state_of(list).high, FAR / 2 + 500);
	assert_true(state_of(list).confirmed && !state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

/* Somebody who looks at single files moves nobody. */
static void single_opens_far_ahead_move_nothing(void **unused)
{
	enum { N = 8000 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	for (uint64_t i = 0; i < N / 2; i++) {
		assert_true(open_one(list, samples[i]) >= FS_ANNOUNCED_LOOSE);
		if (i % 100 == 0)
			open_one(list, samples[i + 600 + draw(3000)]);
		assert_in_range(state_of(list).high, i + 1, i + 1 + FS_ANNOUNCED_NEAR);
	}
	assert_int_equal(state_of(list).moves, 0);
	assert_false(state_of(list).apart || state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

/* Workers with large batches begin in any order: one stream reads for all of them. */
static void a_worker_that_begins_its_batch_is_followed(void **unused)
{
	enum { N = 16384, BATCH = 256, WORKERS = 4 };
	struct fs_announced_list *list = make(1);
	uint32_t *samples = shuffled(N), fits[4] = { 0 };
	uint64_t at[WORKERS];
	(void)unused;
	append(list, samples, N);
	fs_announced_list_build(list);
	for (unsigned w = 0; w < WORKERS; w++)
		at[w] = (uint64_t)w * BATCH;
	for (uint64_t n = 0; n < N / 2; n++) {
		unsigned w = WORKERS - 1 - n % WORKERS; /* the last batch begins first */
		fits[open_one(list, samples[at[w]])]++;
		at[w] += (at[w] + 1) % BATCH ? 1 : (uint64_t)BATCH * (WORKERS - 1) + 1;
	}
	assert_in_range(fits[FS_ANNOUNCED_ELSEWHERE], 1, N / 2 / BATCH + 1);
	assert_true(state_of(list).cursor >= N / 2 - WORKERS);
	assert_int_equal(state_of(list).moves, 0);
	assert_false(state_of(list).apart || state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

/* tf.data's shuffle(B): B files are held, any of them is opened, and the next file of the list takes its place. */
static void what_a_shuffle_buffer_gives_out_follows_the_list(void **unused)
{
	enum { N = 150000 };
	static const uint32_t buffers[] = { 16, 1000, 20000 };
	(void)unused;
	for (unsigned round = 0; round < 6; round++) {
		uint32_t b = buffers[round % 3], *samples = shuffled(N), *held = malloc(b * sizeof(*held)), next = 0;
		uint32_t fits[4] = { 0 };
		struct fs_announced_list *list = make_buffered(1, round < 3 ? b : 0);
		append(list, samples, N);
		for (; next < b; next++)
			held[next] = samples[next];
		for (uint32_t n = b, i = 0; n > 0; i++) {
			uint32_t at = draw(n), sample = held[at];
			held[at] = next < N ? samples[next++] : held[--n];
			if (i % 500 == 0)
				fs_announced_list_build(list);
			fits[open_one(list, sample)]++;
		}
		struct fs_announced_state s = state_of(list);
		if (round < 3) {
			assert_in_range(fits[FS_ANNOUNCED_SURELY], N - N / 1000, N);
			assert_true(s.confirmed && !s.wrong && !s.apart && s.moves == 0);
			assert_in_range(s.cursor, N - 16, N);
		} else {
			assert_true(b == 16 || s.wrong); /* nobody has said that there is a buffer */
		}
		free(samples);
		free(held);
		fs_announced_list_free(list);
	}
}

/* The parts of a list; opens go where they fit, as fs/announced_orders.c sees to it. */
enum { PARTS = 8 };
struct parts {
	struct fs_announced_list *lists[PARTS];
	unsigned n, elsewhere;
};

static void end_parts(struct parts *parts)
{
	for (unsigned i = 0; i < parts->n; i++)
		fs_announced_list_free(parts->lists[i]);
}

/* The engine is told of places that the reader has passed, each once. */
static void check_places(const struct fs_announced_list *list, const uint64_t places[FS_ANNOUNCED_RING], size_t n)
{
	assert_in_range(n, 0, FS_ANNOUNCED_RING);
	for (size_t i = 0; i < n; i++) {
		assert_true(places[i] < state_of(list).high);
		for (size_t k = 0; k < i; k++)
			assert_true(places[k] != places[i]);
	}
}

static void open_somewhere(struct parts *parts, uint32_t sample)
{
	enum fs_announced_fit best = FS_ANNOUNCED_ELSEWHERE, fit;
	struct fs_announced_list *in = NULL;
	uint64_t place = 0, at, places[FS_ANNOUNCED_RING];
	size_t n;
	for (unsigned i = 0; i < parts->n; i++) {
		fit = fs_announced_list_fit(parts->lists[i], sample, &at);
		if (fit > best) {
			best = fit;
			place = at;
			in = parts->lists[i];
		}
	}
	if (best >= FS_ANNOUNCED_LOOSE) {
		fs_announced_list_use(in, place, best == FS_ANNOUNCED_SURELY);
		fs_announced_list_reached(in, places, &n);
		check_places(in, places, n);
	}
	parts->elsewhere += best == FS_ANNOUNCED_ELSEWHERE;
	for (unsigned i = 0; i < parts->n && best == FS_ANNOUNCED_ELSEWHERE; i++) {
		if (fs_announced_list_missed(
		            parts->lists[i], sample, parts->n < PARTS ? APART : UINT64_MAX, places, &n))
			check_places(parts->lists[i], places, n);
	}
}

static void split_parts(struct parts *parts)
{
	for (unsigned i = 0; i < parts->n; i++) {
		if (!state_of(parts->lists[i]).apart || parts->n == PARTS)
			continue;
		assert_int_equal(fs_announced_list_split(parts->lists[i], &parts->lists[parts->n]), 0);
		fs_announced_list_build(parts->lists[i]);
		fs_announced_list_build(parts->lists[parts->n++]);
	}
}

static void open_in_parts(struct parts *parts, uint32_t sample)
{
	open_somewhere(parts, sample);
	split_parts(parts);
}

/* Each worker reads a contiguous part of the list, which is split until each has a part. */
static void read_contiguous_parts(uint32_t n, uint32_t readers, uint32_t chunk_blocks)
{
	uint64_t at[PARTS], end[PARTS], left = n, used = 0, covered = 0, unused = 0, moves = 0;
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(n);
	parts.lists[0] = made_of(chunk_blocks, samples, n);
	for (unsigned r = 0; r < readers; r++) {
		at[r] = (uint64_t)n * r / readers;
		end[r] = (uint64_t)n * (r + 1) / readers;
	}
	while (left > 0) {
		unsigned r = draw(readers);
		if (at[r] == end[r])
			continue;
		open_in_parts(&parts, samples[at[r]++]);
		if (left-- % 500 == 0) {
			for (unsigned i = 0; i < parts.n; i++)
				fs_announced_list_build(parts.lists[i]);
		}
	}
	for (unsigned i = 0; i < parts.n; i++) {
		struct fs_announced_state s = state_of(parts.lists[i]);
		assert_false(s.wrong);
		moves += s.moves;
		used += s.used;
		unused += s.end - s.cursor;
		covered = s.end > covered ? s.end : covered;
		fs_announced_list_free(parts.lists[i]);
	}
	assert_int_equal(covered, n);
	assert_true(n / readers <= APART ? parts.n > 1 : parts.n == readers);
	/* If the first reader is late, the list's reader is moved to another one. Some entries that were opened before
	 * count as unused then. */
	assert_in_range(moves, 0, 2);
	assert_in_range(unused, 0, moves * 2 * FS_ANNOUNCED_RING);
	assert_in_range(parts.elsewhere, 1, 40 * readers);
	assert_in_range(used, n - parts.elsewhere, n);
	free(samples);
}

static void readers_of_contiguous_parts_split_the_list(void **unused)
{
	static const uint32_t sizes[] = { 8000, 16000, 180000 };
	uint64_t own = state;
	(void)unused;
	for (unsigned seed = 0; seed < 6; seed++) {
		state = seed < 5 ? seed : 11; /* in 1, 2, 3 and 11 the first reader is late */
		for (unsigned round = 0; round < 12; round++)
			read_contiguous_parts(sizes[round % 3], 2 + round % 4 * 2, 1 + round % 2);
	}
	state = own;
}

/* A trainer that goes on in mid-epoch: nobody reads at the beginning of the list. */
static void readers_in_the_middle_of_their_parts_split_the_list(void **unused)
{
	enum { N = 180000, READERS = 8, PART = N / READERS };
	uint64_t own = state;
	(void)unused;
	for (unsigned seed = 1; seed <= 3; seed++) {
		uint64_t at[READERS] = { 0 };
		struct parts parts = { .n = 1 };
		state = seed;
		uint32_t *samples = shuffled(N);
		parts.lists[0] = made_of(2, samples, N);
		for (uint64_t left = READERS * 6000; left > 0;) {
			unsigned r = draw(READERS);
			if (at[r] == 6000)
				continue;
			open_in_parts(&parts, samples[(uint64_t)r * PART + PART / 2 + at[r]++]);
			left--;
		}
		assert_int_equal(parts.n, READERS);
		assert_in_range(parts.elsewhere, 1, 40 * READERS);
		for (unsigned i = 0; i < parts.n; i++)
			assert_false(state_of(parts.lists[i]).wrong);
		end_parts(&parts);
		free(samples);
	}
	state = own;
}

/* They read by turns, a batch each: the first turns look like one reader who goes to and fro. */
static void readers_by_turns_split_the_list(void **unused)
{
	enum { N = 8000, READERS = 4, BATCH = 32 };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N);
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (uint64_t i = 0; i < N / READERS; i += BATCH) {
		for (uint64_t r = 0; r < READERS; r++) {
			for (uint64_t k = i; k < i + BATCH && k < N / READERS; k++)
				open_in_parts(&parts, samples[r * (N / READERS) + k]);
		}
	}
	assert_int_equal(parts.n, READERS);
	assert_in_range(parts.elsewhere, 1, READERS * 2 * BATCH);
	for (unsigned i = 0; i < parts.n; i++) {
		assert_in_range(state_of(parts.lists[i]).moves, 0, 3);
		/* What the next part's reader had opened before the split stays unread there. */
		assert_in_range(state_of(parts.lists[i]).end - state_of(parts.lists[i]).high, 0, 2 * BATCH);
		fs_announced_list_free(parts.lists[i]);
	}
	free(samples);
}

/* A second reader that began behind the first one. */
static void a_reader_that_begins_at_the_beginning_splits_the_list(void **unused)
{
	enum { N = 150000, AT = 90000 };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N);
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (uint64_t i = 0; i < AT; i++) {
		open_in_parts(&parts, samples[i]);
		if (i % 1000 == 0)
			fs_announced_list_build(parts.lists[0]);
	}
	/* What its chunks hold still: those before were given back. */
	for (uint64_t i = 0; i < 10000; i++) {
		open_in_parts(&parts, samples[AT + i]);
		open_in_parts(&parts, samples[AT - 20000 + i]);
	}
	assert_int_equal(parts.n, 2);
	assert_true(parts.elsewhere <= 40);
	assert_int_equal(state_of(parts.lists[0]).high, AT + 10000);
	assert_int_equal(state_of(parts.lists[0]).end, N);
	assert_int_equal(state_of(parts.lists[1]).high, AT - 10000);
	assert_in_range(state_of(parts.lists[1]).end, AT, AT + 40);
	end_parts(&parts);
	free(samples);
}

/* Workers with large batches, and somebody who begins at the beginning: the workers go on as if nothing was. */
static void workers_keep_their_place_when_a_reader_behind_them_gets_his_own(void **unused)
{
	enum { N = 30000, BATCH = 256, WORKERS = 4, AT = 10 * BATCH * WORKERS };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N);
	uint64_t at[WORKERS];
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (unsigned w = 0; w < WORKERS; w++)
		at[w] = (uint64_t)w * BATCH;
	for (uint64_t n = 0; n < N; n++) {
		unsigned w = n % WORKERS;
		while (at[w] >= N)
			w = (w + 1) % WORKERS;
		open_in_parts(&parts, samples[at[w]]);
		at[w] += (at[w] + 1) % BATCH ? 1 : (uint64_t)BATCH * (WORKERS - 1) + 1;
		if (n == AT)
			parts.elsewhere = 0;
		if (n > AT && n <= AT + 2000)
			open_in_parts(&parts, samples[n - AT]);
	}
	assert_int_equal(parts.n, 2);
	assert_true(parts.elsewhere <= N / BATCH + 20); /* a batch that begins, and the reader behind */
	assert_int_equal(state_of(parts.lists[0]).cursor, N);
	assert_int_equal(state_of(parts.lists[1]).high, 2001);
	end_parts(&parts);
	free(samples);
}

/* The watcher brings many opens at once: a list is split after all of them. */
static void readers_that_have_met_meanwhile_share_the_list(void **unused)
{
	enum { N = 8000, AT = 1500 };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N);
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (uint64_t i = 0; i < 100; i++) {
		open_somewhere(&parts, samples[i]);
		if (i < 20)
			open_somewhere(&parts, samples[AT + i]);
	}
	assert_true(state_of(parts.lists[0]).apart);
	for (uint64_t i = 100; i < N; i++)
		open_somewhere(&parts, samples[i]);
	assert_false(state_of(parts.lists[0]).apart);
	assert_int_equal(state_of(parts.lists[0]).cursor, N);
	fs_announced_list_free(parts.lists[0]);
	free(samples);
}

/* Another order over the same files, from other tests' seeds: the list is wrong, and is never moved about. */
static void a_list_that_opens_do_not_follow_is_wrong(void **unused)
{
	static const uint32_t sizes[] = { 6000, 20000, 150000 };
	(void)unused;
	for (unsigned round = 0; round < 12; round++) {
		uint32_t n = sizes[round % 3], opens = 0;
		struct fs_announced_list *list = make(1 + round % 2);
		uint32_t *said = shuffled(n), *opened = shuffled(n);
		append(list, said, n);
		fs_announced_list_build(list);
		while (opens < n && !state_of(list).wrong)
			open_one(list, opened[opens++]);
		assert_true(state_of(list).wrong);
		assert_in_range(opens, FS_ANNOUNCED_DOUBT, 8 * FS_ANNOUNCED_DOUBT);
		assert_int_equal(state_of(list).moves, 0);
		assert_false(state_of(list).confirmed);
		free(said);
		free(opened);
		fs_announced_list_free(list);
	}
}

/* A list whose reader pauses for a long time, as during a validation that nobody announced. */
static void a_confirmed_list_outlasts_a_pause(void **unused)
{
	enum { N = 10000 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	for (uint64_t i = 0; i < N / 2; i++)
		open_one(list, samples[i]);
	for (uint32_t i = 0; i < 50000; i++)
		assert_int_equal(open_one(list, N + draw(SAMPLES - N)), FS_ANNOUNCED_ELSEWHERE);
	assert_false(state_of(list).wrong);
	for (uint64_t i = N / 2; i < N; i++)
		assert_true(open_one(list, samples[i]) >= FS_ANNOUNCED_LOOSE);
	for (uint32_t i = 0; i < FS_ANNOUNCED_LOST; i++)
		open_one(list, N + draw(SAMPLES - N));
	assert_true(state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

/* A confirmed list whose files are opened in another order from then on. */
static void a_confirmed_list_ends_when_its_files_come_otherwise(void **unused)
{
	enum { N = 60000 };
	uint32_t *samples = drawn(N, 3000), opens = 0;
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	for (uint64_t i = 0; i < 1000; i++)
		open_one(list, samples[i]);
	assert_true(state_of(list).confirmed);
	while (opens < 4 * FS_ANNOUNCED_ASTRAY && !state_of(list).wrong) {
		open_one(list, draw(3000));
		opens++;
		if (opens % 1000 == 0)
			fs_announced_list_build(list);
	}
	assert_true(state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

static void a_successor_goes_on(void **unused)
{
	enum { N = 3 * BLOCK + 100, AT = 2 * BLOCK + 10 };
	struct fs_announced_list *list = make(1), *next;
	struct fs_announced_list_options options = { .memory = memory, .name = "train", .id = 7, .n_samples = SAMPLES };
	struct fs_handover_announced *records = fs_handover_announced(handover);
	struct fs_handover_list record;
	uint32_t *samples = drawn(N, SAMPLES - 1);
	(void)unused;
	append(list, samples, N);
	for (uint64_t i = 0; i < AT; i++) {
		if (i % 1000 == 0)
			fs_announced_list_build(list);
		open_one(list, samples[i]);
	}
	fs_announced_list_build(list);
	fs_announced_list_save(list, 3);
	fs_announced_list_leave(list);
	fs_order_memory_free(memory);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	options.memory = memory;

	assert_true(fs_handover_load_list(records, 3, &record));
	assert_int_equal(record.end, N);
	/* Nothing in a record is believed. */
	const struct fs_handover_list bad[] = {
		{ .end = 0 },
		{ .end = N, .place = N + 1, .high = N + 1, .chunk = BLOCK },
		{ .end = N, .place = 5, .high = N + 1, .chunk = BLOCK },
		{ .end = N, .place = 5, .high = 4, .chunk = BLOCK },
		{ .end = N, .begin = 6, .place = 5, .high = N, .chunk = BLOCK },
		{ .end = N, .high = N, .chunk = BLOCK + 1 },
		{ .end = N, .high = N, .chunk = 17 * (uint64_t)BLOCK },
		{ .end = N, .high = N, .chunk = BLOCK, .first = 1, .place = 5 },
		{ .end = N, .high = N, .chunk = BLOCK, .first = BLOCK, .place = 5 },
		{ .end = N, .high = N, .chunk = BLOCK, .buffer = (uint64_t)FS_ANNOUNCED_BUFFER_MAX + 1 },
		{ .end = UINT64_MAX, .chunk = BLOCK },
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(fs_announced_list_restore(&options, &bad[i], &next), -ENODATA);
	assert_int_equal(fs_announced_list_restore(&options, &record, &next), 0);
	fs_order_memory_sweep(memory);
	assert_int_equal(fs_announced_list_build(next), 1);
	assert_string_equal(fs_announced_list_name(next), "train");
	for (uint64_t i = state_of(next).cursor; i < N; i++)
		assert_true(open_one(next, samples[i]) >= FS_ANNOUNCED_LOOSE);
	assert_int_equal(state_of(next).cursor, N);
	/* An entry that is no sample, and a block that is missing. */
	fs_announced_list_save(next, 3);
	fs_handover_load_list(records, 3, &record);
	fs_announced_list_leave(next);
	fs_order_memory_free(memory);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	options.memory = memory;
	record.place = record.end - 1;
	record.end += BLOCK;
	assert_int_equal(fs_announced_list_restore(&options, &record, &next), -ENODATA);
	free(samples);
}

/* A successor finds each part, and the block that two of them share. */
static void a_successor_goes_on_with_parts(void **unused)
{
	enum { N = 20000 };
	struct parts parts = { .n = 1 };
	struct fs_announced_list_options options = { .name = "train", .id = 7, .n_samples = SAMPLES };
	uint32_t *samples = shuffled(N);
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (uint64_t i = 0; i < 1000; i++) {
		open_in_parts(&parts, samples[i]);
		open_in_parts(&parts, samples[N / 2 + i]);
	}
	assert_int_equal(parts.n, 2);
	for (unsigned i = 0; i < 2; i++) {
		fs_announced_list_save(parts.lists[i], i);
		fs_announced_list_leave(parts.lists[i]);
	}
	fs_order_memory_free(memory);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	options.memory = memory;
	for (unsigned i = 0; i < 2; i++) {
		struct fs_handover_list record;
		assert_true(fs_handover_load_list(fs_handover_announced(handover), i, &record));
		assert_int_equal(fs_announced_list_restore(&options, &record, &parts.lists[i]), 0);
		fs_announced_list_build(parts.lists[i]);
	}
	fs_order_memory_sweep(memory);
	parts.elsewhere = 0;
	for (uint64_t i = 1000; i < N / 2; i++) {
		open_in_parts(&parts, samples[i]);
		open_in_parts(&parts, samples[N / 2 + i]);
	}
	assert_int_equal(parts.elsewhere, 0);
	assert_int_equal(state_of(parts.lists[0]).cursor, N / 2);
	assert_int_equal(state_of(parts.lists[1]).cursor, N);
	end_parts(&parts);
	free(samples);
}

static void an_entry_that_is_no_sample_is_not_taken_over(void **unused)
{
	struct fs_announced_list *list = make(1), *next;
	struct fs_announced_list_options options = { .name = "train", .id = 7, .n_samples = SAMPLES };
	struct fs_handover_list record;
	uint32_t samples[] = { 1, 2, SAMPLES, 3 };
	(void)unused;
	append(list, samples, 4);
	fs_announced_list_save(list, 0);
	fs_announced_list_leave(list);
	fs_order_memory_free(memory);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	options.memory = memory;
	assert_true(fs_handover_load_list(fs_handover_announced(handover), 0, &record));
	assert_int_equal(fs_announced_list_restore(&options, &record, &next), -ENODATA);
}

/* ---- readers of any kind ---- */

/* What the parts of a list must be at any time: they follow each other, and each has its reader within it. */
static void check_parts(const struct parts *parts, uint64_t n)
{
	uint64_t covered = 0;
	for (unsigned i = 0; i < parts->n; i++) {
		struct fs_handover_list record;
		struct fs_announced_state s = state_of(parts->lists[i]);
		fs_announced_list_save(parts->lists[i], i);
		assert_true(fs_handover_load_list(fs_handover_announced(handover), i, &record));
		assert_true(record.begin < record.end && record.first <= s.cursor && record.begin <= s.cursor);
		assert_true(s.cursor <= s.high && s.high <= s.end && s.end == record.end);
		assert_true(record.place == s.cursor && record.high == s.high);
		assert_true(parts->n > 1 || s.moves > 0 || s.used <= n);
		covered += record.end - record.begin;
		for (unsigned k = 0; k < i; k++) {
			struct fs_handover_list other;
			assert_true(fs_handover_load_list(fs_handover_announced(handover), k, &other));
			assert_true(other.end <= record.begin || record.end <= other.begin);
		}
	}
	assert_int_equal(covered, n);
}

static void hand_over(struct parts *parts)
{
	struct fs_announced_list_options options = { .name = "train", .id = 7, .n_samples = SAMPLES };
	for (unsigned i = 0; i < parts->n; i++) {
		fs_announced_list_save(parts->lists[i], i);
		fs_announced_list_leave(parts->lists[i]);
	}
	fs_order_memory_free(memory);
	assert_int_equal(fs_order_memory_new(handover, &memory), 0);
	options.memory = memory;
	for (unsigned i = 0; i < parts->n; i++) {
		struct fs_handover_list record;
		assert_true(fs_handover_load_list(fs_handover_announced(handover), i, &record));
		assert_int_equal(fs_announced_list_restore(&options, &record, &parts->lists[i]), 0);
		fs_announced_list_build(parts->lists[i]);
	}
	fs_order_memory_sweep(memory);
}

/* Small datasets: a file comes again while its last open was a moment ago, and may be in the buffer twice. */
static void a_shuffle_buffer_may_hold_a_file_twice(void **unused)
{
	enum { N = 150000 };
	static const uint32_t buffers[] = { 16, 1000, 5000 };
	(void)unused;
	for (unsigned round = 0; round < 3; round++) {
		uint32_t b = buffers[round], *samples = drawn(N, 3000), *held = malloc(b * sizeof(*held)), next = 0;
		uint32_t fits[4] = { 0 };
		struct fs_announced_list *list = make_buffered(1, b);
		append(list, samples, N);
		for (; next < b; next++)
			held[next] = samples[next];
		for (uint32_t n = b, i = 0; n > 0; i++) {
			uint32_t at = draw(n), sample = held[at];
			held[at] = next < N ? samples[next++] : held[--n];
			if (i % 500 == 0)
				fs_announced_list_build(list);
			fits[open_one(list, sample)]++;
			assert_false(state_of(list).wrong);
		}
		assert_in_range(fits[FS_ANNOUNCED_SURELY], N - N / 50, N);
		assert_int_equal(fits[FS_ANNOUNCED_ELSEWHERE], 0);
		free(samples);
		free(held);
		fs_announced_list_free(list);
	}
}

/* What the buffer gives out lies far ahead of the oldest file that it may hold. */
static void a_successor_goes_on_behind_a_shuffle_buffer(void **unused)
{
	enum { N = 150000, AT = 75000 };
	static const uint32_t buffers[] = { 16, 1000, 5000, 20000 };
	(void)unused;
	for (unsigned round = 0; round < 4; round++) {
		uint32_t b = buffers[round], *samples = shuffled(N), *held = malloc(b * sizeof(*held)), next = 0;
		uint32_t fits[4] = { 0 };
		struct parts parts = { .n = 1 };
		parts.lists[0] = make_buffered(1, b);
		append(parts.lists[0], samples, N);
		for (; next < b; next++)
			held[next] = samples[next];
		for (uint32_t n = b, i = 0; n > 0; i++) {
			uint32_t at = draw(n), sample = held[at];
			held[at] = next < N ? samples[next++] : held[--n];
			if (i == AT)
				hand_over(&parts);
			if (i % 500 == 0)
				fs_announced_list_build(parts.lists[0]);
			fits[open_one(parts.lists[0], sample)]++;
			assert_false(state_of(parts.lists[0]).wrong);
		}
		assert_in_range(fits[FS_ANNOUNCED_SURELY], N - N / 1000, N);
		assert_int_equal(state_of(parts.lists[0]).high, N);
		free(samples);
		free(held);
		fs_announced_list_free(parts.lists[0]);
	}
}

/* Returns what readers open, each a contiguous part of the list; b > 0: what a shuffle buffer of b files gives out. */
static uint32_t *what_is_opened(const uint32_t *samples, uint32_t n, uint32_t readers, uint32_t b)
{
	uint32_t *opens = malloc(n * sizeof(*opens));
	memcpy(opens, samples, n * sizeof(*opens));
	for (unsigned r = 0; b > 0 && r < readers; r++) {
		uint64_t from = (uint64_t)n * r / readers, to = (uint64_t)n * (r + 1) / readers;
		/* The buffer is [i, i + b): one of its files comes next, and the first one stays in its place. */
		for (uint64_t i = from; i < to; i++) {
			uint64_t at = i + draw(to - i < b ? (uint32_t)(to - i) : b);
			uint32_t next = opens[at];
			opens[at] = opens[i];
			opens[i] = next;
		}
	}
	return opens;
}

/* An old entry that nobody opens must not make a successor read everything since then again. */
static void a_successor_reads_little_again_behind_a_shuffle_buffer(void **unused)
{
	enum { N = 150000, AT = 75000 };
	static const uint32_t buffers[] = { 16, 1000, 5000 };
	uint64_t own = state;
	(void)unused;
	state = 5;
	for (unsigned round = 0; round < 3; round++) {
		uint32_t b = buffers[round], *samples = shuffled(N), *opens = what_is_opened(samples, N, 1, b);
		uint32_t *places = malloc(N * sizeof(*places)), forgotten = AT - (b < 1000 ? 4000 : 8 * b), older = 0;
		uint64_t start = 0;
		struct parts parts = { .n = 1 };
		parts.lists[0] = make_buffered(1, b);
		append(parts.lists[0], samples, N);
		for (uint32_t i = 0; i < N; i++)
			places[samples[i]] = i;
		for (uint32_t i = 0; i < N; i++) {
			if (i % 500 == 0)
				fs_announced_list_build(parts.lists[0]);
			if (i == AT) {
				hand_over(&parts);
				struct fs_announced_state s = state_of(parts.lists[0]);
				start = fs_announced_list_start(parts.lists[0]);
				assert_in_range(s.cursor, 1, forgotten);
				assert_in_range(s.high, AT, AT + 2 * b);
				assert_in_range(start, s.high - 4 * b - FS_ANNOUNCED_NEAR, s.high);
			}
			if (places[opens[i]] == forgotten)
				continue;
			older += places[opens[i]] < start;
			assert_int_equal(open_one(parts.lists[0], opens[i]), FS_ANNOUNCED_SURELY);
		}
		assert_in_range(older, 0, b / 20 + 1);
		free(samples);
		free(opens);
		free(places);
		fs_announced_list_free(parts.lists[0]);
	}
	state = own;
}

/* The part that grows. */
static struct fs_announced_list *last_part(const struct parts *parts)
{
	struct fs_announced_list *last = parts->lists[0];
	for (unsigned i = 1; i < parts->n; i++)
		last = state_of(parts->lists[i]).end > state_of(last).end ? parts->lists[i] : last;
	return last;
}

/* tf.data's shuffle(B).repeat(): the buffer is empty at the end of each epoch. */
static void a_shuffle_buffer_is_filled_anew_in_each_epoch(void **unused)
{
	enum { N = 50000, B = 20000, EPOCHS = 3 };
	uint32_t *samples = malloc(EPOCHS * N * sizeof(*samples)), fits[4] = { 0 };
	struct fs_announced_list *list = make_buffered(1, B);
	(void)unused;
	for (unsigned e = 0; e < EPOCHS; e++) {
		uint32_t *epoch = shuffled(N);
		memcpy(samples + e * N, epoch, N * sizeof(*epoch));
		free(epoch);
	}
	uint32_t *opens = what_is_opened(samples, EPOCHS * N, EPOCHS, B);
	append(list, samples, EPOCHS * N);
	for (uint32_t i = 0; i < EPOCHS * N; i++) {
		if (i % 500 == 0)
			fs_announced_list_build(list);
		fits[open_one(list, opens[i])]++;
	}
	assert_in_range(fits[FS_ANNOUNCED_SURELY], EPOCHS * N - 10, EPOCHS * N);
	assert_int_equal(state_of(list).cursor, EPOCHS * N);
	free(samples);
	free(opens);
	fs_announced_list_free(list);
}

/* Two trainers, each with a list of the same files and a shuffle buffer behind it. An open that fits both lists may
 * take an entry of the wrong one. That must not move its reader. */
static void two_shuffle_buffers_share_the_files(void **unused)
{
	enum { N = 60000, B = 1000 };
	(void)unused;
	struct fs_announced_list *lists[2];
	uint32_t *samples[2], *opens[2], at[2] = { 0 }, elsewhere = 0;
	for (unsigned i = 0; i < 2; i++) {
		samples[i] = shuffled(N);
		opens[i] = what_is_opened(samples[i], N, 1, B);
		lists[i] = make_buffered(1, B);
		append(lists[i], samples[i], N);
	}
	for (uint32_t k = 0; at[0] < N || at[1] < N; k++) {
		unsigned by = at[0] == N || (at[1] < N && draw(2)) ? 1 : 0, best = 2;
		uint32_t sample = opens[by][at[by]++];
		uint64_t place = 0, least = UINT64_MAX, p, places[FS_ANNOUNCED_RING];
		size_t n;
		for (unsigned i = 0; i < 2; i++) {
			if (k % 500 == 0)
				fs_announced_list_build(lists[i]);
			if (fs_announced_list_fit(lists[i], sample, &p) != FS_ANNOUNCED_SURELY)
				continue;
			uint64_t high = state_of(lists[i]).high, apart = p > high ? p - high : high - p;
			if (apart < least) {
				best = i;
				place = p;
				least = apart;
			}
		}
		elsewhere += best == 2;
		if (best < 2)
			fs_announced_list_use(lists[best], place, true);
		for (unsigned i = 0; i < 2 && best == 2; i++)
			fs_announced_list_missed(lists[i], sample, APART, places, &n);
		assert_false(state_of(lists[0]).wrong || state_of(lists[1]).wrong);
	}
	assert_in_range(elsewhere, 0, 2 * N / 10);
	for (unsigned i = 0; i < 2; i++) {
		fs_announced_list_free(lists[i]);
		free(samples[i]);
		free(opens[i]);
	}
}

/* The trainer opens the files of the list in an order of its own. */
static void another_order_does_not_fit_a_shuffle_buffer(void **unused)
{
	enum { N = 150000 };
	static const uint32_t buffers[] = { 16, 1000, 5000 };
	(void)unused;
	for (unsigned round = 0; round < 3; round++) {
		uint32_t *samples = shuffled(N), *opens = shuffled(N), i = 0;
		struct fs_announced_list *list = make_buffered(1, buffers[round]);
		append(list, samples, N);
		fs_announced_list_build(list);
		while (i < N && !state_of(list).wrong) {
			open_one(list, opens[i++]);
			if (i % 500 == 0)
				fs_announced_list_build(list);
		}
		assert_in_range(i, FS_ANNOUNCED_DOUBT, 2 * FS_ANNOUNCED_DOUBT);
		free(samples);
		free(opens);
		fs_announced_list_free(list);
	}
}

/* Several readers of any speed, in bursts, with looks at other files; the list is split, appended to and handed over at
 * any time. Some lists have few files, which are drawn again soon, and some have a shuffle buffer behind them. */
static void parts_stay_whole_whatever_is_opened(void **unused)
{
	static const uint32_t sizes[] = { 4000, 12000, 80000, 170000 }, buffers[] = { 16, 1000, 30000 };
	(void)unused;
	for (unsigned round = 0; round < 60; round++) {
		uint32_t n = sizes[draw(4)], more = draw(2) ? 0 : 1 + draw(n), all = n + more, readers = 1 + draw(5);
		bool again = draw(3) == 0, looks = draw(2), hands_over = draw(3) == 0;
		uint32_t lag = 1 + draw(300), burst = draw(2) ? 1 : 1 + draw(60);
		uint64_t at[PARTS], end[PARTS], left = all, opens = 0;
		unsigned speed[PARTS];
		struct parts parts = { .n = 1 };
		uint32_t few = draw(2) ? 300 : n / 4 + 1, b = draw(3) == 0 ? buffers[draw(3)] : 0;
		uint32_t *samples = again ? drawn(all, few) : shuffled(all < SAMPLES ? all : SAMPLES);
		if (!again && all > SAMPLES)
			all = n + (more = SAMPLES - n), left = all;
		uint32_t *opened = what_is_opened(samples, all, readers, b);
		parts.lists[0] = make_buffered(1 + draw(2), b);
		append(parts.lists[0], samples, n);
		fs_announced_list_build(parts.lists[0]);
		for (unsigned r = 0; r < readers; r++) {
			at[r] = (uint64_t)all * r / readers;
			end[r] = (uint64_t)all * (r + 1) / readers;
			speed[r] = 1 + draw(10);
		}
		while (left > 0) {
			unsigned r = draw(readers);
			if (at[r] == end[r] || draw(10) >= speed[r])
				continue;
			for (uint32_t k = 0; k < burst && at[r] < end[r]; k++, left--) {
				open_somewhere(&parts, opened[at[r]++]);
				if (++opens % lag == 0) {
					for (unsigned i = 0; i < parts.n; i++)
						fs_announced_list_build(parts.lists[i]);
					split_parts(&parts);
					check_parts(&parts, n);
				}
			}
			if (looks && draw(100) == 0)
				open_somewhere(&parts, samples[draw(all)]);
			if (more > 0 && draw(2000) == 0) {
				append(last_part(&parts), samples + n, more);
				n += more;
				more = 0;
			}
			if (hands_over && draw(5000) == 0)
				hand_over(&parts);
		}
		split_parts(&parts);
		check_parts(&parts, n);
		assert_true(b == 0 || parts.n == 1);
		end_parts(&parts);
		assert_int_equal(fs_order_memory_bytes(memory), 0);
		free(samples);
		free(opened);
	}
}

/* ---- lists that are over ---- */

static const uint64_t SECOND_NS = 1000000000, DAY_NS = 86400 * UINT64_C(1000000000);

/* Opens the samples [from, to) of the list, but one. */
static void open_all(
        struct fs_announced_list *list, const uint32_t *samples, uint32_t from, uint32_t to, uint32_t except)
{
	for (uint32_t i = from; i < to; i++) {
		if (i != except)
			assert_true(open_one(list, samples[i]) >= FS_ANNOUNCED_LOOSE);
	}
}

static void a_list_is_over_a_minute_after_its_last_open(void **unused)
{
	enum { N = 10000, FORGOTTEN = 9000 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	uint64_t now_ns = 5 * SECOND_NS;
	(void)unused;
	open_all(list, samples, 0, N - 1, FORGOTTEN);
	assert_false(fs_announced_list_over(list, now_ns));
	assert_false(fs_announced_list_over(list, now_ns + DAY_NS)); /* its last entry may still come */
	open_all(list, samples, N - 1, N, FORGOTTEN);
	now_ns += DAY_NS;
	assert_false(fs_announced_list_over(list, now_ns));
	assert_false(fs_announced_list_over(list, now_ns + 59 * SECOND_NS));
	assert_true(fs_announced_list_over(list, now_ns + 60 * SECOND_NS));
	/* What is appended meanwhile is read. */
	append(list, samples, N);
	fs_announced_list_build(list);
	assert_false(fs_announced_list_over(list, now_ns + 60 * SECOND_NS));
	assert_false(fs_announced_list_over(list, now_ns + DAY_NS));
	open_all(list, samples, 0, N, N);
	/* The entry is too far behind to be waited for, so the list has no entry left. */
	assert_int_equal(state_of(list).cursor, 2 * N);
	assert_true(fs_announced_list_over(list, now_ns + DAY_NS));
	free(samples);
	fs_announced_list_free(list);
}

/* A successor does not know which entries behind the farthest one were used. */
static void a_list_that_a_successor_took_over_is_over_though_an_entry_is_never_opened(void **unused)
{
	enum { N = 10000, FORGOTTEN = 9000 };
	static const uint32_t at[] = { 9500, N };
	uint32_t *samples = shuffled(N);
	(void)unused;
	for (unsigned i = 0; i < 2; i++) {
		struct parts parts = { .n = 1 };
		parts.lists[0] = made_of(1, samples, N);
		open_all(parts.lists[0], samples, 0, at[i], FORGOTTEN);
		hand_over(&parts);
		assert_int_equal(state_of(parts.lists[0]).cursor, FORGOTTEN);
		assert_int_equal(state_of(parts.lists[0]).high, at[i]);
		open_all(parts.lists[0], samples, at[i], N, N);
		assert_false(fs_announced_list_over(parts.lists[0], SECOND_NS));
		assert_true(fs_announced_list_over(parts.lists[0], 61 * SECOND_NS));
		end_parts(&parts);
	}
	free(samples);
}

/* The trainer goes back. Then a successor knows what is left. */
static void a_list_that_a_successor_took_over_is_not_over_while_its_reader_pauses(void **unused)
{
	enum { N = 10000, AT = 9500, BACK = 1000, PAUSES = 8900, FARTHER = 9300 };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N);
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	open_all(parts.lists[0], samples, 0, AT, N);
	hand_over(&parts);
	for (uint32_t i = BACK; i < N; i++) {
		if (i < PAUSES || i >= FARTHER)
			open_one(parts.lists[0], samples[i]);
	}
	assert_int_equal(state_of(parts.lists[0]).cursor, PAUSES);
	assert_int_equal(state_of(parts.lists[0]).high, N);
	assert_false(fs_announced_list_over(parts.lists[0], SECOND_NS));
	assert_false(fs_announced_list_over(parts.lists[0], DAY_NS));
	end_parts(&parts);
	free(samples);
}

/* A validation, of files that are in no list, and of the list's own ones. */
static void a_list_whose_reader_pauses_is_not_over(void **unused)
{
	enum { N = 10000, LEFT = 5000 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	uint64_t now_ns = SECOND_NS;
	(void)unused;
	open_all(list, samples, 0, N - LEFT, N);
	assert_false(fs_announced_list_over(list, now_ns));
	for (uint32_t i = 0; i < 1000; i++) {
		open_one(list, N + draw(SAMPLES - N));
		open_one(list, samples[draw(N - LEFT)]);
	}
	assert_false(fs_announced_list_over(list, now_ns + DAY_NS));
	open_all(list, samples, N - LEFT, N - 100, N);
	assert_false(fs_announced_list_over(list, now_ns += DAY_NS));
	for (uint32_t i = 0; i < 1000; i++)
		open_one(list, N + draw(SAMPLES - N));
	assert_false(fs_announced_list_over(list, now_ns + DAY_NS));
	open_all(list, samples, N - 100, N, N);
	assert_true(fs_announced_list_over(list, now_ns + DAY_NS));
	free(samples);
	fs_announced_list_free(list);
}

/* drop_last: nobody opens the last entries, and the next epoch comes in another order that nobody announced. */
static void a_list_whose_last_entries_are_dropped_is_over_in_the_next_epoch(void **unused)
{
	enum { N = 10000, DROPPED = 200 };
	uint32_t *samples = shuffled(N), opens = 0;
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	open_all(list, samples, 0, N - DROPPED, N);
	assert_false(fs_announced_list_over(list, SECOND_NS));
	assert_false(fs_announced_list_over(list, DAY_NS));
	while (opens < FS_ANNOUNCED_DOUBT && !fs_announced_list_over(list, DAY_NS)) {
		open_one(list, samples[draw(N - DROPPED - FS_ANNOUNCED_DOUBT)]);
		opens++;
	}
	assert_int_equal(opens, FS_ANNOUNCED_GONE_ON);
	assert_false(state_of(list).wrong);
	free(samples);
	fs_announced_list_free(list);
}

/* The farther one comes to the end first. */
static void a_list_of_two_readers_is_not_over_while_one_of_them_pauses(void **unused)
{
	enum { N = 4000, AT = 2500, FARTHER = 3200 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	open_all(list, samples, 0, AT, N);
	for (uint32_t i = FARTHER; i < N; i++)
		open_one(list, samples[i]);
	assert_int_equal(state_of(list).high, N);
	assert_false(fs_announced_list_over(list, SECOND_NS));
	assert_false(fs_announced_list_over(list, DAY_NS));
	open_all(list, samples, AT, FARTHER, AT + 100);
	assert_false(fs_announced_list_over(list, DAY_NS));
	assert_true(fs_announced_list_over(list, DAY_NS + 60 * SECOND_NS));
	free(samples);
	fs_announced_list_free(list);
}

/* That takes time, and nothing changes without opens. */
static void entries_that_are_left_are_counted_once_a_minute(void **unused)
{
	enum { N = 4000, LEFT = 300 };
	uint32_t *samples = shuffled(N);
	struct fs_announced_list *list = made_of(1, samples, N);
	(void)unused;
	open_all(list, samples, 0, N / 2, N);
	for (uint32_t i = N / 2 + LEFT; i < N; i++)
		open_one(list, samples[i]);
	assert_int_equal(state_of(list).high, N);
	assert_false(fs_announced_list_over(list, SECOND_NS));
	assert_false(fs_announced_list_over(list, DAY_NS));
	assert_int_equal(list->silent.since_ns, DAY_NS);
	assert_false(fs_announced_list_over(list, DAY_NS + 59 * SECOND_NS));
	assert_int_equal(list->silent.since_ns, DAY_NS);
	fs_announced_list_passed(list, samples[0], false); /* the last entry was used, so this need not be known */
	assert_int_equal(list->silent.gone_on, 0);
	open_all(list, samples, N / 2, N / 2 + LEFT, N / 2);
	assert_false(fs_announced_list_over(list, DAY_NS + 60 * SECOND_NS));
	assert_true(fs_announced_list_over(list, DAY_NS + 120 * SECOND_NS));
	free(samples);
	fs_announced_list_free(list);
}

/* Its buffer holds many files when the last entry was opened. */
static void a_list_is_not_over_while_its_shuffle_buffer_is_full(void **unused)
{
	enum { N = 50000, B = 5000, FORGOTTEN = 49000, LAST_COMES = 47000 };
	uint32_t *samples = shuffled(N), *opens = what_is_opened(samples, N, 1, B), pauses = 0;
	struct fs_announced_list *list = make_buffered(1, B);
	uint64_t now_ns = SECOND_NS;
	(void)unused;
	for (uint32_t i = LAST_COMES + 1; i < N; i++) {
		if (opens[i] == samples[N - 1]) {
			opens[i] = opens[LAST_COMES];
			opens[LAST_COMES] = samples[N - 1];
		}
	}
	append(list, samples, N);
	for (uint32_t i = 0; i < N; i++) {
		if (i % 500 == 0)
			fs_announced_list_build(list);
		if (opens[i] != samples[FORGOTTEN])
			open_one(list, opens[i]);
		if (i % 100 == 0 && i + FS_ANNOUNCED_LEFT < N) {
			assert_false(fs_announced_list_over(list, now_ns));
			assert_false(fs_announced_list_over(list, now_ns += DAY_NS));
			pauses += state_of(list).high == N;
		}
	}
	assert_true(pauses > 0);
	assert_int_equal(state_of(list).cursor, FORGOTTEN);
	assert_false(fs_announced_list_over(list, now_ns));
	assert_true(fs_announced_list_over(list, now_ns + 60 * SECOND_NS));
	free(samples);
	free(opens);
	fs_announced_list_free(list);
}

/* The next part's reader has opened the last entries of this part. */
static void a_part_is_over_when_the_other_readers_have_gone_on(void **unused)
{
	enum { N = 20000, TAKEN = 50 };
	struct parts parts = { .n = 1 };
	uint32_t *samples = shuffled(N), passed = 0;
	(void)unused;
	parts.lists[0] = made_of(1, samples, N);
	for (uint64_t i = 0; i < N / 2 - TAKEN; i++) {
		open_in_parts(&parts, samples[i]);
		if (i < N / 2 - 1000)
			open_in_parts(&parts, samples[N / 2 + i]);
	}
	assert_int_equal(parts.n, 2);
	assert_false(fs_announced_list_over(parts.lists[0], SECOND_NS));
	assert_false(fs_announced_list_over(parts.lists[1], SECOND_NS));
	for (uint64_t i = N - 1000; i < N; i++) {
		assert_true(fs_announced_list_over(parts.lists[0], DAY_NS) == (passed >= FS_ANNOUNCED_GONE_ON));
		open_in_parts(&parts, samples[i]);
		fs_announced_list_passed(parts.lists[0], samples[i], true);
		passed++;
	}
	assert_true(fs_announced_list_over(parts.lists[1], DAY_NS));
	end_parts(&parts);
	free(samples);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(entries_come_in_pieces_of_any_size, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_piece_that_is_undone_leaves_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(workers_side_by_side_follow_a_draw_with_replacement, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_file_that_is_opened_twice_counts_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(opens_in_a_row_elsewhere_move_the_reader, set_up, tear_down),
		cmocka_unit_test_setup_teardown(single_opens_far_ahead_move_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_worker_that_begins_its_batch_is_followed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(what_a_shuffle_buffer_gives_out_follows_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(readers_of_contiguous_parts_split_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(readers_in_the_middle_of_their_parts_split_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(readers_by_turns_split_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_reader_that_begins_at_the_beginning_splits_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        workers_keep_their_place_when_a_reader_behind_them_gets_his_own, set_up, tear_down),
		cmocka_unit_test_setup_teardown(readers_that_have_met_meanwhile_share_the_list, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_list_that_opens_do_not_follow_is_wrong, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_confirmed_list_outlasts_a_pause, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_confirmed_list_ends_when_its_files_come_otherwise, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_successor_goes_on, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_successor_goes_on_with_parts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_entry_that_is_no_sample_is_not_taken_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_shuffle_buffer_may_hold_a_file_twice, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_successor_goes_on_behind_a_shuffle_buffer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_successor_reads_little_again_behind_a_shuffle_buffer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_shuffle_buffer_is_filled_anew_in_each_epoch, set_up, tear_down),
		cmocka_unit_test_setup_teardown(two_shuffle_buffers_share_the_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(another_order_does_not_fit_a_shuffle_buffer, set_up, tear_down),
		cmocka_unit_test_setup_teardown(parts_stay_whole_whatever_is_opened, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_list_is_over_a_minute_after_its_last_open, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_list_that_a_successor_took_over_is_over_though_an_entry_is_never_opened, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_list_that_a_successor_took_over_is_not_over_while_its_reader_pauses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_list_whose_reader_pauses_is_not_over, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_list_whose_last_entries_are_dropped_is_over_in_the_next_epoch, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
		        a_list_of_two_readers_is_not_over_while_one_of_them_pauses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(entries_that_are_left_are_counted_once_a_minute, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_list_is_not_over_while_its_shuffle_buffer_is_full, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_part_is_over_when_the_other_readers_have_gone_on, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
