/* SPDX-License-Identifier: Apache-2.0 */
/* Reads an object of a store by many ranges at the same time, for tests and benches of shard/remote/client.h.
 *
 *     remote_read STORE PATH SIZE CHUNK DEPTH [TIMEOUT_MS]
 *
 * SIZE, CHUNK: bytes.  Writes the object to standard output, and what the client counted to standard error, as JSON.
 * CHUNK negative: writes nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/clock.h"
#include "shard/remote/client.h"

static void print_stats(struct remote_client *client, uint64_t began_ns, uint64_t bytes, int failed)
{
	struct remote_stats s;
	remote_client_stats_get(client, &s);
	fprintf(stderr,
	        "{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"failed\": %d, \"requests\": %" PRIu64
	        ", \"retries\": %" PRIu64 ", \"hedged\": %" PRIu64 ", \"throttled\": %" PRIu64
	        ", \"body_bytes\": %" PRIu64 ", \"wasted_bytes\": %" PRIu64
	        ", \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"limit\": %u, \"error\": \"%s\"}\n",
	        (double)(base_now_ns() - began_ns) / 1e9, bytes, failed, s.requests, s.retries, s.hedged, s.throttled,
	        s.bytes, s.wasted_bytes, (double)s.first_byte_p50_ns / 1e6, (double)s.first_byte_p99_ns / 1e6, s.limit,
	        s.error);
}

int main(int argc, char **argv)
{
	if (argc < 6) {
		fprintf(stderr, "usage: remote_read STORE PATH SIZE CHUNK DEPTH [TIMEOUT_MS]\n");
		return 2;
	}
	const uint64_t size = strtoull(argv[3], NULL, 10);
	const long long chunk_arg = atoll(argv[4]);
	const uint64_t chunk = (uint64_t)llabs(chunk_arg);
	const unsigned depth = (unsigned)atoi(argv[5]);
	const uint64_t timeout_ns = argc > 6 ? strtoull(argv[6], NULL, 10) * 1000000 : 0;
	struct base_err err;
	struct remote_store *store;
	struct remote_client *client;
	struct remote_object *object;
	if (remote_store_open(argv[1], &err, &store) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	uint8_t *data = malloc(size ? size : 1);
	const size_t n = (size_t)((size + chunk - 1) / chunk);
	struct remote_read *reads = calloc(n ? n : 1, sizeof(*reads));
	if (!data || !reads || remote_client_new(store, timeout_ns, &client) < 0 ||
	        remote_object_new(store, argv[2], size, &object) < 0)
		return 1;
	uint64_t began_ns = base_now_ns(), bytes = 0;
	int failed = 0;
	size_t begun = 0, ended = 0;
	while (ended < n) {
		for (; begun < n && begun - ended < depth; begun++) {
			uint64_t offset = begun * chunk;
			reads[begun] = (struct remote_read){ .object = object,
				.offset = offset,
				.len = (uint32_t)(size - offset < chunk ? size - offset : chunk),
				.data = data + offset };
			remote_client_submit(client, &reads[begun]);
		}
		struct remote_read *done;
		remote_client_wait(client, -1, &done);
		for (; done; done = done->next, ended++) {
			if (done->res < 0) {
				failed++;
				fprintf(stderr, "%" PRIu64 ": %s\n", done->offset, base_err_str(done->res));
			} else {
				bytes += (uint64_t)done->res;
			}
		}
	}
	print_stats(client, began_ns, bytes, failed);
	remote_client_free(client);
	remote_object_free(object);
	remote_store_close(store);
	if (chunk_arg > 0)
		fwrite(data, 1, size, stdout);
	free(data);
	free(reads);
	return failed != 0;
}
