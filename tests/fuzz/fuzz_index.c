/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as an index, as they are and with their sums computed anew. */
#include <stdlib.h>
#include <string.h>

#include "shard/index_private.h"
#include "tests/fuzz/fuzz.h"
#include "tests/shard/exercise.h"
#include "tests/shard/reseal.h"

static void try_index(const uint8_t *bytes, size_t len)
{
	struct shard_index *index = calloc(1, sizeof *index);
	struct base_err err;
	if (!index)
		abort();
	index->path = strdup("fuzz");
	if (index_attach(index, bytes, len, &err) == 0) {
		exercise_index(index);
		shard_index_verify(index, &err);
	}
	shard_index_close(index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_index(data, size);

	/* A mutation rarely hits a sum: an attacker computes it. */
	uint8_t *copy = malloc(size ? size : 1);
	if (!copy)
		abort();
	if (size)
		memcpy(copy, data, size);
	reseal_index(copy, size);
	try_index(copy, size);
	free(copy);
	return 0;
}
