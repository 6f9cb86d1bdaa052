/* SPDX-License-Identifier: Apache-2.0 */
/* Makes indexes of made-up datasets, without shards; tests/shard/synth.h first. */
#include "tests/shard/synth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/build.h"
#include "shard/order.h"

uint32_t synth_class(const struct synth *s, uint32_t i)
{
	return (uint32_t)(i * UINT64_C(0x9e3779b97f4a7c15) >> 32) % s->classes;
}

/* The number of a file's name in its class: of its sample, if samples have several files. */
static uint32_t item_of(const struct synth *s, uint32_t i)
{
	uint32_t at = s->scattered ? i : i % s->per_class, in_turn = 0, before = 0;
	if (!s->grouped)
		return at;
	for (uint32_t k = 0; k < s->n_suffixes; k++) {
		bool begins = strcmp(s->suffixes[k], s->suffixes[0]) == 0;
		in_turn += begins;
		before += begins && k <= at % s->n_suffixes;
	}
	return at / s->n_suffixes * in_turn + before - 1;
}

static void add(struct shard_builder *builder, const struct synth *s, uint32_t i, const struct shard_order *places)
{
	uint32_t class = s->scattered ? synth_class(s, i) : i / s->per_class;
	bool val = class >= s->classes;
	uint32_t item = item_of(s, i);
	char path[128], group[64];
	struct shard_build_file file = { .path = path, .length = s->bytes, .xxh3 = i, .mtime_s = 1, .mode = 0644 };
	struct base_err err = { 0 };

	snprintf(path, sizeof(path), "%s/class_%04u/item_%06u%s", val ? "val" : "train",
	        val ? class - s->classes : class, item, s->suffixes ? s->suffixes[i % s->n_suffixes] : ".bin");
	file.common = s->common;
	snprintf(group, sizeof(group), "%u/%u", class, item);
	file.group = s->grouped ? group : NULL;
	file.offset = shard_order_position(places, i) * s->bytes;
	if (shard_builder_add_file(builder, &file, &err) < 0)
		fail_msg("%s", err.text);
}

struct shard_index *synth_open(const struct synth *s)
{
	char dir[] = "/tmp/ddpfs-synth.XXXXXX";
	char path[64];
	uint32_t n = (s->classes + s->val_classes) * s->per_class;
	struct shard_order_params params = {
		.mode = s->shuffled ? SHARD_ORDER_FULL : SHARD_ORDER_NONE,
		.n = n,
		.seed = 99,
	};
	struct shard_order places;
	struct shard_builder *builder = NULL;
	struct shard_index *index = NULL;
	struct base_err err = { 0 };

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/%s", dir, SHARD_INDEX_NAME);
	assert_int_equal(shard_order_init(&places, &params), 0);
	assert_int_equal(shard_builder_new(&builder), 0);
	if (shard_builder_add_shard(builder, "shard-000000.tar", SHARD_BARE, n * s->bytes, 0, &err) < 0)
		fail_msg("%s", err.text);
	for (uint32_t i = 0; i < n; i++)
		add(builder, s, i, &places);
	if (s->empty_dir && shard_builder_add_dir(builder, s->empty_dir, 0755, 1, &err) < 0)
		fail_msg("%s", err.text);
	if (shard_builder_finish(builder, path, s->shuffled, 99, &err) < 0)
		fail_msg("%s", err.text);
	shard_builder_free(builder);
	shard_order_done(&places);
	if (shard_index_open(dir, &err, &index) < 0)
		fail_msg("%s", err.text);
	return index;
}

void synth_close(struct shard_index *index)
{
	char path[4200];
	char dir[4096];

	snprintf(dir, sizeof(dir), "%s", shard_index_dataset(index));
	shard_index_close(index);
	snprintf(path, sizeof(path), "%s/%s", dir, SHARD_INDEX_NAME);
	unlink(path);
	rmdir(dir);
}

static const struct synth sorted = { .classes = 7, .val_classes = 3, .per_class = 13, .bytes = 1000 };
static const struct synth shuffled = {
	.classes = 7, .val_classes = 3, .per_class = 13, .bytes = 1000, .shuffled = true
};

int synth_setup_sorted(void **state)
{
	*state = synth_open(&sorted);
	return 0;
}

int synth_setup_shuffled(void **state)
{
	*state = synth_open(&shuffled);
	return 0;
}

int synth_teardown(void **state)
{
	synth_close(*state);
	return 0;
}
