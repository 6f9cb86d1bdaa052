/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: on the stand-in driver of this folder, or on a real GPU where the loader finds a real driver.
 *
 * With DDPFS_TEST_STANDIN set it must be the stand-in; without, the test is skipped where there is no GPU.  What needs
 * the stand-in's brake or faults is left out on a real one. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu_stage/cuda.h"
#include "gpu_stage/stage.h"
#include "tests/gpu_stage/standin/standin.h"
#include "tests/prefetch/dataset.h"

static const uint64_t SIZES[] = { 20000, 4096, 100, 70001, 30000, 0, 8192, 1, 120000, (1 << 20) + 77, 512, 40000 };
enum { N_SIZES = sizeof(SIZES) / sizeof(SIZES[0]), N_FILES = 300, MEMORY = 48 << 20, SKIPPED = 77 };

static struct dataset data;
static const struct stage_cuda *cuda;
static unsigned (*launch)(struct CUstream_st *stream, void (*call)(void *arg), void *arg);
/* The stand-in's; NULL with a real driver. */
static void (*live)(struct standin_live *ret_live);
static void (*fail_nth)(uint64_t n, enum standin_fault fault);
static uint64_t (*calls)(void);
static void (*hold_copies)(bool hold);
static uint64_t (*copies)(void);
static void (*lose)(int device);

static void find(void *ret_function, const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *address = library ? dlsym(library, name) : NULL;
	memcpy(ret_function, &address, sizeof(address));
}

#define skip_because(reason)                                                                                           \
	do {                                                                                                           \
		puts("skip: " reason);                                                                                 \
		skip();                                                                                                \
	} while (0)
#define ok(call) assert_int_equal(call, CUDA_OK)

/* ---- a consumer ---- */

struct gpu {
	struct CUctx_st *context;
	struct CUstream_st *stream;
	int device;
};

static void gpu_open(struct gpu *gpu, int ordinal)
{
	ok(cuda->device_get(&gpu->device, ordinal));
	ok(cuda->context_retain(&gpu->context, gpu->device));
	ok(cuda->context_push(gpu->context));
	ok(cuda->stream_create(&gpu->stream, CUDA_STREAM_NON_BLOCKING));
}

static void gpu_close(struct gpu *gpu)
{
	struct CUctx_st *context;
	ok(cuda->stream_destroy(gpu->stream));
	ok(cuda->context_pop(&context));
	ok(cuda->context_release(gpu->device));
}

static void nothing_is_left(void)
{
	struct standin_live left;
	if (!live)
		return;
	live(&left);
	assert_int_equal(left.streams, 0);
	assert_int_equal(left.events, 0);
	assert_int_equal(left.allocations, 0);
	assert_int_equal(left.registrations, 0);
	assert_int_equal(left.contexts, 0);
}

static struct ddpfs_stage *open_stage(struct ddpfs_stage_options o)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage *stage = NULL;
	o.size = sizeof(o);
	o.order = "full";
	if (!o.memory_bytes)
		o.memory_bytes = MEMORY;
	if (!o.backend)
		o.backend = "cuda:0";
	if (ddpfs_stage_open(data.dir, &o, &error, &stage) < 0)
		fail_msg("%s", error.text);
	return stage;
}

static struct ddpfs_batch *next(struct ddpfs_stage *stage, uint32_t n)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch = NULL;
	int rc = ddpfs_stage_next(stage, n, 0, &error, &batch);
	if (rc < 0)
		fail_msg("%s", error.text);
	return rc ? batch : NULL;
}

static uint64_t bytes_of(const struct ddpfs_batch *batch)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < batch->n_items; i++)
		bytes += batch->items[i].len;
	return bytes;
}

/* What a kernel on `stream` would see: queued, not waited for.  The copy is valid after the stream was synchronised;
 * forget()
 * it.  Pinned: a copy to other memory would make the host wait. */
static uint8_t *fetch(struct CUstream_st *stream, const struct ddpfs_batch *batch)
{
	uint64_t at = 0, room = (bytes_of(batch) / 4096 + 1) * 4096;
	uint8_t *copy = aligned_alloc(4096, room);
	assert_non_null(copy);
	ok(cuda->host_register(copy, room, CUDA_HOST_PORTABLE));
	for (uint32_t i = 0; i < batch->n_items; at += batch->items[i++].len) {
		if (batch->items[i].len)
			ok(cuda->copy_down(copy + at, (uintptr_t)batch->items[i].device, batch->items[i].len, stream));
	}
	return copy;
}

