/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver: see standin.h.
 *
 * One lock and one condition for all: simple rather than fast.  An event is a number that grows with each record;
 * who waits
 * for it waits for the record of that moment. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu_stage/cuda.h"
#include "gpu_stage/examples/mlp.h"
#include "tests/gpu_stage/standin/standin.h"

#define EXPORT __attribute__((visibility("default")))

enum { INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719, DEVICES_MAX = 8, STACK_MAX = 16 };

struct range {
	const uint8_t *base;
	size_t bytes;
	struct range *next;
};

struct CUctx_st {
	int device, references;
	struct CUstream_st *default_stream; /* what NULL means */
	pthread_mutex_t engine;             /* one copy to the device at a time */
	int busy;                           /* streams at work */
};

struct CUevent_st {
	const struct CUctx_st *context;
	uint64_t recorded, reached;
	bool timed;
	struct timespec at; /* when `reached` was */
	int references;     /* of queued work, and 1 until it is destroyed */
};

struct CUmod_st {
	int nothing;
};

enum kind { COPY_UP, COPY_DOWN, SET, RECORD, WAIT, CALL };

struct work {
	enum kind kind;
	void *to;
	const void *from;
	void *kept; /* what `from` is a copy in; owned */
	size_t bytes;
	struct CUevent_st *event;
	uint64_t number;
	void (*call)(void *arg);
	void *arg;
	struct work *next;
};

