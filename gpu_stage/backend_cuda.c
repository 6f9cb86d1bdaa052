/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend copies the files of a batch from the pinned arena into one run of device memory; backend.h first.
 *
 *   consumer's thread                       copy stream          consumer's stream      gpu-copy-N thread
 *   -----------------                       -----------          -----------------      -----------------
 *   hand_out: run of device memory,    ->   copies
 *             queue copies, `arrived`  ->   event  - - - - - ->  wait
 *   wait:     stream waits for `arrived`                         kernels
 *   take_back: `passed` on each stream ->                        event  - - - - - ->    waits for both, then run and
 *                                                                                       samples are free again
 *
 * There is one copy stream, because a GPU has one copy engine a direction, and several streams would share it.  The
 * thread gpu-copy-N waits for the GPU; consumers wait for that thread when device memory is short.  Consumers
 * themselves wait for the GPU only in sync, in copied, for a copy from memory that is not pinned, and after a copy
 * failed.
 *
 * If a call fails for another reason than memory, the GPU has failed for this stage.  Then nothing more is handed out,
 * batches that are out can be given back, and closing ends everything.
 *
 * `lock` guards the fields below it in the struct.  No thread holds it during a call of the driver. */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu_stage/backend.h"
#include "gpu_stage/clock.h"
#include "gpu_stage/cuda.h"
#include "gpu_stage/numa.h"
#include "gpu_stage/pages.h"
#include "shard/base/cleanup.h"

enum {
	ALIGN = 16,           /* bytes, of a file in its batch: the widest load of a kernel */
	DEVICE_MIN = 1 << 20, /* bytes of device memory at least */
	BUS_NAME = 32,        /* room for a name like "0000:3b:00.0" */
	COPIES_MAX = 256,     /* queued by one call of the driver */
	/* copy=auto: from this mean file size on, in bytes, one copy a file is faster than gathering (tests/bench). */
	EACH_FROM = 12 * 1024,
};

enum copy { COPY_AUTO, COPY_EACH, COPY_PACKED };

/* The device memory of a batch: a run of `memory`, or memory apart.  Batches that are held cannot move, so free pages
 * can be enough although no run of them is long enough.  Then as many pages are lent and the batch gets memory apart:
 * all batches together never have more than device_bytes. */
struct room {
	uint32_t first, pages;    /* the run, or the first of the runs lent */
	unsigned long long apart; /* address; 0: not apart */
	bool lent;
};

struct stage_upload {
	struct room room;
	struct CUevent_st *began, *arrived; /* began: NULL if nobody wants times */
	struct CUevent_st *passed[DDPFS_BATCH_STREAMS_MAX];
	struct CUstream_st *streams[DDPFS_BATCH_STREAMS_MAX];
	uint32_t n_streams, n_passed;
	bool lost; /* an event could not be recorded: waits for all work of the context instead */
	void (*done)(void *arg);
	void *arg;
	struct stage_upload *next; /* in `queue` or `spare` */
};

struct cuda_backend {
	struct stage_backend base; /* first */
	const struct stage_cuda *cuda;
	int ordinal, device;
	enum copy copy;
	bool timed;
	uint64_t device_bytes;
	struct CUctx_st *context;
	struct CUstream_st *stream;
	unsigned long long memory;
	uint8_t *staging;     /* pinned, as large as device memory, with the same layout; NULL with copy=each */
	const uint8_t *arena; /* pinned; the stage owns it */
	uint64_t arena_bytes;
	bool thread_runs;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t freed_cv, queue_cv;
	struct stage_pages *pages;
	struct stage_upload *spare, *queue, **queue_end;
	uint32_t out;       /* uploads handed out and not given back */
	uint32_t returning; /* of these, taken back and not done */
	bool no_apart;      /* the GPU had no memory apart since a batch was last given back */
	bool ending;
	struct base_err failed; /* why the GPU has failed; code 0: it has not */
	struct stage_upload_stats stats;
};

static struct cuda_backend *of(struct stage_backend *backend)
{
	return (struct cuda_backend *)backend;
}

/* ---- failure ---- */

/* Makes the error of a result.  Unless memory is short, the GPU has failed.  Call it without the lock. */
static int failure(struct cuda_backend *b, unsigned result, const char *what, struct base_err *err)
{
	struct base_err own = { 0 };
	int rc = stage_cuda_error(b->cuda, result, b->ordinal, what, &own);
	if (result != CUDA_OUT_OF_MEMORY) {
		lock_for_scope(&b->lock);
		if (!b->failed.code)
			b->failed = own;
		pthread_cond_broadcast(&b->freed_cv);
	}
	return base_err_set(err, rc, "%s", own.text);
}

