/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the NVIDIA driver's libcuda.so.1, for tests on machines without a GPU.  It is not CUDA: "device"
 * memory is
 * host memory, a stream is a thread that does what was queued, in order; kernels are host functions.  Never installed.
 *
 * It is stricter than a driver: an asynchronous copy whose host memory is not pinned, or whose device memory is not
 * allocated, ends the process.
 *
 * Environment, read at cuInit:
 *   STANDIN_DEVICES=N          GPUs there are (default 2)
 *   STANDIN_COPY_MB_PER_S=N    what a GPU's copy engine does (default: as fast as memcpy)
 *
 * Tests find these functions by dlsym: a driver that has none is a real one.  Any thread may call them. */
#ifndef DDPFS_TESTS_GPU_STAGE_STANDIN_STANDIN_H
#define DDPFS_TESTS_GPU_STAGE_STANDIN_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

/* What was made and not given back. */
struct standin_live {
	int contexts, streams, events, allocations, registrations, modules;
};

void standin_live(struct standin_live *ret_live);

enum standin_fault {
	STANDIN_FAULT_NONE,
	STANDIN_FAULT_MEMORY, /* that one call fails for want of memory; waiting calls are not counted, they cannot */
	STANDIN_FAULT_GONE,   /* from that call on all fail, and nothing queued runs any more */
};
/* The n-th counted call from now (1: the next) fails; n 0: none. */
void standin_fail(uint64_t n, enum standin_fault fault);
/* One GPU fails so, others go on; until standin_fail. */
void standin_lose(int device);
uint64_t standin_calls(void); /* counted since standin_fail */

void standin_hold_copies(bool hold); /* copies to the device wait */
uint64_t standin_copies(void);       /* copies to a device done, ever */

#endif
