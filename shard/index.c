/* SPDX-License-Identifier: Apache-2.0 */
/* Opens an index and reads its records, names and samples, each checked; shard/index.h first. */
#include "shard/index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/index_private.h"
#include "shard/remote/index_copy.h"
#include "shard/remote/store.h"
#include "shard/unfinished.h"

static bool bit_get(const _Atomic uint64_t *bits, uint64_t i)
{
	return atomic_load_explicit(&bits[i / 64], memory_order_relaxed) >> (i % 64) & 1;
}

/* Returns the sum of the piece at `begin`: SHARD_SUM_BLOCK bytes, or fewer if `end` comes first. */
static uint64_t region_sum(const struct shard_index *index, uint64_t begin, uint64_t end)
{
	uint64_t len = end - begin < SHARD_SUM_BLOCK ? end - begin : SHARD_SUM_BLOCK;
	/* The mapping has MADV_RANDOM, so the kernel does not read ahead.  This makes it read the whole piece at
	 * once. */
	if (index->mapping)
		madvise(index->mapping + begin, len, MADV_WILLNEED);
	return XXH3_64bits(index->map + begin, len);
}

/* Copies a part of L0 and verifies the copy, because the file may change at any time. */
static int copy_l0(const struct shard_index *index, uint64_t part)
{
	uint64_t begin = index_section(index, SHARD_SEC_L0)->offset + part * SHARD_SUM_BLOCK;
	uint64_t left = index_section(index, SHARD_SEC_L1)->offset - begin;
	uint64_t len = left < SHARD_SUM_BLOCK ? left : SHARD_SUM_BLOCK;
	uint64_t *none = NULL, *copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, index->map + begin, len);
	bool right = XXH3_64bits(copy, len) == index->l1[part];
	if (!right || !atomic_compare_exchange_strong(&index->l0[part], &none, copy))
		free(copy); /* it is damaged, or another thread has stored its copy */
	return right ? 0 : -EBADMSG;
}

int index_check_l0(const struct shard_index *index, uint64_t part)
{
	const struct shard_section_rec *l0 = index_section(index, SHARD_SEC_L0),
	                               *l1 = index_section(index, SHARD_SEC_L1);
	if (!atomic_load(&index->l0[part]))
		return copy_l0(index, part);
	return region_sum(index, l0->offset + part * SHARD_SUM_BLOCK, l1->offset) == index->l1[part] ? 0 : -EBADMSG;
}

/* Compares a piece with its sum.  The copy of that part of L0 exists. */
static int compare_block(const struct shard_index *index, uint64_t block)
{
	enum { SUMS = SHARD_SUM_BLOCK / sizeof(uint64_t) };
	uint64_t sum = atomic_load(&index->l0[block / SUMS])[block % SUMS];
	uint64_t end = index_section(index, SHARD_SEC_L0)->offset;
	return region_sum(index, SHARD_PAGE + block * SHARD_SUM_BLOCK, end) == sum ? 0 : -EBADMSG;
}

int index_check_block(const struct shard_index *index, uint64_t block)
{
	uint64_t part = block / (SHARD_SUM_BLOCK / sizeof(uint64_t)), rounds;
	int r = atomic_load(&index->l0[part]) ? 0 : copy_l0(index, part);
	do {
		rounds = index_change_rounds(index->change);
		if (r == 0)
			r = compare_block(index, block);
		if (r < 0)
			return r;
	} while (!index_change_mark(index->change, rounds, index->block_ok, block));
	return 0;
}

int index_check_marked(const struct shard_index *index)
{
	uint64_t words = index_section(index, SHARD_SEC_L0)->length_bytes / 8 / 64 + 1, n = 0;
	for (uint64_t word = 0; word < words; word++) {
		uint64_t bits = atomic_load(&index->block_ok[word]);
		for (; bits; bits &= bits - 1, n++) {
			if (compare_block(index, word * 64 + (uint64_t)__builtin_ctzll(bits)) < 0)
				return -EBADMSG;
		}
		if (n >= 256) { /* after 16 MiB, so that a large index does not fill the memory of the process */
			shard_index_release_pages(index);
			n = 0;
		}
	}
	return 0;
}

int index_touch(const struct shard_index *index, enum shard_section section, uint64_t offset, uint64_t length)
{
	const struct shard_section_rec *s = index_section(index, section);
	if (offset > s->length_bytes || length > s->length_bytes - offset)
		return -EUCLEAN;
	if (length == 0)
		return 0;
	if (index_change_is_stale(index->change))
		return -ESTALE;

	uint64_t first = (s->offset + offset - SHARD_PAGE) / SHARD_SUM_BLOCK;
	uint64_t last = (s->offset + offset + length - 1 - SHARD_PAGE) / SHARD_SUM_BLOCK;
	for (uint64_t block = first; block <= last; block++) {
		if (bit_get(index->block_ok, block))
			continue;
		int r = index_check_block(index, block);
		if (r < 0)
			return r;
	}
	return 0;
}

int index_load(const struct shard_index *index, enum shard_section section, uint64_t i, size_t size, void *ret)
{
	/* No overflow: i counts 32-bit ids, members, buckets or block sums, and size is at most 64. */
	int r = index_touch(index, section, i * size, size);
	if (r < 0)
		return r;
	memcpy(ret, index->map + index_section(index, section)->offset + i * size, size);
	/* The caller uses the copy: the compiler must not read the mapping again. */
	__asm__ volatile("" ::: "memory");
	return 0;
}

