/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as what a supervisor hands to the program that goes on.  What is taken is written and read
 * again. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/ddpfs/takeover.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct takeover once;
	struct takeover twice;
	struct base_err err = { 0 };
	if (takeover_read((const char *)data, size, &err, &once) < 0) {
		assert(err.text[0]);
		return 0;
	}
	assert(once.fs.dataset && once.fs.mountpoint && once.held.fuse_fd >= 0 && once.held.mount.init_len > 0 &&
	        once.held.mount.init_len <= FS_INIT_BYTES_MAX && once.fs.view.n_past <= SHARD_DEAL_SEGMENTS_MAX &&
	        strnlen(once.held.control_path, sizeof(once.held.control_path)) < sizeof(once.held.control_path));
	char *text = takeover_write(&once);
	if (!text || takeover_read(text, strlen(text), &err, &twice) < 0)
		abort();
	char *again = takeover_write(&twice);
	assert(strcmp(text, again) == 0);
	takeover_done(&once);
	takeover_done(&twice);
	free(again);
	free(text);
	return 0;
}
