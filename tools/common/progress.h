/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a progress bar on a terminal: share done, rate, time left.  It draws nothing if stderr is no terminal.
 *
 * There is one bar at a time.  Threads: any may call progress_add, progress_skip and progress_clear; one thread calls
 * progress_start and progress_done. */
#ifndef DDPFS_TOOLS_COMMON_PROGRESS_H
#define DDPFS_TOOLS_COMMON_PROGRESS_H

#include <stdint.h>

/* Starts the bar.  `verb` is a static text such as "packing"; a total of 0 means unknown. */
void progress_start(const char *verb, uint64_t total_bytes, uint64_t total_files);

/* Counts finished work, and redraws the bar at most ten times a second. */
void progress_add(uint64_t bytes, uint64_t files);

/* Counts work of an earlier run: it counts for the share, not for the rate. */
void progress_skip(uint64_t bytes, uint64_t files);

/* Wipes the bar's line before a message; the next progress_add draws the bar again. */
void progress_clear(void);

/* Wipes the bar and ends it. */
void progress_done(void);

#endif