static int load_u32(const struct shard_index *index, enum shard_section section, uint64_t i, uint32_t *ret)
{
	return index_load(index, section, i, sizeof *ret, ret);
}

/* ------------------------------------------------------------------------------------------------ opening */

/* Checks the counts of the header against the lengths of the sections. */
static int check_lengths(const struct shard_header *h)
{
	const struct shard_section_rec *s = h->sections;
	bool grouped = h->incompat & SHARD_INCOMPAT_GROUPED;
	uint64_t samples = (uint64_t)h->n_samples * 4;

	bool ok = s[SHARD_SEC_FILES].length_bytes == (uint64_t)h->n_files * sizeof(struct shard_file_rec) &&
	          s[SHARD_SEC_DIRS].length_bytes == (uint64_t)h->n_dirs * sizeof(struct shard_dir_rec) &&
	          s[SHARD_SEC_SHARDS].length_bytes == (uint64_t)h->n_shards * sizeof(struct shard_shard_rec) &&
	          s[SHARD_SEC_NAMES].length_bytes <= UINT64_C(1) << 40 &&
	          s[SHARD_SEC_FILE_TABLE].length_bytes / 4 == h->file_buckets &&
	          s[SHARD_SEC_FILE_TABLE].length_bytes % 4 == 0 &&
	          s[SHARD_SEC_FILE_TAGS].length_bytes == h->file_buckets && h->file_buckets > h->n_files &&
	          s[SHARD_SEC_DIR_TABLE].length_bytes / 4 == h->dir_buckets &&
	          s[SHARD_SEC_DIR_TABLE].length_bytes % 4 == 0 &&
	          s[SHARD_SEC_DIR_TAGS].length_bytes == h->dir_buckets && h->dir_buckets > h->n_dirs &&
	          (s[SHARD_SEC_SLOTS].length_bytes == 0 || s[SHARD_SEC_SLOTS].length_bytes == samples) &&
	          s[SHARD_SEC_BIG].length_bytes % sizeof(struct shard_big_rec) == 0 &&
	          s[SHARD_SEC_BIG].length_bytes / sizeof(struct shard_big_rec) <= h->n_files &&
	          s[SHARD_SEC_BLOCK_SUMS].length_bytes % 8 == 0;
	if (grouped)
		ok = ok && s[SHARD_SEC_SAMPLE_FILE].length_bytes == 0 &&
		     s[SHARD_SEC_SAMPLE_FIRST].length_bytes == samples + 4 &&
		     s[SHARD_SEC_MEMBERS].length_bytes % 4 == 0 && s[SHARD_SEC_MEMBERS].length_bytes / 4 <= h->n_files;
	else
		ok = ok &&
		     (s[SHARD_SEC_SAMPLE_FILE].length_bytes == 0 || s[SHARD_SEC_SAMPLE_FILE].length_bytes == samples) &&
		     s[SHARD_SEC_SAMPLE_FIRST].length_bytes == 0 && s[SHARD_SEC_MEMBERS].length_bytes == 0;
	return ok ? 0 : -EUCLEAN;
}

/* Checks that the sections follow each other and fill the file. */
static int check_sections(const struct shard_header *h)
{
	const struct shard_section_rec *s = h->sections;
	uint64_t at = SHARD_PAGE;
	for (int i = 0; i < SHARD_SEC_COUNT; i++) {
		if (s[i].offset != at || s[i].length_bytes > h->file_bytes - at)
			return -EUCLEAN;
		at += s[i].length_bytes;
		if (i == SHARD_SEC_L1)
			break;
		at += -at & (SHARD_PAGE - 1);
		if (at > h->file_bytes)
			return -EUCLEAN;
	}
	uint64_t data = s[SHARD_SEC_L0].offset - SHARD_PAGE, l0 = s[SHARD_SEC_L1].offset - s[SHARD_SEC_L0].offset;
	if (at != h->file_bytes || s[SHARD_SEC_L0].length_bytes != shard_units(data, SHARD_SUM_BLOCK) * 8 ||
	        s[SHARD_SEC_L1].length_bytes != shard_units(l0, SHARD_SUM_BLOCK) * 8)
		return -EUCLEAN;
	return 0;
}

static bool is_zero(const uint8_t *p, size_t n)
{
	uint8_t any = 0;
	for (size_t i = 0; i < n; i++)
		any |= p[i];
	return any == 0;
}

static int check_header(const struct shard_header *h, uint64_t file_bytes, const char *path, struct base_err *err)
{
	if (memcmp(h->magic, SHARD_MAGIC, sizeof h->magic) != 0)
		return base_err_set(
		        err, -EUCLEAN, "'%s': not a ddpfs index (it does not begin with %s)", path, SHARD_MAGIC);
	if (XXH3_64bits(h, offsetof(struct shard_header, header_sum)) != h->header_sum)
		return base_err_set(err, -EBADMSG,
		        "'%s': the header's checksum does not match: the index is damaged; " SHARD_INDEX_ADVICE, path);
	if (h->version != SHARD_VERSION || (h->incompat & ~(uint64_t)SHARD_INCOMPAT_GROUPED))
		return base_err_set(err, -EPROTONOSUPPORT,
		        "'%s': format version %u with features %#llx; this ddpfs reads version %d with features %#x: "
		        "use a newer one",
		        path, h->version, (unsigned long long)h->incompat, SHARD_VERSION, SHARD_INCOMPAT_GROUPED);
	if (h->file_bytes != file_bytes)
		return base_err_set(err, -EUCLEAN,
		        "'%s': has %llu bytes, its header says %llu: the file is %s; copy it again or rebuild it with "
		        "'mkshard "
		        "index'",
		        path, (unsigned long long)file_bytes, (unsigned long long)h->file_bytes,
		        file_bytes < h->file_bytes ? "truncated" : "longer than it was written");
	if (h->header_bytes != SHARD_PAGE || h->n_files > SHARD_FILES_MAX || h->n_dirs < 1 ||
	        h->n_dirs > SHARD_FILES_MAX || h->n_samples > h->n_files || h->n_shards > SHARD_SHARDS_MAX ||
	        !is_zero(h->reserved, sizeof h->reserved) || check_sections(h) < 0 || check_lengths(h) < 0)
		return base_err_set(err, -EUCLEAN, "'%s': the header contradicts itself: not written by mkshard", path);
	return 0;
}

