/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any text as mount options. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/ddpfs/mount_options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct options options;
	struct base_err err = { 0 };
	char *text = malloc(size + 1);
	if (!text)
		abort();
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	options_init(&options);
	int rc = options_parse(&options, text, &err);
	if (rc == 0)
		rc = options_finish(&options, &err);
	/* what is refused has its sentence, on one line */
	assert(rc <= 0 && (rc == 0 || (err.code == rc && err.text[0] && !strchr(err.text, '\n'))));
	if (rc == 0) {
		const struct shard_view_options *view = &options.view.view;
		assert(options.fs.view_all || (view->rank < view->world && view->world <= SHARD_WORLD_MAX));
		assert(options.fs.umask <= 0777 && options.n_strings <= OPTIONS_STRINGS_MAX);
	}
	options_done(&options);
	free(text);
	return 0;
}
