/* SPDX-License-Identifier: Apache-2.0 */
/* The handler of SIGINT and SIGTERM, and the texts that it prints; interrupt.h first. */
#include "tools/mkshard/interrupt.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/base/err.h"

enum { NAME_MAX_SHOWN = 512, COMMAND_MAX_SHOWN = 3000 };

static const int signals[] = { SIGINT, SIGTERM };
enum { N_SIGNALS = sizeof(signals) / sizeof(signals[0]) };

/* Set before the handler is installed, except for the numbers, which grow while threads work. */
static struct {
	char partial[NAME_MAX_SHOWN];
	char store[NAME_MAX_SHOWN]; /* "": the shards are in partial */
	char command[COMMAND_MAX_SHOWN];
	bool terminal; /* stderr is a terminal: wipe the progress bar first */
	bool piped;
	_Atomic uint32_t complete, total;
	struct sigaction before[N_SIGNALS];
} state;

/* Whether argp takes this word for --restart: it may be abbreviated, and no other option of pack begins with --r. */
static bool is_restart(const char *word)
{
	return strlen(word) > 2 && !strncmp(word, "--restart", strlen(word));
}

char *pack_command_line(int argc, char *const *argv)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	if (!out)
		return NULL;
	fprintf(out, "%s pack", program_invocation_name);
	bool options = true;
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i];
		options = options && strcmp(word, "--") != 0;
		if (options && is_restart(word))
			continue;
		bool quote = !*word || word[strspn(word, plain)];
		fputs(quote ? " '" : " ", out);
		for (; *word; word++)
			if (*word == '\'')
				fputs("'\\''", out);
			else
				fputc(*word, out);
		if (quote)
			fputc('\'', out);
	}
	bool whole = fflush(out) == 0 && !ferror(out);
	fclose(out);
	if (whole)
		return text;
	free(text);
	return NULL;
}

/* The handler: calls only functions that signal-safety(7) allows. */

struct text {
	char bytes[2 * NAME_MAX_SHOWN + COMMAND_MAX_SHOWN + 512];
	size_t used;
};

static void put(struct text *text, const char *s)
{
	while (*s && text->used < sizeof(text->bytes))
		text->bytes[text->used++] = *s++;
}

static void put_number(struct text *text, uint32_t n)
{
	char digits[12];
	size_t at = sizeof(digits) - 1;
	digits[at] = '\0';
	do
		digits[--at] = (char)('0' + n % 10);
	while (n /= 10);
	put(text, digits + at);
}

static void on_signal(int number)
{
	struct text text = { .used = 0 };
	uint32_t complete = atomic_load(&state.complete);
	int error = errno;
	put(&text, state.terminal ? "\r\033[K" : "");
	put(&text, "mkshard: interrupted: ");
	if (complete) {
		put_number(&text, complete);
		put(&text, " of ");
		put_number(&text, atomic_load(&state.total));
		put(&text, " shards are complete and ");
		put(&text, *state.store ? "in '" : "kept in '");
		put(&text, state.store);
		put(&text, *state.store ? "', noted in '" : "");
	} else {
		put(&text, "no shard is complete, nothing of use is in '");
	}
	put(&text, state.partial);
	put(&text, *state.store ? "'; unfinished uploads stay in the store until a rerun removes them" : "'");
	put(&text, complete ? "; go on with: " : "; begin again with: ");
	put(&text, state.command);
	put(&text, state.piped ? " (and the same standard input)\n" : "\n");
	if (write(STDERR_FILENO, text.bytes, text.used) < 0) {
		/* nothing can be done */
	}
	errno = error;
	raise(number); /* with SA_RESETHAND this ends the program when the handler returns */
}

void pack_interrupt_begin(const char *partial, const char *store, const char *command, bool piped)
{
	state.store[0] = '\0';
	if (store)
		base_err_quote(store, state.store, sizeof(state.store));
	base_err_quote(partial, state.partial, sizeof(state.partial));
	if (command && strlen(command) < sizeof(state.command) / 4) /* each byte may become four: \xNN */
		base_err_printable(command, state.command, sizeof(state.command));
	else
		snprintf(state.command, sizeof(state.command), "the same command");
	state.terminal = isatty(STDERR_FILENO);
	state.piped = piped;
	atomic_store(&state.complete, 0);
	atomic_store(&state.total, 0);
	for (int i = 0; i < N_SIGNALS; i++) {
		struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
		sigaction(signals[i], NULL, &state.before[i]);
		if (state.before[i].sa_handler != SIG_IGN)
			sigaction(signals[i], &action, NULL);
	}
}

void pack_interrupt_total(uint32_t n_shards)
{
	atomic_store(&state.total, n_shards);
}

void pack_interrupt_add(uint32_t n_shards)
{
	atomic_fetch_add(&state.complete, n_shards);
}

void pack_interrupt_end(void)
{
	for (int i = 0; i < N_SIGNALS; i++)
		sigaction(signals[i], &state.before[i], NULL);
}
