/* SPDX-License-Identifier: Apache-2.0 */
/* Orders in which made-up trainers open files: those of libraries' shuffles, and random ones that no library makes.
 * test_shuffles.c compares the shuffles with numbers that the libraries print. */
#ifndef DDPFS_TESTS_PREFETCH_ORDERS_H
#define DDPFS_TESTS_PREFETCH_ORDERS_H

#include <stdint.h>

#include "prefetch/sampler/recognise.h"
#include "prefetch/sampler/shuffle.h"

/* The shuffles that trainers seed.  DALI's have a fixed seed. */
enum { FAMILIES = 5 };
extern const enum prefetch_shuffle_kind families[FAMILIES];

/* Returns the sampler that has to be recognised when files are opened in the order of such a shuffle. */
enum prefetch_sampler sampler_of(enum prefetch_shuffle_kind kind);

/* Writes the order in which a trainer's shuffle leaves the items 0 .. n - 1.  Before it come shuffle->before others. */
void order_of_shuffle(const struct prefetch_shuffle *shuffle, uint32_t n, uint32_t *ret_order);
/* The same for the first shuffle of a generator with this seed. */
void order_of_seed(enum prefetch_shuffle_kind kind, uint64_t seed, uint32_t n, uint32_t *ret_order);

/* Shuffles n items at random; n: at least 1.  *random goes on, as in loader_random(). */
void shuffle_by_nobody(uint64_t *random, uint32_t n, uint32_t *items);
/* Writes a random order of the items 0 .. n - 1. */
void order_of_nobody(uint64_t *random, uint32_t n, uint32_t *ret_order);

#endif
