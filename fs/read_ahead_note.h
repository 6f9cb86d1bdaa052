/* SPDX-License-Identifier: Apache-2.0 */
/* Two sentences of the statistics about an order that nobody told: `read_ahead_note` says why the recogniser is the
 * reason that opens are not read ahead, `order_note` what makes the order known.
 * No state, no lock: any thread may call. */
#ifndef DDPFS_FS_READ_AHEAD_NOTE_H
#define DDPFS_FS_READ_AHEAD_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	FS_READ_AHEAD_REASON_MAX = 256, /* bytes of a trainer's reason, NUL included */
	FS_READ_AHEAD_NOTE_MAX = 384 + FS_READ_AHEAD_REASON_MAX,
	FS_READ_AHEAD_BEHIND_MIN = 4096,     /* opens that wait */
	FS_READ_AHEAD_UNEXPLAINED_MIN = 512, /* opens without an order: as many as the recogniser keeps */
	FS_READ_AHEAD_MISSED_MIN = 10,       /* percent of opens */
};

struct fs_read_ahead_counts {
	uint64_t behind;      /* opens that the recogniser has not begun to examine */
	bool recognised;      /* at least one sampler is recognised */
	bool order_left;      /* few of the latest opens are in an order that is recognised or announced */
	bool rests;           /* the search rests, because all that is opened is in memory or announced */
	uint64_t unexplained; /* opens that fit no sampler */
	uint64_t opens;       /* of the mount; 0: not known */
	uint64_t misses;      /* of these opens; <= opens */
	bool watched;         /* `ddpfs exec` announces what the trainer's DataLoaders draw */
	bool heard;           /* a list was announced, and opens followed it or left it */
	bool announced;       /* a list is announced, or the last one was just read to its end */
	uint64_t dropped;     /* lists that were dropped, because the opens did not follow them */
	const char *reason;   /* why the trainer announces nothing, as it said; NULL: it said nothing */
};

/* Writes the sentence `read_ahead_note` into ret_note, which has room for FS_READ_AHEAD_NOTE_MAX bytes. Returns false,
 * and leaves ret_note as it is, if nothing has to be said. */
bool fs_read_ahead_note(const struct fs_read_ahead_counts *counts, char *ret_note);

/* Writes the sentence `order_note` of an order that is unknown into ret_note, which has room for as many bytes. */
void fs_unknown_order_note(const struct fs_read_ahead_counts *counts, char *ret_note);

#endif
