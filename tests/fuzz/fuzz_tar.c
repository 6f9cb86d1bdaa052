/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as a tar archive, fed whole and in windows as a reader of files feeds them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shard/build.h"
#include "shard/tar.h"
#include "tests/fuzz/fuzz.h"

/* Returns a hash of what was found, -1 in its place after an error. */
static uint64_t parse(const uint8_t *data, size_t size, size_t piece)
{
	struct shard_tar_parser *parser;
	struct base_err err;
	uint64_t offset = 0, found = 1469598103934665603U;
	size_t want = piece;
	if (shard_tar_parser_new(&parser) < 0)
		abort();
	for (;;) {
		struct shard_tar_member m;
		uint64_t next = 0;
		size_t n = offset >= size ? 0 : size - offset < want ? size - offset : want, need = 0;
		/* an exact allocation: one byte too far is seen */
		uint8_t *window = malloc(n ? n : 1);
		if (!window)
			abort();
		if (n)
			memcpy(window, data + offset, n);
		bool eof = offset + n >= size;
		int r = shard_tar_parse(parser, window, n, offset, eof, &err, &m, &next, &need);
		if (r == 1) {
			assert(m.content_offset + m.length >= m.content_offset && next >= m.content_offset + m.length &&
			        next % 512 == 0);
			assert(m.header_offset < m.content_offset && strlen(m.path) <= SHARD_PATH_MAX);
			for (const char *s = m.path; *s; s++)
				found = (found ^ (uint8_t)*s) * 1099511628211U;
			found = (found ^ m.length ^ (uint64_t)m.mtime_s ^ m.content_offset) * 1099511628211U;
			shard_path_check(m.path, &err);
		}
		free(window);
		/* the caller's part: a member past the end is truncation */
		if (r < 0 || (r == 1 && m.content_offset + m.length > size)) {
			found = UINT64_MAX;
			break;
		}
		if (r == 0)
			break;
		if (r == 2) {
			assert(!eof && next >= offset && need > 0 && (next > offset || need > n));
			want = need > piece ? need : piece;
		} else {
			assert(next > offset);
			want = piece;
		}
		offset = next;
		if (offset >= size)
			break;
	}
	shard_tar_parser_free(parser);
	return found;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t whole = parse(data, size, SIZE_MAX / 2), blocks = parse(data, size, 512),
	         odd = parse(data, size, 3000);
	/* what an archive holds does not depend on how it is read */
	assert(whole == blocks && blocks == odd);
	return 0;
}
