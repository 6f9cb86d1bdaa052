/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out, reads and writes the handover memory; fs/supervise/handover_memory.h first. */
#include "fs/supervise/handover_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard/base/cleanup.h"

#define MAGIC UINT64_C(0x3730646572616873) /* "shared07" */
enum { PAGE = FS_HANDOVER_HEAD_BYTES, BLOCK_BYTES = FS_HANDOVER_BLOCK_ENTRIES * 4 };

_Static_assert(sizeof(struct fs_handover_head) <= FS_HANDOVER_HEAD_BYTES, "the head fits its page");
_Static_assert(sizeof(struct fs_handover_record) == 64, "no padding: the checksum covers every byte");
_Static_assert(sizeof(struct fs_handover_list) == 80 + FS_HANDOVER_LIST_NAME, "no padding");
enum { COUNTS_AT = 512, ORDERS_AT = 1024 }; /* in the page of a view's records */
_Static_assert(sizeof(struct fs_handover_rank_counts) == 16 + 8 * FS_HANDOVER_RANK_COUNTS, "no padding");
_Static_assert(2 * sizeof(struct fs_handover_record) <= COUNTS_AT, "records fit their place");
_Static_assert(COUNTS_AT + 2 * sizeof(struct fs_handover_rank_counts) <= ORDERS_AT, "counts fit their place");
_Static_assert(sizeof(struct fs_handover_orders) == 24 + FS_HANDOVER_ORDERS_BYTES, "no padding");
_Static_assert(ORDERS_AT + 2 * sizeof(struct fs_handover_orders) <= FS_HANDOVER_HEAD_BYTES, "orders fit their page");

struct fs_handover {
	uint8_t *base;
	struct fs_handover_sizes sizes;
	uint64_t size; /* of the whole memory */
	uint64_t map_bytes, view_bytes, resident_at, known_at, old_at, opens_at, announced_at, history_at, blocks_at;
	uint32_t blocks;
};

static uint64_t whole_pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static uint64_t bitmap_bytes(uint64_t bits)
{
	return whole_pages((bits / 64 + 1) * sizeof(uint64_t));
}

static struct fs_handover_head *head_of(const struct fs_handover *handover)
{
	return (struct fs_handover_head *)handover->base;
}

/* Above RLIMIT_FSIZE, ftruncate(2) ends the process. */
static uint32_t room_for_blocks(uint64_t at)
{
	struct rlimit limit;
	uint64_t size = at + (uint64_t)FS_HANDOVER_BLOCKS_MAX * BLOCK_BYTES;
	bool fits = getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= size;
	return fits ? FS_HANDOVER_BLOCKS_MAX : 0;
}

static int lay_out(struct fs_handover *s, const struct fs_handover_sizes *sizes)
{
	/* These limits keep every sum and product below within 64 bits. */
	if (sizes->n_views > UINT16_MAX || sizes->view_bits > UINT64_C(1) << 40 || sizes->samples > UINT32_MAX ||
	        sizes->dirs > UINT32_MAX || sizes->files > UINT32_MAX)
		return -EFBIG;
	s->sizes = *sizes;
	s->map_bytes = bitmap_bytes(sizes->view_bits);
	s->view_bytes = PAGE + 2 * s->map_bytes;
	s->resident_at = PAGE + sizes->n_views * s->view_bytes;
	s->known_at = s->resident_at + bitmap_bytes(sizes->samples);
	s->old_at = s->known_at + bitmap_bytes(sizes->dirs);
	s->opens_at = s->old_at + bitmap_bytes(sizes->files);
	s->announced_at = s->opens_at + whole_pages(sizeof(struct fs_handover_opens));
	s->history_at = s->announced_at + whole_pages(sizeof(struct fs_handover_announced));
	s->blocks_at = s->history_at + whole_pages(FS_HANDOVER_HISTORY_BYTES);
	s->blocks = room_for_blocks(s->blocks_at);
	s->size = s->blocks_at + (uint64_t)s->blocks * BLOCK_BYTES;
	return 0;
}

