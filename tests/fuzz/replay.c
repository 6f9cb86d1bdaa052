/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target without libFuzzer: over every file of the given directories, and over seeded random mutations of
 * them.
 *
 *   replay_TARGET [--mutations N] PATH...
 *
 * So that each crash that was ever found stays tried, and a build without clang still throws something at the
 * parsers. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shard/base/io.h"
#include "shard/base/units.h"
#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 16 << 20 };

static uint64_t rng = 20240601;
static unsigned long long inputs;

static uint64_t next_random(void)
{
	uint64_t z = (rng += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* A few changes: bits, bytes that parsers stumble over, numbers, a cut, a piece copied over another. */
static size_t mutate(uint8_t *p, size_t len)
{
	static const uint8_t bytes[] = { 0, 1, 0x7f, 0x80, 0xff, '/', '.', '0', '7', ' ', '\n', '=' };
	for (unsigned n = 1 + next_random() % 6; n > 0 && len > 16; n--) {
		size_t at = next_random() % len, wide = len - 8 ? next_random() % (len - 8) : 0;
		/* mostly where something stands: padding is dull */
		for (int tries = 0; tries < 30 && p[at] == 0; tries++)
			at = next_random() % len;
		uint64_t number = next_random() >> next_random() % 64;
		size_t from = next_random() % len, n_copy = next_random() % 64;
		switch (next_random() % 6) {
		case 0:
			p[at] ^= (uint8_t)(1U << next_random() % 8);
			break;
		case 1:
			p[at] = bytes[next_random() % sizeof bytes];
			break;
		case 2:
			memcpy(p + wide, &number, 8);
			break;
		case 3:
			memcpy(p + wide, &number, 4);
			break;
		case 4:
			if (from + n_copy <= len && at + n_copy <= len)
				memmove(p + at, p + from, n_copy);
			break;
		default:
			if (next_random() % 8 == 0)
				len = at + 1;
			break;
		}
	}
	return len;
}

static int replay_file(const char *path, uint64_t mutations)
{
	char *buf;
	size_t len;
	int r = base_read_file(path, INPUT_MAX, &buf, &len);
	if (r < 0) {
		fprintf(stderr, "replay: %s: cannot read it\n", path);
		return r;
	}
	for (uint64_t i = 0; i <= mutations; i++) {
		/* exact size: one byte too far is seen by the sanitizers */
		uint8_t *copy = malloc(len ? len : 1);
		if (!copy)
			abort();
		memcpy(copy, buf, len);
		size_t n = i ? mutate(copy, len) : len;
		uint8_t *shrunk = realloc(copy, n ? n : 1);
		LLVMFuzzerTestOneInput(shrunk ? shrunk : copy, n);
		free(shrunk ? shrunk : copy);
		inputs++;
	}
	free(buf);
	return 0;
}

static int replay(const char *path, uint64_t mutations)
{
	struct dirent **names = NULL;
	int n = scandir(path, &names, NULL, alphasort); /* sorted: the mutations are the same in every run */
	if (n < 0)
		return replay_file(path, mutations);
	int r = 0;
	for (int i = 0; i < n; i++) {
		char file[8192];
		struct stat st;
		snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
		if (r == 0 && stat(file, &st) == 0 && S_ISREG(st.st_mode))
			r = replay_file(file, mutations);
		free(names[i]);
	}
	free(names);
	return r;
}

int main(int argc, char **argv)
{
	uint64_t mutations = 0;
	int arg = 1;
	if (argc > 2 && strcmp(argv[1], "--mutations") == 0) {
		if (base_parse_u64(argv[2], 100000000, &mutations) < 0)
			return 2;
		arg = 3;
	}
	if (arg >= argc) {
		fprintf(stderr, "usage: %s [--mutations N] PATH...\n", argv[0]);
		return 2;
	}
	for (; arg < argc; arg++)
		if (replay(argv[arg], mutations) < 0)
			return 1;
	printf("%llu inputs\n", inputs);
	return inputs > 0 ? 0 : 1;
}
