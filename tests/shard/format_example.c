/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the example of shard/FORMAT.md with the real builder and prints it as `hexdump -C` would. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/io.h"
#include "shard/build.h"

static void add(
        struct shard_builder *b, const char *path, const char *content, uint64_t offset, bool common, const char *group)
{
	size_t len = strlen(content);
	struct base_err err;
	struct shard_build_file f = { .path = path,
		.offset = offset,
		.length = len,
		.xxh3 = XXH3_64bits(content, len),
		.mtime_s = 1700000000,
		.mode = 0644,
		.common = common,
		.group = group };
	if (shard_builder_add_file(b, &f, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
}

static void hexdump(const uint8_t *p, size_t len)
{
	bool starred = false;
	for (size_t at = 0; at < len; at += 16) {
		size_t n = len - at < 16 ? len - at : 16;
		if (at > 0 && n == 16 && memcmp(p + at, p + at - 16, 16) == 0) {
			if (!starred)
				printf("*\n");
			starred = true;
			continue;
		}
		starred = false;
		printf("%08zx ", at);
		for (size_t i = 0; i < 16; i++)
			if (i < n)
				printf("%s%02x", i == 8 ? "  " : " ", p[at + i]);
			else
				printf("%s", i == 8 ? "    " : "   ");
		printf("  |");
		for (size_t i = 0; i < n; i++)
			putchar(p[at + i] >= 0x20 && p[at + i] < 0x7f ? p[at + i] : '.');
		printf("|\n");
	}
	printf("%08zx\n", len);
}

int main(void)
{
	char path[] = "/tmp/ddpfs-example.XXXXXX";
	int fd = mkstemp(path);
	struct shard_builder *b;
	struct base_err err;
	if (fd < 0 || shard_builder_new(&b) < 0)
		return 1;
	close(fd);
	/* a tar shard: a header of 512 bytes before each content, two zero blocks at the end */
	if (shard_builder_add_shard(b, "shard-000000.tar", SHARD_TAR, 4 * 1024 + 1024, 0, &err) < 0)
		return 1;
	add(b, "cats/2.txt", "2\n", 512, false, "cats/2");
	add(b, "cats/2.json", "{}\n", 1536, false, "cats/2");
	add(b, "cats/1.txt", "meow\n", 2560, false, NULL);
	add(b, "labels.csv", "cat,dog\n", 3584, true, NULL);
	int r = shard_builder_add_dir(b, "dogs", 0755, 1700000000, &err);
	if (r == 0)
		r = shard_builder_finish(b, path, true, 7, &err);
	shard_builder_free(b);

	char *bytes = NULL;
	size_t len = 0;
	if (r == 0)
		r = base_read_file(path, 1 << 20, &bytes, &len);
	unlink(path);
	if (r < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	hexdump((const uint8_t *)bytes, len);
	free(bytes);
	return 0;
}
