/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcuda.so.1 and names its errors; cuda.h first. */
#include "gpu_stage/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "shard/base/cleanup.h"

#define LIBRARY "libcuda.so.1"

static struct stage_cuda table;
static bool loaded;
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */

/* *ret_function becomes NULL if the library has no such symbol. */
static void look_up(void *library, const char *symbol, void *ret_function)
{
	void *address = dlsym(library, symbol);
	memcpy(ret_function, &address,
	        sizeof(address)); /* ISO C has no cast from an object pointer to a function pointer */
}

static int find(void *library, const char *symbol, void *ret_function, struct base_err *err)
{
	if (!dlsym(library, symbol))
		return base_err_set(err, -ENODEV, "%s has no %s: install a newer NVIDIA driver, or use the backend cpu",
		        LIBRARY, symbol);
	look_up(library, symbol, ret_function);
	return 0;
}

static int initialise(const struct stage_cuda *cuda, struct base_err *err)
{
	const char *text = NULL;
	unsigned result = cuda->init(0);
	if (result == CUDA_OK)
		return 0;
	if (result == CUDA_NO_DEVICE)
		return base_err_set(err, -ENODEV,
		        "there is no CUDA device on this machine (or CUDA_VISIBLE_DEVICES hides it): use the backend "
		        "cpu");
	if (cuda->error_string(result, &text) != CUDA_OK || !text)
		text = "unknown error";
	return base_err_set(err, -ENODEV, "the NVIDIA driver does not start: %s%s", text,
	        result == CUDA_STUB_LIBRARY      ? ": remove the toolkit's stubs folder from LD_LIBRARY_PATH"
	        : result == CUDA_DRIVER_MISMATCH ? ": restart the machine after the driver's update"
	                                         : ": see nvidia-smi");
}

/* Under load_lock.  The library stays loaded once it works: drivers are not made to be unloaded. */
static int load(struct base_err *err)
{
	struct stage_cuda cuda;
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return base_err_set(err, -ENODEV,
		        "cannot load the NVIDIA driver's library (%s): install the driver, or use the backend cpu",
		        dlerror());
	int rc = 0;
#define FIND(symbol, member, parameters)                                                                               \
	if (rc == 0)                                                                                                   \
		rc = find(library, #symbol, (void *)&cuda.member, err);
	STAGE_CUDA_FUNCTIONS(FIND)
#undef FIND
#define LOOK_UP(symbol, member, parameters) look_up(library, #symbol, (void *)&cuda.member);
	STAGE_CUDA_NEWER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
	if (rc == 0)
		rc = initialise(&cuda, err);
	if (rc < 0) {
		dlclose(library);
		return rc;
	}
	table = cuda;
	loaded = true;
	return 0;
}

int stage_cuda_load(struct base_err *err, const struct stage_cuda **ret_cuda)
{
	lock_for_scope(&load_lock);
	int rc = loaded ? 0 : load(err);
	if (rc == 0)
		*ret_cuda = &table;
	return rc;
}

int stage_cuda_error(
        const struct stage_cuda *cuda, unsigned result, int ordinal, const char *what, struct base_err *err)
{
	const char *name = NULL, *text = NULL, *next = "close the stage; the kernel's log (Xid) says more";
	int code = -EIO;
	if (cuda->error_name(result, &name) != CUDA_OK || !name)
		name = "unknown error";
	if (cuda->error_string(result, &text) != CUDA_OK || !text)
		text = "no description";
	if (result == CUDA_OUT_OF_MEMORY) {
		code = -ENOMEM;
		next = "give the stage less memory, or less of the GPU's";
	} else if (result == CUDA_NO_DEVICE || result == CUDA_INVALID_DEVICE || result == CUDA_DEVICE_UNAVAILABLE) {
		code = -ENODEV;
		next = "see nvidia-smi";
	}
	return base_err_set(err, code, "GPU %d: cannot %s: %s (%s): %s", ordinal, what, name, text, next);
}
