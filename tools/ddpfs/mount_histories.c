/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the histories of mounts from servers and logs; mount_histories.h first. */
#include "tools/ddpfs/mount_histories.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "tools/ddpfs/ask_server.h"

enum {
	REPLY_MS = 30000,
	LINE_BYTES_MAX = 1 << 16,
};
#define LINE_BEGINS "ddpfs: history "

/* A field as the server names it, and what one of it is in the unit of this program. */
static const struct {
	const char *name;
	double unit;
} fields[RUN_FIELDS] = {
	[RUN_AT] = { "at_ms", 1e-3 },
	[RUN_EPOCH] = { "epoch", 1 },
	[RUN_OPENS] = { "opens", 1 },
	[RUN_MISSES] = { "misses", 1 },
	[RUN_READ] = { "read_bytes", 1 },
	[RUN_TIER] = { "tier_bytes", 1 },
	[RUN_WAITED] = { "waited_ns", 1e-9 },
	[RUN_RESIDENT] = { "resident_bytes", 1 },
	[RUN_MEMORY] = { "memory_bytes", 1 },
	[RUN_DEPTH] = { "depth", 1 },
	[RUN_INFLIGHT] = { "inflight", 1 },
	[RUN_LOST] = { "lost", 1 },
	[RUN_ERRORS] = { "errors", 1 },
	[RUN_RESTARTS] = { "restarts", 1 },
};

static void run_done(struct mount_history *run)
{
	free(run->mountpoint);
	free(run->dataset);
	free(run->readings);
	*run = (struct mount_history){ 0 };
}

void mount_histories_done(struct mount_histories *runs)
{
	for (size_t i = 0; i < runs->n; i++)
		run_done(&runs->runs[i]);
	free(runs->runs);
	*runs = (struct mount_histories){ 0 };
}

static bool number(const json_t *object, const char *key, uint64_t *ret_value)
{
	const json_t *value = json_object_get(object, key);
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret_value = (uint64_t)json_integer_value(value);
	return true;
}

/* A log of an earlier version has whole seconds only. */
static bool read_began(const json_t *object, double *ret_s)
{
	uint64_t value;
	if (number(object, "began_ms", &value))
		*ret_s = (double)value / 1e3;
	else if (number(object, "began_s", &value))
		*ret_s = (double)value;
	else
		return false;
	return true;
}

/* Reads what stands before the readings. Returns 0; -EPROTO; -ENOMEM. */
static int read_head(const json_t *object, struct mount_history *ret_run)
{
	struct mount_history run = { 0 };
	uint64_t rank = 0, world = 0, ranks = 1;
	const char *mountpoint = json_string_value(json_object_get(object, "mountpoint"));
	const char *dataset = json_string_value(json_object_get(object, "dataset"));
	const char *view = json_string_value(json_object_get(object, "view"));
	if (!mountpoint || !dataset || !view || !number(object, "pid", &run.pid) || !read_began(object, &run.began_s) ||
	        !number(object, "rank", &rank) || !number(object, "world", &world) ||
	        !number(object, "files", &run.files) || !number(object, "content_bytes", &run.content_bytes) ||
	        world > UINT32_MAX || rank > world)
		return -EPROTO;
	number(object, "ranks", &ranks); /* only a mount of several ranks has it */
	if (ranks == 0 || ranks > world)
		return -EPROTO;
	run.rank = (uint32_t)rank;
	run.ranks = (uint32_t)ranks;
	run.world = (uint32_t)world;
	run.view_all = strcmp(view, "all") == 0;
	run.mountpoint = strdup(mountpoint);
	run.dataset = strdup(dataset);
	if (!run.mountpoint || !run.dataset) {
		run_done(&run);
		return -ENOMEM;
	}
	*ret_run = run;
	return 0;
}