static bool is_laid_out_for(const struct fs_handover *s, const struct fs_handover_head *head)
{
	return head->magic == MAGIC && head->size == s->size && head->n_views == s->sizes.n_views &&
	       head->view_bits == s->sizes.view_bits && head->samples == s->sizes.samples &&
	       head->dirs == s->sizes.dirs && head->files == s->sizes.files;
}

int fs_handover_open(int fd, const struct fs_handover_sizes *sizes, struct fs_handover **ret_handover, bool *ret_kept)
{
	struct stat st;
	cleanup_free struct fs_handover *s = calloc(1, sizeof(*s));
	int rc = s ? lay_out(s, sizes) : -ENOMEM;
	if (rc < 0)
		return rc;
	if (fstat(fd, &st) < 0)
		return -errno;
	bool long_enough = (uint64_t)st.st_size >= s->size;
	if (!long_enough && ftruncate(fd, (off_t)s->size) < 0)
		return -errno;
	s->base = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (s->base == MAP_FAILED)
		return -errno;
	struct fs_handover_head *head = head_of(s);
	bool kept = long_enough && is_laid_out_for(s, head);
	if (!kept) {
		head->magic = 0;
		madvise(s->base + PAGE, s->size - PAGE, MADV_REMOVE);
		head->size = s->size;
		head->n_views = s->sizes.n_views;
		head->view_bits = s->sizes.view_bits;
		head->samples = s->sizes.samples;
		head->dirs = s->sizes.dirs;
		head->files = s->sizes.files;
		head->magic = MAGIC;
	}
	*ret_kept = kept;
	*ret_handover = steal_ptr(&s);
	return 0;
}

void fs_handover_close(struct fs_handover *handover)
{
	if (!handover)
		return;
	munmap(handover->base, handover->size);
	free(handover);
}

void fs_handover_beat(struct fs_handover *handover)
{
	atomic_fetch_add(&head_of(handover)->beat, 1);
}

struct fs_handover_view fs_handover_view(struct fs_handover *handover, uint32_t number)
{
	uint8_t *at = handover->base + PAGE + number * handover->view_bytes;
	return (struct fs_handover_view){
		.records = (struct fs_handover_record *)at,
		.orders = (struct fs_handover_orders *)(at + ORDERS_AT),
		.counts = (struct fs_handover_rank_counts *)(at + COUNTS_AT),
		.maps = { (uint64_t *)(at + PAGE), (uint64_t *)(at + PAGE + handover->map_bytes) },
		.bits = handover->sizes.view_bits,
	};
}

uint64_t *fs_handover_resident(struct fs_handover *handover)
{
	return (uint64_t *)(handover->base + handover->resident_at);
}

struct fs_handover_names fs_handover_names(struct fs_handover *handover)
{
	return (struct fs_handover_names){
		.known = (uint64_t *)(handover->base + handover->known_at),
		.old = (uint64_t *)(handover->base + handover->old_at),
	};
}

struct fs_handover_opens *fs_handover_opens(struct fs_handover *handover)
{
	return (struct fs_handover_opens *)(handover->base + handover->opens_at);
}

struct fs_handover_announced *fs_handover_announced(struct fs_handover *handover)
{
	return (struct fs_handover_announced *)(handover->base + handover->announced_at);
}

void *fs_handover_history(struct fs_handover *handover)
{
	return handover->base + handover->history_at;
}

uint32_t fs_handover_blocks(const struct fs_handover *handover)
{
	return handover->blocks;
}

uint32_t *fs_handover_block(struct fs_handover *handover, uint32_t block)
{
	return (uint32_t *)(handover->base + handover->blocks_at + (uint64_t)block * BLOCK_BYTES);
}

void fs_handover_release_block(struct fs_handover *handover, uint32_t block)
{
	uint32_t *entries = fs_handover_block(handover, block);
	if (madvise(entries, BLOCK_BYTES, MADV_REMOVE) < 0)
		memset(entries, 0, BLOCK_BYTES);
}

/* ---- events ---- */

