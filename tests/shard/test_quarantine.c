/* SPDX-License-Identifier: Apache-2.0 */
/* Quarantined samples: what on_bad makes of an order, the text of the list, stand-ins. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/quarantine.h"
#include "shard/state.h"
#include "shard/view.h"
#include "tests/shard/synth.h"

enum { SAMPLES_MAX = 200 };

static const enum shard_order_mode orders[] = { SHARD_ORDER_FULL, SHARD_ORDER_CHUNK, SHARD_ORDER_TORCH,
	SHARD_ORDER_NONE };
static const char *const subdirs[] = { "", "train", "val/class_0001" };
/* Lists that leave a good sample in every directory: none, the ends, runs, every other one. */
static unsigned fill(unsigned which, uint32_t ids[SAMPLES_MAX], uint32_t n)
{
	static const uint32_t some[] = { 0, 1, 12, 14, 90, 91, 117, 120, 121, 129 };
	unsigned count = 0;

	for (uint32_t i = 0; i < n; i++) {
		bool in = false;

		switch (which) {
		case 1:
			for (unsigned k = 0; k < sizeof(some) / sizeof(some[0]); k++)
				in |= some[k] == i;
			break;
		case 2:
			in = i % 13 != 5; /* twelve of each thirteen */
			break;
		case 3:
			in = i % 2;
			break;
		default:
			break;
		}
		if (in)
			ids[count++] = i;
	}
	return count;
}
enum { LISTS = 4 };

static struct shard_quarantine *make_list(unsigned which, const struct shard_index *index)
{
	uint32_t ids[SAMPLES_MAX];
	struct shard_quarantine *list = NULL;
	unsigned n = fill(which, ids, shard_index_info(index)->n_samples);

	assert_int_equal(shard_quarantine_new(ids, n, &list), 0);
	return list;
}

static struct shard_view *open_view(const struct shard_index *index, const struct shard_view_options *options)
{
	struct shard_view *view = NULL;
	struct base_err err = { 0 };

	if (shard_view_new(index, options, &err, &view) < 0)
		fail_msg("%s", err.text);
	return view;
}

/* How often each sample comes in an epoch, all ranks; every turn's inverse is checked. */
static void count(struct shard_view *view, uint64_t number, bool same_turns, unsigned counts[SAMPLES_MAX])
{
	const struct shard_view_options *options = shard_view_options_get(view);
	struct shard_epoch *epoch;

	memset(counts, 0, SAMPLES_MAX * sizeof(counts[0]));
	assert_int_equal(shard_view_epoch(view, number, &epoch), 0);
	for (uint32_t rank = 0; rank < shard_view_options_get(view)->world; rank++) {
		uint64_t turns = shard_epoch_turns(epoch, rank);

		if (same_turns)
			assert_int_equal(turns, shard_epoch_turns(epoch, 0));
		for (uint64_t k = 0; k < turns; k++) {
			uint32_t sample, again;
			uint64_t step, found;

			assert_int_equal(shard_epoch_turn(epoch, rank, k, &sample, &step), 0);
			int rc = shard_epoch_find(epoch, sample, &found, NULL, NULL);
			counts[sample]++;
			/* A stand-in's own place may be one that is dropped. */
			if (rc == -ENOENT && options->on_bad == SHARD_ON_BAD_SUBSTITUTE &&
			        options->tail == SHARD_TAIL_DROP)
				continue;
			assert_int_equal(rc, 0);
			assert_int_equal(shard_epoch_step_sample(epoch, found, &again), 0);
			assert_int_equal(again, sample);
		}
	}
	shard_epoch_put(epoch);
}