static void forget(uint8_t *copy)
{
	ok(cuda->host_unregister(copy));
	free(copy);
}

static bool fetched_equal(const uint8_t *copy, const uint32_t *files, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t len = dataset_length(&data, files[i]);
		if (!dataset_equal(files[i], 0, copy, len))
			return false;
		copy += len;
	}
	return true;
}

static void assert_arrives(struct gpu *gpu, struct ddpfs_batch *batch)
{
	struct ddpfs_stage_error error = { 0 };
	struct CUctx_st *context;
	ok(cuda->context_push(gpu->context)); /* several GPUs: a stream is used in its own */
	assert_int_equal(ddpfs_batch_wait(batch, gpu->stream, &error), 0);
	uint8_t *copy = fetch(gpu->stream, batch), *at = copy;
	ok(cuda->stream_synchronize(gpu->stream));
	for (uint32_t i = 0; i < batch->n_items; at += batch->items[i++].len) {
		assert_int_equal(batch->items[i].len, dataset_length(&data, batch->items[i].file));
		assert_true(dataset_equal(batch->items[i].file, 0, at, batch->items[i].len));
	}
	forget(copy);
	ok(cuda->context_pop(&context));
}

/* ---- tests ---- */

static void batches_arrive_in_order_with_the_sources_bytes(void **state)
{
	static const char *const modes[] = { NULL, "each", "packed", "each" };
	struct stage_cuda *in_table = (struct stage_cuda *)(uintptr_t)cuda, saved = *cuda;
	struct ddpfs_stage_stats stats;
	char route[DDPFS_STAGE_TEXT_MAX];
	struct gpu gpu;
	(void)state;
	for (unsigned m = 0; m < 4; m++) {
		bool older = m == 3;
		if (older) /* a driver that has no call for many copies */
			in_table->copy_many = NULL;
		struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .copy = modes[m], .seed = 4 });
		struct ddpfs_stage *host = open_stage((struct ddpfs_stage_options){ .backend = "cpu", .seed = 4 });
		gpu_open(&gpu, 0);
		for (uint64_t epoch = 0; epoch < 2; epoch++) {
			struct ddpfs_batch *batch, *twin;
			assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
			assert_int_equal(ddpfs_stage_set_epoch(host, epoch, NULL), 0);
			while ((batch = next(stage, 23))) {
				twin = next(host, 23);
				assert_int_equal(batch->turn, twin->turn);
				assert_int_equal(batch->n_items, twin->n_items);
				for (uint32_t i = 0; i < batch->n_items; i++)
					assert_int_equal(batch->items[i].file, twin->items[i].file);
				assert_arrives(&gpu, batch);
				ddpfs_batch_release(twin);
				ddpfs_batch_release(batch);
			}
		}
		ddpfs_stage_stats_get(stage, &stats);
		assert_int_equal(stats.backend_device, 1);
		assert_true(ddpfs_stage_route(stage, route, sizeof(route)) > 0);
		assert_non_null(strstr(route, "copied to GPU 0"));
		assert_non_null(strstr(route, "not by GPUDirect Storage"));
		assert_int_equal(stats.uploads, 2 * ((N_FILES + 22) / 23));
		if (m == 2) {
			assert_int_equal(stats.upload_copies, stats.uploads);
			assert_true(
			        stats.copied_bytes >= stats.bytes / 2 + stats.bytes); /* landed once, gathered twice */
		}
		if (m == 1 || older)
			assert_true(stats.upload_copies > stats.uploads && stats.upload_bytes == stats.bytes);
		assert_int_equal(ddpfs_stage_close(host), 0);
		assert_int_equal(ddpfs_stage_close(stage), 0);
		gpu_close(&gpu);
		nothing_is_left();
	}
	*in_table = saved;
}

static void files_of_one_length_are_dense_others_aligned(void **state)
{
	static const uint64_t one[] = { 1000 };
	struct dataset d, saved = data;
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	struct ddpfs_batch *batch = next(stage, 40);
	for (uint32_t i = 1; i < batch->n_items; i++) {
		assert_int_equal((uintptr_t)batch->items[i].device % 16, 0);
		assert_true(batch->items[i].device >= batch->items[i - 1].device + batch->items[i - 1].len);
	}
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_new(&d, 50, 2, one, 1);
	data = d;
	stage = open_stage((struct ddpfs_stage_options){ 0 });
	batch = next(stage, 40);
	for (uint32_t i = 1; i < batch->n_items; i++)
		assert_ptr_equal(batch->items[i].device, batch->items[i - 1].device + 1000);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	dataset_free(&d);
	data = saved;
}

