/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes of made-up datasets, for tests and benchmarks that need no shard content. */
#ifndef DDPFS_TESTS_SHARD_SYNTH_H
#define DDPFS_TESTS_SHARD_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "shard/index.h"

/* `classes` directories below train/ (and `val_classes` below val/) of `per_class` files of `bytes` bytes each,
 * packed in
 * order of their names or, when shuffled, in a random order. */
struct synth {
	uint32_t classes;
	uint32_t val_classes;
	uint32_t per_class;
	uint64_t bytes;
	bool shuffled;
	bool scattered;              /* file item_I is in whichever class, not I / per_class; without val_classes */
	bool common;                 /* all files are common ones */
	const char *empty_dir;       /* NULL, or a directory without files */
	const char *const *suffixes; /* of files in turn, n_suffixes of them; NULL = ".bin" */
	uint32_t n_suffixes;
	bool grouped; /* a sample begins at each suffixes[0]; its files have one name but for the suffix */
};

uint32_t synth_class(const struct synth *synth, uint32_t i); /* scattered: of file item_I */

/* Writes the index into a new temporary directory and opens it.  Fails the test (cmocka) when something goes wrong. */
struct shard_index *synth_open(const struct synth *synth);

/* Closes the index and removes its directory. */
void synth_close(struct shard_index *index);

/* Group fixtures (cmocka): *state is the index of 7 classes below train/ and 3 below val/ of 13 files. */
int synth_setup_sorted(void **state);
int synth_setup_shuffled(void **state);
int synth_teardown(void **state);

#endif
