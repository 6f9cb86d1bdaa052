/* SPDX-License-Identifier: Apache-2.0 */
/* The command line that mkshard and ddpfs share: subcommands, messages, --help and --version on stdout.  The exit
 * status is 0 done, 1 failed, 2 wrong usage.
 *
 * A subcommand is a main() of its own.  It gets argv with argv[0] = "program command", parses it with cli_parse and
 * returns the exit status.  argp(3) provides --help, --usage and --version.  A subcommand reports
 * - wrong usage by the take() of an option, or with cli_usage after parsing; both exit with 2;
 * - every later failure with cli_fail.
 *
 * Threads: the main thread; any thread may call cli_fail, cli_failf, cli_note and cli_warn. */
#ifndef DDPFS_TOOLS_COMMON_CLI_H
#define DDPFS_TOOLS_COMMON_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shard/base/err.h"

struct shard_index;

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

/* What an option does with the member at `at` of the struct that cli_parse fills. */
enum cli_kind {
	CLI_KIND_FLAG,   /* bool: true */
	CLI_KIND_TEXT,   /* const char *: the argument, in argv */
	CLI_KIND_NUMBER, /* uint64_t: from min to max */
	CLI_KIND_SIZE,   /* uint64_t: "64M", from min to max */
	CLI_KIND_CALL,   /* what take() does */
};

struct cli_option {
	const char *name;
	const char *arg; /* NULL: takes none */
	const char *help;
	int letter; /* the short option; 0: none */
	int group;  /* in --help */
	enum cli_kind kind;
	bool may_lack; /* the argument may be left out: take() gets NULL */
	size_t at;
	uint64_t min, max;
	/* Takes the argument into the member `at`.  Returns 0, or -errno with a sentence: wrong usage. */
	int (*take)(void *at, char *arg, struct base_err *err);
};
#define CLI_FLAG(type, member) .kind = CLI_KIND_FLAG, .at = offsetof(type, member)
#define CLI_TEXT(type, member) .kind = CLI_KIND_TEXT, .at = offsetof(type, member)
#define CLI_NUMBER(type, member, low, high)                                                                            \
	.kind = CLI_KIND_NUMBER, .at = offsetof(type, member), .min = (low), .max = (high)
#define CLI_SIZE(type, member, low, high)                                                                              \
	.kind = CLI_KIND_SIZE, .at = offsetof(type, member), .min = (low), .max = (high)
#define CLI_CALL(type, member, function) .kind = CLI_KIND_CALL, .at = offsetof(type, member), .take = (function)

/* A word of the command line that is no option; the member at `at` is a const char *. */
struct cli_word {
	const char *name;
	size_t at;
	const char *missing; /* more to say if it is missing; NULL: nothing */
	bool may_lack;
};

/* The words behind those with a name. */
struct cli_rest {
	char **words; /* in argv */
	int n;
};

enum { CLI_OPTIONS_MAX = 20, CLI_WORDS_MAX = 3 };

/* The command line of a subcommand. */
struct cli_line {
	const char *words_doc;                      /* as in "Usage: mkshard ls [OPTION...] DATASET [PATH...]" */
	const char *doc;                            /* as argp's */
	struct cli_option options[CLI_OPTIONS_MAX]; /* ends with name == NULL */
	struct cli_word words[CLI_WORDS_MAX];       /* ends with name == NULL */
	bool more;                                  /* words may follow: they go to the struct cli_rest at `rest` */
	size_t rest;
	const char *too_many; /* more to say of a word too many; NULL: nothing */
	char *(*help_filter)(int key, const char *text, void *input);
};

/* Parses the command line of a subcommand, and fills `input` as the options and words of `line` say.  Options may stand
 * after words.  The function does not return on --help, --version or wrong usage. */
void cli_parse(const struct cli_line *line, int argc, char **argv, void *input);

/* Prints "mkshard: ..." and a hint to --help on stderr, and exits with 2.  For wrong usage that is found after
 * parsing. */
_Noreturn void cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Print "mkshard: <sentence>" on stderr and return CLI_FAILED, so that callers can write `return cli_fail(&err)`. */
int cli_fail(const struct base_err *err);
int cli_failf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Opens the index of a dataset, or index_file as its index, and checks that it belongs to the shards
 * (shard_index_open_with, shard_index_check_shards).  index_file NULL: the index lies with the shards.  While that
 * takes long, a terminal shows so (progress_wait_start). */
int cli_index_open(const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index);

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
