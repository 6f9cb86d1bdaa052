/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: any bytes as what a killed server left in memory.  A record or counts that are taken have the right
 * checksum; the
 * rest is made anew. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "fs/supervise/handover_memory.h"
#include "tests/fuzz/fuzz.h"

enum { VIEWS = 2, BITS = 200, SAMPLES = 300, DIRS = 5, FILES = 310 };

static void look(int fd, bool whole)
{
	struct fs_handover *handover;
	bool kept;
	const struct fs_handover_sizes sizes = {
		.n_views = VIEWS, .view_bits = BITS, .samples = SAMPLES, .dirs = DIRS, .files = FILES
	};
	if (fs_handover_open(fd, &sizes, &handover, &kept) < 0)
		abort();
	struct fs_handover_counts counts;
	if (fs_handover_load_counts(handover, &counts))
		assert(counts.n <= FS_HANDOVER_COUNTS_MAX &&
		        counts.xxh3 == XXH3_64bits(&counts, offsetof(struct fs_handover_counts, xxh3)));
	for (uint32_t v = 0; v < VIEWS; v++) {
		struct fs_handover_view view = fs_handover_view(handover, v);
		struct fs_handover_record record = { .epoch = 5 };
		struct fs_handover_record found;
		bool there = fs_handover_load(&view, &found);
		assert(kept || !there);
		if (there)
			assert(found.map <= 1 && found.age > 0 &&
			        found.xxh3 == XXH3_64bits(&found, offsetof(struct fs_handover_record, xxh3)));
		if (there && found.age == UINT64_MAX)
			continue; /* nobody lives so long */
		fs_handover_store(&view, &record);
		if (!fs_handover_load(&view, &found) || found.epoch != 5)
			abort();
		struct fs_handover_orders orders;
		if (fs_handover_load_orders(&view, &orders))
			assert(orders.len <= FS_HANDOVER_ORDERS_BYTES && orders.version == FS_HANDOVER_ORDERS_VERSION &&
			        orders.xxh3 == XXH3_64bits(&orders, offsetof(struct fs_handover_orders, xxh3)));
		fs_handover_store_orders(&view, "order", 5);
		if (!fs_handover_load_orders(&view, &orders) || orders.len != 5)
			assert(orders.age == 0); /* the age of the last one was the highest */
		for (int m = 0; m < 2; m++) {
			fs_handover_clear(&view, (uint32_t)m);
			assert(view.maps[m][BITS / 64] == 0);
		}
	}
	struct fs_handover_announced *announced = fs_handover_announced(handover);
	for (uint32_t slot = 0; slot < FS_HANDOVER_LISTS_MAX; slot++) {
		struct fs_handover_list list;
		if (fs_handover_load_list(announced, slot, &list))
			assert(list.id > 0 && strlen(list.name) < sizeof(list.name));
	}
	fs_handover_resident(handover)[SAMPLES / 64] |= 1;
	const struct fs_handover_names names = fs_handover_names(handover);
	names.known[DIRS / 64] |= 1;
	names.old[FILES / 64] |= 1;
	struct fs_handover_opens *opens = fs_handover_opens(handover);
	const struct inotify_event *event;
	size_t events = 0;
	while ((event = fs_handover_take_event(opens))) {
		assert(event->wd != 0 && (event->len == 0 || strlen(event->name) < event->len));
		assert(++events <= FS_HANDOVER_EVENTS_BYTES / sizeof(*event));
	}
	fs_handover_clear_events(opens);
	assert(opens->taken == 0 && opens->events[0] == 0 && opens->events[sizeof(opens->events) - 1] == 0);
	assert(!whole || kept);
	fs_handover_close(handover);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fs_handover_head *head;
	int fd;
	if (size > 1 << 17 || fs_handover_new(&fd, &head) < 0)
		return 0;
	/* Longer than every layout, because a shorter memfd is laid out anew. */
	if (pwrite(fd, data, size, 0) != (ssize_t)size || ftruncate(fd, INT64_C(1) << 33) < 0)
		abort();
	look(fd, false);
	look(fd, true); /* what was made is found */
	munmap(head, FS_HANDOVER_HEAD_BYTES);
	close(fd);
	return 0;
}