/* Makes the GPU's context the one of this thread; leave() restores the one before. */
static int enter(struct cuda_backend *b, struct base_err *err)
{
	unsigned result = b->cuda->context_push(b->context);
	return result == CUDA_OK ? 0 : failure(b, result, "use its context", err);
}

static void leave(struct cuda_backend *b)
{
	struct CUctx_st *context;
	b->cuda->context_pop(&context);
}

/* ---- memory ---- */

/* Returns the NUMA node of the GPU's PCIe root, or -1. */
static int node_of(struct cuda_backend *b)
{
	char bus[BUS_NAME] = { 0 };
	if (b->cuda->device_bus(bus, sizeof(bus) - 1, b->device) != CUDA_OK)
		return -1;
	return stage_numa_of_pci("/sys", bus);
}

/* Prepares a mapping for copies at full speed: on the GPU's NUMA node, and pinned.  In the context. */
static int pin(struct cuda_backend *b, uint8_t *base, uint64_t bytes, struct base_err *err)
{
	char what[64];
	stage_backend_advise(&b->base, base, bytes, node_of(b));
	unsigned result = b->cuda->host_register(base, bytes, CUDA_HOST_PORTABLE);
	if (result == CUDA_OK)
		return 0;
	snprintf(what, sizeof(what), "pin %llu MiB of host memory", (unsigned long long)(bytes >> 20));
	return failure(b, result, what, err);
}