static void set_flag(void *arg)
{
	atomic_store((atomic_bool *)arg, true);
}

static void the_callers_stream_waits_and_the_host_does_not(void **state)
{
	atomic_bool ran = false;
	struct gpu gpu;
	(void)state;
	if (!hold_copies)
		skip_because("a real copy engine has no brake");
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	gpu_open(&gpu, 0);
	uint64_t before = copies();
	hold_copies(true);
	struct ddpfs_batch *batch = next(stage, 10); /* returns although nothing is copied */
	uint32_t files[10];
	for (uint32_t i = 0; i < 10; i++)
		files[i] = batch->items[i].file;
	assert_int_equal(ddpfs_batch_wait(batch, gpu.stream, NULL), 0);
	uint8_t *copy = fetch(gpu.stream, batch);
	ok(launch(gpu.stream, set_flag, &ran));
	ddpfs_batch_release(batch); /* nor does this wait */
	assert_int_equal(copies(), before);
	assert_false(atomic_load(&ran));
	hold_copies(false);
	ok(cuda->stream_synchronize(gpu.stream));
	assert_true(atomic_load(&ran));
	assert_true(fetched_equal(copy, files, 10));
	forget(copy);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&gpu);
	nothing_is_left();
}

static void stand_still(void *arg)
{
	sem_wait(arg);
}

static void copies_run_while_the_callers_stream_computes(void **state)
{
	struct gpu gpu;
	sem_t gate;
	(void)state;
	sem_init(&gate, 0, 0);
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	gpu_open(&gpu, 0);
	struct ddpfs_batch *first = next(stage, 10);
	assert_int_equal(ddpfs_batch_wait(first, gpu.stream, NULL), 0);
	ok(launch(gpu.stream, stand_still, &gate)); /* a kernel that takes its time */
	ddpfs_batch_release(first);
	/* Five batches more arrive before it ends. */
	for (unsigned k = 0; k < 5; k++) {
		struct ddpfs_batch *batch = next(stage, 10);
		assert_int_equal(ddpfs_batch_sync(batch, NULL), 0);
		ddpfs_batch_release(batch);
	}
	sem_post(&gate);
	ok(cuda->stream_synchronize(gpu.stream));
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&gpu);
	sem_destroy(&gate);
	nothing_is_left();
}

/* GPU memory for one batch: it is used again when the stream has passed, and not before. */
static void memory_is_used_again_after_the_stream_has_passed(void **state)
{
	static const uint64_t one[] = { 100000 }; /* 40 of them take 4 of 6 MiB */
	struct dataset d, saved = data;
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage_stats stats;
	struct gpu gpu;
	uint32_t files[40];
	sem_t gate;
	(void)state;
	sem_init(&gate, 0, 0);
	dataset_new(&d, 100, 2, one, 1);
	data = d;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .device_bytes = 6 << 20 });
	gpu_open(&gpu, 0);
	struct ddpfs_batch *batch = next(stage, 40), *other;
	for (uint32_t i = 0; i < 40; i++)
		files[i] = batch->items[i].file;
	assert_int_equal(ddpfs_batch_wait(batch, gpu.stream, NULL), 0);
	ok(launch(gpu.stream, stand_still, &gate));
	uint8_t *copy = fetch(gpu.stream, batch);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_next(stage, 40, DDPFS_STAGE_NOWAIT, &error, &other), -EAGAIN);
	assert_non_null(strstr(error.text, "released"));
	sem_post(&gate);
	other = next(stage, 40); /* waits for it */
	assert_int_equal(other->turn, 40);
	ok(cuda->stream_synchronize(gpu.stream));
	assert_true(fetched_equal(copy, files, 40));
	assert_arrives(&gpu, other);
	ddpfs_batch_release(other);
	forget(copy);
	ddpfs_stage_stats_get(stage, &stats);
	assert_int_equal(stats.device_bytes, 6 << 20);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&gpu);
	sem_destroy(&gate);
	dataset_free(&d);
	data = saved;
	nothing_is_left();
}

