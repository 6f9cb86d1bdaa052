/* SPDX-License-Identifier: Apache-2.0 */
/* The command line as mkshard and ddpfs share it: subcommands, --help and --version on stdout, exit status
 * 0 done, 1 failed, 2 wrong usage.
 *
 * A subcommand is a main() of its own: it gets argv with argv[0] = "program command", parses it with cli_parse (argp:
 * --help, --usage, --version come by themselves) and returns the exit status.  Wrong usage is said with argp_error
 * from its argp parser or with cli_usage after parsing; both exit with 2.  Everything that fails later goes through cli_fail.
 *
 * Threads: the main thread only, but for cli_fail, cli_note and cli_warn (any). */
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

/* Runs a program: finds the subcommand, calls it, flushes stdout (a failed write is a failed run).  Returns the exit status. */
int cli_main(const struct cli_program *program, int argc, char **argv);

/* argp_parse for a subcommand.  Options may stand after arguments.  Does not return on --help, --version or wrong
 * usage. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* The same, but the first argument that is no option ends the options (for `exec ... COMMAND --its-option`). */
void cli_parse_in_order(const struct argp *argp, int argc, char **argv, void *input);

/* For argp parsers: the value of a size ("64M") or number option; wrong text is wrong usage and exits with 2. */
uint64_t cli_arg_size(struct argp_state *state, const char *option, const char *text, uint64_t min, uint64_t max);
uint64_t cli_arg_u64(struct argp_state *state, const char *option, const char *text, uint64_t min, uint64_t max);

/* Wrong usage found after parsing: "mkshard: ..." and a pointer to --help on stderr, exit 2. */
_Noreturn void cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "mkshard: <sentence>" on stderr; returns CLI_FAILED, so that callers write `return cli_fail(&err)`. */
int cli_fail(const struct base_err *err);
int cli_failf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What is said of an index whose records (rc) make no sense.  Returns rc. */
int cli_damaged(struct base_err *err, const char *dataset, int rc);

/* "mkshard: warning: ..." and "mkshard: ..." on stderr. */
void cli_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The known word that a mistyped one comes nearest to, for "did you mean ...?".  Begins zeroed; word stays NULL where none is
 * near enough. */
struct cli_nearest {
	const char *word; /* the caller's */
	unsigned distance;
};
void cli_nearest_try(struct cli_nearest *nearest, const char *typed, const char *known);

/* A file's name on stdout: its bytes; on a terminal, which would obey control bytes in it, printable as in messages. */
void cli_put_name(const char *name);

/* The program's name as given to cli_main ("ddpfs" before that). */
const char *cli_name(void);

#endif
