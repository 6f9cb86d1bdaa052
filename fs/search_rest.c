/* SPDX-License-Identifier: Apache-2.0 */
/* Counts opens and reads in stretches; fs/search_rest.h first. */
#include "fs/search_rest.h"

bool fs_search_rest_opened(struct fs_search_rest *rest, uint64_t opens, uint64_t reads)
{
	bool many = reads - rest->reads > FS_SEARCH_REST_READS;
	rest->opens += opens;
	if (!many && rest->opens < FS_SEARCH_REST_OPENS)
		return rest->rests;
	rest->rests = !many;
	rest->opens = 0;
	rest->reads = reads;
	return rest->rests;
}