static int staging_new(struct cuda_backend *b, struct base_err *err)
{
	void *base =
	        mmap(NULL, b->device_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return base_err_set(err, -ENOMEM, "cannot map %llu MiB of host memory: give less device_bytes",
		        (unsigned long long)(b->device_bytes >> 20));
	int rc = pin(b, base, b->device_bytes, err);
	if (rc < 0)
		munmap(base, b->device_bytes);
	else
		b->staging = base;
	return rc;
}

static int device_memory_new(struct cuda_backend *b, struct base_err *err)
{
	char what[64];
	b->device_bytes = (b->device_bytes + STAGE_PAGE - 1) & ~(uint64_t)(STAGE_PAGE - 1);
	int rc = stage_pages_new(b->device_bytes / STAGE_PAGE, &b->pages);
	if (rc < 0)
		return base_err_set(
		        err, rc, "device_bytes is %llu: %s", (unsigned long long)b->device_bytes, base_err_str(rc));
	unsigned result = b->cuda->memory_alloc(&b->memory, b->device_bytes);
	if (result != CUDA_OK) {
		b->memory = 0;
		snprintf(what, sizeof(what), "allocate %llu MiB of its memory",
		        (unsigned long long)(b->device_bytes >> 20));
		return failure(b, result, what, err);
	}
	if (b->copy == COPY_EACH)
		return 0;
	return staging_new(b, err);
}

static void *give_back_thread(void *arg);

static int start_thread(struct cuda_backend *b, struct base_err *err)
{
	char name[16];
	int rc = -pthread_create(&b->thread, NULL, give_back_thread, b);
	if (rc < 0)
		return base_err_set(err, rc, "cannot start a thread: %s", base_err_str(rc));
	b->thread_runs = true;
	snprintf(name, sizeof(name), "gpu-copy-%d", b->ordinal & 0x3ff);
	pthread_setname_np(b->thread, name);
	return 0;
}

static int cuda_memory_new(struct stage_backend *backend, uint8_t *base, uint64_t bytes, struct base_err *err)
{
	struct cuda_backend *b = of(backend);
	int rc = enter(b, err);
	if (rc < 0)
		return rc;
	if (!b->device_bytes)
		b->device_bytes = bytes / 4;
	if (b->device_bytes < DEVICE_MIN)
		b->device_bytes = DEVICE_MIN;
	unsigned result = b->cuda->stream_create(&b->stream, CUDA_STREAM_NON_BLOCKING);
	if (result != CUDA_OK) {
		b->stream = NULL;
		rc = failure(b, result, "make a stream", err);
	}
	if (rc == 0)
		rc = device_memory_new(b, err);
	if (rc == 0)
		rc = pin(b, base, bytes, err);
	if (rc == 0) {
		rc = start_thread(b, err);
		if (rc < 0)
			b->cuda->host_unregister(base);
	}
	leave(b);
	if (rc == 0) {
		b->arena = base;
		b->arena_bytes = bytes;
	}
	return rc;
}

static void cuda_memory_free(struct stage_backend *backend, uint8_t *base)
{
	struct cuda_backend *b = of(backend);
	bool entered = enter(b, NULL) == 0;
	b->cuda->host_unregister(base);
	if (entered)
		leave(b);
}

/* ---- uploads ---- */

static void upload_free(struct cuda_backend *b, struct stage_upload *u)
{
	if (u->began)
		b->cuda->event_destroy(u->began);
	if (u->arrived)
		b->cuda->event_destroy(u->arrived);
	for (unsigned i = 0; i < DDPFS_BATCH_STREAMS_MAX; i++) {
		if (u->passed[i])
			b->cuda->event_destroy(u->passed[i]);
	}
	free(u);
}

static int event_new(struct cuda_backend *b, struct CUevent_st **event, bool timed, struct base_err *err)
{
	if (*event)
		return 0;
	/* Blocking: gpu-copy-N sleeps while it waits, it does not spin. */
	unsigned flags = (unsigned)CUDA_EVENT_BLOCKING | (timed ? 0U : (unsigned)CUDA_EVENT_NO_TIMING);
	unsigned result = b->cuda->event_create(event, flags);
	if (result == CUDA_OK)
		return 0;
	*event = NULL;
	return failure(b, result, "make an event", err);
}

/* Gives an upload, new or used before; its events stay with it.  In the context. */
static int upload_new(struct cuda_backend *b, struct base_err *err, struct stage_upload **ret_upload)
{
	struct stage_upload *u;
	{
		lock_for_scope(&b->lock);
		u = b->spare;
		if (u)
			b->spare = u->next;
	}
	if (!u)
		u = calloc(1, sizeof(*u));
	if (!u) {
		base_err_set(err, -ENOMEM, "out of memory");
		return -ENOMEM;
	}
	u->n_streams = u->n_passed = 0;
	u->lost = false;
	u->next = NULL;
	int rc = event_new(b, &u->arrived, b->timed, err);
	if (rc == 0 && b->timed)
		rc = event_new(b, &u->began, true, err);
	if (rc == 0)
		*ret_upload = u;
	else
		upload_free(b, u);
	return rc;
}

/* Takes device memory for a batch, as soon as there is some; flags of ddpfs_stage_next. */
static int take_room(
        struct cuda_backend *b, uint64_t bytes, unsigned flags, struct base_err *err, struct room *ret_room)
{
	struct room room = { .pages = bytes ? (uint32_t)((bytes + STAGE_PAGE - 1) / STAGE_PAGE) : 1 };
	uint64_t began = 0;
	int rc = 0;
	if (bytes > b->device_bytes)
		return base_err_set(err, -ENOBUFS,
		        "the batch takes %llu bytes of GPU memory, the stage has %llu: take smaller batches or open "
		        "the stage with more device_bytes",
		        (unsigned long long)bytes, (unsigned long long)b->device_bytes);
	lock_for_scope(&b->lock);
	while (rc == 0) {
		if (b->failed.code) {
			rc = base_err_set(err, b->failed.code, "%s", b->failed.text);
			break;
		}
		room.first = stage_pages_get(b->pages, room.pages);
		if (room.first != STAGE_PAGES_NONE)
			break;
		if (!b->returning && !b->no_apart && stage_pages_free_pages(b->pages) >= room.pages) {
			room.first = stage_pages_lend(b->pages, room.pages);
			room.lent = true;
			break;
		}
		uint64_t now_ns = base_now_ns();
		began = began ? began : now_ns;
		uint64_t until_ns = flags & DDPFS_STAGE_BRIEFLY ? began + STAGE_BRIEF_NS : 0;
		if (flags & DDPFS_STAGE_NOWAIT || (until_ns && now_ns >= until_ns)) {
			rc = base_err_set(err, -EAGAIN, "no GPU memory for the batch until another is released");
			break;
		}
		stage_cond_wait_until(&b->freed_cv, &b->lock, until_ns);
	}
	if (began)
		b->stats.wait_ns += base_now_ns() - began;
	if (rc == 0) {
		b->out++;
		*ret_room = room;
	}
	return rc;
}

/* Gives device memory back.  Under the lock. */
static void give_room(struct cuda_backend *b, const struct room *room)
{
	if (room->lent)
		stage_pages_give_back(b->pages, room->first);
	else
		stage_pages_put(b->pages, room->first, room->pages);
	b->out--;
	pthread_cond_broadcast(&b->freed_cv);
}

/* Decides where the files lie in their batch.  If they have one length, they lie one behind the other, as a tensor
 * [n, length]; otherwise each is aligned.  Offsets go to items[i].device.  Returns all bytes. */
static uint64_t lay_out(struct ddpfs_item *items, uint32_t n)
{
	bool equal = true;
	uint64_t at = 0;
	for (uint32_t i = 1; equal && i < n; i++)
		equal = items[i].len == items[0].len;
	for (uint32_t i = 0; i < n; i++) {
		items[i].device = (const uint8_t *)(uintptr_t)at;
		at += equal ? items[i].len : (items[i].len + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
	}
	return at;
}

/* Copies that are queued together.  Addresses `to` are of the device, here and below. */
struct copies {
	uint32_t n;
	unsigned long long to[COPIES_MAX], from[COPIES_MAX];
	size_t bytes[COPIES_MAX];
};

/* Queues the copies and empties the list: by one call of the driver, if it has a call for many. */
static unsigned queue_copies(struct cuda_backend *b, struct copies *c)
{
	struct cuda_copy_attributes attributes = { .source_order = CUDA_SOURCE_IN_STREAM_ORDER };
	size_t first_of_attribute = 0;
	unsigned result = CUDA_OK;
	{
		lock_for_scope(&b->lock);
		b->stats.copies += c->n;
		for (uint32_t i = 0; i < c->n; i++)
			b->stats.bytes += c->bytes[i];
	}
	if (b->cuda->copy_many && c->n > 1) {
		result = b->cuda->copy_many(
		        c->to, c->from, c->bytes, c->n, &attributes, &first_of_attribute, 1, b->stream);
	} else {
		for (uint32_t i = 0; result == CUDA_OK && i < c->n; i++)
			result =
			        b->cuda->copy_up(c->to[i], (const void *)(uintptr_t)c->from[i], c->bytes[i], b->stream);
	}
	c->n = 0;
	return result;
}

static unsigned add_copy(struct cuda_backend *b, struct copies *c, uint64_t to, const uint8_t *from, uint64_t bytes)
{
	if (!bytes)
		return CUDA_OK;
	c->to[c->n] = to;
	c->from[c->n] = (uintptr_t)from;
	c->bytes[c->n++] = bytes;
	return c->n == COPIES_MAX ? queue_copies(b, c) : (unsigned)CUDA_OK;
}

static bool is_apart(const struct cuda_backend *b, const struct ddpfs_item *item)
{
	return item->len && (uintptr_t)item->data - (uintptr_t)b->arena >= b->arena_bytes;
}

static void gathered(struct cuda_backend *b, uint64_t bytes)
{
	lock_for_scope(&b->lock);
	b->stats.gathered_bytes += bytes;
}

/* Copies a file that lies apart (space.h) and is not pinned, by way of the staging memory where there is some.  Else
 * the driver takes the bytes into pinned memory of its own before it returns, and the copy to the GPU runs on the
 * stream like any other (CUDA Driver API, "API synchronization behavior").  That is so for a single copy only. */
static unsigned copy_apart(
        struct cuda_backend *b, struct copies *c, uint64_t to, uint8_t *staging, const struct ddpfs_item *item)
{
	if (staging) {
		memcpy(staging, item->data, item->len);
		gathered(b, item->len);
		return add_copy(b, c, to, staging, item->len);
	}
	unsigned result = queue_copies(b, c);
	struct copies alone = { .n = 1, .to = { to }, .from = { (uintptr_t)item->data }, .bytes = { item->len } };
	return result == CUDA_OK ? queue_copies(b, &alone) : result;
}

/* Queues one copy a file.  Files that are neighbours in the arena and in the batch go together.  staging: the place in
 * staging memory that belongs to `to`, or NULL. */
static unsigned copy_each(
        struct cuda_backend *b, uint64_t to, uint8_t *staging, const struct ddpfs_item *items, uint32_t n)
{
	struct copies copies;
	unsigned result = CUDA_OK;
	copies.n = 0;
	for (uint32_t i = 0; result == CUDA_OK && i < n;) {
		const struct ddpfs_item *first = &items[i];
		uint64_t len = first->len, at = (uintptr_t)first->device;
		if (is_apart(b, first)) {
			result = copy_apart(b, &copies, to + at, staging ? staging + at : NULL, first);
			i++;
			continue;
		}
		while (++i < n && items[i].data == first->data + len && (uintptr_t)items[i].device == at + len &&
		        !is_apart(b, &items[i]))
			len += items[i].len;
		result = add_copy(b, &copies, to + at, first->data, len);
	}
	return result == CUDA_OK ? queue_copies(b, &copies) : result;
}

/* Gathers all files in staging memory, then queues one copy. */
static unsigned copy_packed(struct cuda_backend *b, uint64_t to, uint8_t *staging, const struct ddpfs_item *items,
        uint32_t n, uint64_t bytes)
{
	struct copies one;
	one.n = 0;
	for (uint32_t i = 0; i < n; i++)
		memcpy(staging + (uintptr_t)items[i].device, items[i].data, items[i].len);
	gathered(b, bytes);
	unsigned result = add_copy(b, &one, to, staging, bytes);
	return result == CUDA_OK ? queue_copies(b, &one) : result;
}

/* Queues the copies of a batch.  In the context.  After a failure none of them runs. */
static int send(struct cuda_backend *b, struct stage_upload *u, struct ddpfs_item *items, uint32_t n, uint64_t bytes,
        struct base_err *err)
{
	uint64_t base = (uint64_t)u->room.first * STAGE_PAGE, to = u->room.apart ? u->room.apart : b->memory + base;
	uint8_t *staging = b->staging && !u->room.apart ? b->staging + base : NULL;
	bool packed = staging && (b->copy == COPY_PACKED || (n && bytes / n < EACH_FROM));
	const char *what = "record an event";
	unsigned result = u->began ? b->cuda->event_record(u->began, b->stream) : (unsigned)CUDA_OK;
	if (result == CUDA_OK) {
		what = "copy a batch to its memory";
		result = packed ? copy_packed(b, to, staging, items, n, bytes) : copy_each(b, to, staging, items, n);
	}
	if (result == CUDA_OK) {
		what = "record an event";
		result = b->cuda->event_record(u->arrived, b->stream);
	}
	if (result != CUDA_OK) {
		b->cuda->stream_synchronize(b->stream); /* no copy reads the arena from here on */
		return failure(b, result, what, err);
	}
	for (uint32_t i = 0; i < n; i++)
		items[i].device = (const uint8_t *)(uintptr_t)(to + (uintptr_t)items[i].device);
	return 0;
}

/* Makes an upload and queues the copies into its room. */
static int send_to(struct cuda_backend *b, const struct room *room, struct ddpfs_item *items, uint32_t n,
        uint64_t bytes, struct base_err *err, struct stage_upload **ret_upload)
{
	struct stage_upload *u;
	int rc = enter(b, err);
	if (rc < 0)
		return rc;
	rc = upload_new(b, err, &u);
	if (rc == 0) {
		u->room = *room;
		rc = send(b, u, items, n, bytes, err);
		if (rc < 0)
			upload_free(b, u);
		else
			*ret_upload = u;
	}
	leave(b);
	return rc;
}

static void free_apart(struct cuda_backend *b, const struct room *room)
{
	if (!room->apart || enter(b, NULL) < 0)
		return;
	b->cuda->memory_free(room->apart);
	leave(b);
}

/* Allocates device memory for a room whose pages are lent.  Returns false if there is none; the room is given back
 * then. */
static bool memory_apart(struct cuda_backend *b, struct room *room)
{
	unsigned result = CUDA_OUT_OF_MEMORY;
	if (enter(b, NULL) == 0) {
		result = b->cuda->memory_alloc(&room->apart, (size_t)room->pages * STAGE_PAGE);
		leave(b);
	}
	if (result == CUDA_OK)
		return true;
	if (result != CUDA_OUT_OF_MEMORY)
		failure(b, result, "allocate its memory", NULL);
	room->apart = 0;
	lock_for_scope(&b->lock);
	b->no_apart = true;
	give_room(b, room);
	return false;
}

static int cuda_hand_out(struct stage_backend *backend, struct ddpfs_item *items, uint32_t n, unsigned flags,
        struct base_err *err, struct stage_upload **ret_upload)
{
	struct cuda_backend *b = of(backend);
	struct room room;
	uint64_t bytes = lay_out(items, n);
	int rc;
	do
		rc = take_room(b, bytes, flags, err, &room);
	while (rc == 0 && room.lent && !memory_apart(b, &room));
	if (rc < 0)
		return rc;
	rc = send_to(b, &room, items, n, bytes, err, ret_upload);
	if (rc < 0)
		free_apart(b, &room);
	lock_for_scope(&b->lock);
	if (rc < 0)
		give_room(b, &room);
	else
		b->stats.uploads++;
	return rc;
}

static int remember(struct cuda_backend *b, struct stage_upload *u, struct CUstream_st *stream, struct base_err *err)
{
	int rc = 0;
	lock_for_scope(&b->lock);
	uint32_t i = 0;
	while (i < u->n_streams && u->streams[i] != stream)
		i++;
	if (i == DDPFS_BATCH_STREAMS_MAX)
		rc = base_err_set(err, -ENOSPC, "a batch is used on %d streams at most: join them by events",
		        DDPFS_BATCH_STREAMS_MAX);
	else if (i == u->n_streams)
		u->streams[u->n_streams++] = stream;
	return rc;
}

/* Refuses a stream of another GPU, because take_back records an event on it and cannot report a failure.  In the
 * context. */
static int check_stream(struct cuda_backend *b, struct CUstream_st *stream, struct base_err *err)
{
	struct CUctx_st *context = NULL, *popped;
	int device = -1;
	unsigned result = b->cuda->stream_context(stream, &context);
	if (result == CUDA_OK && context != b->context) {
		result = b->cuda->context_push(context);
		if (result == CUDA_OK) {
			result = b->cuda->context_device(&device);
			b->cuda->context_pop(&popped);
		}
	} else {
		device = b->device;
	}
	if (result != CUDA_OK)
		return failure(b, result, "look at a stream", err);
	if (device != b->device)
		return base_err_set(err, -EINVAL,
		        "the batch is on GPU %d, the stream is another GPU's: make the stream with GPU %d current",
		        b->ordinal, b->ordinal);
	return 0;
}

static int cuda_wait(struct stage_backend *backend, struct stage_upload *u, void *stream, struct base_err *err)
{
	struct cuda_backend *b = of(backend);
	int rc = enter(b, err);
	if (rc < 0)
		return rc;
	rc = check_stream(b, stream, err);
	if (rc == 0)
		rc = remember(b, u, stream, err);
	if (rc == 0) {
		unsigned result = b->cuda->stream_wait_event(stream, u->arrived, 0);
		if (result != CUDA_OK)
			rc = failure(b, result, "make a stream wait for a batch", err);
	}
	leave(b);
	return rc;
}

static int cuda_sync(struct stage_backend *backend, struct stage_upload *u, struct base_err *err)
{
	struct cuda_backend *b = of(backend);
	int rc = enter(b, err);
	if (rc < 0)
		return rc;
	unsigned result = b->cuda->event_synchronize(u->arrived);
	if (result != CUDA_OK)
		rc = failure(b, result, "copy a batch to its memory", err);
	leave(b);
	return rc;
}

/* Computes the seconds between two events.  A wrong event of the caller is not a failure of the GPU.  In the context.
 * */
static int elapsed(
        struct cuda_backend *b, struct CUevent_st *since, struct CUevent_st *until, struct base_err *err, double *ret_s)
{
	float ms = 0;
	unsigned result = b->cuda->event_elapsed(&ms, since, until);
	if (result == CUDA_INVALID_VALUE || result == CUDA_INVALID_HANDLE || result == CUDA_NOT_READY)
		return base_err_set(err, -EINVAL,
		        "times are counted from an event of GPU %d, made with timing, that has passed", b->ordinal);
	if (result != CUDA_OK)
		return failure(b, result, "tell the time of a copy", err);
	*ret_s = (double)ms * 1e-3;
	return 0;
}

static int cuda_copied(struct stage_backend *backend, struct stage_upload *u, void *since, struct base_err *err,
        double *ret_begin_s, double *ret_end_s)
{
	struct cuda_backend *b = of(backend);
	double begin = 0, end = 0;
	if (!u->began)
		return base_err_set(err, -EINVAL, "the stage keeps no times: open it with timed = 1");
	int rc = cuda_sync(backend, u, err);
	if (rc == 0)
		rc = enter(b, err);
	if (rc < 0)
		return rc;
	rc = elapsed(b, since, u->began, err, &begin);
	if (rc == 0)
		rc = elapsed(b, since, u->arrived, err, &end);
	leave(b);
	if (rc < 0)
		return rc;
	*ret_begin_s = begin;
	*ret_end_s = end;
	return 0;
}

/* ---- giving back ---- */

static void cuda_take_back(struct stage_backend *backend, struct stage_upload *u, void (*done)(void *arg), void *arg)
{
	struct cuda_backend *b = of(backend);
	bool entered = enter(b, NULL) == 0;
	u->lost = !entered;
	for (uint32_t i = 0; entered && i < u->n_streams; i++) {
		unsigned result = CUDA_OK;
		u->lost |= event_new(b, &u->passed[i], false, NULL) < 0;
		if (u->passed[i])
			result = b->cuda->event_record(u->passed[i], u->streams[i]);
		if (result != CUDA_OK) {
			u->lost = true;
			failure(b, result, "record an event on a stream that a batch was used on", NULL);
		}
		u->n_passed = i + 1;
	}
	if (entered)
		leave(b);
	u->done = done;
	u->arg = arg;
	u->next = NULL;
	lock_for_scope(&b->lock);
	b->returning++;
	*b->queue_end = u;
	b->queue_end = &u->next;
	pthread_cond_signal(&b->queue_cv);
}

/* Waits until nothing reads the batch.  A GPU that has failed runs nothing, so there is nothing to wait for then.  In
 * the context. */
static void wait_for(struct cuda_backend *b, struct stage_upload *u)
{
	unsigned result = b->cuda->event_synchronize(u->arrived);
	for (uint32_t i = 0; i < u->n_passed && result == CUDA_OK && !u->lost; i++)
		result = b->cuda->event_synchronize(u->passed[i]);
	if (u->lost && result == CUDA_OK)
		result = b->cuda->context_synchronize();
	if (result != CUDA_OK)
		failure(b, result, "finish what was queued for a batch", NULL);
}

static void *give_back_thread(void *arg)
{
	struct cuda_backend *b = arg;
	bool entered = enter(b, NULL) == 0;
	pthread_mutex_lock(&b->lock);
	for (;;) {
		while (!b->queue && !b->ending)
			pthread_cond_wait(&b->queue_cv, &b->lock);
		struct stage_upload *u = b->queue;
		if (!u)
			break;
		b->queue = u->next;
		if (!b->queue)
			b->queue_end = &b->queue;
		pthread_mutex_unlock(&b->lock);
		if (entered)
			wait_for(b, u);
		u->done(u->arg);
		free_apart(b, &u->room);
		pthread_mutex_lock(&b->lock);
		b->returning--;
		b->no_apart = false;
		give_room(b, &u->room);
		u->next = b->spare;
		b->spare = u;
	}
	pthread_mutex_unlock(&b->lock);
	if (entered)
		leave(b);
	return NULL;
}

static void cuda_stop(struct stage_backend *backend)
{
	struct cuda_backend *b = of(backend);
	if (!b->thread_runs)
		return;
	{
		lock_for_scope(&b->lock);
		b->ending = true;
		pthread_cond_signal(&b->queue_cv);
	}
	pthread_join(b->thread, NULL);
	b->thread_runs = false;
}

static void cuda_stats(struct stage_backend *backend, struct stage_upload_stats *ret_stats)
{
	struct cuda_backend *b = of(backend);
	lock_for_scope(&b->lock);
	*ret_stats = b->stats;
	ret_stats->device_bytes = b->device_bytes;
	ret_stats->device_used_bytes = stage_pages_used(b->pages) * STAGE_PAGE;
}

/* GPUDirect Storage needs the kernel module nvidia-fs (NVIDIA's "GPUDirect Storage Installation and Troubleshooting
 * Guide"). */
static void cuda_route(const struct stage_backend *backend, char *buf, size_t size)
{
	snprintf(buf, size,
	        "pinned host memory, verified there, copied to GPU %u by cuMemcpyAsync; not by GPUDirect Storage "
	        "(cuFile), which would bring bytes that nobody has verified (nvidia-fs, which it needs, is %s)",
	        backend->device - 1, access("/sys/module/nvidia_fs", F_OK) == 0 ? "loaded" : "not loaded");
}

/* ---- the backend ---- */

static void cuda_free(struct stage_backend *backend)
{
	struct cuda_backend *b = of(backend);
	cuda_stop(backend);
	bool entered = b->context && enter(b, NULL) == 0;
	while (b->spare) {
		struct stage_upload *u = b->spare;
		b->spare = u->next;
		upload_free(b, u);
	}
	if (b->staging) {
		b->cuda->host_unregister(b->staging);
		munmap(b->staging, b->device_bytes);
	}
	if (b->memory)
		b->cuda->memory_free(b->memory);
	if (b->stream)
		b->cuda->stream_destroy(b->stream);
	if (entered)
		leave(b);
	if (b->context)
		b->cuda->context_release(b->device);
	stage_pages_free(b->pages);
	pthread_cond_destroy(&b->freed_cv);
	pthread_cond_destroy(&b->queue_cv);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

static const struct stage_backend_ops cuda_ops = {
	.name = "cuda",
	.memory_new = cuda_memory_new,
	.memory_free = cuda_memory_free,
	.hand_out = cuda_hand_out,
	.wait = cuda_wait,
	.sync = cuda_sync,
	.copied = cuda_copied,
	.take_back = cuda_take_back,
	.stop = cuda_stop,
	.stats = cuda_stats,
	.route = cuda_route,
	.free = cuda_free,
};

static int parse_copy(const char *text, struct base_err *err, enum copy *ret_copy)
{
	static const char *const names[] = { [COPY_AUTO] = "auto", [COPY_EACH] = "each", [COPY_PACKED] = "packed" };
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(text ? text : "auto", names[i]) == 0) {
			*ret_copy = (enum copy)i;
			return 0;
		}
	}
	return base_err_set(err, -EINVAL, "copy=%s is not known: auto, each or packed", base_quoted(text));
}

/* Returns the ordinal of the device that this thread uses already (torch.cuda.set_device), or 0. */
static int current_device(struct cuda_backend *b, int n)
{
	int current, device;
	if (b->cuda->context_device(&current) != CUDA_OK)
		return 0;
	for (int i = 0; i < n; i++) {
		if (b->cuda->device_get(&device, i) == CUDA_OK && device == current)
			return i;
	}
	return 0;
}

/* Finds the device and retains its primary context, which other CUDA code of the process uses too. */
static int find_device(struct cuda_backend *b, struct base_err *err)
{
	int n = 0;
	unsigned result = b->cuda->device_count(&n);
	if (result != CUDA_OK)
		return stage_cuda_error(b->cuda, result, b->ordinal, "count the GPUs", err);
	if (b->ordinal < 0)
		b->ordinal = current_device(b, n);
	if (b->ordinal >= n)
		return base_err_set(err, -ENODEV,
		        "there is no GPU %d, CUDA shows this process %d (from 0): see nvidia-smi and "
		        "CUDA_VISIBLE_DEVICES",
		        b->ordinal, n);
	result = b->cuda->device_get(&b->device, b->ordinal);
	if (result == CUDA_OK)
		result = b->cuda->context_retain(&b->context, b->device);
	if (result == CUDA_OK)
		return 0;
	b->context = NULL;
	return stage_cuda_error(b->cuda, result, b->ordinal, "open it", err);
}

int stage_backend_cuda(const struct ddpfs_stage_options *options, int ordinal, struct base_err *err,
        struct stage_backend **ret_backend)
{
	const struct stage_cuda *cuda = NULL;
	enum copy mode = COPY_AUTO;
	int rc = parse_copy(options->copy, err, &mode);
	if (rc == 0)
		rc = stage_cuda_load(err, &cuda);
	if (rc < 0)
		return rc;
	struct cuda_backend *b = calloc(1, sizeof(*b));
	if (!b)
		return base_err_set(err, -ENOMEM, "out of memory");
	b->base.ops = &cuda_ops;
	b->cuda = cuda;
	b->ordinal = ordinal;
	b->copy = mode;
	b->timed = options->timed != 0;
	b->device_bytes = options->device_bytes;
	b->queue_end = &b->queue;
	pthread_mutex_init(&b->lock, NULL);
	base_cond_init(&b->freed_cv);
	pthread_cond_init(&b->queue_cv, NULL);
	rc = find_device(b, err);
	if (rc < 0) {
		cuda_free(&b->base);
		return rc;
	}
	b->base.device = (uint32_t)b->ordinal + 1;
	*ret_backend = &b->base;
	return 0;
}
