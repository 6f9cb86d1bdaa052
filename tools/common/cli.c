/* SPDX-License-Identifier: Apache-2.0 */
/* Subcommands, messages and help texts on top of argp(3); cli.h first. */
#include "tools/common/cli.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/base/units.h"
#include "shard/format.h"
#include "shard/index.h"
#include "tools/common/progress.h"

enum { NAME_DISTANCE_MAX = 2 }; /* edits between a mistyped word and a suggestion */

static const struct cli_program *current;
static const char *current_command; /* "mkshard pack", for the hint of cli_usage */

const char *cli_name(void)
{
	return current ? current->name : "ddpfs";
}

/* Writes one line in one write, so that lines of threads and processes do not mix.  It wipes the progress bar first. */
__attribute__((format(printf, 2, 0))) static void say(const char *kind, const char *fmt, va_list ap)
{
	char text[BASE_ERR_TEXT_MAX + 256];
	int n = snprintf(text, sizeof(text), "%s: %s", cli_name(), kind);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	size_t len = strlen(text);
	if (len > sizeof(text) - 2)
		len = sizeof(text) - 2;
	text[len] = '\n';
	text[len + 1] = '\0';
	progress_clear();
	fputs(text, stderr);
}

int cli_fail(const struct base_err *err)
{
	if (err->text[0])
		return cli_failf("%s", err->text);
	return cli_failf("%s", base_err_str(err->code));
}

int cli_failf(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say("", fmt, ap);
	va_end(ap);
	return CLI_FAILED;
}

int cli_index_open(const char *dataset, const char *index_file, struct base_err *err, struct shard_index **ret_index)
{
	struct shard_index *index = NULL;
	progress_wait_start("opening the index");
	int rc = shard_index_open_with(dataset, index_file, err, &index);
	if (rc == 0)
		rc = shard_index_check_shards(index, err);
	progress_wait_done();
	if (rc < 0)
		shard_index_close(index);
	else
		*ret_index = index;
	return rc;
}

int cli_damaged(struct base_err *err, const char *dataset, int rc)
{
	return base_err_set(err, rc, "'%s': the index is damaged: %s; " SHARD_INDEX_ADVICE, dataset, base_err_str(rc));
}

void cli_warn(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say("warning: ", fmt, ap);
	va_end(ap);
}

void cli_note(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say("", fmt, ap);
	va_end(ap);
}

void cli_put_name(const char *name)
{
	static int terminal = -1;
	char quoted[4 * SHARD_PATH_MAX + 1]; /* each byte becomes \xNN at most */
	if (terminal < 0)
		terminal = isatty(STDOUT_FILENO);
	fputs(terminal ? base_err_quote(name, quoted, sizeof(quoted)) : name, stdout);
}

void cli_usage(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say("", fmt, ap);
	va_end(ap);
	fprintf(stderr, "Try '%s --help' for more information.\n", current_command ? current_command : cli_name());
	exit(CLI_USAGE);
}

