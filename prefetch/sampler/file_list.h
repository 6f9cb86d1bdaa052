/* SPDX-License-Identifier: Apache-2.0 */
/* Lists: how a trainer numbers the files that it found, file <-> index.
 *
 * A sampler draws indices.  What they mean depends on how the trainer's dataset object listed its files.  A list here
 * is one such numbering of one directory's subtree:
 *
 *   walk   torchvision's ImageFolder: classes (the subdirectories) by name, in each the directories of os.walk by path,
 *          in each the files by name; no files beside the classes
 *   id     the order of file ids: components compared one by one, a directory's files before its subdirectories
 *          (os.walk over a mount that lists in id order)
 *   path   sorted(glob()), recursive: whole paths compared as strings, where "a-b/x" < "a/x" < "a0/x"
 *   name   by the last component alone, over all directories; equal names in the order of ids (DLIO)
 *
 * Each is over all files, the dealt ones, those with an extension of torchvision's IMG_EXTENSIONS, or those with one
 * suffix.  A list is stored as runs of neighbouring file ids, in list order, and a filter.  A filter has one bit a
 * file, and all lists of a dataset share it.  at() and find() take O(log runs), and a run is mostly a directory.  A
 * list by name has no runs: it takes 8 bytes a file.
 *
 * Threads: lists and complete filters are immutable and have reference counts: any thread may read them. */
#ifndef DDPFS_PREFETCH_SAMPLER_FILE_LIST_H
#define DDPFS_PREFETCH_SAMPLER_FILE_LIST_H

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
struct prefetch_filter; /* opaque: one bit for each file of the dataset */

/* All four filters of a dataset, made together in one pass over its files. */
struct prefetch_filters {
	const struct shard_index *index; /* not owned */
	const struct shard_view *shown;  /* NULL, or the view that leaves samples out of all filters; not owned */
	char suffix[PREFETCH_SUFFIX_MAX + 1];
	uint32_t next, end; /* the pass's next file, and the one before which it ends: then the filters are complete */
	struct prefetch_filter *filters[PREFETCH_FILTER_KINDS];
};

/* Begins the pass.  suffix: ".jpg", for example, or "": then that filter is empty.  Returns 0 or -ENOMEM. */
int prefetch_filters_init(struct prefetch_filters *filters, const struct shard_index *index,
        const struct shard_view *shown, const char *suffix);
/* Restricts a pass that has not begun to the files below a directory: no list of another directory may be made then.
 * Returns 0 or index errors. */
int prefetch_filters_below(struct prefetch_filters *filters, uint32_t dir);
/* Takes in the next files, at most `max`.  Returns 1: there is more to do; 0: done; index errors. */
int prefetch_filters_step(struct prefetch_filters *filters, uint32_t max);
/* Frees the filters; lists keep references to theirs. */
void prefetch_filters_done(struct prefetch_filters *filters);

/* Returns whether a name has an image's extension, in any case, as in torchvision (IMG_EXTENSIONS of
 * datasets/folder.py).  len: bytes of `name`. */
bool prefetch_list_is_image(const char *name, uint32_t len);

enum prefetch_list_sort {
	PREFETCH_SORT_WALK,
	PREFETCH_SORT_ID,
	PREFETCH_SORT_PATH,
	PREFETCH_SORT_NAME,
	PREFETCH_SORT_GIVEN
};

/* A rank's part of another list: n files, every `stride`-th from index `start` on. */
struct prefetch_list_part {
	uint32_t start, stride, n; /* stride and n >= 1 */
};

/* A list that the caller holds, such as a rank's part of a view. */
struct prefetch_list_given {
	const char *name; /* for people: "this rank's view"; copied */
	uint32_t n;
	void *user; /* outlives the list */
	int (*at)(void *user, uint32_t i, uint32_t *ret_file);
	int (*find)(void *user, uint32_t file, uint32_t *ret_index); /* -ENOENT: it is not in the list */
};

struct prefetch_list; /* opaque, with a reference count */

/* Makes the list of directory `dir`'s subtree, with one reference.  The pass of `filters` must be done.
 * Returns 0; -ENOENT: the list would be empty; -ENOMEM; index errors. */
int prefetch_list_new(const struct prefetch_filters *filters, uint32_t dir, enum prefetch_list_sort sort,
        enum prefetch_filter_kind filter, struct prefetch_list **ret_list);

/* Makes a list that calls `given`.  Returns 0 or -ENOMEM. */
int prefetch_list_new_given(const struct prefetch_list_given *given, struct prefetch_list **ret_list);

/* Makes the list of a part, and takes a reference of `whole`.  Returns 0; -EINVAL: the part is not inside the list, or
 * `whole` is a part itself; -ENOMEM. */
int prefetch_list_new_part(
        struct prefetch_list *whole, const struct prefetch_list_part *part, struct prefetch_list **ret_list);

/* Returns the list that `list` is a part of, or NULL: it is a whole list. */
struct prefetch_list *prefetch_list_whole(const struct prefetch_list *list);

/* Gets the part that a list is.  Returns false: it is a whole list. */
bool prefetch_list_part(const struct prefetch_list *list, struct prefetch_list_part *ret_part);

struct prefetch_list *prefetch_list_get(struct prefetch_list *list); /* another reference; returns list */
void prefetch_list_put(struct prefetch_list *list);                  /* NULL is fine */

uint32_t prefetch_list_size(const struct prefetch_list *list); /* files */
uint32_t prefetch_list_dir(const struct prefetch_list *list);  /* SHARD_NONE for given ones */
/* Gets what a list was made of; for a part: what the whole list was made of.  Returns false for a list of given
 * files. */
bool prefetch_list_kind(const struct prefetch_list *list, uint32_t *ret_sort, uint32_t *ret_filter);
bool prefetch_list_is_given(const struct prefetch_list *list);

/* i -> file and back.  Return 0; -ERANGE: i is not below the size; -ENOENT: the file is not in the list; errors of
 * given lists. */
int prefetch_list_at(const struct prefetch_list *list, uint32_t i, uint32_t *ret_file);
int prefetch_list_find(const struct prefetch_list *list, uint32_t file, uint32_t *ret_index);

/* Returns whether both number the same files in the same way. */
bool prefetch_list_equal(const struct prefetch_list *a, const struct prefetch_list *b);

/* Writes what the list is: "images of train/ as ImageFolder lists them".  Cuts it to `size` bytes.  Returns buf. */
const char *prefetch_list_describe(const struct prefetch_list *list, char *buf, size_t size);

/* Returns its memory in bytes, without the shared filter. */
uint64_t prefetch_list_bytes(const struct prefetch_list *list);

#endif