/* The arena has no run of pages for the last file, and memory apart is not pinned. */
static void a_large_file_among_held_ones_arrives(void **state)
{
	static const char *const copies_by[] = { "each", "auto", "packed" };
	enum { FILES = 1001, HELD = 200 };
	uint64_t sizes[FILES];
	struct dataset d, saved = data;
	struct ddpfs_stage_error error = { 0 };
	(void)state;
	for (uint32_t i = 0; i < FILES; i++)
		sizes[i] = i + 1 < FILES ? 20000 : 12 << 20;
	dataset_new(&d, FILES, 2, sizes, FILES);
	data = d;
	for (unsigned mode = 0; mode < 3; mode++) {
		struct ddpfs_batch *held[HELD], *batch;
		char path[DDPFS_STAGE_PATH_MAX];
		const uint8_t *base;
		uint64_t bytes;
		uint32_t n = 0;
		struct gpu gpu;
		struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){
		        .memory_bytes = 32 << 20, .device_bytes = 32 << 20, .copy = copies_by[mode] });
		gpu_open(&gpu, 0);
		for (uint32_t file = 0; file < FILES; file++) {
			assert_true(ddpfs_stage_path(stage, file, path, sizeof(path)) > 0);
			if (ddpfs_stage_get(stage, path, 0, &error, &batch) != 1)
				fail_msg("%s", error.text);
			if (file + 1 == FILES)
				break;
			if (file % 5 == 0)
				held[n++] = batch;
			else
				ddpfs_batch_release(batch);
		}
		ddpfs_stage_arena(stage, &base, &bytes);
		assert_true((uintptr_t)batch->items[0].data - (uintptr_t)base >= bytes);
		assert_arrives(&gpu, batch);
		ddpfs_batch_release(batch);
		for (uint32_t i = 0; i < n; i++) {
			assert_arrives(&gpu, held[i]);
			ddpfs_batch_release(held[i]);
		}
		assert_int_equal(ddpfs_stage_close(stage), 0);
		gpu_close(&gpu);
	}
	dataset_free(&d);
	data = saved;
	nothing_is_left();
}

/* A loop that holds one batch while it gets the next. */
static void two_batches_share_the_gpus_memory_whatever_their_sizes(void **state)
{
	enum { ROOM = 2 << 20, FILES = 200 };
	uint64_t sizes[FILES], x = 3, last = 0;
	struct dataset d, saved = data;
	struct ddpfs_batch *held = NULL, *batch = NULL;
	struct ddpfs_stage_error error = { 0 };
	struct gpu gpu;
	char path[DDPFS_STAGE_PATH_MAX];
	(void)state;
	for (uint32_t i = 0; i < FILES; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		uint64_t room = (ROOM - last) / 4096;
		sizes[i] = (1 + (x >> 33) % (x >> 63 ? room : (room + 5) / 6)) * 4096;
		sizes[i] = sizes[i] > ROOM - 4096 ? ROOM - 4096 : sizes[i];
		last = sizes[i];
	}
	dataset_new(&d, FILES, 2, sizes, FILES);
	data = d;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .device_bytes = ROOM });
	gpu_open(&gpu, 0);
	for (uint32_t file = 0; file < FILES; file++) {
		assert_true(ddpfs_stage_path(stage, file, path, sizeof(path)) > 0);
		int rc = -EAGAIN; /* what was released goes back when the GPU has passed it */
		for (unsigned i = 0; i < 20 && rc == -EAGAIN; i++)
			rc = ddpfs_stage_get(stage, path, DDPFS_STAGE_BRIEFLY, &error, &batch);
		if (rc != 1)
			fail_msg("%u: %s", file, error.text);
		assert_arrives(&gpu, batch);
		ddpfs_batch_release(held);
		held = batch;
	}
	ddpfs_batch_release(held);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&gpu);
	dataset_free(&d);
	data = saved;
	nothing_is_left();
}

/* All of GPU memory is held: a caller that waits briefly gets to look at something else. */
static void a_brief_wait_for_the_gpus_memory_ends(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage_stats stats;
	struct ddpfs_batch *held, *batch;
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .device_bytes = 2 << 20 });
	uint32_t n = 12; /* 1.4 MiB */
	held = next(stage, n);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ddpfs_stage_next(stage, n, DDPFS_STAGE_BRIEFLY, &error, &batch), -EAGAIN);
		assert_non_null(strstr(error.text, "GPU memory"));
		assert_int_equal(ddpfs_stage_get(stage, "d000/f0000009", DDPFS_STAGE_BRIEFLY, &error, &batch), -EAGAIN);
	}
	ddpfs_stage_stats_get(stage, &stats);
	assert_true(stats.wait_memory_ns >= 4 * DDPFS_STAGE_BRIEF_MS * UINT64_C(1000000));
	ddpfs_batch_release(held);
	assert_int_equal(ddpfs_stage_next(stage, n, DDPFS_STAGE_BRIEFLY, &error, &batch), 1);
	assert_int_equal(batch->turn, n);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	nothing_is_left();
}