/* Every (order, deal, subtree, list) with world and tail. */
static void each_view(const struct shard_index *index, enum shard_on_bad on_bad, uint32_t world, enum shard_tail tail,
        void (*check)(struct shard_view *view, const struct shard_quarantine *list))
{
	for (unsigned w = 0; w < LISTS; w++) {
		struct shard_quarantine *list = make_list(w, index);

		for (unsigned o = 0; o < 4; o++) {
			for (int deal = SHARD_DEAL_STRIDE; deal <= SHARD_DEAL_BLOCK; deal++) {
				for (unsigned s = 0; s < sizeof(subdirs) / sizeof(subdirs[0]); s++) {
					struct shard_view_options options = {
						.order = orders[o],
						.deal = (enum shard_deal_mode)deal,
						.tail = tail,
						.seed = 3,
						.world = world,
						.subdir = subdirs[s],
						.chunk_bytes = 4000,
						.on_bad = on_bad,
						.quarantine = list,
					};
					struct shard_view *view = open_view(index, &options);

					check(view, list);
					shard_view_free(view);
				}
			}
		}
		shard_quarantine_free(list);
	}
}

static void each_good_sample_once(struct shard_view *view, const struct shard_quarantine *list)
{
	unsigned counts[SAMPLES_MAX];
	uint32_t first, end;

	shard_index_dir_samples(shard_view_index(view), shard_view_subdir(view), &first, &end);
	assert_int_equal(shard_view_samples(view) + shard_view_n_bad(view), end - first);
	for (uint64_t number = 0; number < 2; number++) {
		struct shard_epoch *epoch;

		count(view, number, false, counts);
		for (uint32_t i = 0; i < SAMPLES_MAX; i++)
			assert_int_equal(counts[i], i >= first && i < end && !shard_quarantine_has(list, i));
		assert_int_equal(shard_view_epoch(view, number, &epoch), 0);
		for (uint32_t i = 0; i < list->n; i++) {
			uint64_t step;

			assert_int_equal(shard_epoch_find(epoch, list->samples[i], &step, NULL, NULL), -ENOENT);
		}
		shard_epoch_put(epoch);
	}
}

static void skip_deals_each_good_sample_once(void **state)
{
	for (uint32_t world = 1; world <= 9; world++)
		each_view(*state, SHARD_ON_BAD_SKIP, world, SHARD_TAIL_SHORT, each_good_sample_once);
}

static void good_ones_only_and_equal_turns(struct shard_view *view, const struct shard_quarantine *list)
{
	unsigned counts[SAMPLES_MAX];

	count(view, 1, true, counts);
	for (uint32_t i = 0; i < list->n; i++)
		assert_int_equal(counts[list->samples[i]], 0);
}

static void every_rank_has_as_many_turns_and_no_bad_sample(void **state)
{
	for (uint32_t world = 2; world <= 9; world++) {
		for (int on_bad = SHARD_ON_BAD_SKIP; on_bad <= SHARD_ON_BAD_SUBSTITUTE; on_bad++) {
			each_view(*state, (enum shard_on_bad)on_bad, world, SHARD_TAIL_PAD,
			        good_ones_only_and_equal_turns);
			each_view(*state, (enum shard_on_bad)on_bad, world, SHARD_TAIL_DROP,
			        good_ones_only_and_equal_turns);
		}
	}
}

/* The stand-in as its definition says, the slow way.  Every directory of the synthetic datasets holds 13 samples. */
static uint32_t stand_in(const struct shard_quarantine *list, uint32_t sample)
{
	uint32_t dir = sample / 13 * 13;

	while (shard_quarantine_has(list, sample))
		sample = dir + (sample - dir + 1) % 13;
	return sample;
}

static void same_order_with_stand_ins(struct shard_view *view, const struct shard_quarantine *list)
{
	struct shard_view_options options = *shard_view_options_get(view);
	struct shard_epoch *epoch, *plain_epoch;
	struct shard_view *plain;
	uint32_t sample, shown, wanted;

	options.on_bad = SHARD_ON_BAD_EIO;
	plain = open_view(shard_view_index(view), &options);
	assert_int_equal(shard_view_samples(view), shard_view_samples(plain));
	assert_int_equal(shard_view_epoch(view, 1, &epoch), 0);
	assert_int_equal(shard_view_epoch(plain, 1, &plain_epoch), 0);
	for (uint64_t step = 0; step < shard_view_samples(view); step++) {
		assert_int_equal(shard_epoch_step_sample(plain_epoch, step, &wanted), 0);
		assert_int_equal(shard_epoch_step_sample(epoch, step, &sample), 0);
		assert_int_equal(sample, stand_in(list, wanted));
		assert_int_equal(shard_view_instead(view, wanted, &shown), 0);
		assert_int_equal(sample, shown);
	}
	shard_epoch_put(epoch);
	shard_epoch_put(plain_epoch);
	shard_view_free(plain);
}