/* Finds where each field stands in a reading; -1: nowhere. Returns false if the list is none, or has no time. */
static bool find_fields(const json_t *names, int ret_at[RUN_FIELDS])
{
	size_t i;
	const json_t *name;
	for (int f = 0; f < RUN_FIELDS; f++)
		ret_at[f] = -1;
	json_array_foreach((json_t *)(uintptr_t)names, i, name)
	{
		if (!json_is_string(name) || i > INT16_MAX)
			return false;
		for (int f = 0; f < RUN_FIELDS; f++)
			if (strcmp(json_string_value(name), fields[f].name) == 0)
				ret_at[f] = (int)i;
	}
	return ret_at[RUN_AT] >= 0;
}

static int grow(struct mount_history *run)
{
	if (run->n < run->room)
		return 0;
	if (run->room >= RUN_READINGS_MAX)
		return -E2BIG;
	size_t room = run->room ? 2 * run->room : 256;
	double(*readings)[RUN_FIELDS] = realloc(run->readings, room * sizeof(*readings));
	if (!readings)
		return -ENOMEM;
	run->readings = readings;
	run->room = room;
	return 0;
}

/* Adds one reading. One that is not later than the last one is left out. Returns 0; -EPROTO, -E2BIG, -ENOMEM. */
static int add_reading(struct mount_history *run, const int at[RUN_FIELDS], const json_t *values, size_t n_names)
{
	double reading[RUN_FIELDS] = { 0 };
	if (!json_is_array(values) || json_array_size(values) != n_names)
		return -EPROTO;
	for (int f = 0; f < RUN_FIELDS; f++) {
		const json_t *value = at[f] < 0 ? NULL : json_array_get(values, (size_t)at[f]);
		if (at[f] >= 0 && (!json_is_integer(value) || json_integer_value(value) < 0))
			return -EPROTO;
		reading[f] = value ? (double)json_integer_value(value) * fields[f].unit : 0;
	}
	if (run->n > 0 && reading[RUN_AT] <= run->readings[run->n - 1][RUN_AT])
		return 0;
	int rc = grow(run);
	if (rc == 0)
		memcpy(run->readings[run->n++], reading, sizeof(reading));
	return rc;
}

