/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the NVIDIA driver's library that is used, found at run time in libcuda.so.1.
 *
 * This is the driver API, not the runtime API.  The driver's library comes with the driver, has one name and a stable
 * interface.  libcudart has one file for each major version, and may be there several times.  The runtime API, and so
 * PyTorch, uses the primary context of a device, as this library does: streams, events and addresses are the same
 * there.
 *
 * The declarations are this header's own, so a machine without the toolkit compiles everything.  A test compares them
 * with the real <cuda.h> if there is one.
 *
 * Threads: any thread may call stage_cuda_load; the table does not change after it. */
#ifndef DDPFS_GPU_STAGE_CUDA_H
#define DDPFS_GPU_STAGE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"

struct CUctx_st; /* opaque, as all of these */
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

/* Results of all functions that the code distinguishes. */
enum {
	CUDA_OK = 0,
	CUDA_INVALID_VALUE = 1,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_STUB_LIBRARY = 34,
	CUDA_DEVICE_UNAVAILABLE = 46,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_INVALID_HANDLE = 400,
	CUDA_NOT_READY = 600,
	CUDA_DRIVER_MISMATCH = 803,
};

enum {
	CUDA_HOST_PORTABLE = 1,       /* cuMemHostRegister: pinned for every context */
	CUDA_STREAM_NON_BLOCKING = 1, /* cuStreamCreate: stream does not synchronise with stream 0 */
	CUDA_EVENT_BLOCKING = 1,      /* cuEventCreate: a thread that waits for it sleeps */
	CUDA_EVENT_NO_TIMING = 2,
};

/* CUmemcpyAttributes: how copies read their sources. */
struct cuda_copy_attributes {
	int source_order; /* CUDA_SOURCE_* */
	struct {
		int type, id;
	} source_hint, destination_hint; /* for managed memory only */
	unsigned flags;
};

enum { CUDA_SOURCE_IN_STREAM_ORDER = 1 };

/* X(symbol, member, parameters) */
#define STAGE_CUDA_FUNCTIONS(X)                                                                                        \
	X(cuInit, init, (unsigned flags))                                                                              \
	X(cuGetErrorName, error_name, (unsigned result, const char **ret_text))                                        \
	X(cuGetErrorString, error_string, (unsigned result, const char **ret_text))                                    \
	X(cuDeviceGetCount, device_count, (int *ret_count))                                                            \
	X(cuDeviceGet, device_get, (int *ret_device, int ordinal))                                                     \
	X(cuDeviceGetPCIBusId, device_bus, (char *ret_name, int size, int device))                                     \
	X(cuDevicePrimaryCtxRetain, context_retain, (struct CUctx_st * *ret_context, int device))                      \
	X(cuDevicePrimaryCtxRelease_v2, context_release, (int device))                                                 \
	X(cuCtxPushCurrent_v2, context_push, (struct CUctx_st * context))                                              \
	X(cuCtxPopCurrent_v2, context_pop, (struct CUctx_st * *ret_context))                                           \
	X(cuCtxGetDevice, context_device, (int *ret_device))                                                           \
	X(cuCtxSynchronize, context_synchronize, (void))                                                               \
	X(cuMemHostRegister_v2, host_register, (void *base, size_t bytes, unsigned flags))                             \
	X(cuMemHostUnregister, host_unregister, (void *base))                                                          \
	X(cuMemAlloc_v2, memory_alloc, (unsigned long long *ret_address, size_t bytes))                                \
	X(cuMemFree_v2, memory_free, (unsigned long long address))                                                     \
	X(cuMemcpyHtoDAsync_v2, copy_up,                                                                               \
	        (unsigned long long to, const void *from, size_t bytes, struct CUstream_st *stream))                   \
	X(cuMemcpyDtoHAsync_v2, copy_down,                                                                             \
	        (void *to, unsigned long long from, size_t bytes, struct CUstream_st *stream))                         \
	X(cuStreamCreate, stream_create, (struct CUstream_st * *ret_stream, unsigned flags))                           \
	X(cuStreamDestroy_v2, stream_destroy, (struct CUstream_st * stream))                                           \
	X(cuStreamGetCtx, stream_context, (struct CUstream_st * stream, struct CUctx_st * *ret_context))               \
	X(cuStreamWaitEvent, stream_wait_event,                                                                        \
	        (struct CUstream_st * stream, struct CUevent_st * event, unsigned flags))                              \
	X(cuStreamSynchronize, stream_synchronize, (struct CUstream_st * stream))                                      \
	X(cuEventCreate, event_create, (struct CUevent_st * *ret_event, unsigned flags))                               \
	X(cuEventDestroy_v2, event_destroy, (struct CUevent_st * event))                                               \
	X(cuEventRecord, event_record, (struct CUevent_st * event, struct CUstream_st * stream))                       \
	X(cuEventSynchronize, event_synchronize, (struct CUevent_st * event))                                          \
	X(cuEventElapsedTime, event_elapsed, (float *ret_ms, struct CUevent_st *from, struct CUevent_st *to))          \
	/* The reference trainer's: */                                                                                 \
	X(cuDeviceGetName, device_name, (char *ret_name, int size, int device))                                        \
	X(cuMemsetD8Async, memory_set,                                                                                 \
	        (unsigned long long to, unsigned char value, size_t bytes, struct CUstream_st *stream))                \
	X(cuModuleLoadData, module_load, (struct CUmod_st * *ret_module, const void *image))                           \
	X(cuModuleUnload, module_unload, (struct CUmod_st * module))                                                   \
	X(cuModuleGetFunction, module_function,                                                                        \
	        (struct CUfunc_st * *ret_function, struct CUmod_st * module, const char *name))                        \
	X(cuLaunchKernel, launch,                                                                                      \
	        (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
	                unsigned block_y, unsigned block_z, unsigned shared_bytes, struct CUstream_st *stream,         \
	                void **parameters, void **extra))

/* Functions that older drivers lack: NULL there. */
#define STAGE_CUDA_NEWER_FUNCTIONS(X)                                                                                  \
	/* Driver 580 (CUDA 13.0).  Copies of one call run in any order; not for stream 0, not for 0 bytes. */         \
	X(cuMemcpyBatchAsync_v2, copy_many,                                                                            \
	        (unsigned long long *to, unsigned long long *from, size_t *bytes, size_t n,                            \
	                struct cuda_copy_attributes *attributes, size_t *first_of_attribute, size_t n_attributes,      \
	                struct CUstream_st *stream))

struct stage_cuda {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration, not an expression */
#define STAGE_CUDA_MEMBER(symbol, member, parameters) unsigned(*member) parameters;
	STAGE_CUDA_FUNCTIONS(STAGE_CUDA_MEMBER)
	STAGE_CUDA_NEWER_FUNCTIONS(STAGE_CUDA_MEMBER)
#undef STAGE_CUDA_MEMBER
};

/* Loads the table once a process and initialises the driver.  The table stays.
 * Returns 0, or -ENODEV: no library, no driver, no device, or a function is missing. */
int stage_cuda_load(struct base_err *err, const struct stage_cuda **ret_cuda);

/* Makes the sentence of a result that is not CUDA_OK: "GPU 0: cannot WHAT: NAME (meaning): NEXT STEP".
 * Returns -ENOMEM (the GPU has no memory), -ENODEV (no such GPU) or -EIO (all else). */
int stage_cuda_error(
        const struct stage_cuda *cuda, unsigned result, int ordinal, const char *what, struct base_err *err);

#endif