static void a_batch_larger_than_the_gpus_memory_is_refused(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch;
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .device_bytes = 2 << 20 });
	assert_int_equal(ddpfs_stage_next(stage, 100, 0, &error, &batch), -ENOBUFS);
	assert_non_null(strstr(error.text, "device_bytes"));
	batch = next(stage, 5); /* the same place */
	assert_int_equal(batch->turn, 0);
	assert_int_equal(ddpfs_batch_sync(batch, &error), 0);
	assert_int_equal(ddpfs_stage_close(stage), -EBUSY);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	nothing_is_left();
}

static void files_are_had_by_path(void **state)
{
	struct ddpfs_batch *batch;
	struct gpu gpu;
	char path[DDPFS_STAGE_PATH_MAX];
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	gpu_open(&gpu, 0);
	for (uint32_t file = 0; file < 30; file++) {
		assert_true(ddpfs_stage_path(stage, file, path, sizeof(path)) > 0);
		assert_int_equal(ddpfs_stage_get(stage, path, 0, NULL, &batch), 1);
		assert_arrives(&gpu, batch);
		ddpfs_batch_release(batch);
	}
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&gpu);
}

static void stages_have_gpus_of_their_own(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage_stats stats;
	struct ddpfs_stage *stages[2], *none;
	struct gpu gpus[2];
	int n = 0;
	(void)state;
	ok(cuda->device_count(&n));
	struct ddpfs_stage_options o = { .size = sizeof(o), .memory_bytes = MEMORY, .backend = "cuda:1000" };
	assert_int_equal(ddpfs_stage_open(data.dir, &o, &error, &none), -ENODEV);
	assert_non_null(strstr(error.text, "GPU 1000"));
	o.backend = "cuda:one";
	assert_int_equal(ddpfs_stage_open(data.dir, &o, &error, &none), -EINVAL);
	o.backend = "cuda:0";
	o.copy = "twice";
	assert_int_equal(ddpfs_stage_open(data.dir, &o, &error, &none), -EINVAL);
	assert_non_null(strstr(error.text, "copy=twice"));
	if (n < 2)
		skip_because("one GPU");
	stages[0] = open_stage((struct ddpfs_stage_options){ .rank = 0, .world = 2, .backend = "cuda" });
	gpu_open(&gpus[1], 1);
	stages[1] = open_stage((struct ddpfs_stage_options){ .rank = 1, .world = 2, .backend = "cuda" });
	ddpfs_stage_stats_get(stages[1], &stats);
	assert_int_equal(stats.backend_device, 2); /* that of the current context */
	gpu_open(&gpus[0], 0);
	for (unsigned k = 0; k < 10; k++) {
		struct ddpfs_batch *a = next(stages[0], 8), *b = next(stages[1], 8);
		assert_arrives(&gpus[0], a);
		assert_arrives(&gpus[1], b);
		ddpfs_batch_release(b);
		ddpfs_batch_release(a);
	}
	ddpfs_stage_stats_get(stages[0], &stats);
	assert_int_equal(stats.backend_device, 1);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(ddpfs_stage_close(stages[i]), 0);
	gpu_close(&gpus[0]);
	gpu_close(&gpus[1]);
	nothing_is_left();
}

static bool two_gpus(void)
{
	int n = 0;
	ok(cuda->device_count(&n));
	return n >= 2;
}

static void a_stream_of_another_gpu_is_refused(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct gpu own, other;
	(void)state;
	if (!two_gpus())
		skip_because("one GPU");
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	gpu_open(&other, 1);
	gpu_open(&own, 0);
	for (unsigned k = 0; k < 5; k++) {
		struct ddpfs_batch *batch = next(stage, 20);
		assert_int_equal(ddpfs_batch_wait(batch, other.stream, &error), -EINVAL);
		assert_non_null(strstr(error.text, "on GPU 0, the stream is another GPU's"));
		assert_arrives(&own, batch);
		ddpfs_batch_release(batch); /* it knows of no such stream */
	}
	assert_int_equal(ddpfs_stage_close(stage), 0);
	gpu_close(&own);
	gpu_close(&other);
	nothing_is_left();
}

