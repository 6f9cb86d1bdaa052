/* SPDX-License-Identifier: Apache-2.0 */
/* The journal of a packing, DATASET.partial/journal; pack.h first.
 *
 * It has native byte order, because only the same machine reads it again.
 *
 *   header: magic, fingerprint of the plan, number of shards
 *   record: one per complete shard, appended after the shard's fsync:
 *           struct record | xxh3[n_items] | left_out[n_items] | blocks[n_blocks] | XXH3-64 of all that
 *
 * If a run is killed while it appends, the last record is incomplete, and the next run cuts it off. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/cleanup.h"
#include "shard/base/io.h"
#include "shard/unfinished.h"
#include "tools/mkshard/pack.h"

struct header {
	char magic[8];
	uint8_t fingerprint[16];
	uint64_t n_shards;
};

struct record {
	uint64_t shard;
	uint64_t n_items;
	uint64_t n_blocks;
	uint64_t size_bytes;
};

/* Where complete shards are. */
struct shards_place {
	const char *dir;
	bool (*has)(const void *arg, const char *name, uint64_t bytes); /* NULL: in dir */
	const void *arg;
};

static const char journal_magic[8] = SHARD_UNFINISHED_MAGIC;

struct pack_journal {
	int fd;
	uint64_t end; /* offset of the next record; guarded by lock */
	pthread_mutex_t lock;
	char path[];
};

static uint64_t body_size(const struct record *record)
{
	return sizeof(*record) + record->n_items * (sizeof(uint64_t) + sizeof(int32_t)) +
	       record->n_blocks * sizeof(uint64_t);
}

static uint64_t count_blocks(const struct shard_pack_plan *plan, uint32_t shard, const int32_t *left_out)
{
	uint64_t n = 0;
	for (uint64_t k = plan->first[shard]; k < plan->first[shard + 1]; k++) {
		const struct shard_pack_item *item = &plan->items[plan->stored[k]];
		if (item->length > SHARD_BLOCK && !left_out[k - plan->first[shard]])
			n += (item->length + SHARD_BLOCK - 1) / SHARD_BLOCK;
	}
	return n;
}

/* Whether the shard of a record still exists with its size: in the store, or in the directory. */
static bool shard_stands(
        const struct shards_place *place, const struct shard_pack_plan *plan, const struct record *record)
{
	char name[32], path[4096];
	struct stat st;
	shard_pack_shard_name((uint32_t)record->shard, plan->options.container, name);
	if (place->has)
		return place->has(place->arg, name, record->size_bytes);
	snprintf(path, sizeof(path), "%s/%s", place->dir, name);
	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == record->size_bytes;
}

/* Takes one record from mapped bytes.  *ret_size: its size in bytes, or 0 if it is incomplete or wrong.  Returns 0, or
 * -ENOMEM: the record may be right. */
static int take_record(const uint8_t *bytes, uint64_t len, const struct shards_place *place,
        const struct shard_pack_plan *plan, struct pack_shard_sums *all, uint64_t *ret_size)
{
	*ret_size = 0;
	struct record record;
	if (len < sizeof(record))
		return 0;
	memcpy(&record, bytes, sizeof(record));
	if (record.shard >= plan->n_shards ||
	        record.n_items != plan->first[record.shard + 1] - plan->first[record.shard] ||
	        record.n_blocks > len / sizeof(uint64_t))
		return 0;
	uint64_t body = body_size(&record), sum;
	if (len < body + sizeof(sum))
		return 0;
	memcpy(&sum, bytes + body, sizeof(sum));
	if (sum != XXH3_64bits(bytes, body))
		return 0;
	struct pack_shard_sums *sums = &all[record.shard];
	const uint8_t *xxh3 = bytes + sizeof(record), *left_out = xxh3 + record.n_items * sizeof(uint64_t),
	              *blocks = left_out + record.n_items * sizeof(int32_t);
	*ret_size = body + sizeof(sum);
	/* The last record of a shard counts: the store may have lost the shard of an earlier one. */
	free(sums->xxh3);
	free(sums->left_out);
	free(sums->blocks);
	*sums = (struct pack_shard_sums){ .complete = false };
	if (!shard_stands(place, plan, &record))
		return 0;
	sums->xxh3 = malloc(record.n_items * sizeof(uint64_t));
	sums->left_out = malloc(record.n_items * sizeof(int32_t));
	sums->blocks = malloc((record.n_blocks + 1) * sizeof(uint64_t));
	if (!sums->xxh3 || !sums->left_out || !sums->blocks)
		return -ENOMEM;
	memcpy(sums->xxh3, xxh3, record.n_items * sizeof(uint64_t));
	memcpy(sums->left_out, left_out, record.n_items * sizeof(int32_t));
	memcpy(sums->blocks, blocks, record.n_blocks * sizeof(uint64_t));
	sums->n_blocks = record.n_blocks;
	sums->size_bytes = record.size_bytes;
	sums->complete = record.n_blocks == count_blocks(plan, (uint32_t)record.shard, sums->left_out);
	return 0;
}

static int write_header(struct pack_journal *journal, const struct shard_pack_plan *plan, struct base_err *err)
{
	struct header header = { .n_shards = plan->n_shards };
	memcpy(header.magic, journal_magic, sizeof(header.magic));
	memcpy(header.fingerprint, plan->fingerprint, sizeof(header.fingerprint));
	int rc = base_pwrite_full(journal->fd, &header, sizeof(header), 0);
	if (rc == 0 && fdatasync(journal->fd))
		rc = -errno;
	journal->end = sizeof(header);
	return rc ? base_err_set(err, rc, "'%s': %s", journal->path, strerror(-rc)) : 0;
}

