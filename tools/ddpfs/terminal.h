/* SPDX-License-Identifier: Apache-2.0 */
/* A full-screen program on a terminal: a screen of its own, keys without Return, signals as events, and the terminal as
 * it was before on every way out.  Plain ANSI sequences, which every terminal of today understands.
 *
 * Threads: one.  Threads started after terminal_open leave the signals to it. */
#ifndef DDPFS_TOOLS_DDPFS_TERMINAL_H
#define DDPFS_TOOLS_DDPFS_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <termios.h>

struct terminal {
	bool keys;            /* standard input is a terminal */
	struct termios saved; /* of it */
	int signal_fd;
};

enum terminal_event {
	TERMINAL_TIME,   /* the time is over */
	TERMINAL_KEY,    /* *ret_key: a byte, TERMINAL_UP or TERMINAL_DOWN */
	TERMINAL_REDRAW, /* another size, or continued after a stop */
	TERMINAL_HANGUP, /* the terminal is gone */
	TERMINAL_SIGNAL, /* *ret_key: the signal that wants the end; see terminal_close */
};

enum { TERMINAL_UP = 256, TERMINAL_DOWN = 257 };

/* Can standard output be drawn on?  No on a pipe, a file, and TERM=dumb. */
bool terminal_fit(void);

/* Takes the terminal over.  -errno. */
int terminal_open(struct terminal *ret_terminal);

/* Gives it back.  signal: 0, or what terminal_wait told: then the process ends of it here. */
void terminal_close(struct terminal *terminal, int signal);

/* Waits for something to happen, at most timeout_ms.  A stop (Ctrl-Z) happens inside. */
enum terminal_event terminal_wait(struct terminal *terminal, int timeout_ms, int *ret_key);

void terminal_size(unsigned *ret_columns, unsigned *ret_rows);

/* Writes a whole screen.  -errno. */
int terminal_draw(const char *text, size_t len);

#endif
