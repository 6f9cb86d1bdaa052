/* SPDX-License-Identifier: Apache-2.0 */
/* Numberings: what an index in an announced order means.
 *
 *     sorted       the regular files below a directory of the tree, common files too, by the bytes of their paths
 *     imagefolder  the images below a directory as torchvision's ImageFolder numbers them
 *     table        paths that a trainer gave, in its order; or the list that prefetch/sampler/drawn.h has found
 *
 * A numbering is made when it is first used, and kept. The least recently used one is dropped for a new one: a guest
 * drops none of those who use the control socket, and of other guests only if he has fewer than 4.
 *
 * Memory: 4 bytes a file, counted in the memory of orders; none if the numbers are those of the samples in a row.
 * Threads: main. */
#ifndef DDPFS_FS_ORDER_NUMBERS_H
#define DDPFS_FS_ORDER_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/order_memory.h"

struct shard_index;
struct prefetch_list;
struct fs_view;

enum {
	FS_ORDER_NUMBERINGS = 8,        /* of those who use the control socket */
	FS_ORDER_NUMBERINGS_GUEST = 16, /* of guests (fs/follow_request.h); 4 of one guest */
	FS_ORDER_OWNER = 12,            /* bytes of "UID " with its NUL */
	FS_ORDER_TABLE_NAME = 56,       /* bytes of a name that fs_order_numbers_of_list() gives */
};

struct fs_order_numbers;   /* opaque: all numberings of a view */
struct fs_order_numbering; /* opaque: one of them, valid until the next call that makes one */

/* Makes it, without numberings. Returns 0; -ENOMEM. */
int fs_order_numbers_new(const struct shard_index *index, struct fs_view *view, struct fs_order_memory *memory,
        struct fs_order_numbers **ret_numbers);
void fs_order_numbers_free(struct fs_order_numbers *numbers); /* NULL is fine */

/* Sets what is called every 2^18 files while a numbering is made; NULL: nothing. */
void fs_order_numbers_beat(struct fs_order_numbers *numbers, void (*beat)(void *user), void *user);
/* Says for whom the calls after it make numberings: "UID " of a guest, or "". */
void fs_order_numbers_owner(struct fs_order_numbers *numbers, const char *owner);
/* Returns the bytes of this guest's numberings; NULL: of all guests. */
uint64_t fs_order_numbers_bytes(const struct fs_order_numbers *numbers, const char *owner);
/* Returns whether a table has a name that fs_order_numbers_of_list() gives. */
bool fs_order_numbers_is_of_list(const char *name);

/* Finds or makes the numbering of a listing. @dir: below the root of the tree; "" is the root.
 * Returns 0; -ENOENT: no such directory, or nothing is listed there; -ENOSPC: it would take too much memory; -ENOMEM,
 * index errors. */
int fs_order_numbers_listing(
        struct fs_order_numbers *numbers, bool imagefolder, const char *dir, struct fs_order_numbering **ret_numbering);
/* Finds a table. Returns 0; -ENOENT. */
int fs_order_numbers_table(
        struct fs_order_numbers *numbers, const char *name, struct fs_order_numbering **ret_numbering);
/* Adds samples behind the table `name`, which is made if it is not there. SHARD_NONE: the number is taken, and its
 * entries are left out. Returns 0; -ENOSPC: too much memory; -ENOMEM. */
int fs_order_numbers_add(struct fs_order_numbers *numbers, const char *name, const uint32_t *samples, size_t n);
/* Finds or makes the table of a list of the dataset, the same one for all trainers.  Gets its name.
 * Returns 0; -ENOSPC, -ENOMEM, index errors. */
int fs_order_numbers_of_list(
        struct fs_order_numbers *numbers, const struct prefetch_list *list, char ret_name[FS_ORDER_TABLE_NAME]);
/* Frees a table, if it is there. */
void fs_order_numbers_drop(struct fs_order_numbers *numbers, const char *name);

/* Returns how many numbers there are: from 0 on. */
uint64_t fs_order_numbering_size(const struct fs_order_numbering *numbering);
/* Returns the sample of a number below the size; SHARD_NONE: a common file, or a path that is not there. */
static inline uint32_t fs_order_numbering_sample(const struct fs_order_numbering *numbering, uint64_t number);

/* ---- inside ---- */

struct fs_order_numbering {
	char *name;                 /* of the table, or the directory */
	char owner[FS_ORDER_OWNER]; /* who made it: a guest, or "" */
	unsigned kind;              /* 0 sorted, 1 imagefolder, 2 table */
	uint64_t n, room;           /* numbers; entries of `samples` that are allocated */
	uint32_t *samples;          /* NULL: number i is sample base + i */
	uint32_t base;
	uint64_t used_at; /* the higher, the later it was used; 0: free */
};

static inline uint32_t fs_order_numbering_sample(const struct fs_order_numbering *numbering, uint64_t number)
{
	return numbering->samples ? numbering->samples[number] : numbering->base + (uint32_t)number;
}

#endif
