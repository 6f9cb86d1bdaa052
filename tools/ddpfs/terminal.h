/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a full-screen program on a terminal: the alternate screen, keys without Return, signals as events.  It
 * restores the terminal whatever ends the program, except SIGKILL.  It writes plain ANSI sequences.
 *
 * Threads: one.  Threads that start after terminal_open inherit its blocked signals. */
#ifndef DDPFS_TOOLS_DDPFS_TERMINAL_H
#define DDPFS_TOOLS_DDPFS_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <termios.h>

struct terminal {
	bool keys;            /* standard input is a terminal, so there are keys */
	struct termios saved; /* its settings before terminal_open, if `keys` */
	int signal_fd;        /* signalfd(2) of the signals that terminal_wait reports */
};

enum terminal_event {
	TERMINAL_TIME,   /* timeout_ms have passed */
	TERMINAL_KEY,    /* *ret_key: a byte, TERMINAL_UP or TERMINAL_DOWN */
	TERMINAL_REDRAW, /* draw again: the size changed, or the process continued after a stop */
	TERMINAL_HANGUP, /* the terminal is gone */
	TERMINAL_SIGNAL, /* *ret_key: a signal that asks the program to end; pass it to terminal_close */
};

enum { TERMINAL_UP = 256, TERMINAL_DOWN = 257 };

/* Whether standard output is a terminal that can be drawn on: no pipe, no file, not TERM=dumb. */
bool terminal_fit(void);

/* Takes over the terminal: blocks the signals, sets the keys, enters the alternate screen.  Returns 0 or -errno of
 * signalfd(2). */
int terminal_open(struct terminal *ret_terminal);

/* Restores the terminal.  `signal` is 0, or the signal that terminal_wait reported; that signal then ends the
 * process. */
void terminal_close(struct terminal *terminal, int signal);

/* Waits for an event, at most timeout_ms.  Ctrl-Z stops the process inside this function. */
enum terminal_event terminal_wait(struct terminal *terminal, int timeout_ms, int *ret_key);

/* Stores the size of the terminal; 80 x 24 if it is not known. */
void terminal_size(unsigned *ret_columns, unsigned *ret_rows);

/* Writes `len` bytes to standard output, and waits if it is full.  Returns 0 or -errno of write(2). */
int terminal_draw(const char *text, size_t len);

#endif