static void substitute_keeps_the_order_and_puts_stand_ins_in(void **state)
{
	for (uint32_t world = 1; world <= 3; world++)
		each_view(*state, SHARD_ON_BAD_SUBSTITUTE, world, SHARD_TAIL_PAD, same_order_with_stand_ins);
}

static void the_identity_tells_lists_and_rules_apart(void **state)
{
	const struct shard_index *index = *state;
	char seen[1 + 2 * LISTS][SHARD_VIEW_ID_SIZE];
	unsigned n = 0;

	for (unsigned w = 0; w < LISTS; w++) {
		struct shard_quarantine *list = make_list(w, index);

		for (int on_bad = SHARD_ON_BAD_EIO; on_bad <= SHARD_ON_BAD_SUBSTITUTE; on_bad++) {
			char other[SHARD_VIEW_ID_SIZE];

			if (on_bad == SHARD_ON_BAD_EIO && w > 0)
				continue; /* the list is not used */
			for (uint32_t rank = 0; rank < 3; rank++) {
				struct shard_view_options options = {
					.order = SHARD_ORDER_FULL,
					.rank = rank,
					.world = 3,
					.on_bad = (enum shard_on_bad)on_bad,
					.quarantine = list,
				};
				struct shard_view *view = open_view(index, &options);

				shard_view_identity(view, rank == 0 ? seen[n] : other);
				if (rank > 0)
					assert_string_equal(other, seen[n]);
				shard_view_free(view);
			}
			for (unsigned i = 0; i < n; i++)
				assert_string_not_equal(seen[i], seen[n]);
			n++;
		}
		shard_quarantine_free(list);
	}
	assert_int_equal(n, 1 + 2 * LISTS);
}

static void what_cannot_be_dealt_is_refused(void **state)
{
	const struct shard_index *index = *state;
	uint32_t ids[SAMPLES_MAX], n = shard_index_info(index)->n_samples;
	struct shard_view_options options = { .order = SHARD_ORDER_FULL, .world = 1, .on_bad = SHARD_ON_BAD_SKIP };
	struct shard_quarantine *list;
	struct shard_view *view;
	struct base_err err = { 0 };

	assert_int_equal(shard_view_new(index, &options, &err, &view), -EINVAL);
	for (uint32_t i = 0; i < n; i++)
		ids[i] = i;
	assert_int_equal(shard_quarantine_new(ids, n, &list), 0);
	options.quarantine = list;
	assert_int_equal(shard_view_new(index, &options, &err, &view), -EINVAL);
	assert_non_null(strstr(err.text, "all 130 samples"));
	shard_quarantine_free(list);

	assert_int_equal(shard_quarantine_new(ids + 26, 13, &list), 0); /* a whole class */
	options.quarantine = list;
	options.on_bad = SHARD_ON_BAD_SUBSTITUTE;
	assert_int_equal(shard_view_new(index, &options, &err, &view), -ENOENT);
	assert_non_null(strstr(err.text, "class_0002/item_0000"));
	assert_non_null(strstr(err.text, "on_bad=skip"));
	options.on_bad = SHARD_ON_BAD_SKIP;
	view = open_view(index, &options);
	assert_int_equal(shard_view_samples(view), n - 13);
	shard_view_free(view);
	shard_quarantine_free(list);
}

/* ---- the text ---- */

static int parse(
        const struct shard_index *index, const char *text, struct base_err *err, struct shard_quarantine **list)
{
	char full[1024], hex[33];

	for (unsigned i = 0; i < 16; i++)
		snprintf(hex + 2 * i, 3, "%02x", shard_index_info(index)->identity[i]);
	snprintf(full, sizeof(full), "ddpfs quarantine 1\ndataset %s\n%s", hex, text);
	return shard_quarantine_parse(full, strlen(full), shard_index_info(index), err, list);
}