static void fill_info(struct shard_index *index)
{
	const struct shard_header *h = &index->header;
	index->info = (struct shard_info){
		.version = h->version,
		.n_files = h->n_files,
		.n_samples = h->n_samples,
		.n_dirs = h->n_dirs,
		.n_shards = h->n_shards,
		.content_bytes = h->content_bytes,
		.index_bytes = h->file_bytes,
		.pack_seed = h->pack_seed,
		.shuffled = h->compat & SHARD_COMPAT_SHUFFLED,
		.grouped = h->incompat & SHARD_INCOMPAT_GROUPED,
	};
	memcpy(index->info.identity, h->identity, sizeof h->identity);
	index->n_big = h->sections[SHARD_SEC_BIG].length_bytes / sizeof(struct shard_big_rec);
	index->n_block_sums = h->sections[SHARD_SEC_BLOCK_SUMS].length_bytes / 8;
	index->n_members = h->sections[SHARD_SEC_MEMBERS].length_bytes / 4;
}

int index_attach(struct shard_index *index, const uint8_t *bytes, uint64_t len, struct base_err *err)
{
	const char *path = index->path;
	if (len < SHARD_PAGE)
		return base_err_set(err, -EUCLEAN,
		        "'%s': %llu bytes are no index: empty or truncated; " SHARD_INDEX_ADVICE, path,
		        (unsigned long long)len);
	memcpy(&index->header, bytes, sizeof index->header);
	int r = check_header(&index->header, len, path, err);
	if (r < 0)
		return r;
	fill_info(index);

	const struct shard_section_rec *l0 = index_section(index, SHARD_SEC_L0),
	                               *l1 = index_section(index, SHARD_SEC_L1);
	uint64_t blocks = l0->length_bytes / 8, parts = l1->length_bytes / 8;
	index->l1 = malloc(l1->length_bytes ? l1->length_bytes : 1);
	index->n_l0 = parts;
	index->l0 = calloc(parts + 1, sizeof *index->l0);
	index->block_ok = calloc(blocks / 64 + 1, sizeof *index->block_ok);
	if (!index->l1 || !index->l0 || !index->block_ok)
		return base_err_set(err, -ENOMEM, "'%s': out of memory", path);
	memcpy(index->l1, bytes + l1->offset, l1->length_bytes);
	if (XXH3_64bits(index->l1, l1->length_bytes) != index->header.l1_sum)
		return base_err_set(err, -EBADMSG,
		        "'%s': the checksum of its sums does not match: the index is damaged; " SHARD_INDEX_ADVICE,
		        path);
	index->map = bytes;
	return 0;
}

static int map_file(struct shard_index *index, int *fd, struct base_err *err)
{
	struct stat st;
	if (fstat(*fd, &st) < 0) {
		int code = -errno;
		return base_err_set(err, code, "'%s': %s", index->path, base_err_str(code));
	}
	if (!S_ISREG(st.st_mode))
		return base_err_set(err, -EUCLEAN, "'%s': not a regular file", index->path);
	if (st.st_size < SHARD_PAGE) /* mmap(2) refuses a length of 0, with a worse message */
		return index_attach(index, (const uint8_t *)"", (uint64_t)st.st_size, err);

	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, *fd, 0);
	if (map == MAP_FAILED) {
		int code = -errno;
		return base_err_set(err, code, "'%s': cannot map %lld bytes: %s", index->path, (long long)st.st_size,
		        base_err_str(code));
	}
	index->mapping = map;
	index->mapping_bytes = (size_t)st.st_size;
	madvise(map, index->mapping_bytes, MADV_RANDOM);
	int r = index_change_new(*fd, &st, &index->change);
	if (r < 0)
		return base_err_set(err, r, "'%s': out of memory", index->path);
	*fd = -1; /* now owned by `change` */
	index_change_watch_faults(index->change, index->mapping, index->mapping_bytes);
	return index_attach(index, map, (uint64_t)st.st_size, err);
}

static bool has_tars(const char *path)
{
	cleanup_closedir DIR *dir = opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		size_t len = strlen(entry->d_name);
		if (len > 4 && strcmp(entry->d_name + len - 4, ".tar") == 0)
			return true;
	}
	return false;
}

