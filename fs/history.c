/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of a mount's counters, thinned out when they are many; fs/history.h first. */
#include "fs/history.h"

#include <string.h>

const char *const fs_history_names[FS_HISTORY_FIELDS] = { "at_ms", "epoch", "position", "turns", "opens", "hits",
	"misses", "delivered_bytes", "read_bytes", "tier_bytes", "waited_ns", "epoch_wait_p50_ns", "epoch_wait_p99_ns",
	"resident_bytes", "memory_bytes", "window_bytes", "depth", "inflight", "lost", "errors", "restarts" };

static uint64_t at(const struct fs_history_memory *history, uint64_t i)
{
	return history->readings[i].values[0];
}

void fs_history_check(struct fs_history_memory *history, uint64_t now_ms)
{
	uint64_t n = history->n <= FS_HISTORY_READINGS_MAX ? history->n : 0;
	uint64_t kept = 0;
	for (uint64_t i = 0; i < n; i++)
		if (at(history, i) <= now_ms && at(history, i) > (kept ? at(history, kept - 1) : 0))
			history->readings[kept++] = history->readings[i];
	history->n = kept;
	if (kept == 0 || history->interval_ms < FS_HISTORY_INTERVAL_MS || history->interval_ms > now_ms)
		history->interval_ms = FS_HISTORY_INTERVAL_MS;
	if (history->logged_ms > now_ms)
		history->logged_ms = 0;
}

uint64_t fs_history_due_ms(const struct fs_history_memory *history, uint64_t now_ms)
{
	if (history->n == 0)
		return 0;
	uint64_t due = at(history, history->n - 1) + history->interval_ms;
	return due > now_ms ? due - now_ms : 0;
}

static bool same(const struct fs_history_reading *a, const struct fs_history_reading *b)
{
	return memcmp(a->values + 1, b->values + 1, sizeof(a->values) - sizeof(a->values[0])) == 0;
}

static void thin_out(struct fs_history_memory *history)
{
	for (uint64_t i = 0; 2 * i < history->n; i++)
		history->readings[i] = history->readings[2 * i];
	history->n = (history->n + 1) / 2;
	history->interval_ms *= 2;
}

void fs_history_add(struct fs_history_memory *history, const struct fs_history_reading *reading)
{
	uint64_t n = history->n;
	if (n > 0 && reading->values[0] <= at(history, n - 1))
		return;
	/* The last reading moves only if the one before it is the same: that one says since when. */
	if (n > 1 && same(reading, &history->readings[n - 1]) && same(reading, &history->readings[n - 2])) {
		history->readings[n - 1] = *reading;
		return;
	}
	if (n == FS_HISTORY_READINGS_MAX)
		thin_out(history);
	history->readings[history->n++] = *reading;
}

size_t fs_history_after(const struct fs_history_memory *history, uint64_t at_ms)
{
	size_t low = 0, high = history->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (at(history, middle) > at_ms)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}