struct CUstream_st {
	struct CUctx_st *context;
	struct work *first, **last;
	bool ending;
	pthread_t thread;
	struct CUstream_st *next; /* of all */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below and all objects */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUctx_st contexts[DEVICES_MAX];
static int n_devices;
static uint64_t copy_rate; /* bytes per second; 0: no limit */
static struct range *pinned, *allocated;
static struct standin_live live;
static uint64_t calls, fail_at, copies;
static enum standin_fault fault;
static unsigned gone; /* a bit a GPU */
static bool hold;
static struct CUstream_st *streams;
static _Thread_local struct CUctx_st *stack[STACK_MAX];
static _Thread_local int depth;

/* ---- what tests turn ---- */

EXPORT void standin_live(struct standin_live *ret_live)
{
	pthread_mutex_lock(&lock);
	*ret_live = live;
	pthread_mutex_unlock(&lock);
}

EXPORT void standin_fail(uint64_t n, enum standin_fault kind)
{
	pthread_mutex_lock(&lock);
	calls = 0;
	fail_at = n;
	fault = n ? kind : STANDIN_FAULT_NONE;
	gone = 0;
	pthread_mutex_unlock(&lock);
}

/* A thread without a context asks for any GPU. */
static bool is_gone(const struct CUctx_st *context)
{
	return context ? gone >> context->device & 1 : gone == ~0U;
}

static bool is_busy(const struct CUctx_st *context)
{
	bool busy = context && context->busy;
	for (int i = 0; !context && i < DEVICES_MAX; i++)
		busy |= contexts[i].busy != 0;
	return busy;
}

EXPORT void standin_lose(int device)
{
	pthread_mutex_lock(&lock);
	gone |= 1U << device;
	pthread_cond_broadcast(&changed);
	while (contexts[device].busy)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

EXPORT uint64_t standin_calls(void)
{
	pthread_mutex_lock(&lock);
	uint64_t n = calls;
	pthread_mutex_unlock(&lock);
	return n;
}

EXPORT void standin_hold_copies(bool on)
{
	pthread_mutex_lock(&lock);
	hold = on;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

EXPORT uint64_t standin_copies(void)
{
	pthread_mutex_lock(&lock);
	uint64_t n = copies;
	pthread_mutex_unlock(&lock);
	return n;
}

/* Under the lock, at the beginning of a call: its failure, if it is to fail.  A GPU that is gone stops what it does
 * first. */
static unsigned counted(bool waits)
{
	const struct CUctx_st *context = depth ? stack[depth - 1] : NULL;
	if (!is_gone(context) && !(waits && fault == STANDIN_FAULT_MEMORY) && ++calls == fail_at) {
		if (fault == STANDIN_FAULT_MEMORY)
			return CUDA_OUT_OF_MEMORY;
		gone = ~0U;
		pthread_cond_broadcast(&changed);
	}
	while (is_gone(context) && is_busy(context))
		pthread_cond_wait(&changed, &lock);
	return is_gone(context) ? LAUNCH_FAILED : CUDA_OK;
}

static struct CUctx_st *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static unsigned counted_in_context(bool waits)
{
	unsigned result = counted(waits);
	return result == CUDA_OK && !current() ? (unsigned)INVALID_CONTEXT : result;
}

/* ---- ranges ---- */

static void range_add(struct range **list, const void *base, size_t bytes)
{
	struct range *r = malloc(sizeof(*r));
	if (!r)
		abort();
	*r = (struct range){ base, bytes, *list };
	*list = r;
}

static bool range_remove(struct range **list, const void *base)
{
	for (; *list; list = &(*list)->next) {
		if ((*list)->base == base) {
			struct range *r = *list;
			*list = r->next;
			free(r);
			return true;
		}
	}
	return false;
}

static bool holds(const struct range *list, const void *base, size_t bytes)
{
	const uint8_t *p = base;
	for (; list; list = list->next) {
		if (p >= list->base && bytes <= list->bytes && (size_t)(p - list->base) <= list->bytes - bytes)
			return true;
	}
	return false;
}

static void must_hold(const struct range *list, const void *base, size_t bytes, const char *what)
{
	if (holds(list, base, bytes))
		return;
	fprintf(stderr, "stand-in CUDA: %zu bytes at %p are no %s\n", bytes, base, what);
	abort();
}

/* ---- streams ---- */

static void pause_for(size_t bytes)
{
	if (!copy_rate)
		return;
	uint64_t ns = (uint64_t)bytes * 1000000000 / copy_rate;
	nanosleep(&(struct timespec){ .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) }, NULL);
}

static void event_put(struct CUevent_st *event)
{
	if (--event->references == 0)
		free(event);
}

/* Without the lock. */
static void do_work(struct CUstream_st *stream, struct work *w)
{
	if (w->kind == COPY_UP) {
		pthread_mutex_lock(&stream->context->engine);
		pause_for(w->bytes);
		memcpy(w->to, w->from, w->bytes);
		pthread_mutex_unlock(&stream->context->engine);
	} else if (w->kind == COPY_DOWN) {
		memcpy(w->to, w->from, w->bytes);
	} else if (w->kind == SET) {
		memset(w->to, (int)w->number, w->bytes);
	} else if (w->kind == CALL) {
		w->call(w->arg);
	}
}

/* Under the lock: may the stream's first work begin? */
static bool may_begin(const struct CUstream_st *s, const struct work *w)
{
	if (is_gone(s->context))
		return true; /* to be thrown away */
	if (w->kind == WAIT)
		return w->event->reached >= w->number;
	return !(w->kind == COPY_UP && hold);
}

static void finish(const struct CUstream_st *s, struct work *w)
{
	if (w->kind == RECORD && w->event->reached < w->number) {
		w->event->reached = w->number;
		clock_gettime(CLOCK_MONOTONIC, &w->event->at);
	}
	copies += w->kind == COPY_UP && !is_gone(s->context);
	if (w->event)
		event_put(w->event);
	free(w->kept);
	free(w);
}

static void *stream_thread(void *arg)
{
	struct CUstream_st *s = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (s->first ? !may_begin(s, s->first) : !s->ending)
			pthread_cond_wait(&changed, &lock);
		struct work *w = s->first;
		if (!w)
			break;
		if (!is_gone(s->context)) {
			s->context->busy++;
			pthread_mutex_unlock(&lock);
			do_work(s, w);
			pthread_mutex_lock(&lock);
			s->context->busy--;
		}
		s->first = w->next;
		if (!s->first)
			s->last = &s->first;
		finish(s, w);
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static struct CUstream_st *stream_start(struct CUctx_st *context)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));
	if (!s)
		abort();
	s->context = context;
	s->last = &s->first;
	s->next = streams;
	streams = s;
	if (pthread_create(&s->thread, NULL, stream_thread, s) != 0)
		abort();
	return s;
}

