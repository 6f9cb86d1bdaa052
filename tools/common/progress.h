/* SPDX-License-Identifier: Apache-2.0 */
/* Draws a progress bar on a terminal (share done, rate, time left), or a line that says what a command waits for.  It
 * draws nothing if stderr is no terminal.
 *
 * There is one bar or one line at a time.  Threads: any may call progress_add, progress_skip and progress_clear; one
 * thread calls the other functions. */
#ifndef DDPFS_TOOLS_COMMON_PROGRESS_H
#define DDPFS_TOOLS_COMMON_PROGRESS_H

#include <stdint.h>

/* Starts the bar.  `verb` is a static text such as "packing"; a total of 0 means unknown. */
void progress_start(const char *verb, uint64_t total_bytes, uint64_t total_files);

/* Counts finished work, and redraws the bar at most ten times a second. */
void progress_add(uint64_t bytes, uint64_t files);

/* Counts work of an earlier run: it counts for the share, not for the rate. */
void progress_skip(uint64_t bytes, uint64_t files);

/* Wipes the bar or the line before a message; it is drawn again with the next change. */
void progress_clear(void);

/* Wipes the bar and ends it. */
void progress_done(void);

/* Begins a wait.  If it takes longer than 2 s, the terminal shows "<what>, 3 s", and the seconds count on.  what: at
 * most 100 bytes, copied.  Called again before progress_wait_done, it replaces the text, and the seconds go on.
 *
 * A thread draws.  It gets no signals, and progress_wait_done ends it.  A process that is forked in between does not
 * have it, and may find its lock held: it calls exec and nothing of this header, nor cli_note and its like. */
void progress_wait_start(const char *what);

/* Wipes the line and ends the wait.  Does nothing if there is none. */
void progress_wait_done(void);

#endif