static void a_gpu_that_vanishes_leaves_the_others_alone(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_stage *stages[2];
	struct ddpfs_batch *batch;
	struct gpu gpu;
	uint32_t n = 0;
	(void)state;
	if (!lose || !two_gpus())
		skip_because("two GPUs, one of which vanishes on demand, are the stand-in's");
	for (uint32_t i = 0; i < 2; i++)
		stages[i] = open_stage(
		        (struct ddpfs_stage_options){ .rank = i, .world = 2, .backend = i ? "cuda:1" : "cuda:0" });
	gpu_open(&gpu, 0);
	struct ddpfs_batch *held = next(stages[1], 20);
	lose(1);
	assert_int_equal(ddpfs_batch_sync(held, &error), -EIO);
	assert_non_null(strstr(error.text, "GPU 1: cannot "));
	while ((batch = next(stages[0], 20))) {
		assert_arrives(&gpu, batch);
		n += batch->n_samples;
		ddpfs_batch_release(batch);
		assert_int_equal(ddpfs_stage_next(stages[1], 20, 0, &error, &batch), -EIO);
	}
	assert_int_equal(n, N_FILES / 2);
	ddpfs_batch_release(held);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(ddpfs_stage_close(stages[i]), 0);
	fail_nth(0, STANDIN_FAULT_NONE);
	gpu_close(&gpu);
	nothing_is_left();
}

static struct CUevent_st *event_now(struct gpu *gpu, unsigned flags)
{
	struct CUevent_st *event;
	ok(cuda->event_create(&event, flags));
	ok(cuda->event_record(event, gpu->stream));
	ok(cuda->stream_synchronize(gpu->stream));
	return event;
}

/* One copy stream: a batch's copies end before those of the next begin. */
static void copies_are_timed_where_that_is_wanted(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct gpu gpu;
	double begin = -1, end = -1, last = 0;
	(void)state;
	gpu_open(&gpu, 0);
	struct CUevent_st *since = event_now(&gpu, 0), *untimed = event_now(&gpu, CUDA_EVENT_NO_TIMING);
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .timed = 1 });
	for (unsigned k = 0; k < 5; k++) {
		struct ddpfs_batch *batch = next(stage, 10);
		assert_int_equal(ddpfs_batch_copied(batch, untimed, &begin, &end, &error), -EINVAL);
		assert_non_null(strstr(error.text, "with timing"));
		assert_int_equal(ddpfs_batch_copied(batch, since, &begin, &end, &error), 0);
		assert_true(last <= begin && begin <= end);
		last = end;
		ddpfs_batch_release(batch);
	}
	assert_int_equal(ddpfs_stage_close(stage), 0);
	stage = open_stage((struct ddpfs_stage_options){ 0 });
	struct ddpfs_batch *batch = next(stage, 10);
	assert_int_equal(ddpfs_batch_copied(batch, since, &begin, &end, &error), -EINVAL);
	assert_non_null(strstr(error.text, "timed"));
	assert_true(end == last);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	stage = open_stage((struct ddpfs_stage_options){ .backend = "cpu", .timed = 1 });
	batch = next(stage, 10);
	assert_int_equal(ddpfs_batch_copied(batch, since, &begin, &end, &error), -ENOTSUP);
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	ok(cuda->event_destroy(untimed));
	ok(cuda->event_destroy(since));
	gpu_close(&gpu);
	nothing_is_left();
}

static void a_batch_is_used_on_four_streams_at_most(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct CUstream_st *more[5];
	struct gpu gpu;
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	gpu_open(&gpu, 0);
	struct ddpfs_batch *batch = next(stage, 10);
	for (unsigned i = 0; i < 5; i++) {
		ok(cuda->stream_create(&more[i], CUDA_STREAM_NON_BLOCKING));
		assert_int_equal(ddpfs_batch_wait(batch, more[i], &error), i < 4 ? 0 : -ENOSPC);
		assert_int_equal(ddpfs_batch_wait(batch, more[i % 4], &error), 0); /* again is no other */
	}
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	for (unsigned i = 0; i < 5; i++)
		ok(cuda->stream_destroy(more[i]));
	gpu_close(&gpu);
	nothing_is_left();
}

struct consumer {
	struct ddpfs_stage *stage;
	_Atomic uint32_t *times;
	_Atomic bool *wrong;
	uint32_t n;
	int ordinal;
};

