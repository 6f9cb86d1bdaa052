/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a mount: its counters at one moment after another, from its beginning until now.
 *
 *     readings   [0] [1] [2] [3] ... [n - 1]      at_ms ascends; two neighbours are about interval_ms apart
 *     full:      [0]     [2]     ...              every second one goes, and interval_ms doubles
 *
 * A *reading* is one value of each field of fs_history_names. So the memory is bounded, and the history of an hour has
 * a reading every two seconds, that of a day one a minute. While nothing changes, the last reading moves along in
 * time, and takes no more room.
 *
 * The readings lie in the handover memory, so a successor goes on with them. It trusts nothing there: it keeps the
 * readings whose times ascend. A wrong value shows a wrong point in a report, and nothing else.
 *
 * Threads: one owner (main). */
#ifndef DDPFS_FS_HISTORY_H
#define DDPFS_FS_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FS_HISTORY_FIELDS = 21,
	FS_HISTORY_READINGS_MAX = 2048,
	FS_HISTORY_INTERVAL_MS = 1000, /* at first */
};

/* Names of the values of a reading: "at_ms", the milliseconds since the mount was made, counted from 1, and then names
 * of statistics. A statistic that a mount does not have is 0. */
extern const char *const fs_history_names[FS_HISTORY_FIELDS];

struct fs_history_reading {
	uint64_t values[FS_HISTORY_FIELDS]; /* [0]: at_ms */
};

/* What lies in the handover memory. All zeros: no readings. */
struct fs_history_memory {
	uint64_t interval_ms; /* 0: none yet */
	uint64_t logged_ms;   /* readings up to this time are in the log (fs/recorder.h) */
	uint64_t n;           /* of `readings` */
	struct fs_history_reading readings[FS_HISTORY_READINGS_MAX];
};

/* Makes memory of any content usable: keeps the readings whose times ascend, none of them after `now_ms`. */
void fs_history_check(struct fs_history_memory *history, uint64_t now_ms);

/* Returns the milliseconds from `now_ms` until the next reading is due; 0: it is due. */
uint64_t fs_history_due_ms(const struct fs_history_memory *history, uint64_t now_ms);

/* Adds a reading, unless its time is not after the last one's. */
void fs_history_add(struct fs_history_memory *history, const struct fs_history_reading *reading);

/* Returns the number of the first reading after the time `at_ms`; `n`: there is none. */
size_t fs_history_after(const struct fs_history_memory *history, uint64_t at_ms);

#endif
