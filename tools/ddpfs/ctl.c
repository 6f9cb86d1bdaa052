/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs ctl`: shows or changes a live mount: epoch, advance, resume state, orders; ask_server.h first. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/ddpfs/ctl_follow.h"
#include "tools/common/cli.h"
#include "tools/common/output_file.h"
#include "tools/ddpfs/ddpfs.h"

#define NOT_GIVEN UINT64_MAX

struct arguments {
	const char *target;
	const char *command;
	const char *value; /* NULL: only ask */
	const char *output;
	uint64_t epoch; /* NOT_GIVEN: not given; turns too */
	uint64_t turns;
	bool json;
	struct ctl_follow follow;
};

static uint64_t number(const char *text, const char *what)
{
	uint64_t value = 0;
	if (base_parse_u64(text, INT64_MAX, &value) < 0)
		cli_usage("%s: '%s' is not a number%s", what, text,
		        strcmp(what, "state") == 0 ? " of steps; -O FILE writes the state to a file" : "");
	return value;
}

/* Checks the words of the command line; wrong usage ends the program.  *ret_number: the number after epoch or state. */
static void check_words(const struct arguments *a, uint64_t *ret_number)
{
	bool epoch = strcmp(a->command, "epoch") == 0;
	bool state = strcmp(a->command, "state") == 0;
	bool advance = strcmp(a->command, "advance") == 0;
	if (!epoch && !state && !advance && strcmp(a->command, "info") != 0 && strcmp(a->command, "reset") != 0)
		cli_usage("unknown command '%s': one of epoch, advance, state, follow, reset, info", a->command);
	if (ctl_follow_is_set(&a->follow))
		cli_usage("--null, --indices, --listing, --dir, --list, --append, --buffer, --skip-unknown and "
		          "--end belong to follow");
	if (advance && (!a->value || (strcmp(a->value, "auto") != 0 && strcmp(a->value, "off") != 0)))
		cli_usage("advance: give auto or off");
	if (a->value && !epoch && !state && !advance)
		cli_usage("'%s' is one argument too many", a->value);
	if (!state && (a->epoch != NOT_GIVEN || a->turns != NOT_GIVEN || a->output))
		cli_usage("--epoch, --turns and --output belong to state");
	if (a->turns != NOT_GIVEN && a->value)
		cli_usage("STEPS and --turns both say what was trained: give one of them");
	if (a->epoch != NOT_GIVEN && !a->value && a->turns == NOT_GIVEN)
		cli_usage("--epoch needs STEPS or --turns: ddpfs ctl MNT state STEPS --epoch N");
	if (a->value && !advance)
		*ret_number = number(a->value, a->command);
}

static void check_follow(const struct arguments *a)
{
	const struct ctl_follow *f = &a->follow;
	if (a->epoch != NOT_GIVEN || a->turns != NOT_GIVEN || a->output)
		cli_usage("--epoch, --turns and --output belong to state");
	if (f->end && (a->value || f->form || f->append || f->null || f->skip_unknown || f->buffer))
		cli_usage("--end forgets a list: give no LIST and no option but --list with it");
	if (!f->end && !a->value)
		cli_usage("follow: LIST is missing: a file with one path a line, or - for standard input");
	if ((f->listing || f->dir) && !f->form)
		cli_usage("--listing and --dir belong to --indices");
}

static int take_form(void *at, char *arg, struct base_err *err)
{
	if (arg && strcmp(arg, "u32") != 0 && strcmp(arg, "u64") != 0)
		return base_err_set(err, -EINVAL, "--indices: '%s' is not u32 or u64", arg);
	*(const char **)at = arg ? arg : CTL_FOLLOW_LINES;
	return 0;
}

static int take_listing(void *at, char *arg, struct base_err *err)
{
	if (strcmp(arg, "sorted") != 0 && strcmp(arg, "imagefolder") != 0)
		return base_err_set(err, -EINVAL, "--listing: '%s' is not sorted or imagefolder", arg);
	*(const char **)at = arg;
	return 0;
}

static json_t *make_request(const struct arguments *a)
{
	uint64_t n = 0;
	check_words(a, &n);
	json_t *request = json_object();
	if (strcmp(a->command, "advance") == 0) {
		json_object_set_new(request, "cmd", json_string("epoch"));
		json_object_set_new(request, "advance", json_string(a->value));
		return request;
	}
	json_object_set_new(request, "cmd", json_string(a->command));
	if (a->value)
		json_object_set_new(
		        request, strcmp(a->command, "epoch") == 0 ? "set" : "steps", json_integer((json_int_t)n));
	if (a->turns != NOT_GIVEN)
		json_object_set_new(request, "turns", json_integer((json_int_t)a->turns));
	if (a->epoch != NOT_GIVEN)
		json_object_set_new(request, "epoch", json_integer((json_int_t)a->epoch));
	return request;
}

static int print_state(const struct arguments *a, const json_t *reply)
{
	cleanup_free char *text = json_dumps(json_object_get(reply, "state"), JSON_COMPACT | JSON_PRESERVE_ORDER);
	if (!text)
		return cli_failf("the server's answer holds no state: is it of another version of ddpfs?");
	if (!a->output) {
		puts(text);
		return CLI_DONE;
	}
	cleanup_free char *line = NULL;
	struct base_err err = { 0 };
	int len = asprintf(&line, "%s\n", text);
	if (len < 0)
		return cli_failf("out of memory");
	return output_file_write(a->output, line, (size_t)len, &err) < 0 ? cli_fail(&err) : CLI_DONE;
}

/* If samplers were recognised, they say how far the trainer is.  Returns false if there is none. */
static bool print_samplers(const json_t *samplers)
{
	size_t i;
	json_t *sampler;
	json_array_foreach((json_t *)(uintptr_t)samplers, i, sampler) printf("epoch %lld: %lld of %lld, %s\n",
	        (long long)json_integer_value(json_object_get(sampler, "epoch")),
	        (long long)json_integer_value(json_object_get(sampler, "turn")),
	        (long long)json_integer_value(json_object_get(sampler, "turns")),
	        json_string_value(json_object_get(sampler, "text")));
	return json_array_size(samplers) > 0;
}

static int print_reply(const struct arguments *a, const json_t *reply)
{
	if (strcmp(a->command, "state") == 0 && !a->json)
		return print_state(a, reply);
	if (a->json || strcmp(a->command, "info") == 0) {
		json_dumpf(reply, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
		putchar('\n');
		return CLI_DONE;
	}
	if (!a->value && print_samplers(json_object_get(reply, "samplers")))
		return CLI_DONE;
	if (strcmp(a->command, "reset") == 0)
		return CLI_DONE;
	printf("epoch %lld: %lld of %lld samples opened, advance=%s\n",
	        (long long)json_integer_value(json_object_get(reply, "epoch")),
	        (long long)json_integer_value(json_object_get(reply, "opened")),
	        (long long)json_integer_value(json_object_get(reply, "turns")),
	        json_string_value(json_object_get(reply, "advance")));
	return CLI_DONE;
}

/* argp would parse -1 as an option. */
static void refuse_negative(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (argv[i][0] == '-' && isdigit((unsigned char)argv[i][1]) && strcmp(argv[i], "-0") != 0)
			cli_usage("'%s' is negative: epochs, steps and turns count from 0", argv[i]);
}

int ddpfs_ctl(int argc, char **argv)
{
	static const struct cli_line line = { "MNT|@PID epoch [N]\nMNT|@PID advance auto|off\nMNT|@PID state [STEPS]\n"
		                              "MNT|@PID follow LIST\nMNT/rankR reset\nMNT|@PID info",
		"Asks or changes a live mount.\v"
		"epoch N shows epoch N from the next listing on, and switches self-advancing off; advance auto "
		"switches it on again. state STEPS notes that all ranks together have trained STEPS samples of the "
		"epoch and prints the resume state for -o state=FILE. follow LIST announces the files that will be "
		"opened, in order, so that they are read ahead; LIST is a file, or - for standard input. reset begins "
		"a rank of a mount of several anew, for another trainer.",
		.options = { { "epoch", "N", "With state: STEPS were counted in epoch N (default: the current one)",
		                     CLI_NUMBER(struct arguments, epoch, 0, INT64_MAX) },
		        { "turns", "K",
		                "With state, in place of STEPS: each rank has trained the first K of its samples "
		                "that its mount shows of the epoch (all when there are fewer)",
		                CLI_NUMBER(struct arguments, turns, 0, INT64_MAX) },
		        { "output", "FILE", "With state: write it to FILE, in one step, instead of standard output",
		                'O', CLI_TEXT(struct arguments, output) },
		        { "null", NULL, "With follow: entries end with NUL, not with newline", '0',
		                CLI_FLAG(struct arguments, follow.null) },
		        { "indices", "u32|u64",
		                "With follow: LIST holds numbers of the sorted files, one a line; u32, u64: binary "
		                "numbers",
		                CLI_CALL(struct arguments, follow.form, take_form), .may_lack = true },
		        { "listing", "sorted|imagefolder",
		                "With --indices: what they number (default sorted: all files by path)",
		                CLI_CALL(struct arguments, follow.listing, take_listing) },
		        { "dir", "DIR", "With --indices: number the files below DIR of the mount",
		                CLI_TEXT(struct arguments, follow.dir) },
		        { "list", "NAME", "With follow: the list's name (default: default)",
		                CLI_TEXT(struct arguments, follow.list) },
		        { "append", NULL, "With follow: behind what the list holds",
		                CLI_FLAG(struct arguments, follow.append) },
		        { "buffer", "N", "With follow: a shuffle buffer of N entries gives out the files of the list",
		                CLI_NUMBER(struct arguments, follow.buffer, 0, 1 << 30) },
		        { "skip-unknown", NULL, "With follow: leave out paths that are not in the mount",
		                CLI_FLAG(struct arguments, follow.skip_unknown) },
		        { "end", NULL, "With follow, without LIST: forget the list",
		                CLI_FLAG(struct arguments, follow.end) },
		        { "json", NULL, "Print the answer as JSON", CLI_FLAG(struct arguments, json) } },
		.words = { { "MNT", .at = offsetof(struct arguments, target) },
		        { "COMMAND", .at = offsetof(struct arguments, command),
		                "say what to do: epoch, advance, state, follow, reset or info" },
		        { "VALUE", .at = offsetof(struct arguments, value), .may_lack = true } } };
	struct arguments a = { .epoch = NOT_GIVEN, .turns = NOT_GIVEN };
	struct base_err err = { 0 };
	json_t *reply;
	refuse_negative(argc, argv);
	cli_parse(&line, argc, argv, &a);
	if (strcmp(a.command, "follow") == 0) {
		check_follow(&a);
		a.follow.json = a.json;
		return ctl_follow(a.target, a.value, &a.follow);
	}
	if (ask(a.target, make_request(&a), &err, &reply) < 0)
		return cli_fail(&err);
	int status = print_reply(&a, reply);
	json_decref(reply);
	return status;
}
