/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as a resume state and as a quarantine list. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shard/quarantine.h"
#include "shard/state.h"
#include "tests/fuzz/fuzz.h"

static void try_state(const char *text, size_t len)
{
	struct shard_state state;
	struct base_err err = { 0 };
	uint64_t sum = 0;
	int rc = shard_state_parse(text, len, &err, &state);
	if (rc < 0) {
		assert(err.code == rc && err.text[0] && !strchr(err.text, '\n'));
		return;
	}
	const struct shard_view_options *o = &state.options;
	assert(o->order != SHARD_ORDER_AUTO && o->deal != SHARD_DEAL_AUTO && o->n_past <= SHARD_DEAL_SEGMENTS_MAX);
	assert(strlen(state.subdir) <= SHARD_STATE_SUBDIR_MAX && !o->subdir && !o->quarantine);
	for (uint32_t i = 0; i < o->n_past; i++) {
		assert(o->past[i].world > 0 && o->past[i].world <= SHARD_WORLD_MAX && o->past[i].steps > 0);
		sum += o->past[i].steps;
	}
	(void)sum;
}

static void try_list(const char *text, size_t len)
{
	static const struct shard_info info = { .n_samples = 1000 }; /* of the dataset 000...0 */
	struct shard_quarantine *list = NULL;
	struct base_err err = { 0 };
	int rc = shard_quarantine_parse(text, len, &info, &err, &list);
	if (rc < 0) {
		assert(err.code == rc && err.text[0] && !strchr(err.text, '\n') && !list);
		return;
	}
	for (uint32_t i = 0; i < list->n; i++) {
		assert(list->samples[i] < info.n_samples && (i == 0 || list->samples[i - 1] < list->samples[i]));
		assert(shard_quarantine_has(list, list->samples[i]));
	}
	shard_quarantine_free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* an exact allocation: one byte too far is seen */
	char *copy = malloc(size ? size : 1);
	if (!copy)
		abort();
	if (size)
		memcpy(copy, data, size);
	try_state(copy, size);
	try_list(copy, size);
	free(copy);
	return 0;
}