static void lists_are_read_in_any_order(void **state)
{
	struct shard_quarantine *list, *same;
	struct base_err err = { 0 };

	assert_int_equal(parse(*state, "# by hand\n7 b/x.jpg\n3\n\n7\ttwice\n129 z\nend\n", &err, &list), 0);
	assert_int_equal(parse(*state, "3\n7\n129\nend\n", &err, &same), 0);
	assert_int_equal(list->n, 3);
	assert_int_equal(list->samples[0], 3);
	assert_int_equal(list->samples[1], 7);
	assert_int_equal(list->samples[2], 129);
	assert_true(list->hash == same->hash);
	shard_quarantine_free(list);
	shard_quarantine_free(same);
	assert_int_equal(parse(*state, "end\n", &err, &list), 0);
	assert_int_equal(list->n, 0);
	shard_quarantine_free(list);
}

static void other_texts_are_refused(void **state)
{
	static const struct {
		const char *text;
		const char *word;
	} cases[] = { { "3\n7\n", "not complete" }, { "3\n7\nen", "not complete" }, { "end", "not complete" },
		{ "130 x\nend\n", "130" }, { "4294967296\nend\n", "line 3" },
		{ "99999999999999999999\nend\n", "line 3" }, { "3\nx 5\nend\n", "line 4" }, { "-1\nend\n", "line 3" },
		{ "3x\nend\n", "line 3" }, { "end\n5\n", "behind its end" } };
	const struct shard_index *index = *state;
	struct shard_quarantine *list;
	char text[] = "ddpfs quarantine 1\ndataset 00112233445566778899aabbccddeeff\nend\n";

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct base_err err = { 0 };

		assert_int_equal(parse(index, cases[i].text, &err, &list), -EUCLEAN);
		if (!strstr(err.text, cases[i].word))
			fail_msg("'%s' does not say '%s'", err.text, cases[i].word);
	}
	assert_int_equal(shard_quarantine_parse(text, strlen(text), shard_index_info(index), NULL, &list), -ESTALE);
	text[17] = '2';
	assert_int_equal(shard_quarantine_parse(text, strlen(text), shard_index_info(index), NULL, &list), -EUCLEAN);
	assert_int_equal(shard_quarantine_parse("", 0, shard_index_info(index), NULL, &list), -EUCLEAN);
}

static void what_is_written_is_read_and_every_cut_refused(void **state)
{
	const struct shard_index *index = *state;
	struct shard_quarantine *list = make_list(1, index), *read;
	struct base_err err = { 0 };
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", shard_index_dataset(index), SHARD_QUARANTINE_NAME);
	assert_int_equal(shard_quarantine_read(index, NULL, &err, &read), -ENOENT);
	assert_non_null(strstr(err.text, "mkshard verify --quarantine"));
	assert_int_equal(shard_quarantine_write(index, list, NULL, &err), 0);
	assert_int_equal(shard_quarantine_read(index, path, &err, &read), 0);
	assert_int_equal(read->n, list->n);
	assert_memory_equal(read->samples, list->samples, list->n * sizeof(list->samples[0]));
	assert_true(read->hash == list->hash);
	shard_quarantine_free(read);

	FILE *file = fopen(path, "r");
	char text[8192];
	assert_non_null(file);
	size_t len = fread(text, 1, sizeof(text), file);
	fclose(file);
	unlink(path);
	for (size_t cut = 0; cut < len; cut++)
		assert_int_equal(shard_quarantine_parse(text, cut, shard_index_info(index), NULL, &read), -EUCLEAN);
	shard_quarantine_free(list);
}

/* ---- resuming ---- */