/* Opens the index file; sets its path for messages, and the directory to which the paths of shards are relative. */
static int locate(const char *dataset, struct base_err *err, struct shard_index *index, int *ret_fd)
{
	char quoted[512];
	base_err_quote(dataset, quoted, sizeof quoted);
	struct stat st;
	if (stat(dataset, &st) < 0) {
		int code = -errno;
		if (code == -ENOENT && remote_check_kind(dataset, err) < 0)
			return code;
		return base_err_set(err, code, "'%s': %s; a dataset is a directory made by 'mkshard pack'", quoted,
		        base_err_str(code));
	}

	bool is_dir = S_ISDIR(st.st_mode);
	cleanup_free char *path = NULL;
	if ((is_dir ? asprintf(&path, "%s/%s", dataset, SHARD_INDEX_NAME) : asprintf(&path, "%s", dataset)) < 0) {
		path = NULL;
		return base_err_set(err, -ENOMEM, "'%s': out of memory", quoted);
	}
	/* O_NONBLOCK: a FIFO of that name must not block the mount */
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int open_error = fd < 0 ? errno : 0;
	if (open_error == ENOENT && is_dir && shard_unfinished_check(dataset, err) < 0)
		return -ENOENT;
	if (open_error == ENOENT && is_dir && has_tars(dataset))
		return base_err_set(err, -ENOENT,
		        "'%s': no %s in it: not a dataset yet; 'mkshard index %s' makes one of the tar files in it",
		        quoted, SHARD_INDEX_NAME, quoted);
	if (open_error == ENOENT)
		return base_err_set(err, -ENOENT, "'%s': no %s in it: not a dataset; make one with 'mkshard pack'",
		        quoted, SHARD_INDEX_NAME);
	if (fd < 0)
		return base_err_set(err, -open_error, "'%s': cannot open the index: %s%s", quoted,
		        base_err_str(-open_error),
		        open_error == EACCES ? "; whoever mounts it must be allowed to read " SHARD_INDEX_NAME
		                               " and the shards"
		                             : "");

	cleanup_free char *real = realpath(path, NULL);
	cleanup_free char *real_dir = is_dir ? realpath(dataset, NULL) : NULL;
	if (!real || (is_dir && !real_dir)) {
		int code = -errno;
		return base_err_set(err, code, "'%s': %s", quoted, base_err_str(code));
	}
	if (!is_dir) {
		real_dir = strdup(real);
		if (!real_dir)
			return base_err_set(err, -ENOMEM, "'%s': out of memory", quoted);
		char *slash = strrchr(real_dir, '/');
		slash[slash == real_dir] = '\0';
	}
	char *shown = malloc(1024);
	if (!shown)
		return base_err_set(err, -ENOMEM, "'%s': out of memory", quoted);
	base_err_quote(path, shown, 1024);
	index->path = shown;
	index->dataset = steal_ptr(&real_dir);
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* Checks a file for remote_index_open: what opening an index checks, or that and every sum. */
static int check_copy(int fd, const char *name, bool whole, struct base_err *err)
{
	struct shard_index *index = calloc(1, sizeof *index);
	if (!index || !(index->path = strdup(name))) {
		free(index);
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	cleanup_close int own = fcntl(fd, F_DUPFD_CLOEXEC, 0); /* map_file takes it */
	int rc = own < 0 ? base_err_set(err, -errno, "'%s': %s", name, base_err_str(-errno))
	                 : map_file(index, &own, err);
	if (rc == 0 && whole)
		rc = index_verify_sums(index, err);
	shard_index_close(index);
	return rc;
}

/* The same for a dataset in a store. */
static int locate_remote(const char *dataset, bool again, struct base_err *err, struct shard_index *index, int *ret_fd)
{
	cleanup_free char *name = strdup(dataset);
	if (!name)
		return base_err_set(err, -ENOMEM, "out of memory");
	size_t len = strlen(name);
	const char *object = SHARD_INDEX_NAME;
	char *slash = strrchr(name, '/');
	if (len > 6 && strcmp(name + len - 6, ".ddpfs") == 0 && slash && slash[-1] != '/') { /* the index itself */
		*slash = 0;
		object = slash + 1;
	}
	int rc = remote_store_open(name, err, &index->store);
	if (rc == 0)
		rc = remote_index_open(index->store,
		        &(struct remote_index_want){ .object = object, .again = again, .check = check_copy }, err,
		        &index->path, ret_fd);
	if (rc < 0)
		return rc;
	index->dataset = strdup(remote_store_name(index->store));
	return index->dataset ? 0 : base_err_set(err, -ENOMEM, "out of memory");
}

int shard_index_open(const char *dataset, struct base_err *err, struct shard_index **ret_index)
{
	return shard_index_open_with(dataset, NULL, err, ret_index);
}

static int open_index(
        const char *dataset, const char *index_file, bool again, struct base_err *err, struct shard_index **ret_index)
{
	if (index_file && !*index_file)
		return base_err_set(
		        err, -EINVAL, "the name of the index is empty: name a file, or leave the option out");
	struct shard_index *index = calloc(1, sizeof *index);
	if (!index)
		return base_err_set(err, -ENOMEM, "out of memory");
	cleanup_close int fd = -1;
	int r = index_file               ? index_locate_separate(dataset, index_file, err, index, &fd)
	        : remote_is_url(dataset) ? locate_remote(dataset, again, err, index, &fd)
	                                 : locate(dataset, err, index, &fd);
	if (r == 0)
		r = map_file(index, &fd, err);
	if (r < 0) {
		shard_index_close(index);
		return r;
	}
	*ret_index = index;
	return 0;
}

int shard_index_open_with(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index)
{
	return open_index(dataset, index_file, false, err, ret_index);
}

int shard_index_open_again(
        const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index)
{
	return open_index(dataset, index_file, true, err, ret_index);
}

void shard_index_close(struct shard_index *index)
{
	if (!index)
		return;
	index_change_free(index->change); /* before the mapping, whose address another index may get */
	if (index->mapping)
		munmap(index->mapping, index->mapping_bytes);
	free(index->l1);
	for (uint64_t i = 0; i < index->n_l0 && index->l0; i++)
		free(atomic_load(&index->l0[i]));
	free((void *)(uintptr_t)index->l0);
	free((void *)(uintptr_t)index->block_ok);
	remote_store_close(index->store);
	free(index->path);
	free(index->dataset);
	free(index->separate);
	free(index);
}

const struct shard_info *shard_index_info(const struct shard_index *index)
{
	return &index->info;
}

const char *shard_index_dataset(const struct shard_index *index)
{
	return index->dataset;
}

struct remote_store *shard_index_store(const struct shard_index *index)
{
	return index->store;
}

const char *shard_index_path(const struct shard_index *index)
{
	return index->path;
}

const char *shard_index_advice(const struct shard_index *index)
{
	return index->store && !index->separate
	               ? "the file is this host's copy of the index: remove it, and it is fetched again"
	               : SHARD_INDEX_ADVICE;
}

void shard_index_release_pages(const struct shard_index *index)
{
	if (index->mapping)
		madvise(index->mapping, index->mapping_bytes, MADV_DONTNEED);
}

/* ------------------------------------------------------------------------------------------------ records */

int index_name(const struct shard_index *index, uint64_t offset, uint32_t length, const char **ret_name)
{
	int r = index_touch(index, SHARD_SEC_NAMES, offset, length);
	if (r < 0)
		return r;
	const char *name = (const char *)index->map + index_section(index, SHARD_SEC_NAMES)->offset + offset;
	if (length == 0 || memchr(name, '/', length) || memchr(name, '\0', length) ||
	        (name[0] == '.' && (length == 1 || (length == 2 && name[1] == '.'))))
		return -EUCLEAN;
	*ret_name = name;
	return 0;
}

/* Copies a file record and checks the range of every field.  Does not read the bytes of the name. */
static int load_file(const struct shard_index *index, uint32_t file, struct shard_file_rec *ret_rec)
{
	struct shard_file_rec rec;
	int r = index_load(index, SHARD_SEC_FILES, file, sizeof rec, &rec);
	if (r < 0)
		return r;

	bool common = rec.offset_mode & SHARD_REC_COMMON;
	bool ids_ok = common ? rec.sample == SHARD_NONE && rec.slot == SHARD_NONE
	                     : rec.sample < index->info.n_samples && rec.slot < index->info.n_samples;
	if (!ids_ok || rec.dir >= index->info.n_dirs || shard_rec_shard(&rec) >= index->info.n_shards ||
	        rec.offset_mode >> 61 || (shard_rec_mode(&rec) & ~01777U))
		return -EUCLEAN;
	*ret_rec = rec;
	return 0;
}

void shard_index_hint_record(const struct shard_index *index, uint32_t file)
{
	const struct shard_section_rec *s = index_section(index, SHARD_SEC_FILES);
	if (file < index->info.n_files)
		__builtin_prefetch(index->map + s->offset + (uint64_t)file * sizeof(struct shard_file_rec));
}

void shard_index_hint_name(const struct shard_index *index, uint32_t file)
{
	const struct shard_section_rec *s = index_section(index, SHARD_SEC_FILES);
	const struct shard_section_rec *names = index_section(index, SHARD_SEC_NAMES);
	struct shard_file_rec rec;
	if (file >= index->info.n_files)
		return;
	/* The record is not verified, so it is used for a hint only. */
	memcpy(&rec, index->map + s->offset + (uint64_t)file * sizeof(rec), sizeof(rec));
	if (shard_rec_name(&rec) < names->length_bytes)
		__builtin_prefetch(index->map + names->offset + shard_rec_name(&rec));
}

int shard_index_place(const struct shard_index *index, uint32_t file, struct shard_place *ret_place)
{
	struct shard_file_rec rec;
	if (file >= index->info.n_files)
		return -EINVAL;
	int r = load_file(index, file, &rec);
	if (r < 0)
		return r;
	*ret_place = (struct shard_place){
		.offset = shard_rec_offset(&rec),
		.length = shard_rec_length(&rec),
		.xxh3 = rec.xxh3,
		.shard = shard_rec_shard(&rec),
		.sample = rec.sample,
	};
	return 0;
}

int shard_index_file(const struct shard_index *index, uint32_t file, struct shard_file *ret_file)
{
	struct shard_file_rec rec;
	const char *name;
	if (file >= index->info.n_files)
		return -EINVAL;
	int r = load_file(index, file, &rec);
	if (r == 0)
		r = index_name(index, shard_rec_name(&rec), shard_rec_name_len(&rec), &name);
	if (r < 0)
		return r;
	*ret_file = (struct shard_file){
		.offset = shard_rec_offset(&rec),
		.length = shard_rec_length(&rec),
		.xxh3 = rec.xxh3,
		.mtime_s = shard_rec_mtime(&rec),
		.name = name,
		.name_len = shard_rec_name_len(&rec),
		.mode = shard_rec_mode(&rec),
		.shard = shard_rec_shard(&rec),
		.dir = rec.dir,
		.sample = rec.sample,
		.slot = rec.slot,
		.common = rec.offset_mode & SHARD_REC_COMMON,
	};
	return 0;
}

int index_dir_rec(const struct shard_index *index, uint32_t dir, struct shard_dir_rec *ret_rec)
{
	struct shard_dir_rec rec;
	int r = index_load(index, SHARD_SEC_DIRS, dir, sizeof rec, &rec);
	if (r < 0)
		return r;

	bool parent_ok =
	        dir == 0 ? rec.parent == SHARD_NONE && rec.name_len == 0 : rec.parent < dir && rec.name_len > 0;
	bool files_ok = rec.end_file <= index->info.n_files && rec.first_file <= rec.end_file &&
	                rec.n_files <= rec.end_file - rec.first_file;
	if (!parent_ok || !files_ok || rec.end_dir <= dir || rec.end_dir > index->info.n_dirs ||
	        rec.n_dirs > rec.end_dir - dir - 1 || (rec.mode & ~01777U) || rec.reserved)
		return -EUCLEAN;
	*ret_rec = rec;
	return 0;
}

int shard_index_dir(const struct shard_index *index, uint32_t dir, struct shard_dir *ret_dir)
{
	struct shard_dir_rec rec;
	const char *name = "";
	if (dir >= index->info.n_dirs)
		return -EINVAL;
	int r = index_dir_rec(index, dir, &rec);
	if (r == 0 && dir > 0)
		r = index_name(index, shard_dir_name(&rec), rec.name_len, &name);
	if (r < 0)
		return r;
	*ret_dir = (struct shard_dir){
		.name = name,
		.name_len = rec.name_len,
		.parent = rec.parent,
		.end_dir = rec.end_dir,
		.first_file = rec.first_file,
		.n_files = rec.n_files,
		.end_file = rec.end_file,
		.n_dirs = rec.n_dirs,
		.mode = rec.mode,
		.mtime_s = rec.mtime_s,
	};
	return 0;
}

int shard_index_shard(const struct shard_index *index, uint32_t shard, struct shard_shard *ret_shard)
{
	struct shard_shard_rec rec;
	if (shard >= index->info.n_shards)
		return -EINVAL;
	int r = index_load(index, SHARD_SEC_SHARDS, shard, sizeof rec, &rec);
	if (r < 0)
		return r;
	if (rec.container > SHARD_BARE || !is_zero(rec.reserved, sizeof rec.reserved) || rec.name_len == 0 ||
	        rec.name_len > SHARD_PATH_MAX || rec.size_bytes > SHARD_FILE_BYTES_MAX + 1)
		return -EUCLEAN;
	r = index_touch(index, SHARD_SEC_NAMES, rec.name_off, rec.name_len);
	if (r < 0)
		return r;
	const char *path = (const char *)index->map + index_section(index, SHARD_SEC_NAMES)->offset + rec.name_off;
	if (memchr(path, '\0', rec.name_len))
		return -EUCLEAN;
	*ret_shard = (struct shard_shard){
		.path = path,
		.path_len = rec.name_len,
		.n_files = rec.n_files,
		.size_bytes = rec.size_bytes,
		.mtime_ns = rec.mtime_ns,
		.container = (enum shard_container)rec.container,
	};
	return 0;
}

/* ------------------------------------------------------------------------------------------------ names */

/* Compares entry `id` of a table with the name that is searched for. */
static int entry_matches(const struct shard_index *index, enum shard_kind kind, uint32_t id, uint32_t parent,
        const char *name, size_t len, bool *ret_match)
{
	uint64_t name_off;
	uint32_t its_parent, its_len;
	if (kind == SHARD_KIND_FILE) {
		struct shard_file_rec rec;
		if (id >= index->info.n_files)
			return -EUCLEAN;
		int r = load_file(index, id, &rec);
		if (r < 0)
			return r;
		name_off = shard_rec_name(&rec);
		its_len = shard_rec_name_len(&rec);
		its_parent = rec.dir;
	} else {
		struct shard_dir_rec rec;
		if (id == 0 || id >= index->info.n_dirs)
			return -EUCLEAN;
		int r = index_dir_rec(index, id, &rec);
		if (r < 0)
			return r;
		name_off = shard_dir_name(&rec);
		its_len = rec.name_len;
		its_parent = rec.parent;
	}

	*ret_match = false;
	if (its_parent != parent || its_len != len)
		return 0;
	const char *its_name;
	int r = index_name(index, name_off, its_len, &its_name);
	if (r < 0)
		return r;
	*ret_match = memcmp(its_name, name, len) == 0;
	return 0;
}

static int find(const struct shard_index *index, enum shard_kind kind, uint32_t parent, const char *name, size_t len,
        uint32_t *ret_id)
{
	bool files = kind == SHARD_KIND_FILE;
	enum shard_section ids = files ? SHARD_SEC_FILE_TABLE : SHARD_SEC_DIR_TABLE;
	enum shard_section tags = files ? SHARD_SEC_FILE_TAGS : SHARD_SEC_DIR_TAGS;
	uint64_t buckets = files ? index->header.file_buckets : index->header.dir_buckets;

	if (parent >= index->info.n_dirs)
		return -EINVAL;
	if (len == 0 || len > SHARD_NAME_MAX)
		return -ENOENT;

	uint64_t h = XXH3_64bits_withSeed(name, len, parent);
	uint64_t at = shard_hash_bucket(h, buckets);
	/* A table without an empty bucket, which a builder does not write, ends the search after one round. */
	for (uint64_t probes = 0; probes < buckets; probes++) {
		uint8_t tag;
		int r = index_load(index, tags, at, 1, &tag);
		if (r < 0)
			return r;
		if (tag == 0)
			return -ENOENT;
		if (tag == shard_hash_tag(h)) {
			uint32_t id;
			bool match = false;
			r = load_u32(index, ids, at, &id);
			if (r == 0)
				r = entry_matches(index, kind, id, parent, name, len, &match);
			if (r < 0)
				return r;
			if (match) {
				*ret_id = id;
				return 0;
			}
		}
		at = at + 1 == buckets ? 0 : at + 1;
	}
	return -EUCLEAN;
}

int shard_index_find_file(
        const struct shard_index *index, uint32_t dir, const char *name, size_t len, uint32_t *ret_file)
{
	return find(index, SHARD_KIND_FILE, dir, name, len, ret_file);
}

int shard_index_find_dir(
        const struct shard_index *index, uint32_t parent, const char *name, size_t len, uint32_t *ret_dir)
{
	return find(index, SHARD_KIND_DIR, parent, name, len, ret_dir);
}

int shard_index_find_path(
        const struct shard_index *index, const char *path, enum shard_kind *ret_kind, uint32_t *ret_id)
{
	uint32_t dir = 0;
	for (const char *s = path; *s;) {
		const char *end = strchrnul(s, '/');
		size_t len = (size_t)(end - s);
		const char *next = end;
		while (*next == '/')
			next++;
		if (len > 0 && !(len == 1 && s[0] == '.')) {
			int r = shard_index_find_dir(index, dir, s, len, &dir);
			if (r == -ENOENT) {
				uint32_t file;
				r = shard_index_find_file(index, dir, s, len, &file);
				if (r < 0)
					return r;
				if (*next)
					return -ENOTDIR;
				*ret_kind = SHARD_KIND_FILE;
				*ret_id = file;
				return 0;
			}
			if (r < 0)
				return r;
		}
		s = next;
	}
	*ret_kind = SHARD_KIND_DIR;
	*ret_id = dir;
	return 0;
}

/* A buffer that is filled from its end: names from the file up to the root. */
struct path_builder {
	char text[SHARD_PATH_MAX + 1];
	size_t at; /* text[at..] is the path so far */
};

static int path_prepend(struct path_builder *p, const char *name, uint32_t len)
{
	bool slash = p->at < SHARD_PATH_MAX;
	if (len + slash > p->at)
		return -EUCLEAN;
	if (slash)
		p->text[--p->at] = '/';
	p->at -= len;
	memcpy(p->text + p->at, name, len);
	return 0;
}

static int path_finish(
        const struct shard_index *index, struct path_builder *p, uint32_t dir, char *buf, size_t buf_size)
{
	while (dir != 0) {
		struct shard_dir d;
		int r = shard_index_dir(index, dir, &d);
		if (r == 0)
			r = path_prepend(p, d.name, d.name_len);
		if (r < 0)
			return r;
		dir = d.parent; /* smaller than dir, so the loop ends */
	}
	size_t len = SHARD_PATH_MAX - p->at;
	if (len >= buf_size)
		return -ERANGE;
	memcpy(buf, p->text + p->at, len);
	buf[len] = '\0';
	return (int)len;
}

int shard_index_file_path(const struct shard_index *index, uint32_t file, char *buf, size_t buf_size)
{
	struct path_builder p = { .at = SHARD_PATH_MAX };
	struct shard_file f;
	int r = shard_index_file(index, file, &f);
	if (r == 0)
		r = path_prepend(&p, f.name, f.name_len);
	return r < 0 ? r : path_finish(index, &p, f.dir, buf, buf_size);
}

int shard_index_dir_path(const struct shard_index *index, uint32_t dir, char *buf, size_t buf_size)
{
	struct path_builder p = { .at = SHARD_PATH_MAX };
	if (dir >= index->info.n_dirs)
		return -EINVAL;
	return path_finish(index, &p, dir, buf, buf_size);
}

/* ------------------------------------------------------------------------------------------------ samples, slots */

/* Returns the range in MEMBERS of a sample, checked. */
static int member_range(const struct shard_index *index, uint32_t sample, uint32_t *ret_first, uint32_t *ret_n)
{
	uint32_t first, end;
	int r = load_u32(index, SHARD_SEC_SAMPLE_FIRST, sample, &first);
	if (r == 0)
		r = load_u32(index, SHARD_SEC_SAMPLE_FIRST, (uint64_t)sample + 1, &end);
	if (r < 0)
		return r;
	if (first >= end || end > index->n_members || end - first > SHARD_SAMPLE_FILES_MAX)
		return -EUCLEAN;
	*ret_first = first;
	*ret_n = end - first;
	return 0;
}

int shard_index_sample_first(const struct shard_index *index, uint32_t sample, uint32_t *ret_file)
{
	if (sample >= index->info.n_samples)
		return -EINVAL;

	uint32_t file = SHARD_NONE;
	int r = 0;
	if (index->info.grouped) {
		uint32_t first, n;
		r = member_range(index, sample, &first, &n);
		if (r == 0)
			r = load_u32(index, SHARD_SEC_MEMBERS, first, &file);
	} else if (index_section(index, SHARD_SEC_SAMPLE_FILE)->length_bytes) {
		r = load_u32(index, SHARD_SEC_SAMPLE_FILE, sample, &file);
	} else {
		file = sample + (index->info.n_files - index->info.n_samples);
	}
	if (r < 0)
		return r;
	if (file >= index->info.n_files)
		return -EUCLEAN;
	*ret_file = file;
	return 0;
}

int shard_index_sample_files(
        const struct shard_index *index, uint32_t sample, uint32_t *files, uint32_t max, uint32_t *ret_n)
{
	if (sample >= index->info.n_samples)
		return -EINVAL;
	if (max == 0)
		return -ERANGE;
	if (!index->info.grouped) {
		int r = shard_index_sample_first(index, sample, &files[0]);
		if (r == 0)
			*ret_n = 1;
		return r;
	}

	uint32_t first, n;
	int r = member_range(index, sample, &first, &n);
	if (r < 0)
		return r;
	if (n > max)
		return -ERANGE;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t file;
		r = load_u32(index, SHARD_SEC_MEMBERS, first + i, &file);
		if (r < 0)
			return r;
		if (file >= index->info.n_files || (i > 0 && file <= files[i - 1]))
			return -EUCLEAN;
		files[i] = file;
	}
	*ret_n = n;
	return 0;
}

int shard_index_slot_sample(const struct shard_index *index, uint32_t slot, uint32_t *ret_sample)
{
	if (slot >= index->info.n_samples)
		return -EINVAL;
	uint32_t sample = slot;
	if (index_section(index, SHARD_SEC_SLOTS)->length_bytes) {
		int r = load_u32(index, SHARD_SEC_SLOTS, slot, &sample);
		if (r < 0)
			return r;
		if (sample >= index->info.n_samples)
			return -EUCLEAN;
	}
	*ret_sample = sample;
	return 0;
}

int shard_index_sample_slot(const struct shard_index *index, uint32_t sample, uint32_t *ret_slot)
{
	uint32_t file;
	struct shard_file_rec rec;
	int r = shard_index_sample_first(index, sample, &file);
	if (r == 0)
		r = load_file(index, file, &rec);
	if (r < 0)
		return r;
	if (rec.sample != sample)
		return -EUCLEAN;
	*ret_slot = rec.slot;
	return 0;
}

/* Finds the first sample whose first file is `file` or a later one. */
static int sample_at_file(const struct shard_index *index, uint32_t file, uint32_t *ret_sample)
{
	uint32_t low = 0, high = index->info.n_samples;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2, first;
		int r = shard_index_sample_first(index, mid, &first);
		if (r < 0)
			return r;
		if (first < file)
			low = mid + 1;
		else
			high = mid;
	}
	*ret_sample = low;
	return 0;
}