/* Reads the journal of an earlier run.  *ret_new: there is nothing to go on from. */
static int load(struct pack_journal *journal, const struct shards_place *place, const struct shard_pack_plan *plan,
        struct pack_shard_sums *sums, bool *ret_new, struct base_err *err)
{
	struct stat st;
	if (fstat(journal->fd, &st))
		return base_err_set(err, -errno, "'%s': %s", journal->path, strerror(errno));
	*ret_new = true;
	uint64_t size = (uint64_t)st.st_size;
	if (size < sizeof(struct header))
		return 0;
	uint8_t *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, journal->fd, 0);
	if (bytes == MAP_FAILED)
		return base_err_set(err, -errno, "'%s': %s", journal->path, strerror(errno));
	struct header header;
	memcpy(&header, bytes, sizeof(header));
	int rc = 0;
	if (memcmp(header.magic, journal_magic, sizeof(header.magic))) {
		rc = 0; /* not a journal: begin a new one */
	} else if (memcmp(header.fingerprint, plan->fingerprint, sizeof(header.fingerprint)) ||
	           header.n_shards != plan->n_shards) {
		rc = size == sizeof(header) ? 0 : -ESTALE; /* without complete shards, beginning anew loses nothing */
	} else {
		*ret_new = false;
		journal->end = sizeof(header);
		for (uint64_t n = 1; rc == 0 && n > 0; journal->end += n)
			rc = take_record(bytes + journal->end, size - journal->end, place, plan, sums, &n);
	}
	munmap(bytes, size);
	if (rc == -ENOMEM) /* the records stay, so that the next run has them */
		return base_err_set(err, rc, "out of memory");
	if (rc)
		return base_err_set(err, rc,
		        "'%s' holds an interrupted run over other files or with other options; give the same again "
		        "to go on, or --restart to begin anew",
		        place->dir);
	return 0;
}

int pack_journal_open(const char *dir, bool (*has)(const void *arg, const char *name, uint64_t bytes), const void *arg,
        const struct shard_pack_plan *plan, struct pack_shard_sums *sums, struct base_err *err,
        struct pack_journal **ret_journal)
{
	const struct shards_place place = { dir, has, arg };
	struct pack_journal *journal = calloc(1, sizeof(*journal) + strlen(dir) + sizeof("/" SHARD_UNFINISHED_JOURNAL));
	if (!journal)
		return base_err_set(err, -ENOMEM, "out of memory");
	sprintf(journal->path, "%s/" SHARD_UNFINISHED_JOURNAL, dir);
	pthread_mutex_init(&journal->lock, NULL);
	journal->fd = open(journal->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	int rc = 0;
	bool new = true;
	if (journal->fd < 0)
		rc = base_err_set(err, -errno, "'%s': %s", journal->path, strerror(errno));
	else if (flock(journal->fd, LOCK_EX | LOCK_NB) &&
	         errno == EWOULDBLOCK) /* by another host; NFS has locks for files, but not for directories */
		rc = base_err_set(
		        err, -EBUSY, "'%s': another mkshard is packing this dataset; wait for it or stop it", dir);
	else
		rc = load(journal, &place, plan, sums, &new, err);
	if (rc == 0 && ftruncate(journal->fd, new ? 0 : (off_t)journal->end))
		rc = base_err_set(err, -errno, "'%s': %s", journal->path, strerror(errno));
	if (rc == 0 && new)
		rc = write_header(journal, plan, err);
	if (rc) {
		pack_journal_close(journal);
		return rc;
	}
	*ret_journal = journal;
	return 0;
}

bool pack_journal_holds_shards(const char *dir)
{
	char path[4096];
	struct stat st;
	snprintf(path, sizeof(path), "%s/" SHARD_UNFINISHED_JOURNAL, dir);
	if (stat(path, &st))
		return errno != ENOENT; /* if stat fails for another reason, keep the directory */
	return (uint64_t)st.st_size > sizeof(struct header);
}

int pack_journal_add(struct pack_journal *journal, const struct shard_pack_plan *plan, uint32_t shard,
        const struct pack_shard_sums *sums, struct base_err *err)
{
	struct record record = {
		.shard = shard,
		.n_items = plan->first[shard + 1] - plan->first[shard],
		.n_blocks = sums->n_blocks,
		.size_bytes = sums->size_bytes,
	};
	uint64_t body = body_size(&record), sum;
	cleanup_free uint8_t *bytes = malloc(body + sizeof(sum));
	if (!bytes)
		return base_err_set(err, -ENOMEM, "out of memory");
	uint8_t *at = mempcpy(bytes, &record, sizeof(record));
	at = mempcpy(at, sums->xxh3, record.n_items * sizeof(uint64_t));
	at = mempcpy(at, sums->left_out, record.n_items * sizeof(int32_t));
	if (record.n_blocks) /* otherwise `blocks` may be NULL */
		at = mempcpy(at, sums->blocks, record.n_blocks * sizeof(uint64_t));
	sum = XXH3_64bits(bytes, body);
	memcpy(at, &sum, sizeof(sum));
	lock_for_scope(&journal->lock);
	int rc = base_pwrite_full(journal->fd, bytes, body + sizeof(sum), journal->end);
	if (rc == 0 && fdatasync(journal->fd))
		rc = -errno;
	if (rc == 0)
		journal->end += body + sizeof(sum);
	return rc ? base_err_set(err, rc, "'%s': %s", journal->path, strerror(-rc)) : 0;
}

void pack_journal_close(struct pack_journal *journal)
{
	if (!journal)
		return;
	if (journal->fd >= 0)
		close(journal->fd);
	pthread_mutex_destroy(&journal->lock);
	free(journal);
}
