/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: turn -> position -> index -> file, and back; prefetch/sampler/sequence.h first. */
#include "prefetch/sampler/sequence.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct prefetch_sequence {
	atomic_uint refs;
	struct prefetch_sequence_options options;
	struct prefetch_own_order own;
	uint64_t size; /* positions without padding */
	uint64_t turns;
};

int prefetch_sequence_new(const struct prefetch_sequence_options *options, struct prefetch_sequence **ret_sequence)
{
	uint64_t size = options->own ? options->own->size : options->list ? prefetch_list_size(options->list) : 0;
	if (size == 0 || options->ranks == 0 || options->first + (uint64_t)options->ranks > options->world)
		return -EINVAL;
	struct prefetch_sequence *sequence = calloc(1, sizeof(*sequence));
	if (!sequence)
		return -ENOMEM;
	atomic_init(&sequence->refs, 1);
	sequence->options = *options;
	if (options->own) {
		sequence->own = *options->own;
		sequence->options.own = &sequence->own;
	}
	if (options->list)
		prefetch_list_get(options->list);
	if (options->perm)
		prefetch_perm_get(options->perm);
	sequence->size = size;
	sequence->turns = (size + options->world - 1) / options->world * options->ranks;
	*ret_sequence = sequence;
	return 0;
}

struct prefetch_sequence *prefetch_sequence_get(struct prefetch_sequence *sequence)
{
	atomic_fetch_add(&sequence->refs, 1);
	return sequence;
}

void prefetch_sequence_put(struct prefetch_sequence *sequence)
{
	if (!sequence || atomic_fetch_sub(&sequence->refs, 1) > 1)
		return;
	prefetch_list_put(sequence->options.list);
	prefetch_perm_put(sequence->options.perm);
	free(sequence);
}

const struct prefetch_sequence_options *prefetch_sequence_options_get(const struct prefetch_sequence *sequence)
{
	return &sequence->options;
}

uint64_t prefetch_sequence_turns(const struct prefetch_sequence *sequence)
{
	return sequence->turns;
}

int prefetch_sequence_file(const struct prefetch_sequence *sequence, uint64_t turn, uint32_t *ret_file)
{
	const struct prefetch_sequence_options *o = &sequence->options;
	if (turn >= sequence->turns)
		return -ERANGE;
	uint64_t position = (turn / o->ranks * o->world + o->first + turn % o->ranks) % sequence->size;
	if (o->own)
		return o->own->at(o->own->user, o->own_epoch, position, ret_file);
	return prefetch_list_at(o->list, o->perm ? o->perm->at[position] : (uint32_t)position, ret_file);
}

int prefetch_sequence_position(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_position)
{
	const struct prefetch_sequence_options *o = &sequence->options;
	uint32_t index;
	if (o->own)
		return o->own->find(o->own->user, o->own_epoch, file, ret_position);
	int rc = prefetch_list_find(o->list, file, &index);
	if (rc < 0)
		return rc;
	*ret_position = o->perm ? o->perm->inverse[index] : index;
	return 0;
}

int prefetch_sequence_find(const struct prefetch_sequence *sequence, uint32_t file, uint64_t *ret_turn)
{
	const struct prefetch_sequence_options *o = &sequence->options;
	uint64_t position;
	int rc = prefetch_sequence_position(sequence, file, &position);
	if (rc < 0)
		return rc;
	uint64_t end = (sequence->size + o->world - 1) / o->world * o->world;
	for (; position < end; position += sequence->size) {
		uint64_t residue = position % o->world;
		if (residue >= o->first && residue - o->first < o->ranks) {
			*ret_turn = position / o->world * o->ranks + residue - o->first;
			return 0;
		}
	}
	return -ENOENT;
}
