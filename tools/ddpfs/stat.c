/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs stat`: prints the counters of a mount, with units or as JSON; ask_server.h first. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "shard/base/units.h"
#include "tools/ddpfs/ask_server.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"

enum { DEPTH_MAX = 8, LABEL_MAX = 64 };

struct arguments {
	const char *target;
	bool json;
};

/* The groups in the order of the output, and the members of each; NAME*: all that begin so. The first group that has a
 * member prints it. */
static const struct {
	const char *title;
	const char *members;
} groups[] = {
	{ "mount", "version pid server_pid control mountpoint dataset identity view_identity restarts uptime_s" },
	{ "options", "layout view order deal tail seed groups redeal on_bad subdir advance io direct" },
	{ "epoch", "rank world epoch position turns opened" },
	{ "trainer", "opens asked_bytes cached_bytes hits misses reads unwatched_reads read_reply_bytes wait_* "
	             "waited_ns epoch_*" },
	{ "read-ahead",
	        "read_bytes delivered_bytes wasted_bytes window_* fetched following jumps stored_bytes evicted* lost "
	        "refetches regained warm_up* device_rate depth inflight idle shared read_ahead_note" },
	{ "errors", "errors bad_blocks mended_blocks io_errors" },
	{ "names", "listings entries lookups hinted worker_reads getattrs fill_class watched_dirs watch_overflows" },
	{ "dataset", "samples quarantined files content_bytes" }, { "store", "limited_by store_*" },
	{ "tier", "tier_*" }, { "budget", "memory_* resident_bytes names_bytes" },
	{ "order", "recognise* announced_* order_* orders_dropped seed_search" },
	{ "other", "*" }, /* of a server of another version */
};
enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };

/* What the integers count: the unit of one; of more it ends with "s".  Other integers number a process or a rank. */
static const struct {
	const char *unit;
	const char *members;
} units[] = {
	{ "sample", "position turns opened fetched evicted lost samples quarantined" },
	{ "file", "hinted fill_class files" },
	{ "open", "opens hits misses announced_opens recognise_queue recognise_behind recognise_unexplained" },
	{ "read", "reads worker_reads unwatched_reads epoch_reads errors depth inflight io_errors" },
	{ "block", "evicted_blocks regained bad_blocks mended_blocks tier_hits tier_waited tier_misses tier_bad "
	           "tier_refused" },
	{ "request", "lookups getattrs store_requests store_retries store_hedged store_limit store_running" },
	{ "answer", "store_throttled" },
	{ "name", "entries" },
	{ "dir", "watched_dirs" },
	{ "list", "orders_dropped" },
	{ "sampler", "recognise_wrong" },
	{ "seed", "recognise_seeds tried found" },
	{ "epoch", "redeal" },
	{ "rank", "world" },
	{ "group", "groups" },
	{ "time", "restarts jumps refetches warm_ups listings watch_overflows recognise_looks begun" },
};
enum { UNITS = sizeof(units) / sizeof(units[0]) };

/* Integers that are 0 or 1. */
static const char flags[] = "following idle shared";

static bool has_member(const char *members, const char *key)
{
	for (const char *word = members; *word; word += strspn(word, " ")) {
		size_t len = strcspn(word, " ");
		bool begins = word[len - 1] == '*' && strncmp(word, key, len - 1) == 0;
		if (begins || (strlen(key) == len && memcmp(word, key, len) == 0))
			return true;
		word += len;
	}
	return false;
}

static unsigned group_of(const char *key)
{
	unsigned g = 0;
	while (g + 1 < GROUPS && !has_member(groups[g].members, key))
		g++;
	return g;
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text);
	size_t m = strlen(end);
	return n > m && strcmp(text + n - m, end) == 0;
}

static void format_ns(double ns, char *buf, size_t size)
{
	if (ns >= 1e9)
		snprintf(buf, size, "%.2f s", ns / 1e9);
	else if (ns >= 1e6)
		snprintf(buf, size, "%.2f ms", ns / 1e6);
	else
		snprintf(buf, size, "%.1f us", ns / 1e3);
}

/* Bytes have the name of what was done with them, and `warm_up` is the name of a sentence. */
static const char *label_of(const char *key)
{
	return strcmp(key, "warm_up_bytes") == 0 ? "warm_up_read_bytes" : key;
}

static void format_count(const char *key, long long value, char *buf, size_t size)
{
	unsigned u = 0;
	while (u < UNITS && !has_member(units[u].members, key))
		u++;
	if (has_member(flags, key))
		snprintf(buf, size, "%s", value ? "yes" : "no");
	else if (strcmp(key, "tier_off") == 0)
		snprintf(buf, size, "%s", value ? strerror((int)value) : "no");
	else if (u < UNITS)
		snprintf(buf, size, "%lld %s%s", value, units[u].unit, value == 1 ? "" : "s");
	else
		snprintf(buf, size, "%lld", value);
}

/* The name ends with the unit: window_bytes, wait_p99_ns; or `units` has it. */
static void print_value(const char *key, const char *label, const json_t *value)
{
	char name[LABEL_MAX];
	char text[64];
	snprintf(name, sizeof(name), "%s", label);
	if (json_is_integer(value) && ends_with(key, "_bytes")) {
		char size[16];
		name[strlen(name) - strlen("_bytes")] = '\0';
		snprintf(text, sizeof(text), "%s", base_format_size((uint64_t)json_integer_value(value), size));
	} else if (json_is_number(value) && ends_with(key, "_ns")) {
		name[strlen(name) - strlen("_ns")] = '\0';
		format_ns(json_number_value(value), text, sizeof(text));
	} else if (json_is_integer(value) && strcmp(key, "device_rate") == 0) {
		char size[16];
		snprintf(text, sizeof(text), "%s/s", base_format_size((uint64_t)json_integer_value(value), size));
	} else if (json_is_number(value) && ends_with(key, "_s")) {
		name[strlen(name) - strlen("_s")] = '\0';
		snprintf(text, sizeof(text), "%.*f s", json_is_real(value) ? 3 : 0, json_number_value(value));
	} else if (json_is_integer(value)) {
		format_count(key, (long long)json_integer_value(value), text, sizeof(text));
	} else if (json_is_real(value)) {
		snprintf(text, sizeof(text), "%.4g", json_real_value(value));
	} else if (json_is_boolean(value)) {
		snprintf(text, sizeof(text), "%s", json_is_true(value) ? "yes" : "no");
	} else {
		printf("%-24s %s\n", name, json_is_string(value) ? json_string_value(value) : "-");
		return;
	}
	printf("%-24s %s\n", name, text);
}

/* Prints members of nested objects as "reads.count"; only --json shows lists. */
static void print_member(const char *prefix, const char *key, const json_t *value, int depth)
{
	char label[LABEL_MAX];
	const char *inner;
	json_t *inner_value;
	int n = snprintf(label, sizeof(label), "%s%s%s", prefix, *prefix ? "." : "", label_of(key));
	if (n >= (int)sizeof(label) || json_is_array(value))
		return;
	if (!json_is_object(value)) {
		print_value(key, label, value);
		return;
	}
	json_object_foreach((json_t *)(uintptr_t)value, inner, inner_value)
	{
		if (depth < DEPTH_MAX)
			print_member(label, inner, inner_value, depth + 1);
	}
}

/* Prints a title, and the members of the group; nothing if there are none. */
static void print_group(const json_t *stats, unsigned g)
{
	bool any = false;
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)(uintptr_t)stats, key, value)
	{
		if (json_is_array(value) || group_of(key) != g)
			continue;
		if (!any)
			printf("%s%s:\n", g ? "\n" : "", groups[g].title);
		any = true;
		print_member("", key, value, 0);
	}
}

/* With view=all the samplers say how far the trainer is. */
static void print_samplers(const json_t *samplers)
{
	size_t i;
	json_t *sampler;
	json_array_foreach((json_t *)(uintptr_t)samplers, i, sampler) printf("%-24s %s: epoch %lld, %lld of %lld\n",
	        "sampler", json_string_value(json_object_get(sampler, "text")),
	        (long long)json_integer_value(json_object_get(sampler, "epoch")),
	        (long long)json_integer_value(json_object_get(sampler, "turn")),
	        (long long)json_integer_value(json_object_get(sampler, "turns")));
}

static void print_taken_back(const json_t *stats)
{
	long long lost = (long long)json_integer_value(json_object_get(stats, "lost"));
	if (lost > 0)
		printf("%-24s the kernel took back %lld samples that were read ahead or their names\n", "taken_back",
		        lost);
}

/* Printed last, because the end of the output stays in view on a terminal. */
static void print_problems(const json_t *problems)
{
	size_t i;
	json_t *line;
	if (json_array_size(problems))
		puts("\nlatest problems:");
	json_array_foreach((json_t *)(uintptr_t)problems, i, line)
	{
		char when[32] = "-";
		time_t time_s = (time_t)json_integer_value(json_object_get(line, "time_s"));
		struct tm local;
		if (localtime_r(&time_s, &local))
			strftime(when, sizeof(when), "%F %T", &local);
		printf("%-24s %s %s\n", "problem", when, json_string_value(json_object_get(line, "text")));
	}
}

int ddpfs_stat(int argc, char **argv)
{
	static const struct cli_line line = { "MNT|@PID",
		"Shows what a mount did since it was made.\v"
		"What to look at first:\n"
		"  opens, hits, misses   files opened; without, and with waiting for the server\n"
		"  reads, unwatched_reads  read requests that reached it; for no open it saw\n"
		"  epoch, opened, turns  the epoch; of its samples of this rank, those opened\n"
		"  following             yes while the order is followed and read ahead\n"
		"  idle                  yes while nothing is left to read ahead\n"
		"  wait_p50, wait_p99    how long reads waited: median, 99th percentile\n"
		"  wait_max              the longest; epoch_wait_...: those of this epoch\n"
		"  window, resident      read ahead and not yet used; held in memory\n"
		"  memory, memory_why    the budget, and why it is what it is\n"
		"  evicted, lost         samples dropped for room; taken back by the kernel\n"
		"  errors                reads answered with an error\n"
		"  io_errors, bad_blocks failed reads of shards; wrong checksums\n"
		"  device_rate           bytes per second that the device was measured to give\n"
		"  order_source          how ddpfs knows the order of opens, if it does\n"
		"  order_note            which order it is, or what makes it known\n"
		"  read_ahead_note       why files are not read ahead, and what helps\n"
		"  depth, inflight       reads at once: the most that are allowed, and now\n"
		"  warm_up               what is read in storage order while no order is known\n"
		"  problem               the last 8 errors and warnings of the server\n"
		"Each counter has a line of its own in MNT/.ddpfs/metrics (HELP).",
		.options = { { "json", NULL, "Print JSON with exact numbers", CLI_FLAG(struct arguments, json) } },
		.words = { { "MNT", .at = offsetof(struct arguments, target), DDPFS_MNT_MISSING } } };
	struct arguments a = { 0 };
	struct base_err err = { 0 };
	json_t *reply;
	cli_parse(&line, argc, argv, &a);
	if (ask(a.target, json_pack("{s:s}", "cmd", "stat"), &err, &reply) < 0)
		return cli_fail(&err);
	json_t *stats = json_object_get(reply, "stats");
	if (!a.json) {
		for (unsigned g = 0; g < GROUPS; g++)
			print_group(stats, g);
		print_samplers(json_object_get(stats, "samplers"));
		print_taken_back(stats);
		print_problems(json_object_get(stats, "problems"));
	} else {
		json_dumpf(stats, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
		putchar('\n');
	}
	json_decref(reply);
	return CLI_DONE;
}