/* Under the lock, which it lets go of for a while; what is queued is done first. */
static void stream_end(struct CUstream_st *s)
{
	struct CUstream_st **link = &streams;
	while (*link != s)
		link = &(*link)->next;
	*link = s->next;
	s->ending = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(s->thread, NULL);
	free(s);
	pthread_mutex_lock(&lock);
}

static struct CUstream_st *stream_of(struct CUstream_st *stream)
{
	struct CUctx_st *context = current();
	if (stream)
		return stream;
	if (!context->default_stream)
		context->default_stream = stream_start(context);
	return context->default_stream;
}

static void queue(struct CUstream_st *stream, struct work work)
{
	struct CUstream_st *s = stream_of(stream);
	struct work *w = malloc(sizeof(*w));
	if (!w)
		abort();
	*w = work;
	w->next = NULL;
	if (w->event)
		w->event->references++;
	*s->last = w;
	s->last = &w->next;
	pthread_cond_broadcast(&changed);
}

/* ---- the driver's functions ---- */

static void read_environment(void)
{
	const char *devices = getenv("STANDIN_DEVICES"), *rate = getenv("STANDIN_COPY_MB_PER_S");
	n_devices = devices ? atoi(devices) : 2;
	copy_rate = rate ? strtoull(rate, NULL, 10) * 1000000 : 0;
	for (int i = 0; i < DEVICES_MAX; i++) {
		contexts[i].device = i;
		pthread_mutex_init(&contexts[i].engine, NULL);
	}
}

EXPORT unsigned cuInit(unsigned flags);
EXPORT unsigned cuInit(unsigned flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	(void)flags;
	pthread_once(&once, read_environment);
	return n_devices ? CUDA_OK : CUDA_NO_DEVICE;
}

EXPORT unsigned cuGetErrorName(unsigned result, const char **ret_text);
EXPORT unsigned cuGetErrorName(unsigned result, const char **ret_text)
{
	*ret_text = result == CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
	            : result == LAUNCH_FAILED    ? "CUDA_ERROR_LAUNCH_FAILED"
	            : result == CUDA_OK          ? "CUDA_SUCCESS"
	                                         : "CUDA_ERROR_OF_THE_STAND_IN";
	return CUDA_OK;
}

EXPORT unsigned cuGetErrorString(unsigned result, const char **ret_text);
EXPORT unsigned cuGetErrorString(unsigned result, const char **ret_text)
{
	*ret_text = result == CUDA_OUT_OF_MEMORY ? "out of memory" : "an error of the stand-in";
	return CUDA_OK;
}

EXPORT unsigned cuDeviceGetCount(int *ret_count);
EXPORT unsigned cuDeviceGetCount(int *ret_count)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted(true);
	*ret_count = n_devices;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuDeviceGet(int *ret_device, int ordinal);
EXPORT unsigned cuDeviceGet(int *ret_device, int ordinal)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted(true);
	if (ordinal < 0 || ordinal >= n_devices)
		result = CUDA_INVALID_DEVICE;
	else if (result == CUDA_OK)
		*ret_device = ordinal;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuDeviceGetPCIBusId(char *ret_name, int size, int device);
EXPORT unsigned cuDeviceGetPCIBusId(char *ret_name, int size, int device)
{
	snprintf(ret_name, (size_t)size, "FFFF:%02X:1F.7", device); /* no such place */
	return CUDA_OK;
}

EXPORT unsigned cuDeviceGetName(char *ret_name, int size, int device);
EXPORT unsigned cuDeviceGetName(char *ret_name, int size, int device)
{
	snprintf(ret_name, (size_t)size, "stand-in %d, not a GPU", device);
	return CUDA_OK;
}

