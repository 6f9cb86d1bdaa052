/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder: takes the readings of a mount's history (fs/history.h) and gives them out, for `ddpfs report`.
 *
 * If the log is a file, the readings go there, too, so that a report can be made when the mount is gone. A line
 *
 *     ddpfs: history {"mountpoint": ..., "fields": [...], "readings": [[...], ...]}
 *
 * holds up to FS_RECORDER_LINE readings, and the last one is written when the mount ends. Because the history thins
 * out, so do the lines: a month of a busy mount takes about 2 MiB.
 *
 * Threads: main. The helper writes the lines (fs/job_queue.h). */
#ifndef DDPFS_FS_RECORDER_H
#define DDPFS_FS_RECORDER_H

#include <jansson.h>
#include <stdint.h>

struct fs_server;

enum {
	FS_RECORDER_LINE = 16,   /* readings of a line of the log at most */
	FS_RECORDER_REPLY = 128, /* readings of a reply at most: even with 20 digits a value they fit its line */
};

struct fs_recorder; /* opaque */

/* Makes the recorder; a successor goes on with the readings of its predecessor. Returns 0; -ENOMEM. */
int fs_recorder_new(struct fs_server *server, struct fs_recorder **ret_recorder);
void fs_recorder_free(struct fs_recorder *recorder); /* NULL is fine */

/* Takes a reading if one is due. Returns the milliseconds until the next call. */
int fs_recorder_check(struct fs_recorder *recorder);

/* Takes a last reading, and writes what the log lacks. After fs_job_queue_stop. */
void fs_recorder_end(struct fs_recorder *recorder);

/* Returns the history after the time `after_ms`: "version", "pid" (of the supervisor), "mountpoint", "dataset", "rank",
 * "world", "view", "began_ms" (since 1970), "files", "content_bytes", "interval_ms", "fields", "readings", and "more":
 * whether there are later readings. NULL: out of memory. */
json_t *fs_recorder_json(struct fs_recorder *recorder, uint64_t after_ms);

#endif