static void *consume(void *arg)
{
	struct consumer *c = arg;
	struct ddpfs_batch *batch;
	struct gpu gpu;
	gpu_open(&gpu, c->ordinal);
	while (ddpfs_stage_next(c->stage, c->n, 0, NULL, &batch) == 1) {
		uint32_t files[64], n = batch->n_items;
		if (ddpfs_batch_wait(batch, gpu.stream, NULL) < 0)
			atomic_store(c->wrong, true);
		uint8_t *copy = fetch(gpu.stream, batch);
		for (uint32_t i = 0; i < n; i++) {
			files[i] = batch->items[i].file;
			atomic_fetch_add(&c->times[batch->items[i].sample], 1);
		}
		ddpfs_batch_release(batch); /* before the copies back have run: they still see it */
		if (cuda->stream_synchronize(gpu.stream) != CUDA_OK || !fetched_equal(copy, files, n))
			atomic_store(c->wrong, true);
		forget(copy);
	}
	gpu_close(&gpu);
	return NULL;
}

static void consumers_share_the_epoch(void **state)
{
	enum { THREADS = 4, EPOCHS = 3 };
	static _Atomic uint32_t times[N_FILES];
	_Atomic bool wrong = false;
	pthread_t threads[THREADS];
	struct consumer consumers[THREADS];
	(void)state;
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ .device_bytes = 16 << 20 });
	for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
		assert_int_equal(ddpfs_stage_set_epoch(stage, epoch, NULL), 0);
		for (uint32_t t = 0; t < THREADS; t++) {
			consumers[t] = (struct consumer){ stage, times, &wrong, 3 + 5 * t, 0 };
			assert_int_equal(pthread_create(&threads[t], NULL, consume, &consumers[t]), 0);
		}
		for (unsigned t = 0; t < THREADS; t++)
			pthread_join(threads[t], NULL);
	}
	assert_false(atomic_load(&wrong));
	for (uint32_t i = 0; i < N_FILES; i++)
		assert_int_equal(times[i], EPOCHS);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	nothing_is_left();
}

static void gpus_side_by_side(void **state)
{
	static _Atomic uint32_t times[N_FILES];
	_Atomic bool wrong = false;
	pthread_t threads[4];
	struct consumer consumers[4];
	struct ddpfs_stage *stages[2];
	(void)state;
	if (!two_gpus())
		skip_because("one GPU");
	for (uint32_t i = 0; i < 2; i++)
		stages[i] = open_stage((struct ddpfs_stage_options){
		        .rank = i, .world = 2, .backend = i ? "cuda:1" : "cuda:0", .device_bytes = 16 << 20 });
	for (uint32_t t = 0; t < 4; t++) {
		consumers[t] = (struct consumer){ stages[t % 2], times, &wrong, 7 + t, (int)(t % 2) };
		assert_int_equal(pthread_create(&threads[t], NULL, consume, &consumers[t]), 0);
	}
	for (unsigned t = 0; t < 4; t++)
		pthread_join(threads[t], NULL);
	assert_false(atomic_load(&wrong));
	for (uint32_t i = 0; i < N_FILES; i++)
		assert_int_equal(times[i], 1);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(ddpfs_stage_close(stages[i]), 0);
	nothing_is_left();
}

/* ---- every call that can fail, failing once ---- */

/* What a consumer does who stops at the first error.  Returns it, or 0; *error says it. */
static int trial(const char *copy, struct ddpfs_stage_error *error)
{
	struct ddpfs_stage_options o = { .size = sizeof(o),
		.memory_bytes = MEMORY,
		.backend = "cuda:0",
		.copy = copy,
		.device_bytes = 8 << 20,
		.timed = copy[0] == 'e' };
	struct ddpfs_stage *stage;
	int rc = ddpfs_stage_open(data.dir, &o, error, &stage);
	if (rc < 0)
		return rc;
	struct ddpfs_batch *held = NULL;
	for (unsigned k = 0; rc >= 0 && k < 4; k++) {
		struct ddpfs_batch *batch;
		rc = ddpfs_stage_next(stage, 6, 0, error, &batch);
		if (rc != 1)
			break;
		rc = ddpfs_batch_wait(batch, NULL, error);
		if (rc == 0)
			rc = ddpfs_batch_sync(batch, error);
		ddpfs_batch_release(held);
		held = batch;
	}
	ddpfs_batch_release(held);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	return rc < 0 ? rc : 0;
}

