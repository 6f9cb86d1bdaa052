/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL that is used, found at run time in libnccl.so.2.  The declarations are this header's own; a test
 * compares them with <nccl.h> if there is one.
 *
 * Threads: as NCCL's documentation says; the trainer uses one. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_NCCL_H
#define DDPFS_GPU_STAGE_EXAMPLES_NCCL_H

#include <stddef.h>

struct ncclComm;    /* opaque */
struct CUstream_st; /* opaque */

struct nccl_id {
	char internal[128];
};

enum { NCCL_OK = 0, NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

/* X(symbol, member, parameters) */
#define NCCL_FUNCTIONS(X)                                                                                              \
	X(ncclGetUniqueId, unique_id, (struct nccl_id * ret_id))                                                       \
	X(ncclCommInitRank, open, (struct ncclComm * *ret_comm, int world, struct nccl_id id, int rank))               \
	X(ncclCommDestroy, close, (struct ncclComm * comm))                                                            \
	X(ncclCommAbort, abort, (struct ncclComm * comm))                                                              \
	X(ncclAllReduce, all_reduce,                                                                                   \
	        (const void *from, void *to, size_t n, unsigned type, unsigned op, struct ncclComm *comm,              \
	                struct CUstream_st *stream))

struct nccl {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration, not an expression */
#define NCCL_MEMBER(symbol, member, parameters) unsigned(*member) parameters;
	NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
	const char *(*error_string)(unsigned result);
};

#endif
