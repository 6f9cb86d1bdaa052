/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what to say about an unknown order, and says it; fs/read_ahead_note.h first. */
#include "fs/read_ahead_note.h"

#include <inttypes.h>
#include <stdio.h>

/* Returns what may keep the hook of `ddpfs exec` out of the trainer, if nobody has heard of it; else "". */
static const char *hook_missing(const struct fs_read_ahead_counts *counts)
{
	return counts->heard
	               ? ""
	               : "see that the trainer's Python gets PYTHONPATH and DDPFS_MOUNT (`export PYTHONPATH=DIR` in a "
	                 "launch script replaces it: add :$PYTHONPATH; env -i and sudo drop both, and python -E does "
	                 "not read it), or ";
}

/* For somebody who announces already. */
static const char DROPPED[] =
        "the opens were of other files or came in another order: announce the files that are opened, "
        "in the order of the opens (ddpfs.Mount(MNT).follow(...), `ddpfs ctl MNT follow LIST`, "
        "paths= of ddpfs.torch.follow)";

bool fs_read_ahead_note(const struct fs_read_ahead_counts *counts, char *ret_note)
{
	uint64_t percent = counts->opens > 0 ? counts->misses * 100 / counts->opens : 0;
	if (counts->behind >= FS_READ_AHEAD_BEHIND_MIN) {
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "the recogniser is behind by %" PRIu64 " opens: files are read ahead late", counts->behind);
		return true;
	}
	if ((counts->recognised && !counts->order_left) || counts->rests ||
	        counts->unexplained < FS_READ_AHEAD_UNEXPLAINED_MIN || percent < FS_READ_AHEAD_MISSED_MIN)
		return false;
	if (counts->order_left)
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "%" PRIu64 "%% missed, and few of the latest opens are in the order that was recognised or "
		        "announced: announce the files that are opened, in the order of the opens "
		        "(ddpfs.Mount(MNT).follow(...), `ddpfs ctl MNT follow LIST`, "
		        "paths= of ddpfs.torch.follow)",
		        percent);
	else if (counts->reason)
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "nothing recognised after %" PRIu64 " opens, %" PRIu64 "%% missed: %s", counts->unexplained,
		        percent, counts->reason);
	else if (counts->announced)
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "%" PRIu64 " opens are in no announced list, %" PRIu64
		        "%% missed: if items open more files than are announced, announce those, too, or give "
		        "ddpfs.torch.follow(loader, paths=...) a function that returns all paths of an item",
		        counts->unexplained, percent);
	else if (counts->dropped > 0)
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "nothing recognised after %" PRIu64 " opens, %" PRIu64 "%% missed, %" PRIu64
		        " announced lists dropped: %s",
		        counts->unexplained, percent, counts->dropped, DROPPED);
	else if (counts->watched)
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "nothing recognised after %" PRIu64 " opens, %" PRIu64
		        "%% missed: %scall ddpfs.torch.follow(loader, paths=...), announce the order with "
		        "`ddpfs ctl MNT follow LIST`, shuffle with torch's DistributedSampler or a seeded generator, "
		        "or open files in the order of .ddpfs/epoch/N.list",
		        counts->unexplained, percent, hook_missing(counts));
	else
		snprintf(ret_note, FS_READ_AHEAD_NOTE_MAX,
		        "nothing recognised after %" PRIu64 " opens, %" PRIu64
		        "%% missed: run the trainer under `ddpfs exec`, call ddpfs.torch.follow(loader), announce "
		        "the order with `ddpfs ctl MNT follow LIST`, shuffle with torch's DistributedSampler or a "
		        "seeded generator, or open files in the order of .ddpfs/epoch/N.list",
		        counts->unexplained, percent);
	return true;
}

void fs_unknown_order_note(const struct fs_read_ahead_counts *counts, char *ret_note)
{
	const size_t size = FS_READ_AHEAD_NOTE_MAX;
	if (counts->rests)
		snprintf(ret_note, size,
		        "unknown: everything that is opened is in memory, so no order is needed and the search for it "
		        "rests");
	else if (counts->order_left)
		snprintf(ret_note, size,
		        "unknown: few of the latest opens are in the order that was recognised or announced: "
		        "announce the files that are opened, in the order of the opens (ddpfs.Mount(MNT).follow(...), "
		        "`ddpfs ctl MNT follow LIST`, "
		        "paths= of ddpfs.torch.follow)");
	else if (counts->reason)
		snprintf(ret_note, size, "unknown: the trainer announces no order: %s", counts->reason);
	else if (counts->dropped > 0)
		snprintf(ret_note, size, "unknown: %" PRIu64 " announced lists were dropped: %s", counts->dropped,
		        DROPPED);
	else if (counts->unexplained == 0 && counts->watched)
		snprintf(ret_note, size,
		        "unknown: no opens yet; what a DataLoader of PyTorch draws is announced; for others there are "
		        "ddpfs.torch.follow(loader, paths=...), `ddpfs ctl MNT follow LIST` and "
		        "ddpfs.Mount(MNT).follow(...)");
	else if (counts->unexplained == 0)
		snprintf(ret_note, size,
		        "unknown: no opens yet; whoever knows the order can announce it: `ddpfs exec`, "
		        "ddpfs.torch.follow(loader) or `ddpfs ctl MNT follow LIST`");
	else if (counts->unexplained < FS_READ_AHEAD_UNEXPLAINED_MIN)
		snprintf(ret_note, size,
		        "unknown: the search for the order goes on: %" PRIu64
		        " opens so far, of %d that are compared with known samplers",
		        counts->unexplained, FS_READ_AHEAD_UNEXPLAINED_MIN);
	else if (counts->watched)
		snprintf(ret_note, size,
		        "unknown: %" PRIu64 " opens fit no sampler that ddpfs knows, and no DataLoader of PyTorch "
		        "announced them: %sannounce the order with ddpfs.torch.follow(loader, paths=...), `ddpfs ctl "
		        "MNT follow LIST` or ddpfs.Mount(MNT).follow(...)",
		        counts->unexplained, hook_missing(counts));
	else
		snprintf(ret_note, size,
		        "unknown: %" PRIu64
		        " opens fit no sampler that ddpfs knows: announce the order with `ddpfs exec`, "
		        "ddpfs.torch.follow(loader), `ddpfs ctl MNT follow LIST` or ddpfs.Mount(MNT).follow(...)",
		        counts->unexplained);
}
