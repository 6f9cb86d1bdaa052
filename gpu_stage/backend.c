#include "gpu_stage/backend.h"

#include <errno.h>
#include <string.h>

int stage_backend_new(const char *name, struct base_err *err, struct stage_backend **ret_backend)
{
	char quoted[64];
	if (!name || strcmp(name, "cpu") == 0)
		return stage_backend_cpu(err, ret_backend);
	return base_err_set(err, -EINVAL, "there is no backend '%s' in this build: use 'cpu'",
	        base_err_quote(name, quoted, sizeof(quoted)));
}
