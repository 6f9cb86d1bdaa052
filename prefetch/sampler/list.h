/* SPDX-License-Identifier: Apache-2.0 */
/* Lists: how a trainer numbers the files it found, file <-> index.
 *
 * A sampler draws indices; what they mean depends on how the dataset object listed its files.  A list here is one such
 * numbering of one directory's subtree:
 *
 *   walk   torchvision's ImageFolder: classes (the subdirectories) by name, in each the directories of os.walk sorted by
 *          path, in each the files by name; files that stand beside the classes are not in it
 *   id     the order of file ids: components compared one by one, a directory's files before its subdirectories
 *          (os.walk over a mount that lists in id order)
 *   path   sorted(glob()), recursive: whole paths compared as strings, where "a-b/x" < "a/x" < "a0/x"
 *   name   by the last component alone, over all directories; equal names in the order of ids (DLIO)
 *
 * each over all files, the dealt ones, those with an extension of torchvision's IMG_EXTENSIONS, or those with one
 * suffix.  A list is stored as runs of neighbouring file ids, in list order, and a filter (one bit a file, shared by all
 * lists of a dataset): at() and find() cost O(log runs), and a run is mostly a directory.  By name there are no runs: 8 bytes a file.
 *
 * Threads: filters and lists are immutable once made, and counted: any thread may read them. */
#ifndef DDPFS_PREFETCH_SAMPLER_LIST_H
#define DDPFS_PREFETCH_SAMPLER_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/index.h"

enum prefetch_filter_kind {
	PREFETCH_FILTER_DEALT,  /* files of samples: no common ones */
	PREFETCH_FILTER_ALL,    /* every file */
	PREFETCH_FILTER_IMAGES, /* .jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp, any case */
	PREFETCH_FILTER_SUFFIX, /* one suffix, exactly */
	PREFETCH_FILTER_KINDS
};

enum { PREFETCH_SUFFIX_MAX = 31 }; /* bytes of a suffix, with its dot; longer ones are not looked for */

struct shard_view;
struct prefetch_filter; /* opaque: which files of a dataset; n / 8 bytes each */

/* All four filters of a dataset, made side by side in one pass over its files. */
struct prefetch_filters {
	const struct shard_index *index; /* not owned */
	const struct shard_view *shown;  /* NULL, or the view that leaves samples out: they are in no filter */
	char suffix[PREFETCH_SUFFIX_MAX + 1];
	uint32_t next; /* file the pass has come to; the filters can be used when it is n_files */
	struct prefetch_filter *filters[PREFETCH_FILTER_KINDS];
};

/* suffix: ".jpg", or "" when there is none (the filter is then empty).  -ENOMEM. */
int prefetch_filters_init(struct prefetch_filters *filters, const struct shard_index *index,
        const struct shard_view *shown, const char *suffix);
/* Looks at the next files, at most `max`.  Returns 1 while there is more to do, 0 when done, index errors. */
int prefetch_filters_step(struct prefetch_filters *filters, uint32_t max);
void prefetch_filters_done(struct prefetch_filters *filters); /* lists keep what they need */

/* By its extension, as torchvision does (IMG_EXTENSIONS of datasets/folder.py), whatever its case. */
bool prefetch_list_is_image(const char *name, uint32_t len);

enum prefetch_list_sort {
	PREFETCH_SORT_WALK,
	PREFETCH_SORT_ID,
	PREFETCH_SORT_PATH,
	PREFETCH_SORT_NAME,
	PREFETCH_SORT_GIVEN
};

/* A list that somebody else holds, such as a rank's part of a view. */
struct prefetch_list_given {
	const char *name; /* for people: "this rank's view"; copied */
	uint32_t n;
	void *user; /* outlives the list */
	int (*at)(void *user, uint32_t i, uint32_t *ret_file);
	int (*find)(void *user, uint32_t file, uint32_t *ret_index); /* -ENOENT when it is not in the list */
};

struct prefetch_list; /* opaque, counted */

/* filters must be done with their pass.  -ENOENT when the list would be empty, -ENOMEM, index errors. */
int prefetch_list_new(const struct prefetch_filters *filters, uint32_t dir, enum prefetch_list_sort sort,
        enum prefetch_filter_kind filter, struct prefetch_list **ret_list);
int prefetch_list_new_given(const struct prefetch_list_given *given, struct prefetch_list **ret_list); /* -ENOMEM */
struct prefetch_list *prefetch_list_get(struct prefetch_list *list); /* another reference; returns list */
void prefetch_list_put(struct prefetch_list *list);                  /* NULL is fine */

uint32_t prefetch_list_size(const struct prefetch_list *list);
uint32_t prefetch_list_dir(const struct prefetch_list *list); /* SHARD_NONE for given ones */
/* What it was made of.  False for given ones. */
bool prefetch_list_kind(const struct prefetch_list *list, uint32_t *ret_sort, uint32_t *ret_filter);
bool prefetch_list_is_given(const struct prefetch_list *list);
/* i -> file and back.  -ERANGE; -ENOENT when the file is not in the list. */
int prefetch_list_at(const struct prefetch_list *list, uint32_t i, uint32_t *ret_file);
int prefetch_list_find(const struct prefetch_list *list, uint32_t file, uint32_t *ret_index);

/* True when both number the same files in the same way. */
bool prefetch_list_equal(const struct prefetch_list *a, const struct prefetch_list *b);

/* "images of train/ as ImageFolder lists them".  Cut to size; returns buf. */
const char *prefetch_list_describe(const struct prefetch_list *list, char *buf, size_t size);

uint64_t prefetch_list_bytes(const struct prefetch_list *list); /* memory without the shared filter */

#endif
