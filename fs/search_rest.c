/* SPDX-License-Identifier: Apache-2.0 */
/* Counts opens and reads; fs/search_rest.h first. */
#include "fs/search_rest.h"

enum fs_search fs_search_rest_opened(struct fs_search_rest *rest, uint64_t opens, uint64_t reads, bool may_rest)
{
	bool many = reads - rest->reads > FS_SEARCH_REST_READS;
	bool in_memory = rest->search != FS_SEARCH_NEEDED;
	rest->opens += opens;
	if (many || rest->opens >= FS_SEARCH_REST_OPENS) {
		in_memory = !many;
		rest->opens = 0;
		rest->reads = reads;
	}
	rest->search = !in_memory ? FS_SEARCH_NEEDED : may_rest ? FS_SEARCH_RESTS : FS_SEARCH_KEPT;
	return rest->search;
}
