/* SPDX-License-Identifier: Apache-2.0 */
/* The reference trainer on a GPU; compute.h first.  The driver compiles the kernels of mlp.ptx.  NCCL sums gradients
 * on a second stream. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_stage/cuda.h"
#include "gpu_stage/examples/compute.h"
#include "gpu_stage/examples/nccl.h"

enum { PIECES = 32, BLOCK = 64 };

/* The text of mlp.ptx, ended by a NUL. */
__asm__(".section .rodata\n"
        ".global mlp_ptx\n"
        "mlp_ptx:\n"
        ".incbin \"" MLP_PTX "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char mlp_ptx[];

static const char *const kernel_names[N_KERNELS] = {
#define KERNEL_NAME(name) "kernel_" #name,
	MLP_KERNELS(KERNEL_NAME)
#undef KERNEL_NAME
};

struct gpu {
	struct compute base; /* first */
	const struct stage_cuda *cuda;
	struct nccl nccl;
	struct ncclComm *comm; /* NULL: one rank */
	int ordinal, device;
	struct CUctx_st *context;
	bool entered; /* the context is this thread's */
	bool failed;  /* a call has failed */
	struct CUstream_st *stream, *second;
	struct CUevent_st *computed, *reduced;
	struct CUevent_st *marks[COMPUTE_MARKS];
	struct CUmod_st *module;
	struct CUfunc_st *kernels[N_KERNELS];
	unsigned long long pieces[PIECES];
	unsigned n_pieces;
};

static struct gpu *of(struct compute *c)
{
	return (struct gpu *)c;
}

static bool good(struct gpu *g, unsigned result, const char *what)
{
	struct base_err err;
	if (result == CUDA_OK)
		return true;
	g->failed = true;
	stage_cuda_error(g->cuda, result, g->ordinal, what, &err);
	fprintf(stderr, "digits_mlp: %s\n", err.text);
	return false;
}

static bool nccl_good(struct gpu *g, unsigned result, const char *what)
{
	if (result == NCCL_OK)
		return true;
	g->failed = true;
	fprintf(stderr, "digits_mlp: NCCL cannot %s: %s (NCCL_DEBUG=INFO says more)\n", what,
	        g->nccl.error_string(result));
	return false;
}

static unsigned long long address(const void *p)
{
	return (unsigned long long)(uintptr_t)p;
}

static void *gpu_memory(struct compute *c, size_t bytes)
{
	struct gpu *g = of(c);
	unsigned long long *piece = &g->pieces[g->n_pieces];
	if (g->n_pieces == PIECES || !good(g, g->cuda->memory_alloc(piece, bytes), "allocate memory"))
		return NULL;
	g->n_pieces++;
	if (!good(g, g->cuda->memory_set(*piece, 0, bytes, g->stream), "clear memory"))
		return NULL;
	return (void *)(uintptr_t)*piece;
}

static bool gpu_put(struct compute *c, void *to, const void *from, size_t bytes)
{
	struct gpu *g = of(c);
	return good(g, g->cuda->host_register((void *)(uintptr_t)from, bytes, CUDA_HOST_PORTABLE), "pin memory") &&
	       good(g, g->cuda->copy_up(address(to), from, bytes, g->stream), "copy weights") &&
	       good(g, g->cuda->stream_synchronize(g->stream), "copy weights") &&
	       good(g, g->cuda->host_unregister((void *)(uintptr_t)from), "unpin memory");
}

static bool gpu_fetch(struct compute *c, void *to, const void *from, size_t bytes)
{
	struct gpu *g = of(c);
	return good(g, g->cuda->copy_down(to, address(from), bytes, g->stream), "copy results") &&
	       good(g, g->cuda->stream_synchronize(g->stream), "compute");
}

static bool gpu_clear(struct compute *c, void *to, size_t bytes)
{
	struct gpu *g = of(c);
	return good(g, g->cuda->memory_set(address(to), 0, bytes, g->stream), "clear memory");
}

static bool gpu_run(struct compute *c, enum kernel kernel, const struct mlp *m, uint32_t count)
{
	struct gpu *g = of(c);
	struct mlp copy = *m;
	void *parameters[] = { &copy, &count };
	return good(g,
	        g->cuda->launch(g->kernels[kernel], (count + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, g->stream,
	                parameters, NULL),
	        "start a kernel");
}

static bool mark_on(struct gpu *g, struct CUstream_st *stream, uint32_t mark)
{
	if (mark == COMPUTE_NO_MARK)
		return true;
	if (!g->marks[mark] && !good(g, g->cuda->event_create(&g->marks[mark], 0), "make an event"))
		return false;
	if (mark == 0)
		g->base.origin = g->marks[0];
	return good(g, g->cuda->event_record(g->marks[mark], stream), "record an event");
}

static bool gpu_mark(struct compute *c, uint32_t mark)
{
	return mark_on(of(c), of(c)->stream, mark);
}

static bool gpu_when(struct compute *c, uint32_t mark, double *ret_s)
{
	struct gpu *g = of(c);
	float ms = 0;
	if (!good(g, g->cuda->event_elapsed(&ms, g->marks[0], g->marks[mark]), "tell the time"))
		return false;
	*ret_s = (double)ms * 1e-3;
	return true;
}

/* Sums on the second stream, after all work that the main stream has so far.  The main stream goes on. */
static bool gpu_reduce(struct compute *c, float *data, size_t n, uint32_t mark)
{
	struct gpu *g = of(c);
	if (!g->comm)
		return true;
	return good(g, g->cuda->event_record(g->computed, g->stream), "record an event") &&
	       good(g, g->cuda->stream_wait_event(g->second, g->computed, 0), "order its streams") &&
	       mark_on(g, g->second, mark) &&
	       nccl_good(g, g->nccl.all_reduce(data, data, n, NCCL_FLOAT32, NCCL_SUM, g->comm, g->second),
	               "sum gradients") &&
	       mark_on(g, g->second, mark == COMPUTE_NO_MARK ? mark : mark + 1) &&
	       good(g, g->cuda->event_record(g->reduced, g->second), "record an event");
}

static bool gpu_reduced(struct compute *c)
{
	struct gpu *g = of(c);
	return !g->comm || good(g, g->cuda->stream_wait_event(g->stream, g->reduced, 0), "order its streams");
}

static void gpu_free(struct compute *c)
{
	struct gpu *g = of(c);
	struct CUctx_st *context;
	if (g->comm && g->failed)
		g->nccl.abort(g->comm); /* does not wait for other ranks */
	else if (g->comm)
		g->nccl.close(g->comm);
	while (g->n_pieces)
		g->cuda->memory_free(g->pieces[--g->n_pieces]);
	if (g->module)
		g->cuda->module_unload(g->module);
	for (unsigned i = 0; i < COMPUTE_MARKS; i++) {
		if (g->marks[i])
			g->cuda->event_destroy(g->marks[i]);
	}
	if (g->computed)
		g->cuda->event_destroy(g->computed);
	if (g->reduced)
		g->cuda->event_destroy(g->reduced);
	if (g->second)
		g->cuda->stream_destroy(g->second);
	if (g->stream)
		g->cuda->stream_destroy(g->stream);
	if (g->entered)
		g->cuda->context_pop(&context);
	if (g->context)
		g->cuda->context_release(g->device);
	free(g);
}

static const struct compute_ops gpu_ops = {
	.memory = gpu_memory,
	.put = gpu_put,
	.fetch = gpu_fetch,
	.clear = gpu_clear,
	.run = gpu_run,
	.reduce = gpu_reduce,
	.reduced = gpu_reduced,
	.mark = gpu_mark,
	.when = gpu_when,
	.free = gpu_free,
};

/* ---- opening ---- */

static bool nccl_load(struct nccl *nccl)
{
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *function;
	if (!library) {
		fprintf(stderr,
		        "digits_mlp: several ranks on GPUs need NCCL (%s): install it, or put its folder into "
		        "LD_LIBRARY_PATH\n",
		        dlerror());
		return false;
	}
#define FIND(symbol, member, parameters)                                                                               \
	function = dlsym(library, #symbol);                                                                            \
	if (!function) {                                                                                               \
		fputs("digits_mlp: libnccl.so.2 has no " #symbol "\n", stderr);                                        \
		return false;                                                                                          \
	}                                                                                                              \
	memcpy((void *)&nccl->member, &function, sizeof(function));
	NCCL_FUNCTIONS(FIND)
	FIND(ncclGetErrorString, error_string, )
#undef FIND
	return true;
}

static bool nccl_join(struct gpu *g, struct peers *peers)
{
	struct nccl_id id = { { 0 } };
	if (peers->world == 1)
		return true;
	if (!nccl_load(&g->nccl))
		return false;
	if (peers->rank == 0 && !nccl_good(g, g->nccl.unique_id(&id), "make an id"))
		return false;
	return peers_share(peers, &id, sizeof(id)) &&
	       nccl_good(g, g->nccl.open(&g->comm, (int)peers->world, id, (int)peers->rank), "join the ranks");
}

static bool gpu_open(struct gpu *g, struct peers *peers)
{
	char *name = g->base.name;
	if (!good(g, g->cuda->device_get(&g->device, g->ordinal), "find it") ||
	        !good(g, g->cuda->device_name(name, (int)sizeof(g->base.name) - 1, g->device), "read its name") ||
	        !good(g, g->cuda->context_retain(&g->context, g->device), "open it"))
		return false;
	g->entered = good(g, g->cuda->context_push(g->context), "use its context");
	if (!g->entered || !good(g, g->cuda->stream_create(&g->stream, CUDA_STREAM_NON_BLOCKING), "make a stream") ||
	        !good(g, g->cuda->stream_create(&g->second, CUDA_STREAM_NON_BLOCKING), "make a stream") ||
	        !good(g, g->cuda->event_create(&g->computed, CUDA_EVENT_NO_TIMING), "make an event") ||
	        !good(g, g->cuda->event_create(&g->reduced, CUDA_EVENT_NO_TIMING), "make an event") ||
	        !good(g, g->cuda->module_load(&g->module, mlp_ptx), "compile the kernels"))
		return false;
	for (unsigned i = 0; i < N_KERNELS; i++) {
		if (!good(g, g->cuda->module_function(&g->kernels[i], g->module, kernel_names[i]), "find a kernel"))
			return false;
	}
	return nccl_join(g, peers);
}

struct compute *compute_cuda(struct peers *peers)
{
	static char backend[16];
	struct base_err err;
	struct gpu *g = calloc(1, sizeof(*g));
	int n = 0;
	if (!g) {
		fputs("digits_mlp: out of memory\n", stderr);
		return NULL;
	}
	if (stage_cuda_load(&err, &g->cuda) < 0) {
		fprintf(stderr, "digits_mlp: %s\n", err.text);
		free(g);
		return NULL;
	}
	/* Launchers that show each rank its own GPU only number it 0. */
	if (g->cuda->device_count(&n) == CUDA_OK && n > 0)
		g->ordinal = (int)(peers->local_rank % (unsigned)n);
	snprintf(backend, sizeof(backend), "cuda:%d", g->ordinal);
	g->base = (struct compute){ .ops = &gpu_ops, .backend = backend, .on_gpu = true };
	if (!gpu_open(g, peers)) {
		gpu_free(&g->base);
		return NULL;
	}
	g->base.stream = g->stream;
	return &g->base;
}