static unsigned smaller(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* How many edits turn one short word into the other: letters that are put in, left out or replaced, and neighbours that
 * are exchanged (optimal string alignment). */
static unsigned distance(const char *a, const char *b)
{
	unsigned rows[3][32] = { 0 }; /* of this letter of a, and of the two before it */
	size_t n = strlen(b), len = strlen(a);
	if (n >= 32 || len >= 32)
		return UINT32_MAX;
	for (unsigned j = 0; j <= n; j++)
		rows[0][j] = j;
	for (unsigned i = 1; i <= len; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			row[j] = smaller(last[j - 1] + (a[i - 1] != b[j - 1]), smaller(last[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = smaller(row[j], before[j - 2] + 1);
		}
	}
	return rows[len % 3][n];
}

void cli_nearest_try(struct cli_nearest *nearest, const char *typed, const char *known)
{
	unsigned d = distance(typed, known);
	/* Two edits turn any short word into another, so two letters of three must stay. */
	if (d > NAME_DISTANCE_MAX || 3 * d > strlen(known) + 1 || (nearest->word && d >= nearest->distance))
		return;
	*nearest = (struct cli_nearest){ .word = known, .distance = d };
}

/* The command line of a subcommand */

enum { KEY_FIRST = 0x100 }; /* the key of an option without a letter: this, and its number */

struct parsing {
	const struct cli_line *line;
	char *input; /* the struct to fill */
	unsigned n;  /* words so far */
};

static uint64_t read_number(const struct cli_option *o, const char *arg, struct argp_state *state)
{
	uint64_t value = 0;
	char low[24], high[24];
	bool size = o->kind == CLI_KIND_SIZE;
	int rc = size ? base_parse_size(arg, &value) : base_parse_u64(arg, o->max, &value);
	if (rc == -EINVAL)
		argp_error(state, "--%s: '%s' is not a %s", o->name, arg, size ? "size such as 64M or 4096" : "number");
	snprintf(low, sizeof(low), "%" PRIu64, o->min);
	snprintf(high, sizeof(high), "%" PRIu64, o->max);
	if (rc || value < o->min || value > o->max)
		argp_error(state, "--%s: '%s' is out of range; allowed is %s to %s", o->name, arg,
		        size ? base_format_size(o->min, low) : low, size ? base_format_size(o->max, high) : high);
	return value;
}

static void take_option(const struct cli_option *o, char *arg, struct argp_state *state)
{
	struct base_err err = { 0 };
	void *at = ((struct parsing *)state->input)->input + o->at;
	switch (o->kind) {
	case CLI_KIND_FLAG:
		*(bool *)at = true;
		break;
	case CLI_KIND_TEXT:
		*(const char **)at = arg;
		break;
	case CLI_KIND_NUMBER:
	case CLI_KIND_SIZE:
		*(uint64_t *)at = read_number(o, arg, state);
		break;
	case CLI_KIND_CALL:
		if (o->take(at, arg, &err) < 0)
			argp_error(state, "%s", err.text);
		break;
	}
}

static void take_word(struct parsing *p, char *arg, struct argp_state *state)
{
	const struct cli_word *word = &p->line->words[p->n];
	if (p->n < CLI_WORDS_MAX && word->name) {
		*(const char **)(p->input + word->at) = arg;
		p->n++;
		return;
	}
	if (!p->line->more) {
		const char *hint = p->line->too_many;
		argp_error(state, "'%s' is one argument too many%s%s", arg, hint ? ": " : "", hint ? hint : "");
	}
	struct cli_rest *rest = (struct cli_rest *)(p->input + p->line->rest);
	*rest = (struct cli_rest){ .words = state->argv + state->next - 1, .n = state->argc - state->next + 1 };
	state->next = state->argc;
}

static error_t parse_line(int key, char *arg, struct argp_state *state)
{
	struct parsing *p = state->input;
	const struct cli_option *o = p->line->options;
	const struct cli_word *word = &p->line->words[p->n];
	if (key == 'h') { /* argp itself knows only --help and -? */
		argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
	} else if (key == ARGP_KEY_ARG) {
		take_word(p, arg, state);
	} else if (key == ARGP_KEY_END) {
		if (p->n < CLI_WORDS_MAX && word->name && !word->may_lack)
			argp_error(state, "%s is missing%s%s", word->name, word->missing ? ": " : "",
			        word->missing ? word->missing : "");
	} else {
		for (unsigned i = 0; i < CLI_OPTIONS_MAX && o[i].name; i++)
			if (key == (o[i].letter ? o[i].letter : KEY_FIRST + (int)i)) {
				take_option(&o[i], arg, state);
				return 0;
			}
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static void parse(const struct argp *argp, int argc, char **argv, unsigned flags, void *input)
{
	error_t rc = argp_parse(argp, argc, argv, flags, NULL, input);
	if (rc)
		cli_usage("%s", strerror(rc));
}

void cli_parse(const struct cli_line *line, int argc, char **argv, void *input)
{
	struct argp_option options[CLI_OPTIONS_MAX + 2] = { { NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0 } };
	const struct cli_option *o = line->options;
	for (unsigned i = 0; i < CLI_OPTIONS_MAX && o[i].name; i++)
		options[i + 1] = (struct argp_option){ .name = o[i].name,
			.key = o[i].letter ? o[i].letter : KEY_FIRST + (int)i,
			.arg = o[i].arg,
			.flags = o[i].may_lack ? OPTION_ARG_OPTIONAL : 0,
			.doc = o[i].help,
			.group = o[i].group };
	const struct argp argp = { .options = options,
		.parser = parse_line,
		.args_doc = line->words_doc,
		.doc = line->doc,
		.help_filter = line->help_filter };
	parse(&argp, argc, argv, 0, &(struct parsing){ .line = line, .input = input });
}

/* Top level */

struct top {
	int index; /* of the subcommand in argv; 0 = none */
};

static error_t parse_top(int key, char *arg, struct argp_state *state)
{
	struct top *top = state->input;
	(void)arg;
	switch (key) {
	case 'h':
		argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
		return 0;
	case ARGP_KEY_ARG:
		top->index = state->next - 1;
		state->next = state->argc; /* the rest is the subcommand's */
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "a command is missing");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Appends the list of commands to --help. */
static char *list_commands(int key, const char *text, void *input)
{
	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA)
		return (char *)(uintptr_t)text; /* argp: return the text itself if nothing changes */
	char *list = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&list, &size);
	if (!out)
		return NULL;
	fprintf(out, "Commands:\n");
	for (const struct cli_command *c = current->commands; c->name; c++)
		if (c->summary)
			fprintf(out, "  %-10s  %s\n", c->name, c->summary);
	fprintf(out, "\n'%s COMMAND --help' tells a command's options; 'man %s' tells all.", current->name,
	        current->name);
	fclose(out);
	return list;
}

static const struct cli_command *find_command(const char *name)
{
	for (const struct cli_command *c = current->commands; c->name; c++)
		if (!strcmp(c->name, name))
			return c;
	return NULL;
}

static _Noreturn void unknown_command(const char *name)
{
	struct cli_nearest nearest = { 0 };
	for (const struct cli_command *c = current->commands; c->name; c++)
		if (c->summary)
			cli_nearest_try(&nearest, name, c->name);
	const char *quoted = base_quoted(name);
	if (nearest.word)
		cli_usage("unknown command '%s': did you mean %s?", quoted, nearest.word);
	cli_usage("unknown command '%s'", quoted);
}

/* Translates `help`, `help COMMAND` and `version`, which other programs accept, into options. */
static void translate_help(int argc, char **argv)
{
	static char help[] = "--help", version[] = "--version";
	if (argc > 2 && !strcmp(argv[1], "help") && find_command(argv[2])) {
		argv[1] = argv[2];
		argv[2] = help;
	} else if (argc > 1 && !strcmp(argv[1], "help")) {
		argv[1] = help;
	} else if (argc == 2 && !strcmp(argv[1], "version")) {
		argv[1] = version;
	}
}

static void print_version(FILE *out, struct argp_state *state)
{
	(void)state;
	fprintf(out, "%s (ddpfs) " DDPFS_VERSION "\n", cli_name());
}

static int finish(int status)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return status;
	int failed = cli_failf("cannot write to standard output: %s", strerror(errno));
	return status ? status : failed;
}

int cli_main(const struct cli_program *program, int argc, char **argv)
{
	current = program;
	argp_err_exit_status = CLI_USAGE;
	argp_program_version_hook = print_version;

	static const struct argp_option options[] = { { NULL, 'h', NULL, OPTION_HIDDEN, NULL, 0 }, { 0 } };
	struct argp argp = { .options = options,
		.parser = parse_top,
		.args_doc = "COMMAND [ARG...]",
		.doc = program->doc,
		.help_filter = list_commands };
	struct top top = { 0 };
	char *name = strdup(program->name); /* argp keeps pointers to argv[0] */
	if (!name)
		return cli_failf("out of memory");
	if (argc > 0)
		argv[0] = name;
	translate_help(argc, argv);
	parse(&argp, argc, argv, ARGP_IN_ORDER, &top);

	const struct cli_command *command = find_command(argv[top.index]);
	if (!command)
		unknown_command(argv[top.index]);
	char *full = NULL;
	if (asprintf(&full, "%s %s", program->name, command->name) < 0)
		return cli_failf("out of memory");
	current_command = full;
	argv[top.index] = full;
	int status = finish(command->main(argc - top.index, argv + top.index));
	current_command = NULL;
	free(full);
	free(name);
	return status;
}
