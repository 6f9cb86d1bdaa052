/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is not in a core; shard/remote/secret_memory.h first. */
#include "shard/remote/secret_memory.h"

#include <assert.h>
#include <curl/curl.h>
#include <jansson.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shard/base/cleanup.h"
#include "shard/base/sanitized.h"

enum {
	REGION_BYTES = 1 << 20,
	BLOCK_MAX = 256 << 10, /* bytes of a block of a region, its header included */
	BLOCK_MIN = 64,
	STEPS = 4, /* sizes between two powers of two */
	CLASSES = STEPS * 14,
};

/* In front of each block. */
struct header {
	alignas(16) size_t bytes; /* with the header */
	struct header *next;      /* of the free ones of this size */
};
static_assert(sizeof(struct header) == 16, "blocks are aligned as malloc's");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static struct header *free_blocks[CLASSES];
static char *region; /* what is left of the latest one */
static size_t region_left;

static bool in_libraries; /* of main(), before there are threads */

void *remote_secret_map(size_t bytes)
{
	void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return NULL;
	madvise(made, bytes, MADV_DONTDUMP);
	return made;
}

/* Rounds up to a size of blocks: a quarter of a power of two.  Returns its number. */
static unsigned class_of(size_t *bytes)
{
	size_t n = *bytes > BLOCK_MIN ? *bytes - 1 : BLOCK_MIN - 1;
	unsigned shift = (unsigned)(sizeof(n) * 8 - 1) - (unsigned)__builtin_clzl(n) - 2; /* n >> shift is 4 .. 7 */
	*bytes = ((n >> shift) + 1) << shift;
	return (shift - 3) * STEPS + (unsigned)(n >> shift) - STEPS;
}

/* Takes a block from the list of its size, or from the region.  Returns NULL: out of memory. */
static struct header *take_block(size_t bytes)
{
	unsigned class = class_of(&bytes);
	lock_for_scope(&lock);
	struct header *block = free_blocks[class];
	if (block) {
		free_blocks[class] = block->next;
		return block;
	}
	if (bytes > region_left) { /* what is left is lost */
		region = remote_secret_map(REGION_BYTES);
		region_left = region ? REGION_BYTES : 0;
		if (!region)
			return NULL;
	}
	block = (struct header *)(void *)region;
	block->bytes = bytes;
	region += bytes;
	region_left -= bytes;
	return block;
}

void *remote_secret_alloc(size_t bytes)
{
	struct header *block = NULL;
	size_t whole;
	if (BASE_SANITIZED)
		return malloc(bytes);
	if (__builtin_add_overflow(bytes, sizeof(*block), &whole))
		return NULL;
	if (whole <= BLOCK_MAX) {
		block = take_block(whole);
	} else {
		block = remote_secret_map(whole);
		if (block)
			block->bytes = whole;
	}
	return block ? block + 1 : NULL;
}

void remote_secret_free(void *data)
{
	if (BASE_SANITIZED)
		free(data);
	if (BASE_SANITIZED || !data)
		return;
	struct header *block = (struct header *)data - 1;
	if (block->bytes > BLOCK_MAX) {
		munmap(block, block->bytes);
		return;
	}
	size_t bytes = block->bytes;
	unsigned class = class_of(&bytes);
	lock_for_scope(&lock);
	block->next = free_blocks[class];
	free_blocks[class] = block;
}

void *remote_secret_realloc(void *data, size_t bytes)
{
	if (BASE_SANITIZED)
		return realloc(data, bytes);
	if (data && !bytes) {
		remote_secret_free(data);
		return NULL;
	}
	size_t room = data ? ((struct header *)data - 1)->bytes - sizeof(struct header) : 0;
	if (data && bytes <= room)
		return data;
	/* Who makes a large block larger by a piece will do so again.  Half more copies each byte a few times only. */
	size_t more = bytes;
	if (data && bytes > BLOCK_MAX && __builtin_add_overflow(bytes, bytes / 2, &more))
		more = bytes;
	void *made = remote_secret_alloc(more);
	if (made && data) {
		memcpy(made, data, room);
		remote_secret_free(data);
	}
	return made;
}

char *remote_secret_join(const char *first, const char *second, const char *last)
{
	const char *const texts[] = { first, second, last ? last : "" };
	size_t len[3], n = 0;
	for (int i = 0; i < 3; i++)
		n += len[i] = strlen(texts[i]);
	char *joined = remote_secret_alloc(n + 1), *to = joined;
	for (int i = 0; joined && i < 3; i++) {
		memcpy(to, texts[i], len[i]);
		to += len[i];
	}
	if (joined)
		*to = 0;
	return joined;
}

/* ---- libraries ---- */

static char *duplicate(const char *text)
{
	return remote_secret_join(text, "", NULL);
}

static void *zeroed(size_t n, size_t size)
{
	size_t bytes;
	void *made = __builtin_mul_overflow(n, size, &bytes) ? NULL : remote_secret_alloc(bytes);
	return made ? memset(made, 0, bytes) : NULL;
}

static void *crypto_alloc(size_t bytes, const char *file, int line)
{
	(void)file;
	(void)line;
	return remote_secret_alloc(bytes);
}

static void *crypto_realloc(void *block, size_t bytes, const char *file, int line)
{
	(void)file;
	(void)line;
	return remote_secret_realloc(block, bytes);
}

static void crypto_free(void *block, const char *file, int line)
{
	(void)file;
	(void)line;
	remote_secret_free(block);
}

/* What jansson returns is freed by free(3), so it cannot come from here. */
static void clear_and_free(void *block)
{
	if (block)
		explicit_bzero(block, malloc_usable_size(block));
	free(block);
}

void remote_secret_use_in_libraries(void)
{
	json_set_alloc_funcs(malloc, clear_and_free);
	in_libraries = !BASE_SANITIZED;
	if (in_libraries)
		CRYPTO_set_mem_functions(crypto_alloc, crypto_realloc, crypto_free);
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

CURLcode remote_secret_init_curl(void)
{
	/* Another thread may hold the lock while one forks: then the child could allocate nothing. */
	if (pthread_atfork(before_fork, after_fork, after_fork) != 0)
		return CURLE_OUT_OF_MEMORY;
	return in_libraries ? curl_global_init_mem(CURL_GLOBAL_DEFAULT, remote_secret_alloc, remote_secret_free,
	                              remote_secret_realloc, duplicate, zeroed)
	                    : curl_global_init(CURL_GLOBAL_DEFAULT);
}
