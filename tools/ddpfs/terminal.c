/* SPDX-License-Identifier: Apache-2.0 */
/* Sets up a terminal for a full-screen program, and waits for its events; terminal.h first. */
#include "tools/ddpfs/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Alternate screen, no cursor, no wrapping of long lines; and the reverse. */
static const char enter_text[] = "\033[?1049h\033[?25l\033[?7l";
static const char leave_text[] = "\033[0m\033[?7h\033[?25h\033[?1049l";

static const int caught[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT, SIGWINCH };

bool terminal_fit(void)
{
	const char *term = getenv("TERM");
	return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

int terminal_draw(const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(STDOUT_FILENO, text, len);
		if (n < 0 && errno == EAGAIN)
			poll(&(struct pollfd){ .fd = STDOUT_FILENO, .events = POLLOUT }, 1, -1);
		else if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			text += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

static void enter(struct terminal *terminal)
{
	if (terminal->keys) {
		struct termios raw = terminal->saved;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VMIN] = 1;
		raw.c_cc[VTIME] = 0;
		tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	}
	terminal_draw(enter_text, strlen(enter_text));
}

static void leave(struct terminal *terminal)
{
	terminal_draw(leave_text, strlen(leave_text));
	if (terminal->keys)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal->saved);
}

static void caught_set(sigset_t *set)
{
	sigemptyset(set);
	for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
		sigaddset(set, caught[i]);
}

int terminal_open(struct terminal *ret_terminal)
{
	struct terminal terminal = { .signal_fd = -1 };
	sigset_t set;
	caught_set(&set);
	terminal.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (terminal.signal_fd < 0)
		return -errno;
	sigprocmask(SIG_BLOCK, &set, NULL);
	terminal.keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &terminal.saved) == 0;
	enter(&terminal);
	*ret_terminal = terminal;
	return 0;
}

void terminal_close(struct terminal *terminal, int signal_number)
{
	sigset_t set;
	leave(terminal);
	close(terminal->signal_fd);
	caught_set(&set);
	if (signal_number) {
		signal(signal_number, SIG_DFL);
		raise(signal_number); /* pending until sigprocmask unblocks it */
	}
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static enum terminal_event take_signal(struct terminal *terminal, int *ret_signal)
{
	struct signalfd_siginfo info;
	if (read(terminal->signal_fd, &info, sizeof(info)) != sizeof(info))
		return TERMINAL_REDRAW;
	if (info.ssi_signo == SIGTSTP) {
		leave(terminal);
		raise(SIGSTOP);
		enter(terminal);
	}
	if (info.ssi_signo == SIGTSTP || info.ssi_signo == SIGCONT || info.ssi_signo == SIGWINCH)
		return TERMINAL_REDRAW;
	*ret_signal = (int)info.ssi_signo;
	return TERMINAL_SIGNAL;
}

/* Reads one key: one byte, or ESC [ A (or B) for an arrow.  The bytes of an arrow arrive in one read. */
static enum terminal_event take_key(int *ret_key)
{
	char text[64];
	ssize_t n = read(STDIN_FILENO, text, sizeof(text));
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return TERMINAL_REDRAW;
	if (n <= 0)
		return TERMINAL_HANGUP;
	bool arrow = n >= 3 && text[0] == '\033' && (text[1] == '[' || text[1] == 'O');
	*ret_key = (unsigned char)text[0];
	if (arrow && (text[2] == 'A' || text[2] == 'B'))
		*ret_key = text[2] == 'A' ? TERMINAL_UP : TERMINAL_DOWN;
	return TERMINAL_KEY;
}

enum terminal_event terminal_wait(struct terminal *terminal, int timeout_ms, int *ret_key)
{
	struct pollfd fds[2] = {
		{ .fd = terminal->signal_fd, .events = POLLIN },
		{ .fd = terminal->keys ? STDIN_FILENO : -1, .events = POLLIN },
	};
	int n = poll(fds, 2, timeout_ms);
	if (n == 0)
		return TERMINAL_TIME;
	if (n < 0)
		return TERMINAL_REDRAW;
	if (fds[0].revents)
		return take_signal(terminal, ret_key);
	return fds[1].revents & POLLIN ? take_key(ret_key) : TERMINAL_HANGUP;
}

void terminal_size(unsigned *ret_columns, unsigned *ret_rows)
{
	struct winsize size;
	bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row;
	*ret_columns = known ? size.ws_col : 80;
	*ret_rows = known ? size.ws_row : 24;
}
