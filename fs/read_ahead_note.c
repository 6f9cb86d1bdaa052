/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether the recogniser is behind or recognises nothing, and says so; fs/read_ahead_note.h first. */
#include "fs/read_ahead_note.h"

#include <inttypes.h>
#include <stdio.h>

bool fs_read_ahead_note(const struct fs_read_ahead_counts *counts, char *ret_note)
{
	uint64_t percent = counts->opens > 0 ? counts->misses * 100 / counts->opens : 0;
	if (counts->behind >= FS_READ_AHEAD_BEHIND_MIN) {
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "the recogniser is behind by %" PRIu64 " opens: files are read ahead late", counts->behind);
		return true;
	}
	if (counts->recognised || counts->rests || counts->unexplained < FS_READ_AHEAD_UNEXPLAINED_MIN ||
	        percent < FS_READ_AHEAD_MISSED_MIN)
		return false;
	snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
	        "nothing recognised after %" PRIu64 " opens, %" PRIu64
	        "%% missed: run the trainer under `ddpfs exec`, call ddpfs.torch.follow(loader), announce the order "
	        "with `ddpfs ctl MNT follow LIST`, shuffle with torch's DistributedSampler or a seeded generator, or "
	        "open files in the order of .ddpfs/epoch/N.list",
	        counts->unexplained, percent);
	return true;
}