static void every_failing_call_is_told_and_leaves_nothing(void **state)
{
	static const char *const modes[] = { "each", "packed" };
	static const enum standin_fault faults[] = { STANDIN_FAULT_MEMORY, STANDIN_FAULT_GONE };
	(void)state;
	if (!fail_nth)
		skip_because("a real driver does not fail on demand");
	for (unsigned i = 0; i < 4; i++) {
		enum standin_fault fault = faults[i / 2];
		uint64_t failed = 0, n = 0, made;
		do {
			struct ddpfs_stage_error error = { 0 };
			fail_nth(++n, fault);
			int rc = trial(modes[i % 2], &error);
			made = calls();
			fail_nth(0, STANDIN_FAULT_NONE);
			failed += rc < 0;
			if (rc < 0) {
				assert_true(rc == -ENOMEM || rc == -EIO);
				assert_int_equal(rc, fault == STANDIN_FAULT_MEMORY ? -ENOMEM : -EIO);
				assert_non_null(strstr(error.text, "GPU 0: cannot "));
				assert_non_null(strstr(error.text, "CUDA_ERROR_"));
			}
			nothing_is_left();
		} while (made >= n);
		/* The last call or two are made when the consumer has gone: nobody is there to be told. */
		assert_true(failed > 10 && failed < n);
		struct ddpfs_stage_error error = { 0 };
		assert_int_equal(trial(modes[i % 2], &error), 0);
	}
}

static void a_gpu_that_vanishes_ends_the_stage_with_a_sentence(void **state)
{
	struct ddpfs_stage_error error = { 0 };
	struct ddpfs_batch *batch, *more;
	(void)state;
	if (!fail_nth)
		skip_because("a real GPU does not vanish on demand");
	struct ddpfs_stage *stage = open_stage((struct ddpfs_stage_options){ 0 });
	hold_copies(true);
	batch = next(stage, 20);
	fail_nth(1, STANDIN_FAULT_GONE);
	assert_int_equal(ddpfs_batch_sync(batch, &error), -EIO);
	assert_non_null(strstr(error.text, "GPU 0: cannot "));
	for (unsigned k = 0; k < 3; k++) {
		memset(&error, 0, sizeof(error));
		assert_int_equal(ddpfs_stage_next(stage, 20, 0, &error, &more), -EIO);
		assert_non_null(strstr(error.text, "close the stage"));
	}
	ddpfs_batch_release(batch);
	assert_int_equal(ddpfs_stage_close(stage), 0);
	hold_copies(false);
	fail_nth(0, STANDIN_FAULT_NONE);
	nothing_is_left();
}

static int setup(void **state)
{
	(void)state;
	dataset_new(&data, N_FILES, 4, SIZES, N_SIZES);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	dataset_free(&data);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(batches_arrive_in_order_with_the_sources_bytes),
		cmocka_unit_test(files_of_one_length_are_dense_others_aligned),
		cmocka_unit_test(the_callers_stream_waits_and_the_host_does_not),
		cmocka_unit_test(copies_run_while_the_callers_stream_computes),
		cmocka_unit_test(memory_is_used_again_after_the_stream_has_passed),
		cmocka_unit_test(a_large_file_among_held_ones_arrives),
		cmocka_unit_test(two_batches_share_the_gpus_memory_whatever_their_sizes),
		cmocka_unit_test(a_brief_wait_for_the_gpus_memory_ends),
		cmocka_unit_test(a_batch_larger_than_the_gpus_memory_is_refused),
		cmocka_unit_test(files_are_had_by_path),
		cmocka_unit_test(stages_have_gpus_of_their_own),
		cmocka_unit_test(a_stream_of_another_gpu_is_refused),
		cmocka_unit_test(a_gpu_that_vanishes_leaves_the_others_alone),
		cmocka_unit_test(gpus_side_by_side),
		cmocka_unit_test(copies_are_timed_where_that_is_wanted),
		cmocka_unit_test(a_batch_is_used_on_four_streams_at_most),
		cmocka_unit_test(consumers_share_the_epoch),
		cmocka_unit_test(every_failing_call_is_told_and_leaves_nothing),
		cmocka_unit_test(a_gpu_that_vanishes_ends_the_stage_with_a_sentence),
	};
	struct base_err err = { 0 };
	if (stage_cuda_load(&err, &cuda) < 0) {
		printf("skip: %s\n", err.text);
		return getenv("DDPFS_TEST_STANDIN") ? 1 : SKIPPED;
	}
	find(&launch, "cuLaunchHostFunc");
	find(&live, "standin_live");
	find(&fail_nth, "standin_fail");
	find(&calls, "standin_calls");
	find(&hold_copies, "standin_hold_copies");
	find(&copies, "standin_copies");
	find(&lose, "standin_lose");
	if (getenv("DDPFS_TEST_STANDIN") && !live) {
		fputs("the loader found another libcuda.so.1 than the stand-in\n", stderr);
		return 1;
	}
	return cmocka_run_group_tests_name("cuda", tests, setup, teardown);
}
