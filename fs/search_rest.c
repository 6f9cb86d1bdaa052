/* SPDX-License-Identifier: Apache-2.0 */
/* Counts opens and reads; fs/search_rest.h first. */
#include "fs/search_rest.h"

enum fs_search fs_search_rest_opened(struct fs_search_rest *rest, const struct fs_search_news *news, bool may_rest)
{
	bool needed = rest->search == FS_SEARCH_NEEDED;
	rest->opens += news->opens;
	rest->unexplained += news->unexplained;
	bool missed = news->in_store || news->reads - rest->reads > FS_SEARCH_REST_FEW;
	bool waited = missed && rest->unexplained > FS_SEARCH_REST_FEW;
	if (waited || rest->opens >= FS_SEARCH_REST_OPENS) {
		needed = waited;
		*rest = (struct fs_search_rest){ .reads = news->reads };
	}
	rest->search = needed ? FS_SEARCH_NEEDED : may_rest ? FS_SEARCH_RESTS : FS_SEARCH_KEPT;
	return rest->search;
}
