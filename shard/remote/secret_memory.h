/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is not in a core (MADV_DONTDUMP), for what holds secrets.
 *
 * Blocks come from regions of 1 MiB, in sizes of which at most a fifth is lost, and return to a list for their size.  A
 * block of more than 256 KiB has a mapping of its own, which ends with it; one that grows gets half more than was asked
 * for.  Regions are kept.
 *
 * A build with a sanitizer takes all blocks from malloc(3), so that the sanitizer sees them; they are in a core.
 *
 * Threads: any. */
#ifndef DDPFS_SHARD_REMOTE_SECRET_MEMORY_H
#define DDPFS_SHARD_REMOTE_SECRET_MEMORY_H

#include <curl/curl.h>
#include <stddef.h>

/* Makes a zeroed mapping; munmap(2) ends it.  Returns NULL: out of memory. */
void *remote_secret_map(size_t bytes);

/* As malloc(3), realloc(3) and free(3). */
void *remote_secret_alloc(size_t bytes);
void *remote_secret_realloc(void *block, size_t bytes);
void remote_secret_free(void *block);

/* Joins texts; `last` may be NULL.  The result is for remote_secret_free or cleanup_secret.  Returns NULL: out of
 * memory. */
char *remote_secret_join(const char *first, const char *second, const char *last);

/* Makes libcurl and libcrypto take their memory here, so that copies of headers, requests and answers are not in a
 * core, and makes jansson clear what it frees.  For the whole process: call it at the begin of main(), and not in a
 * library.
 * Without effect on what these libraries have allocated before. */
void remote_secret_use_in_libraries(void);
/* Initialises libcurl, with this memory if the function above was called, and makes fork(2) leave the memory usable in
 * the child.  Call it once. */
CURLcode remote_secret_init_curl(void);

static inline void remote_cleanup_secret(void *p)
{
	remote_secret_free(*(void **)p);
}
#define cleanup_secret __attribute__((cleanup(remote_cleanup_secret)))

#endif
