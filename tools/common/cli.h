/* SPDX-License-Identifier: Apache-2.0 */
/* The command line that mkshard and ddpfs share: subcommands, messages, --help and --version on stdout.  The exit
 * status is 0 done, 1 failed, 2 wrong usage.
 *
 * A subcommand is a main() of its own.  It gets argv with argv[0] = "program command", parses it with cli_parse and
 * returns the exit status.  argp(3) provides --help, --usage and --version.  A subcommand reports
 * - wrong usage with argp_error in its parser, or with cli_usage after parsing; both exit with 2;
 * - every later failure with cli_fail.
 *
 * Threads: the main thread; any thread may call cli_fail, cli_failf, cli_note and cli_warn. */
#ifndef DDPFS_TOOLS_COMMON_CLI_H
#define DDPFS_TOOLS_COMMON_CLI_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "shard/base/err.h"

enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

struct cli_command {
	const char *name;
	const char *summary; /* one line for --help, at most 58 bytes; NULL: not listed */
	int (*main)(int argc, char **argv);
};

struct cli_program {
	const char *name;                   /* "mkshard" */
	const char *doc;                    /* one or two sentences for --help */
	const struct cli_command *commands; /* ends with name == NULL */
};

/* Runs a program: finds the subcommand, calls it and flushes stdout.  Returns the exit status: that of the
 * subcommand, or CLI_FAILED if stdout could not be written. */
int cli_main(const struct cli_program *program, int argc, char **argv);

/* Parses the command line of a subcommand with argp_parse; `input` is for its parser.  Options may stand after
 * arguments.
 * The function does not return on --help, --version or wrong usage. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Like cli_parse, but the first argument that is no option ends the options. */
void cli_parse_in_order(const struct argp *argp, int argc, char **argv, void *input);

/* For argp parsers: return the value of an option that is a size ("64M") or a number, from `min` to `max`.  Other
 * text is wrong usage: the program exits with 2. */
uint64_t cli_arg_size(struct argp_state *state, const char *option, const char *text, uint64_t min, uint64_t max);
uint64_t cli_arg_u64(struct argp_state *state, const char *option, const char *text, uint64_t min, uint64_t max);

/* Prints "mkshard: ..." and a hint to --help on stderr, and exits with 2.  For wrong usage that is found after
 * parsing. */
_Noreturn void cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Print "mkshard: <sentence>" on stderr and return CLI_FAILED, so that callers can write `return cli_fail(&err)`. */
int cli_fail(const struct base_err *err);
int cli_failf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Writes into `err` that the index of `dataset` is damaged.  Returns `rc`, the error of the record. */
int cli_damaged(struct base_err *err, const char *dataset, int rc);

/* Print "mkshard: warning: ..." and "mkshard: ..." on stderr. */
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The known word that is nearest to a mistyped one, for "did you mean ...?".  Begins zeroed. */
struct cli_nearest {
	const char *word;  /* belongs to the caller; NULL if no word is near enough */
	unsigned distance; /* edits between the two */
};
/* Stores `known` in *nearest if it is near enough to `typed` and nearer than the word there. */
void cli_nearest_try(struct cli_nearest *nearest, const char *typed, const char *known);

/* Writes a file's name to stdout.  On a terminal it writes a printable form, because a terminal obeys control bytes. */
void cli_put_name(const char *name);

/* Returns the program's name as given to cli_main ("ddpfs" before that). */
const char *cli_name(void);

#endif