EXPORT unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **ret_context, int device);
EXPORT unsigned cuDevicePrimaryCtxRetain(struct CUctx_st **ret_context, int device)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted(false);
	if (result == CUDA_OK) {
		contexts[device].references++;
		live.contexts++;
		*ret_context = &contexts[device];
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuDevicePrimaryCtxRelease_v2(int device);
EXPORT unsigned cuDevicePrimaryCtxRelease_v2(int device)
{
	struct CUctx_st *context = &contexts[device];
	pthread_mutex_lock(&lock);
	if (context->references == 0)
		abort();
	live.contexts--;
	if (--context->references == 0 && context->default_stream) {
		struct CUstream_st *s = context->default_stream;
		context->default_stream = NULL;
		stream_end(s);
	}
	unsigned result = is_gone(context) ? LAUNCH_FAILED : CUDA_OK;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuCtxPushCurrent_v2(struct CUctx_st *context);
EXPORT unsigned cuCtxPushCurrent_v2(struct CUctx_st *context)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted(true);
	if (result == CUDA_OK && (depth == STACK_MAX || !context || !context->references))
		result = INVALID_CONTEXT;
	if (result == CUDA_OK)
		stack[depth++] = context;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuCtxPopCurrent_v2(struct CUctx_st **ret_context);
EXPORT unsigned cuCtxPopCurrent_v2(struct CUctx_st **ret_context)
{
	if (!depth)
		return INVALID_CONTEXT;
	*ret_context = stack[--depth];
	return CUDA_OK;
}

EXPORT unsigned cuCtxGetDevice(int *ret_device);
EXPORT unsigned cuCtxGetDevice(int *ret_device)
{
	if (!current())
		return INVALID_CONTEXT;
	*ret_device = current()->device;
	return CUDA_OK;
}

/* Under the lock. */
static unsigned stream_drain(const struct CUstream_st *s)
{
	while (!is_gone(s->context) && s->first)
		pthread_cond_wait(&changed, &lock);
	return is_gone(s->context) ? LAUNCH_FAILED : CUDA_OK;
}

EXPORT unsigned cuCtxSynchronize(void);
EXPORT unsigned cuCtxSynchronize(void)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(true);
	for (const struct CUstream_st *s = streams; result == CUDA_OK && s;) {
		if (s->context == current() && s->first) {
			pthread_cond_wait(&changed, &lock);
			s = streams; /* it may have changed */
		} else {
			s = s->next;
		}
	}
	if (is_gone(current()))
		result = LAUNCH_FAILED;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags);
EXPORT unsigned cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK && ((uintptr_t)base % 4096 || !bytes))
		result = CUDA_INVALID_VALUE;
	if (result == CUDA_OK) {
		range_add(&pinned, base, bytes);
		live.registrations++;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemHostUnregister(void *base);
EXPORT unsigned cuMemHostUnregister(void *base)
{
	pthread_mutex_lock(&lock);
	if (!range_remove(&pinned, base))
		abort();
	live.registrations--;
	unsigned result = is_gone(current()) ? LAUNCH_FAILED : CUDA_OK;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemAlloc_v2(unsigned long long *ret_address, size_t bytes);
EXPORT unsigned cuMemAlloc_v2(unsigned long long *ret_address, size_t bytes)
{
	void *memory;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK && (!bytes || posix_memalign(&memory, 256, bytes) != 0))
		result = bytes ? (unsigned)CUDA_OUT_OF_MEMORY : (unsigned)CUDA_INVALID_VALUE;
	if (result == CUDA_OK) {
		memset(memory, 0xdb, bytes);
		range_add(&allocated, memory, bytes);
		live.allocations++;
		*ret_address = (uintptr_t)memory;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemFree_v2(unsigned long long address);
EXPORT unsigned cuMemFree_v2(unsigned long long address)
{
	pthread_mutex_lock(&lock);
	if (!range_remove(&allocated, (void *)(uintptr_t)address))
		abort();
	free((void *)(uintptr_t)address);
	live.allocations--;
	unsigned result = is_gone(current()) ? LAUNCH_FAILED : CUDA_OK;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream);
EXPORT unsigned cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK) {
		must_hold(allocated, (void *)(uintptr_t)to, bytes, "device memory");
		/* Of pageable memory the driver keeps a copy before it returns; the stream orders the rest. */
		void *kept = holds(pinned, from, bytes) ? NULL : malloc(bytes);
		if (kept)
			memcpy(kept, from, bytes);
		queue(stream, (struct work){ .kind = COPY_UP,
		                      .to = (void *)(uintptr_t)to,
		                      .from = kept ? kept : from,
		                      .kept = kept,
		                      .bytes = bytes });
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemcpyBatchAsync_v2(unsigned long long *to, unsigned long long *from, size_t *bytes, size_t n,
        struct cuda_copy_attributes *attributes, size_t *first_of_attribute, size_t n_attributes,
        struct CUstream_st *stream);
EXPORT unsigned cuMemcpyBatchAsync_v2(unsigned long long *to, unsigned long long *from, size_t *bytes, size_t n,
        struct cuda_copy_attributes *attributes, size_t *first_of_attribute, size_t n_attributes,
        struct CUstream_st *stream)
{
	if (!stream || !n || n_attributes != 1 || first_of_attribute[0] ||
	        attributes->source_order != CUDA_SOURCE_IN_STREAM_ORDER)
		return CUDA_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	for (size_t i = n; result == CUDA_OK && i-- > 0;) { /* the last first: the order is not promised */
		must_hold(allocated, (void *)(uintptr_t)to[i], bytes[i], "device memory");
		must_hold(pinned, (void *)(uintptr_t)from[i], bytes[i], "pinned memory");
		queue(stream, (struct work){ .kind = COPY_UP,
		                      .to = (void *)(uintptr_t)to[i],
		                      .from = (void *)(uintptr_t)from[i],
		                      .bytes = bytes[i] });
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream);
EXPORT unsigned cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK) {
		must_hold(allocated, (void *)(uintptr_t)from, bytes, "device memory");
		queue(stream,
		        (struct work){ .kind = COPY_DOWN, .to = to, .from = (void *)(uintptr_t)from, .bytes = bytes });
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuStreamCreate(struct CUstream_st **ret_stream, unsigned flags);
EXPORT unsigned cuStreamCreate(struct CUstream_st **ret_stream, unsigned flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK) {
		*ret_stream = stream_start(current());
		live.streams++;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuStreamDestroy_v2(struct CUstream_st *stream);
EXPORT unsigned cuStreamDestroy_v2(struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	stream_end(stream);
	live.streams--;
	unsigned result = is_gone(current()) ? LAUNCH_FAILED : CUDA_OK;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **ret_context);
EXPORT unsigned cuStreamGetCtx(struct CUstream_st *stream, struct CUctx_st **ret_context)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK)
		*ret_context = stream ? stream->context : current();
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags);
EXPORT unsigned cuStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
	(void)flags;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK)
		queue(stream, (struct work){ .kind = WAIT, .event = event, .number = event->recorded });
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuStreamSynchronize(struct CUstream_st *stream);
EXPORT unsigned cuStreamSynchronize(struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(true);
	if (result == CUDA_OK)
		result = stream_drain(stream_of(stream));
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuEventCreate(struct CUevent_st **ret_event, unsigned flags);
EXPORT unsigned cuEventCreate(struct CUevent_st **ret_event, unsigned flags)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK) {
		struct CUevent_st *event = calloc(1, sizeof(*event));
		if (!event)
			abort();
		event->references = 1;
		event->context = current();
		event->timed = !(flags & CUDA_EVENT_NO_TIMING);
		live.events++;
		*ret_event = event;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuEventDestroy_v2(struct CUevent_st *event);
EXPORT unsigned cuEventDestroy_v2(struct CUevent_st *event)
{
	pthread_mutex_lock(&lock);
	event_put(event);
	live.events--;
	unsigned result = is_gone(current()) ? LAUNCH_FAILED : CUDA_OK;
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream);
EXPORT unsigned cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK && stream_of(stream)->context != event->context)
		result = CUDA_INVALID_HANDLE; /* as the driver says of an event and a stream of two GPUs */
	if (result == CUDA_OK)
		queue(stream, (struct work){ .kind = RECORD, .event = event, .number = ++event->recorded });
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuEventSynchronize(struct CUevent_st *event);
EXPORT unsigned cuEventSynchronize(struct CUevent_st *event)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted(true);
	uint64_t number = event->recorded;
	while (result == CUDA_OK && !is_gone(current()) && event->reached < number)
		pthread_cond_wait(&changed, &lock);
	if (is_gone(current()))
		result = LAUNCH_FAILED;
	pthread_mutex_unlock(&lock);
	return result;
}

/* As the driver: of events with timing only, which have been recorded and have passed. */
EXPORT unsigned cuEventElapsedTime(float *ret_ms, struct CUevent_st *from, struct CUevent_st *to);
EXPORT unsigned cuEventElapsedTime(float *ret_ms, struct CUevent_st *from, struct CUevent_st *to)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(true);
	if (result == CUDA_OK && (!from || !to || !from->timed || !to->timed || !from->recorded || !to->recorded))
		result = CUDA_INVALID_HANDLE;
	if (result == CUDA_OK && (from->reached < from->recorded || to->reached < to->recorded))
		result = CUDA_NOT_READY;
	if (result == CUDA_OK)
		*ret_ms = (float)((double)((to->at.tv_sec - from->at.tv_sec) * 1000000000 + to->at.tv_nsec -
		                           from->at.tv_nsec) *
		                  1e-6);
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *arg), void *arg);
EXPORT unsigned cuLaunchHostFunc(struct CUstream_st *stream, void (*call)(void *arg), void *arg)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK)
		queue(stream, (struct work){ .kind = CALL, .call = call, .arg = arg });
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream);
EXPORT unsigned cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream)
{
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK) {
		must_hold(allocated, (void *)(uintptr_t)to, bytes, "device memory");
		queue(stream,
		        (struct work){ .kind = SET, .to = (void *)(uintptr_t)to, .number = value, .bytes = bytes });
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* ---- kernels: those of the reference trainer, as host functions ---- */

EXPORT unsigned cuModuleLoadData(struct CUmod_st **ret_module, const void *image);
EXPORT unsigned cuModuleLoadData(struct CUmod_st **ret_module, const void *image)
{
	static struct CUmod_st only;
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK && !strstr(image, ".visible .entry kernel_"))
		result = CUDA_INVALID_VALUE;
	if (result == CUDA_OK) {
		live.modules++;
		*ret_module = &only;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

EXPORT unsigned cuModuleUnload(struct CUmod_st *module);
EXPORT unsigned cuModuleUnload(struct CUmod_st *module)
{
	(void)module;
	pthread_mutex_lock(&lock);
	live.modules--;
	pthread_mutex_unlock(&lock);
	return CUDA_OK;
}

struct CUfunc_st {
	const char *name;
	void (*element)(const struct mlp *m, uint32_t i);
};

EXPORT unsigned cuModuleGetFunction(struct CUfunc_st **ret_function, struct CUmod_st *module, const char *name);
EXPORT unsigned cuModuleGetFunction(struct CUfunc_st **ret_function, struct CUmod_st *module, const char *name)
{
#define ELEMENT(kernel) { "kernel_" #kernel, mlp_##kernel },
	static struct CUfunc_st functions[] = { MLP_KERNELS(ELEMENT) };
#undef ELEMENT
	(void)module;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].name, name) == 0) {
			*ret_function = &functions[i];
			return CUDA_OK;
		}
	}
	return NOT_FOUND;
}

struct launch {
	struct CUfunc_st *function;
	struct mlp m;
	uint32_t count;
};

static void run_kernel(void *arg)
{
	struct launch *l = arg;
	for (uint32_t i = 0; i < l->count; i++)
		l->function->element(&l->m, i);
	free(l);
}

EXPORT unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,
        void **parameters, void **extra);
EXPORT unsigned cuLaunchKernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,
        void **parameters, void **extra)
{
	struct launch *l = malloc(sizeof(*l));
	(void)shared_bytes;
	(void)extra;
	if (!l)
		abort();
	*l = (struct launch){ function, *(struct mlp *)parameters[0], *(uint32_t *)parameters[1] };
	pthread_mutex_lock(&lock);
	unsigned result = counted_in_context(false);
	if (result == CUDA_OK && (grid_y * grid_z * block_y * block_z != 1 || grid_x * block_x < l->count))
		result = CUDA_INVALID_VALUE;
	if (result == CUDA_OK)
		queue(stream, (struct work){ .kind = CALL, .call = run_kernel, .arg = l });
	else
		free(l);
	pthread_mutex_unlock(&lock);
	return result;
}
