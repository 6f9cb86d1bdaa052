/* SPDX-License-Identifier: Apache-2.0 */
/* make_index DIRECTORY CLASSES PER_CLASS BYTES sorted|shuffled
 *
 * Writes the index of a made-up dataset, class_NNNN/item_NNNNNN.bin, without any shard: enough for everything that only
 * looks at orders. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shard/build.h"
#include "shard/order.h"

static int add_all(struct shard_builder *builder, uint32_t classes, uint32_t per_class, uint64_t bytes,
        const struct shard_order *places, struct base_err *err)
{
	for (uint32_t i = 0; i < classes * per_class; i++) {
		char path[64];
		struct shard_build_file file = { .path = path, .length = bytes, .xxh3 = i, .mtime_s = 1, .mode = 0644 };
		int rc;

		snprintf(path, sizeof(path), "class_%04u/item_%06u.bin", i / per_class, i % per_class);
		file.offset = shard_order_position(places, i) * bytes;
		rc = shard_builder_add_file(builder, &file, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct shard_builder *builder = NULL;
	struct shard_order_params params = { .mode = SHARD_ORDER_NONE, .seed = 99 };
	struct shard_order places;
	struct base_err err = { 0 };
	char path[4096];
	uint32_t classes;
	uint32_t per_class;
	uint64_t bytes;
	int rc;

	if (argc != 6)
		return 2;
	classes = (uint32_t)strtoul(argv[2], NULL, 10);
	per_class = (uint32_t)strtoul(argv[3], NULL, 10);
	bytes = strtoull(argv[4], NULL, 10);
	params.n = (uint64_t)classes * per_class;
	if (strcmp(argv[5], "shuffled") == 0)
		params.mode = SHARD_ORDER_FULL;
	mkdir(argv[1], 0755);
	snprintf(path, sizeof(path), "%s/%s", argv[1], SHARD_INDEX_NAME);
	rc = shard_order_init(&places, &params);
	if (rc == 0)
		rc = shard_builder_new(&builder);
	if (rc == 0)
		rc = shard_builder_add_shard(builder, "shard-000000.tar", SHARD_BARE, params.n * bytes, 0, &err);
	if (rc == 0)
		rc = add_all(builder, classes, per_class, bytes, &places, &err);
	if (rc == 0)
		rc = shard_builder_finish(builder, path, params.mode == SHARD_ORDER_FULL, 99, &err);
	if (rc < 0)
		fprintf(stderr, "make_index: %s\n", err.text[0] ? err.text : base_err_str(rc));
	shard_builder_free(builder);
	return rc < 0 ? 1 : 0;
}
