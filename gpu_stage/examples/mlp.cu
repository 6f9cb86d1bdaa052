/* SPDX-License-Identifier: Apache-2.0 */
// The kernels of mlp.h.  mlp.ptx is made of this file, and the driver compiles that for its GPU:
//   nvcc -ptx -arch=compute_75 -I. -o gpu_stage/examples/mlp.ptx gpu_stage/examples/mlp.cu
//   sed -i 's/^\.version .*/.version 6.4/' gpu_stage/examples/mlp.ptx     (nothing newer is in it: older drivers take it)
#include "gpu_stage/examples/mlp.h"

#define KERNEL(name)                                                                                                   \
	extern "C" __global__ void kernel_##name(struct mlp m, uint32_t count)                                         \
	{                                                                                                              \
		uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;                                                    \
		if (i < count)                                                                                         \
			mlp_##name(&m, i);                                                                             \
	}
MLP_KERNELS(KERNEL)