static void a_state_in_the_middle_of_an_epoch_wants_its_list(void **state)
{
	const struct shard_index *index = *state;
	struct shard_quarantine *list = make_list(1, index), *other = make_list(3, index);
	struct shard_view_options options = {
		.order = SHARD_ORDER_FULL, .world = 2, .on_bad = SHARD_ON_BAD_SKIP, .quarantine = list
	};
	struct shard_view *view = open_view(index, &options);
	char text[2][SHARD_STATE_MAX];
	struct shard_state saved[2];
	struct base_err err = { 0 };

	assert_int_equal(shard_state_format(view, 0, 40, text[0], sizeof(text[0])), 0);
	assert_int_equal(shard_state_format(view, 0, 120, text[1], sizeof(text[1])), 0); /* the epoch is complete */
	for (int i = 0; i < 2; i++)
		assert_int_equal(shard_state_parse(text[i], strlen(text[i]), &err, &saved[i]), 0);
	assert_int_equal(saved[0].options.on_bad, SHARD_ON_BAD_SKIP);
	assert_true(saved[0].quarantine == list->hash);
	assert_int_equal(saved[1].options.start, 0);

	struct shard_view_options same = { .world = 3, .quarantine = list };
	assert_int_equal(shard_state_apply(&saved[0], index, 0, &same, &err), 0);
	assert_int_equal(same.on_bad, SHARD_ON_BAD_SKIP);
	assert_int_equal(same.start, 40);
	struct shard_view_options with_other = { .world = 3, .on_bad = SHARD_ON_BAD_SKIP, .quarantine = other };
	assert_int_equal(shard_state_apply(&saved[0], index, SHARD_STATE_SET_ON_BAD, &with_other, &err), -EINVAL);
	assert_non_null(strstr(err.text, "quarantine list"));
	struct shard_view_options without = { .world = 3 };
	assert_int_equal(shard_state_apply(&saved[0], index, 0, &without, &err), -EINVAL);
	assert_int_equal(shard_state_apply(&saved[0], index, SHARD_STATE_SET_ON_BAD, &without, &err), -EINVAL);
	assert_non_null(strstr(err.text, "on_bad=eio"));
	/* At the beginning of an epoch nothing is left of an older one. */
	assert_int_equal(shard_state_apply(&saved[1], index, SHARD_STATE_SET_ON_BAD, &with_other, &err), 0);
	assert_int_equal(with_other.on_bad, SHARD_ON_BAD_SKIP);
	assert_int_equal(shard_state_apply(&saved[1], index, 0, &without, &err), -EINVAL); /* not in silence */
	assert_non_null(strstr(err.text, "quarantine list is needed"));
	assert_int_equal(shard_state_apply(&saved[1], index, SHARD_STATE_SET_ON_BAD, &without, &err), 0);
	assert_int_equal(without.on_bad, SHARD_ON_BAD_EIO);
	shard_view_free(view);
	shard_quarantine_free(list);
	shard_quarantine_free(other);
}

/* The place for the answer is a page that nothing may be written to. */
static void an_output_is_left_alone_where_there_is_nothing(void **state)
{
	const struct shard_index *index = *state;
	struct shard_quarantine *list = make_list(1, index);
	struct shard_view *view = open_view(index,
	        &(struct shard_view_options){
	                .order = SHARD_ORDER_FULL, .world = 1, .on_bad = SHARD_ON_BAD_SKIP, .quarantine = list });
	uint32_t *nowhere = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), file;
	assert_true(nowhere != MAP_FAILED);
	assert_int_equal(shard_index_sample_first(index, list->samples[0], &file), 0);
	assert_int_equal(shard_view_instead_file(view, file, nowhere), -ENOENT);
	munmap(nowhere, 4096);
	shard_view_free(view);
	shard_quarantine_free(list);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(skip_deals_each_good_sample_once),
		cmocka_unit_test(every_rank_has_as_many_turns_and_no_bad_sample),
		cmocka_unit_test(substitute_keeps_the_order_and_puts_stand_ins_in),
		cmocka_unit_test(the_identity_tells_lists_and_rules_apart),
		cmocka_unit_test(what_cannot_be_dealt_is_refused),
		cmocka_unit_test(an_output_is_left_alone_where_there_is_nothing),
		cmocka_unit_test(lists_are_read_in_any_order),
		cmocka_unit_test(other_texts_are_refused),
		cmocka_unit_test(what_is_written_is_read_and_every_cut_refused),
		cmocka_unit_test(a_state_in_the_middle_of_an_epoch_wants_its_list),
	};
	int failed = cmocka_run_group_tests_name("quarantine, sorted", tests, synth_setup_sorted, synth_teardown);

	return failed +
	       cmocka_run_group_tests_name("quarantine, shuffled", tests, synth_setup_shuffled, synth_teardown);
}
