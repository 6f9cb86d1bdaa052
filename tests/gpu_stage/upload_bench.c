/* SPDX-License-Identifier: Apache-2.0 */
/* How fast batches reach a GPU: upload_bench DATASET [BATCH [MEMORY]]   (default 64, 1G; the dataset should fit)
 *
 *   peak      one pinned buffer of 64 MiB, again and again: what the link gives
 *   each      later epochs of a stage in memory, one copy a file
 *   packed    gathered by the processor, one copy a batch
 *   auto      the library's choice
 *   naive     the same files by memcpy into ordinary memory (as read() would) and a blocking copy
 *
 * Figures only, as shares of the peak of the same run.  On the stand-in driver they mean nothing. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_stage/cuda.h"
#include "gpu_stage/stage.h"
#include "shard/base/units.h"

enum { ROUNDS = 5, PEAK_BYTES = 64 << 20, PEAK_COPIES = 32 };

static const struct stage_cuda *cuda;
static struct CUstream_st *stream;
static double peak;

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(unsigned result, const char *what)
{
	struct base_err err;
	if (result == CUDA_OK)
		return;
	stage_cuda_error(cuda, result, 0, what, &err);
	fprintf(stderr, "upload_bench: %s\n", err.text);
	exit(1);
}

static void print(const char *name, double seconds, uint64_t samples, uint64_t bytes)
{
	double rate = (double)bytes / seconds;
	printf("%-8s %8.3f GB/s", name, rate * 1e-9);
	if (samples)
		printf(" %11.0f samples/s %6.2f of the peak", (double)samples / seconds, rate / peak);
	putchar('\n');
}

static void measure_peak(unsigned long long device)
{
	uint8_t *host = aligned_alloc(4096, PEAK_BYTES);
	if (!host)
		exit(1);
	memset(host, 1, PEAK_BYTES);
	must(cuda->host_register(host, PEAK_BYTES, CUDA_HOST_PORTABLE), "pin memory");
	for (unsigned round = 0; round < ROUNDS; round++) {
		double began = now_s();
		for (unsigned i = 0; i < PEAK_COPIES; i++)
			must(cuda->copy_up(device, host, PEAK_BYTES, stream), "copy");
		must(cuda->stream_synchronize(stream), "copy");
		double rate = (double)PEAK_BYTES * PEAK_COPIES / (now_s() - began);
		peak = rate > peak ? rate : peak;
	}
	must(cuda->host_unregister(host), "unpin memory");
	free(host);
}

static void complain(const struct ddpfs_stage_error *error)
{
	fprintf(stderr, "upload_bench: %s\n", error->text);
	exit(1);
}

typedef unsigned copy_function(unsigned long long to, const void *from, size_t bytes);

/* naive: copy each file by hand as well; NULL: the library's own copies. */
static double epoch(struct ddpfs_stage *stage, uint64_t number, uint32_t n, copy_function *naive,
        unsigned long long device, uint8_t *buffer, uint64_t *ret_samples, uint64_t *ret_bytes)
{
	struct ddpfs_stage_error error;
	struct ddpfs_batch *batch;
	int rc;
	*ret_samples = *ret_bytes = 0;
	if (ddpfs_stage_set_epoch(stage, number, &error) < 0)
		complain(&error);
	double began = now_s();
	while ((rc = ddpfs_stage_next(stage, n, 0, &error, &batch)) == 1) {
		if (ddpfs_batch_wait(batch, stream, &error) < 0)
			complain(&error);
		for (uint32_t i = 0; i < batch->n_items; i++) {
			const struct ddpfs_item *item = &batch->items[i];
			*ret_bytes += item->len;
			if (naive && item->len <= PEAK_BYTES) {
				memcpy(buffer, item->data, item->len);
				must(naive(device, buffer, item->len), "copy");
			}
		}
		*ret_samples += batch->n_samples;
		ddpfs_batch_release(batch);
	}
	must(cuda->stream_synchronize(stream), "copy");
	if (rc < 0)
		complain(&error);
	return now_s() - began;
}

static void measure(const char *name, struct ddpfs_stage_options o, const char *dataset, uint32_t n,
        copy_function *naive, unsigned long long device)
{
	struct ddpfs_stage_error error;
	struct ddpfs_stage *stage;
	uint64_t samples, bytes;
	double best = 0;
	uint8_t *buffer = malloc(PEAK_BYTES);
	if (!buffer || ddpfs_stage_open(dataset, &o, &error, &stage) < 0)
		complain(&error);
	for (uint64_t round = 0; round <= ROUNDS; round++) { /* the first one reads */
		double seconds = epoch(stage, round, n, naive, device, buffer, &samples, &bytes);
		if (round == 1 || (round && seconds < best))
			best = seconds;
	}
	print(name, best, samples, bytes);
	ddpfs_stage_close(stage);
	free(buffer);
}

int main(int argc, char **argv)
{
	uint64_t batch = 64, memory = BASE_GIB;
	struct base_err err;
	struct CUctx_st *context;
	unsigned long long device;
	int gpu = 0;
	if (argc < 2 || argc > 4 || (argc > 2 && base_parse_u64(argv[2], DDPFS_STAGE_BATCH_MAX, &batch) < 0) ||
	        !batch || (argc > 3 && base_parse_size(argv[3], &memory) < 0)) {
		fputs("usage: upload_bench DATASET [BATCH [MEMORY]]\n", stderr);
		return 2;
	}
	if (stage_cuda_load(&err, &cuda) < 0) {
		fprintf(stderr, "upload_bench: %s\n", err.text);
		return 1;
	}
	must(cuda->device_get(&gpu, 0), "find it");
	must(cuda->context_retain(&context, gpu), "open it");
	must(cuda->context_push(context), "use it");
	must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING), "make a stream");
	must(cuda->memory_alloc(&device, PEAK_BYTES), "allocate memory");
	measure_peak(device);
	print("peak", (double)PEAK_BYTES / peak, 0, PEAK_BYTES);
	struct ddpfs_stage_options o = { .size = sizeof(o), .memory_bytes = memory, .backend = "cuda:0" };
	static const char *const modes[] = { "each", "packed", "auto" };
	for (unsigned i = 0; i < 3; i++) {
		o.copy = modes[i];
		measure(modes[i], o, argv[1], (uint32_t)batch, NULL, device);
	}
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = library ? dlsym(library, "cuMemcpyHtoD_v2") : NULL;
	copy_function *naive;
	memcpy((void *)&naive, &found, sizeof(found));
	o.backend = "cpu";
	if (naive)
		measure("naive", o, argv[1], (uint32_t)batch, naive, device);
	must(cuda->memory_free(device), "free memory");
	must(cuda->stream_destroy(stream), "end a stream");
	must(cuda->context_release(gpu), "close it");
	return 0;
}
