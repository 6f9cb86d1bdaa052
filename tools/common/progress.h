/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar on a terminal: share done, rate, time left.  Silent where stderr is no terminal.
 *
 * Threads: progress_add and progress_clear from any thread; start and done from the one that owns the bar.  One bar
 * at a time. */
#ifndef DDPFS_TOOLS_COMMON_PROGRESS_H
#define DDPFS_TOOLS_COMMON_PROGRESS_H

#include <stdint.h>

/* Starts a bar: `verb` (static) such as "packing"; totals may be 0 when unknown. */
void progress_start(const char *verb, uint64_t total_bytes, uint64_t total_files);

/* Counts work done; redraws at most ten times a second. */
void progress_add(uint64_t bytes, uint64_t files);

/* Work that was done before (a resumed run): counts for the share, not for the rate. */
void progress_skip(uint64_t bytes, uint64_t files);

/* Wipes the bar's line, so that a message can be printed; the next progress_add draws it again. */
void progress_clear(void);

/* Wipes the bar and ends it. */
void progress_done(void);

#endif