int shard_index_dir_samples(const struct shard_index *index, uint32_t dir, uint32_t *ret_first, uint32_t *ret_end)
{
	struct shard_dir_rec rec;
	uint32_t first = 0, end = 0;
	if (dir >= index->info.n_dirs)
		return -EINVAL;
	int r = index_dir_rec(index, dir, &rec);
	if (r == 0)
		r = sample_at_file(index, rec.first_file, &first);
	if (r == 0)
		r = sample_at_file(index, rec.end_file, &end);
	if (r < 0)
		return r;
	if (first > end) /* if the list does not ascend, the search can be wrong */
		return -EUCLEAN;
	*ret_first = first;
	*ret_end = end;
	return 0;
}

/* ------------------------------------------------------------------------------------------------ blocks */

uint32_t shard_blocks(uint64_t length)
{
	return (uint32_t)shard_units(length, SHARD_BLOCK);
}

/* Finds the first sum of a file over SHARD_BLOCK. */
static int find_big(const struct shard_index *index, uint32_t file, uint64_t *ret_first_sum)
{
	uint64_t low = 0, high = index->n_big;
	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		struct shard_big_rec rec;
		int r = index_load(index, SHARD_SEC_BIG, mid, sizeof rec, &rec);
		if (r < 0)
			return r;
		if (rec.reserved)
			return -EUCLEAN;
		if (rec.file == file) {
			*ret_first_sum = rec.first_sum;
			return 0;
		}
		if (rec.file < file)
			low = mid + 1;
		else
			high = mid;
	}
	return -EUCLEAN;
}

