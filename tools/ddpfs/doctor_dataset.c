/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: the dataset on its disk; doctor.h first. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/clock.h"
#include "shard/base/io.h"
#include "shard/base/units.h"
#include "shard/block_sum.h"
#include "shard/index.h"
#include "tools/ddpfs/doctor.h"

enum {
	SHARDS_OPENED = 256, /* shards that are opened, at most */
	ALIGN = 4096,        /* of direct reads */
	SLOW_READ_MS = 100,  /* all reads together took at least this long, else there is nothing to say */
};

#define SLOW_RATE (UINT64_C(50) << 20) /* bytes per second of a disk that holds a trainer up */
#define FULL (UINT64_C(1) << 20)       /* bytes: a file system with less is full */

#define VERIFY_ADVICE "'mkshard verify' names all that is wrong; then restore it from a copy, or pack the dataset again"

/* Numbers without a pattern, for samples (Knuth, The Art of Computer Programming, 3.3.4: MMIX's generator). */
static uint64_t next_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *state >> 16;
}

/* Opens a shard.  Returns a descriptor or -errno; path is its path for messages. */
static int open_shard(const struct shard_index *index, uint32_t shard, int flags, struct shard_shard *ret_record,
        char path[SHARD_PATH_MAX + 1])
{
	int rc = shard_index_shard(index, shard, ret_record);
	if (rc < 0)
		return rc;
	if (ret_record->path_len > SHARD_PATH_MAX)
		return -EUCLEAN;
	memcpy(path, ret_record->path, ret_record->path_len);
	path[ret_record->path_len] = '\0';
	cleanup_close int dir = open(shard_index_dataset(index), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
	return fd < 0 ? -errno : fd;
}

void doctor_say_index(json_t *findings, int rc, const char *text)
{
	const char *advice = VERIFY_ADVICE;
	if (rc == -EACCES || rc == -EPERM)
		advice = "give this user the right to read (chmod -R a+rX DATASET; on NFS look at root_squash), or run "
		         "as the owner";
	else if (rc == -ENOENT || rc == -ENOTDIR)
		advice = "name the directory that 'mkshard pack' made; for tar files run 'mkshard index DIR' once";
	else if (rc == -EBADMSG || rc == -EUCLEAN || rc == -ESTALE)
		advice = SHARD_INDEX_ADVICE;
	else if (rc == -EPROTONOSUPPORT)
		advice = "use a ddpfs that is as new as the one that packed the dataset";
	doctor_say(findings, DOCTOR_FAILURE, advice, "%s", text);
}

static void look_at_shards(const struct shard_index *index, json_t *findings)
{
	uint32_t n = shard_index_info(index)->n_shards;
	uint32_t looked = n < SHARDS_OPENED ? n : SHARDS_OPENED;
	uint32_t wrong = 0;
	int first_rc = 0;
	char first[512] = "";
	for (uint32_t i = 0; i < looked; i++) {
		uint32_t shard = looked < 2 ? 0 : (uint32_t)((uint64_t)i * (n - 1) / (looked - 1));
		struct shard_shard record;
		char path[SHARD_PATH_MAX + 1] = "";
		struct stat st;
		cleanup_close int fd = open_shard(index, shard, 0, &record, path);
		int rc = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : 0;
		bool other_size = rc == 0 && (uint64_t)st.st_size != record.size_bytes;
		if ((rc == 0 && !other_size) || wrong++ > 0)
			continue;
		first_rc = other_size ? -EUCLEAN : rc;
		if (other_size)
			snprintf(first, sizeof(first), "shard '%.200s' has %llu bytes and should have %" PRIu64,
			        base_quoted(path), (unsigned long long)st.st_size, record.size_bytes);
		else
			snprintf(first, sizeof(first), "shard '%.200s': %s", base_quoted(path), base_err_str(rc));
	}
	if (!wrong)
		return;
	bool closed = first_rc == -EACCES || first_rc == -EPERM;
	doctor_say(findings, DOCTOR_FAILURE,
	        closed ? "give this user the right to read (chmod -R a+rX DATASET), or run as the owner"
	               : VERIFY_ADVICE,
	        "%u of %u shards that were opened are not as the index says, first %s", wrong, looked, first);
}

void doctor_dataset(const char *dataset, const char *index_file, json_t *findings)
{
	struct base_err err = { 0 };
	struct shard_index *index;
	char size[16];
	int rc = shard_index_open_with(dataset, index_file, &err, &index);
	if (rc < 0) {
		doctor_say_index(findings, rc, err.text);
		return;
	}
	if (shard_index_check_shards(index, &err) < 0) {
		doctor_say(findings, DOCTOR_FAILURE, DOCTOR_ADVICE_SEPARATE, "%s", err.text);
		shard_index_close(index);
		return;
	}
	const struct shard_info *info = shard_index_info(index);
	if (info->index_bytes <= DOCTOR_INDEX_WHOLE && (rc = shard_index_verify(index, &err)) < 0)
		doctor_say_index(findings, rc, err.text);
	look_at_shards(index, findings);
	if (json_array_size(findings) == 0)
		doctor_say(findings, DOCTOR_OK, NULL, "the index is whole%s: %u files, %u samples, %s; shards: %u",
		        info->index_bytes <= DOCTOR_INDEX_WHOLE ? "" : " where it was read", info->n_files,
		        info->n_samples, base_format_size(info->content_bytes, size), info->n_shards);
	shard_index_close(index);
}

uint64_t doctor_content_bytes(const char *dataset, const char *index_file)
{
	struct shard_index *index;
	if (shard_index_open_with(dataset, index_file, NULL, &index) < 0)
		return 0;
	uint64_t bytes = shard_index_info(index)->content_bytes;
	shard_index_close(index);
	return bytes;
}

/* Compares one block.  Returns 0; -EBADMSG: other bytes; or another -errno.  path: the shard's, for messages. */
static int compare_block(const struct shard_index *index, uint32_t file, uint32_t block, uint8_t *data,
        char path[SHARD_PATH_MAX + 1], uint64_t *ret_offset)
{
	struct shard_place place;
	struct shard_shard record;
	uint32_t len;
	uint64_t sum;
	int rc = shard_index_place(index, file, &place);
	if (rc == 0)
		rc = shard_index_block(index, file, block, ret_offset, &len, &sum);
	if (rc < 0)
		return rc;
	cleanup_close int fd = open_shard(index, place.shard, 0, &record, path);
	if (fd < 0)
		return fd;
	rc = base_pread_full(fd, data, len, *ret_offset);
	return rc < 0 ? rc : shard_block_sum(data, len) == sum ? 0 : -EBADMSG;
}

void doctor_sums(const char *dataset, const char *index_file, json_t *findings)
{
	struct shard_index *index;
	if (shard_index_open_with(dataset, index_file, NULL, &index) < 0)
		return; /* doctor_dataset says why */
	cleanup_free uint8_t *data = malloc(SHARD_BLOCK);
	uint32_t n = shard_index_info(index)->n_files;
	uint64_t random = base_now_ns();
	int64_t end = base_now_ms() + DOCTOR_SUMS_MS;
	unsigned compared = 0;
	unsigned wrong = 0;
	for (unsigned i = 0; data && n && i < DOCTOR_SUMS_BLOCKS && base_now_ms() < end; i++) {
		/* All files of a small dataset, else some by chance. */
		uint32_t file = n <= DOCTOR_SUMS_BLOCKS ? i : (uint32_t)(next_random(&random) % n);
		struct shard_place place;
		char path[SHARD_PATH_MAX + 1] = "";
		uint64_t offset = 0;
		if (file >= n)
			break;
		if (shard_index_place(index, file, &place) < 0 || place.length == 0)
			continue;
		uint32_t block = (uint32_t)(next_random(&random) % shard_blocks(place.length));
		int rc = compare_block(index, file, block, data, path, &offset);
		compared++;
		if (rc < 0 && wrong++ == 0)
			doctor_say(findings, DOCTOR_FAILURE,
			        "run 'mkshard verify', restore the shard from a copy, or train without the files: "
			        "'mkshard verify --quarantine' and -o on_bad=skip",
			        "a block of shard '%.200s' at byte %" PRIu64 " cannot be used: %s", base_quoted(path),
			        offset, base_err_str(rc));
	}
	if (wrong > 1)
		doctor_say(findings, DOCTOR_FAILURE, VERIFY_ADVICE, "%u of %u blocks that were read are wrong", wrong,
		        compared);
	if (!wrong)
		doctor_say(findings, DOCTOR_OK, NULL, "the checksums of %u blocks are right", compared);
	shard_index_close(index);
}

/* ---- bandwidth ---- */

/* One read.  Readers take them by their number. */
struct device_read {
	uint32_t shard;
	uint64_t offset;
	uint64_t took_ns; /* 0: it was not made */
	uint32_t got;     /* bytes */
};

struct device {
	const struct shard_index *index;
	struct device_read reads[DOCTOR_DEVICE_READS];
	unsigned n;
	atomic_uint next;
	atomic_int error; /* the last -errno; 0: none */
	atomic_bool cached;
	uint64_t end_ns;
};

/* Reads once.  Returns the bytes, or -errno. */
static ssize_t read_piece(const struct device *device, const struct device_read *read, int flags, void *data)
{
	struct shard_shard record;
	char path[SHARD_PATH_MAX + 1];
	cleanup_close int fd = open_shard(device->index, read->shard, flags, &record, path);
	if (fd < 0)
		return fd;
	ssize_t got = pread(fd, data, DOCTOR_DEVICE_READ, (off_t)read->offset);
	return got < 0 ? -errno : got;
}

static void read_at(struct device *device, struct device_read *read, void *data)
{
	uint64_t begin = base_now_ns();
	ssize_t got = read_piece(device, read, O_DIRECT, data);
	if (got == -EINVAL) { /* the file system has no direct reads, or only some that are aligned better */
		atomic_store(&device->cached, true);
		got = read_piece(device, read, 0, data);
	}
	if (got < 0)
		atomic_store(&device->error, (int)got);
	read->got = got > 0 ? (uint32_t)got : 0;
	read->took_ns = base_now_ns() - begin;
}

static void *reader(void *arg)
{
	struct device *device = arg;
	void *data;
	if (posix_memalign(&data, ALIGN, DOCTOR_DEVICE_READ) != 0)
		return NULL;
	while (base_now_ns() < device->end_ns) {
		unsigned i = atomic_fetch_add(&device->next, 1);
		if (i >= device->n)
			break;
		read_at(device, &device->reads[i], data);
	}
	free(data);
	return NULL;
}

/* Chooses pieces of shards by chance: in a small dataset each piece once. */
static unsigned choose(const struct shard_index *index, struct device_read *reads)
{
	uint32_t n_shards = shard_index_info(index)->n_shards;
	uint64_t random = base_now_ns();
	unsigned n = 0;
	for (unsigned tries = 0; n_shards && tries < 4 * DOCTOR_DEVICE_READS && n < DOCTOR_DEVICE_READS; tries++) {
		struct shard_shard record;
		uint32_t shard = (uint32_t)(next_random(&random) % n_shards);
		if (shard_index_shard(index, shard, &record) < 0 || record.size_bytes == 0)
			continue;
		uint64_t pieces = (record.size_bytes + DOCTOR_DEVICE_READ - 1) / DOCTOR_DEVICE_READ;
		uint64_t offset = next_random(&random) % pieces * DOCTOR_DEVICE_READ;
		bool have = false;
		for (unsigned i = 0; i < n && !have; i++)
			have = reads[i].shard == shard && reads[i].offset == offset;
		if (!have)
			reads[n++] = (struct device_read){ .shard = shard, .offset = offset };
	}
	return n;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

uint64_t doctor_median(uint64_t *values, unsigned n)
{
	qsort(values, n, sizeof(values[0]), by_size);
	return values[n / 2];
}

/* Says what the reads show.  took_ns: all of them together. */
static void say_rate(struct device *device, uint64_t took_ns, json_t *findings)
{
	uint64_t times[DOCTOR_DEVICE_READS];
	uint64_t bytes = 0;
	unsigned n = 0;
	char rate[16];
	for (unsigned i = 0; i < device->n; i++) {
		bytes += device->reads[i].got;
		if (device->reads[i].got)
			times[n++] = device->reads[i].took_ns;
	}
	int error = atomic_load(&device->error);
	if (error) {
		doctor_say(findings, DOCTOR_FAILURE, "read the kernel's log (dmesg), and run 'mkshard verify'",
		        "a shard cannot be read: %s", base_err_str(error));
		return;
	}
	if (n == 0 || took_ns == 0)
		return;
	double per_s = (double)bytes * 1e9 / (double)took_ns;
	double median_ms = (double)doctor_median(times, n) / 1e6;
	base_format_size((uint64_t)per_s, rate);
	if (per_s < (double)SLOW_RATE && took_ns >= SLOW_READ_MS * UINT64_C(1000000))
		doctor_say(findings, DOCTOR_WARNING,
		        "put the dataset on a faster disk, or give the mount memory for all of it, so that only the "
		        "first "
		        "epoch reads it",
		        "the dataset's disk gives %s per second with %d reads at the same time (median of a read: %.0f "
		        "ms)",
		        rate, DOCTOR_DEVICE_DEPTH, median_ms);
	else
		doctor_say(findings, DOCTOR_OK, NULL,
		        "the dataset's disk gives %s per second with %d reads at the same time%s", rate,
		        DOCTOR_DEVICE_DEPTH, atomic_load(&device->cached) ? ", through the page cache" : "");
}

void doctor_device(const char *dataset, const char *index_file, json_t *findings)
{
	struct shard_index *index;
	pthread_t threads[DOCTOR_DEVICE_DEPTH];
	unsigned started = 0;
	if (shard_index_open_with(dataset, index_file, NULL, &index) < 0)
		return; /* doctor_dataset says why */
	cleanup_free struct device *device = calloc(1, sizeof(*device));
	if (device) {
		uint64_t begin = base_now_ns();
		device->index = index;
		device->n = choose(index, device->reads);
		device->end_ns = begin + DOCTOR_DEVICE_MS * UINT64_C(1000000);
		while (started < DOCTOR_DEVICE_DEPTH && pthread_create(&threads[started], NULL, reader, device) == 0)
			started++;
		for (unsigned i = 0; i < started; i++)
			pthread_join(threads[i], NULL);
		say_rate(device, base_now_ns() - begin, findings);
	}
	shard_index_close(index);
}

void doctor_disk(const char *dir, json_t *findings)
{
	struct statvfs fs;
	char size[16];
	if (statvfs(dir, &fs) < 0 || fs.f_flag & ST_RDONLY || access(dir, W_OK) < 0)
		return; /* nobody writes there */
	uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	bool inodes = fs.f_files > 0 && fs.f_favail == 0;
	if (bytes < FULL || inodes)
		doctor_say(findings, DOCTOR_WARNING, "remove files that nobody needs, or use another disk",
		        "the file system of '%s' is full (%s free%s): packings, quarantine lists, logs and copies of "
		        "indexes "
		        "cannot be written there",
		        base_quoted(dir), base_format_size(bytes, size), inodes ? ", no inodes" : "");
	else
		doctor_say(findings, DOCTOR_OK, NULL, "the file system of '%s' has %s free", base_quoted(dir),
		        base_format_size(bytes, size));
}