static const struct inotify_event *event_at(const struct fs_handover_opens *opens, size_t at)
{
	const size_t size = sizeof(opens->events);
	if (at % _Alignof(struct inotify_event) || at > size - sizeof(struct inotify_event))
		return NULL;
	const struct inotify_event *event = (const struct inotify_event *)(opens->events + at);
	if (event->wd == 0 || event->len > size - at - sizeof(*event) ||
	        (event->len > 0 && event->name[event->len - 1] != '\0'))
		return NULL;
	return event;
}

const struct inotify_event *fs_handover_take_event(struct fs_handover_opens *opens)
{
	size_t at = atomic_load(&opens->taken);
	const struct inotify_event *event = event_at(opens, at);
	if (event) {
		atomic_store(&opens->taken, (uint32_t)(at + sizeof(*event) + event->len));
		return event;
	}
	memset(opens->events, 0, at < sizeof(opens->events) ? at : sizeof(opens->events));
	atomic_store(&opens->taken, 0);
	return NULL;
}

void fs_handover_clear_events(struct fs_handover_opens *opens)
{
	memset(opens->events, 0, sizeof(opens->events));
	atomic_store(&opens->taken, 0);
}

/* ---- records ---- */

static uint64_t sum(const struct fs_handover_record *record)
{
	return XXH3_64bits(record, offsetof(struct fs_handover_record, xxh3));
}

bool fs_handover_load(const struct fs_handover_view *view, struct fs_handover_record *ret_record)
{
	bool found = false;
	for (int i = 0; i < 2; i++) {
		struct fs_handover_record record = view->records[i];
		/* Age 0: never written. */
		if (record.age == 0 || record.xxh3 != sum(&record) || record.map > 1)
			continue;
		if (!found || record.age > ret_record->age)
			*ret_record = record;
		found = true;
	}
	return found;
}

void fs_handover_store(const struct fs_handover_view *view, const struct fs_handover_record *record)
{
	struct fs_handover_record last = { 0 };
	struct fs_handover_record next = *record;
	fs_handover_load(view, &last);
	next.age = last.age + 1;
	next.xxh3 = sum(&next);
	view->records[next.age & 1] = next;
}

static uint64_t orders_sum(const struct fs_handover_orders *orders)
{
	return XXH3_64bits(orders, offsetof(struct fs_handover_orders, xxh3));
}

bool fs_handover_load_orders(const struct fs_handover_view *view, struct fs_handover_orders *ret_orders)
{
	bool found = false;
	for (int i = 0; i < 2; i++) {
		struct fs_handover_orders orders = view->orders[i];
		if (orders.age == 0 || orders.version != FS_HANDOVER_ORDERS_VERSION ||
		        orders.len > FS_HANDOVER_ORDERS_BYTES || orders.xxh3 != orders_sum(&orders))
			continue;
		if (!found || orders.age > ret_orders->age)
			*ret_orders = orders;
		found = true;
	}
	return found;
}

void fs_handover_store_orders(const struct fs_handover_view *view, const void *bytes, uint32_t len)
{
	struct fs_handover_orders last = { 0 };
	struct fs_handover_orders next = { .version = FS_HANDOVER_ORDERS_VERSION, .len = len };
	if (len > sizeof(next.bytes))
		return;
	fs_handover_load_orders(view, &last);
	next.age = last.age + 1;
	memcpy(next.bytes, bytes, len);
	next.xxh3 = orders_sum(&next);
	view->orders[next.age & 1] = next;
}

void fs_handover_clear(const struct fs_handover_view *view, uint32_t map)
{
	size_t bytes = bitmap_bytes(view->bits);
	if (madvise(view->maps[map], bytes, MADV_REMOVE) < 0)
		memset(view->maps[map], 0, bytes);
}

/* ---- announced orders ---- */

static uint64_t list_sum(const struct fs_handover_list *list)
{
	return XXH3_64bits(list, offsetof(struct fs_handover_list, xxh3));
}