/* Adds the readings of an object. Those before a damaged one stay. */
static int add_readings(struct mount_history *run, const json_t *object)
{
	int at[RUN_FIELDS];
	size_t i;
	const json_t *values, *names = json_object_get(object, "fields");
	const json_t *readings = json_object_get(object, "readings");
	if (!json_is_array(names) || !json_is_array(readings) || !find_fields(names, at))
		return -EPROTO;
	json_array_foreach((json_t *)(uintptr_t)readings, i, values)
	{
		int rc = add_reading(run, at, values, json_array_size(names));
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* Takes over `run`. */
static int add_run(struct mount_histories *runs, struct mount_history *run)
{
	struct mount_history *all = runs->n < RUNS_MAX ? realloc(runs->runs, (runs->n + 1) * sizeof(*all)) : NULL;
	if (!all) {
		run_done(run);
		return runs->n < RUNS_MAX ? -ENOMEM : -E2BIG;
	}
	runs->runs = all;
	runs->runs[runs->n++] = *run;
	*run = (struct mount_history){ 0 };
	return 0;
}

/* ---- a live mount ---- */

static int ask_all(const char *socket, struct base_err *err, struct mount_history *run)
{
	for (bool more = true, first = true; more; first = false) {
		char request[64];
		cleanup_free char *reply = NULL;
		size_t before = run->n;
		double after_s = before ? run->readings[before - 1][RUN_AT] : 0;
		snprintf(request, sizeof(request), "{\"cmd\":\"history\",\"after\":%lld}", llround(after_s * 1e3));
		int rc = base_control_request(socket, request, REPLY_MS, err, &reply);
		if (rc < 0)
			return rc;
		cleanup_json json_t *object = json_loads(reply, 0, NULL);
		if (first)
			rc = read_head(object, run);
		if (rc == 0)
			rc = add_readings(run, object);
		if (rc == 0 && run->n == 0)
			rc = -EPROTO;
		if (rc < 0)
			return base_err_set(err, rc, "the server's history has not the form that this version expects");
		more = json_is_true(json_object_get(object, "more")) && run->n > before;
	}
	return 0;
}

int mount_histories_ask(struct mount_histories *runs, const char *target, struct base_err *err)
{
	struct base_control_peer peer;
	struct mount_history run = { 0 };
	int rc = ask_find(target, err, &peer);
	if (rc < 0)
		return rc;
	rc = ask_all(peer.socket, err, &run);
	base_control_peer_done(&peer);
	if (rc < 0) {
		run_done(&run);
		return rc;
	}
	rc = add_run(runs, &run);
	if (rc == -E2BIG)
		return base_err_set(err, rc, "'%s': a report shows at most %d mounts", base_quoted(target), RUNS_MAX);
	return rc < 0 ? base_err_set(err, rc, "'%s': %s", base_quoted(target), base_err_str(rc)) : 0;
}

/* ---- a log ---- */

static bool is_same_place(const struct mount_history *a, const struct mount_history *b)
{
	return a->rank == b->rank && strcmp(a->mountpoint, b->mountpoint) == 0;
}

static double end_of(const struct mount_history *run)
{
	return run->began_s + run->readings[run->n - 1][RUN_AT];
}

/* By place, the latest mount first. */
static int by_place(const void *a_, const void *b_)
{
	const struct mount_history *a = a_, *b = b_;
	int order = strcmp(a->mountpoint, b->mountpoint);
	if (order == 0)
		order = (a->rank > b->rank) - (a->rank < b->rank);
	return order ? order : (a->began_s < b->began_s) - (a->began_s > b->began_s);
}

/* Keeps of each place the mount that began last, and those that were there together with it: ranks under `ddpfs exec`
 * have one mountpoint, each in a mount namespace of its own. Drops earlier ones. */
static void drop_earlier(struct mount_histories *runs, size_t first)
{
	size_t kept = first, end;
	if (runs->n == first)
		return; /* qsort takes no NULL */
	qsort(runs->runs + first, runs->n - first, sizeof(*runs->runs), by_place);
	for (size_t i = first; i < runs->n; i = end) {
		double began = runs->runs[i].began_s; /* of the first one that is kept */
		for (end = i; end < runs->n && is_same_place(&runs->runs[i], &runs->runs[end]); end++)
			if (end_of(&runs->runs[end]) > began)
				began = runs->runs[end].began_s;
		for (size_t j = i; j < end; j++) {
			struct mount_history run = runs->runs[j];
			if (run.began_s < began)
				run_done(&run);
			else
				runs->runs[kept++] = run;
		}
	}
	runs->n = kept;
}

/* Whether a run has all readings of a line already: the log holds the line twice. */
static bool has_all(const struct mount_history *run, const struct mount_history *line)
{
	size_t i = 0;
	while (i < run->n && run->readings[i][RUN_AT] < line->readings[0][RUN_AT])
		i++;
	return line->n <= run->n - i &&
	       memcmp(run->readings + i, line->readings, line->n * sizeof(*line->readings)) == 0;
}

static int append(struct mount_history *run, const struct mount_history *line)
{
	for (size_t i = 0; i < line->n; i++) {
		int rc = grow(run);
		if (rc < 0)
			return rc;
		memcpy(run->readings[run->n++], line->readings[i], sizeof(*line->readings));
	}
	/* Each line works it out anew, from a clock that may have been set. */
	run->began_s = line->began_s;
	return 0;
}

/* Adds the readings of a line to the run of this log that they go on with, or to a new one. The lines of a run come in
 * the order of time, so a line that is not later than the run's last reading belongs to another process, which has the
 * pid again, or has it in another pid namespace. Returns 0; -E2BIG, -ENOMEM. */
static int place(struct mount_histories *runs, size_t first, struct mount_history *line)
{
	struct mount_history *found = NULL;
	for (size_t i = first; i < runs->n; i++) {
		struct mount_history *run = &runs->runs[i];
		if (run->pid != line->pid || !is_same_place(run, line))
			continue;
		if (has_all(run, line))
			return 0;
		if (line->readings[0][RUN_AT] <= run->readings[run->n - 1][RUN_AT])
			continue;
		if (!found || fabs(run->began_s - line->began_s) <= fabs(found->began_s - line->began_s))
			found = run;
	}
	if (found)
		return append(found, line);
	if (runs->n == RUNS_MAX)
		drop_earlier(runs, first);
	return add_run(runs, line);
}

static int take_line(struct mount_histories *runs, size_t first, const char *text, size_t len)
{
	cleanup_json json_t *object = json_loadb(text, len, 0, NULL);
	struct mount_history line = { 0 };
	int rc = read_head(object, &line);
	if (rc < 0)
		return rc;
	int damage = add_readings(&line, object);
	rc = line.n > 0 ? place(runs, first, &line) : 0;
	run_done(&line);
	return rc < 0 ? rc : damage;
}

/* Reads up to and with the next newline, at most `size` bytes; a line may hold any bytes. Returns how many; 0: none is
 * left. */
static size_t read_piece(FILE *in, char *buf, size_t size)
{
	size_t n = 0;
	for (int c = 0; n < size && c != '\n' && (c = getc_unlocked(in)) != EOF;)
		buf[n++] = (char)c;
	return n;
}

/* Reads all lines; *ret_bad: damaged ones, *ret_bad_at: the number of the first of them. */
static int take_lines(struct mount_histories *runs, size_t first, FILE *in, size_t *ret_bad, size_t *ret_bad_at)
{
	cleanup_free char *line = malloc(LINE_BYTES_MAX);
	const size_t head = strlen(LINE_BEGINS);
	bool begins = true; /* a line longer than the buffer comes in pieces */
	size_t number_of_line = 1;
	if (!line)
		return -ENOMEM;
	for (size_t len; (len = read_piece(in, line, LINE_BYTES_MAX)) > 0;) {
		bool ends = line[len - 1] == '\n';
		bool is_history = begins && len >= head && memcmp(line, LINE_BEGINS, head) == 0;
		int rc = is_history ? take_line(runs, first, line + head, len - head) : 0;
		if (rc == -ENOMEM || rc == -E2BIG)
			return rc;
		if (rc < 0 && (*ret_bad)++ == 0)
			*ret_bad_at = number_of_line;
		number_of_line += ends;
		begins = ends;
	}
	return ferror(in) ? -EIO : 0;
}

int mount_histories_read(struct mount_histories *runs, const char *path, size_t *ret_bad, struct base_err *err)
{
	size_t first = runs->n, bad = 0, bad_at = 0;
	const char *quoted = base_quoted(path);
	cleanup_fclose FILE *in = fopen(path, "re");
	if (!in)
		return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
	int rc = take_lines(runs, first, in, &bad, &bad_at);
	if (rc == -E2BIG)
		return base_err_set(err, rc,
		        "'%s': the report would show more than %d mounts, or more than %d readings of one of them: "
		        "give fewer logs, or remove old lines from this one",
		        quoted, RUNS_MAX, RUN_READINGS_MAX);
	if (rc < 0)
		return base_err_set(err, rc, "'%s': %s", quoted, base_err_str(rc));
	drop_earlier(runs, first);
	if (runs->n == first && bad > 0)
		return base_err_set(err, -ENODATA,
		        "'%s': line %zu: the history of a mount is damaged there, and no other line has one", quoted,
		        bad_at);
	if (runs->n == first)
		return base_err_set(err, -ENODATA,
		        "'%s' has no history of a mount: give a mountpoint, or the FILE of a mount with -o log=FILE",
		        quoted);
	*ret_bad = bad;
	return 0;
}