int shard_index_block(const struct shard_index *index, uint32_t file_id, uint32_t block, uint64_t *ret_offset,
        uint32_t *ret_length, uint64_t *ret_xxh3)
{
	struct shard_file_rec rec;
	struct shard_shard_rec shard;
	if (file_id >= index->info.n_files)
		return -EINVAL;
	int r = load_file(index, file_id, &rec);
	if (r < 0)
		return r;
	uint64_t length = shard_rec_length(&rec), blocks = shard_units(length, SHARD_BLOCK);
	if (block >= blocks)
		return -EINVAL;
	r = index_load(index, SHARD_SEC_SHARDS, shard_rec_shard(&rec), sizeof shard, &shard);
	if (r < 0)
		return r;
	if (shard_rec_offset(&rec) + length > shard.size_bytes)
		return -EUCLEAN;

	uint64_t xxh3 = rec.xxh3;
	if (blocks > 1) {
		uint64_t first_sum;
		r = find_big(index, file_id, &first_sum);
		if (r < 0)
			return r;
		if (first_sum > index->n_block_sums || blocks > index->n_block_sums - first_sum)
			return -EUCLEAN;
		r = index_load(index, SHARD_SEC_BLOCK_SUMS, first_sum + block, sizeof xxh3, &xxh3);
		if (r < 0)
			return r;
	}
	uint64_t begin = (uint64_t)block * SHARD_BLOCK;
	*ret_offset = shard_rec_offset(&rec) + begin;
	*ret_length = (uint32_t)(length - begin < SHARD_BLOCK ? length - begin : SHARD_BLOCK);
	*ret_xxh3 = xxh3;
	return 0;
}
