/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the library computes, for tests written in other languages:
 *
 *   print_order MODE N SEED EPOCH WORLD RANK TAIL START   the items of one rank, one a line
 *   print_order prefix N SEED K                           the first K of torch.randperm(N) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/deal.h"
#include "shard/order.h"
#include "shard/torch_rng.h"

static int print_prefix(char **argv)
{
	uint32_t k = (uint32_t)strtoul(argv[4], NULL, 10);
	uint32_t n = (uint32_t)strtoul(argv[2], NULL, 10);
	uint32_t *perm = malloc(((size_t)n + 1) * sizeof(*perm));
	if (!perm)
		return 1;
	shard_torch_randperm(n, strtoull(argv[3], NULL, 10), perm);
	for (uint32_t i = 0; i < k && i < n; i++)
		printf("%u\n", perm[i]);
	free(perm);
	return 0;
}

int main(int argc, char **argv)
{
	struct shard_order order;
	struct shard_order_params params = { .chunk_items = 16, .pool_chunks = 16 };
	struct shard_deal deal = { .mode = SHARD_DEAL_STRIDE };
	uint32_t rank;

	if (argc == 5 && strcmp(argv[1], "prefix") == 0)
		return print_prefix(argv);
	if (argc != 9 || shard_order_mode_parse(argv[1], &params.mode) < 0 || shard_tail_parse(argv[7], &deal.tail) < 0)
		return 2;
	params.n = deal.n = strtoull(argv[2], NULL, 10);
	params.seed = strtoull(argv[3], NULL, 10);
	params.epoch = strtoull(argv[4], NULL, 10);
	deal.world = (uint32_t)strtoul(argv[5], NULL, 10);
	rank = (uint32_t)strtoul(argv[6], NULL, 10);
	deal.start = strtoull(argv[8], NULL, 10);
	if (shard_deal_check(&deal) < 0 || rank >= deal.world || shard_order_init(&order, &params) < 0)
		return 1;
	for (uint64_t k = 0; k < shard_deal_turns(&deal, rank); k++)
		printf("%llu\n", (unsigned long long)shard_order_at(&order, shard_deal_position(&deal, rank, k, NULL)));
	shard_order_done(&order);
	return 0;
}