/* Gets the younger valid record. Returns its age, or 0. */
static uint64_t younger_list(
        const struct fs_handover_announced *announced, uint32_t number, struct fs_handover_list *ret_list)
{
	uint64_t age = 0;
	for (int i = 0; i < 2; i++) {
		struct fs_handover_list list = announced->lists[number][i];
		if (list.age <= age || list.xxh3 != list_sum(&list))
			continue;
		age = list.age;
		*ret_list = list;
	}
	return age;
}

bool fs_handover_load_list(
        const struct fs_handover_announced *announced, uint32_t number, struct fs_handover_list *ret_list)
{
	struct fs_handover_list list;
	if (younger_list(announced, number, &list) == 0 || list.id == 0 || list.id > UINT32_MAX ||
	        !memchr(list.name, '\0', sizeof(list.name)))
		return false;
	*ret_list = list;
	return true;
}

void fs_handover_store_list(
        struct fs_handover_announced *announced, uint32_t number, const struct fs_handover_list *list)
{
	struct fs_handover_list last, next = *list;
	next.age = younger_list(announced, number, &last) + 1;
	next.xxh3 = list_sum(&next);
	announced->lists[number][next.age & 1] = next;
}

/* ---- counts ---- */

static uint64_t counts_sum(const struct fs_handover_counts *counts)
{
	return XXH3_64bits(counts, offsetof(struct fs_handover_counts, xxh3));
}

bool fs_handover_load_counts(const struct fs_handover *handover, struct fs_handover_counts *ret_counts)
{
	bool found = false;
	for (int i = 0; i < 2; i++) {
		struct fs_handover_counts counts = head_of(handover)->counts[i];
		if (counts.age == 0 || counts.n > FS_HANDOVER_COUNTS_MAX || counts.xxh3 != counts_sum(&counts))
			continue;
		if (!found || counts.age > ret_counts->age)
			*ret_counts = counts;
		found = true;
	}
	return found;
}

void fs_handover_store_counts(struct fs_handover *handover, const struct fs_handover_counts *counts)
{
	struct fs_handover_counts last = { 0 };
	struct fs_handover_counts next = *counts;
	fs_handover_load_counts(handover, &last);
	next.age = last.age + 1;
	next.xxh3 = counts_sum(&next);
	head_of(handover)->counts[next.age & 1] = next;
}

static uint64_t rank_counts_sum(const struct fs_handover_rank_counts *counts)
{
	return XXH3_64bits(counts, offsetof(struct fs_handover_rank_counts, xxh3));
}

bool fs_handover_load_rank_counts(const struct fs_handover_view *view, struct fs_handover_rank_counts *ret_counts)
{
	bool found = false;
	for (int i = 0; i < 2; i++) {
		struct fs_handover_rank_counts counts = view->counts[i];
		if (counts.age == 0 || counts.xxh3 != rank_counts_sum(&counts))
			continue;
		if (!found || counts.age > ret_counts->age)
			*ret_counts = counts;
		found = true;
	}
	return found;
}

void fs_handover_store_rank_counts(const struct fs_handover_view *view, const struct fs_handover_rank_counts *counts)
{
	struct fs_handover_rank_counts last = { 0 };
	struct fs_handover_rank_counts next = *counts;
	fs_handover_load_rank_counts(view, &last);
	next.age = last.age + 1;
	next.xxh3 = rank_counts_sum(&next);
	view->counts[next.age & 1] = next;
}

/* ---- for the supervisor ---- */

int fs_handover_map_head(int fd, struct fs_handover_head **ret_head)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < FS_HANDOVER_HEAD_BYTES)
		return -EINVAL;
	void *head = mmap(NULL, FS_HANDOVER_HEAD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED)
		return -errno;
	*ret_head = head;
	return 0;
}

int fs_handover_new(int *ret_fd, struct fs_handover_head **ret_head)
{
	cleanup_close int fd = memfd_create("ddpfs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* The seal: if a server made the memfd shorter, the supervisor would get SIGBUS when it reads the beat. */
	if (fd < 0 || ftruncate(fd, FS_HANDOVER_HEAD_BYTES) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return -errno;
	int rc = fs_handover_map_head(fd, ret_head);
	if (rc < 0)
		return rc;
	*ret_fd = steal_fd(&fd);
	return 0;
}
