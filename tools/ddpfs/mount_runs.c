/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the histories of mounts from servers and logs; mount_runs.h first. */
#include "tools/ddpfs/mount_runs.h"

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
	PID_REUSED_S = 60, /* a process that began this much later is another one */
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
	[RUN_WAIT_P99] = { "epoch_wait_p99_ns", 1e-9 },
	[RUN_RESIDENT] = { "resident_bytes", 1 },
	[RUN_MEMORY] = { "memory_bytes", 1 },
	[RUN_DEPTH] = { "depth", 1 },
	[RUN_INFLIGHT] = { "inflight", 1 },
	[RUN_LOST] = { "lost", 1 },
	[RUN_ERRORS] = { "errors", 1 },
	[RUN_RESTARTS] = { "restarts", 1 },
};

static void run_done(struct mount_run *run)
{
	free(run->mountpoint);
	free(run->dataset);
	free(run->readings);
	*run = (struct mount_run){ 0 };
}

void mount_runs_done(struct mount_runs *runs)
{
	for (size_t i = 0; i < runs->n; i++)
		run_done(&runs->runs[i]);
	free(runs->runs);
	*runs = (struct mount_runs){ 0 };
}

static bool number(const json_t *object, const char *key, uint64_t *ret_value)
{
	const json_t *value = json_object_get(object, key);
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return false;
	*ret_value = (uint64_t)json_integer_value(value);
	return true;
}

/* Reads what stands before the readings. Returns 0; -EPROTO; -ENOMEM. */
static int read_head(const json_t *object, struct mount_run *ret_run)
{
	struct mount_run run = { 0 };
	uint64_t rank = 0, world = 0;
	const char *mountpoint = json_string_value(json_object_get(object, "mountpoint"));
	const char *dataset = json_string_value(json_object_get(object, "dataset"));
	const char *view = json_string_value(json_object_get(object, "view"));
	if (!mountpoint || !dataset || !view || !number(object, "pid", &run.pid) ||
	        !number(object, "began_s", &run.began_s) || !number(object, "rank", &rank) ||
	        !number(object, "world", &world) || !number(object, "files", &run.files) ||
	        !number(object, "content_bytes", &run.content_bytes) || world > UINT32_MAX || rank > world)
		return -EPROTO;
	run.rank = (uint32_t)rank;
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

static int grow(struct mount_run *run)
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

/* Adds one reading; one that is not later than the last one is left out. Returns 0; -EPROTO, -E2BIG, -ENOMEM. */
static int add_reading(struct mount_run *run, const int at[RUN_FIELDS], const json_t *values, size_t n_names)
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
static int add_readings(struct mount_run *run, const json_t *object)
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
static int add_run(struct mount_runs *runs, struct mount_run *run)
{
	struct mount_run *all = runs->n < RUNS_MAX ? realloc(runs->runs, (runs->n + 1) * sizeof(*all)) : NULL;
	if (!all) {
		run_done(run);
		return runs->n < RUNS_MAX ? -ENOMEM : -E2BIG;
	}
	runs->runs = all;
	runs->runs[runs->n++] = *run;
	*run = (struct mount_run){ 0 };
	return 0;
}

/* ---- a live mount ---- */

static int ask_all(const char *socket, struct base_err *err, struct mount_run *run)
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

int mount_runs_ask(struct mount_runs *runs, const char *target, struct base_err *err)
{
	struct base_control_peer peer;
	struct mount_run run = { 0 };
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
	return rc < 0 ? base_err_set(err, rc, "'%s': %s", target, base_err_str(rc)) : 0;
}

/* ---- a log ---- */

static bool is_same_mount(const struct mount_run *a, const struct mount_run *b)
{
	return a->rank == b->rank && strcmp(a->mountpoint, b->mountpoint) == 0;
}

/* Each line works its beginning out anew, from a clock that may be set. */
static bool same_time(uint64_t a_s, uint64_t b_s)
{
	return (a_s > b_s ? a_s - b_s : b_s - a_s) < PID_REUSED_S;
}

/* Finds the run of this log to which a line belongs, and makes it if it is new. A later mount replaces an earlier one
 * of the same place. Returns NULL and *ret_rc: -EEXIST: a later one is there; -E2BIG, -ENOMEM. */
static struct mount_run *place(struct mount_runs *runs, size_t first, struct mount_run *head, int *ret_rc)
{
	for (size_t i = first; i < runs->n; i++) {
		struct mount_run *run = &runs->runs[i];
		if (!is_same_mount(run, head))
			continue;
		if (run->pid == head->pid && same_time(run->began_s, head->began_s)) {
			run_done(head);
			return run;
		}
		/* Another mount of this place: lines of a log come in the order of time. */
		run_done(run);
		*run = *head;
		*head = (struct mount_run){ 0 };
		return run;
	}
	*ret_rc = add_run(runs, head);
	return *ret_rc == 0 ? &runs->runs[runs->n - 1] : NULL;
}

static int take_line(struct mount_runs *runs, size_t first, const char *text)
{
	cleanup_json json_t *object = json_loads(text, 0, NULL);
	struct mount_run head = { 0 };
	int rc = read_head(object, &head);
	struct mount_run *run = rc == 0 ? place(runs, first, &head, &rc) : NULL;
	return run ? add_readings(run, object) : rc;
}

/* Reads all lines; *ret_bad: damaged ones, *ret_bad_at: the number of the first of them. */
static int take_lines(struct mount_runs *runs, size_t first, FILE *in, size_t *ret_bad, size_t *ret_bad_at)
{
	cleanup_free char *line = malloc(LINE_BYTES_MAX);
	bool begins = true; /* a line longer than the buffer comes in pieces */
	size_t number_of_line = 1;
	if (!line)
		return -ENOMEM;
	while (fgets(line, LINE_BYTES_MAX, in)) {
		bool ends = strchr(line, '\n');
		bool is_history = begins && strncmp(line, LINE_BEGINS, strlen(LINE_BEGINS)) == 0;
		int rc = is_history ? take_line(runs, first, line + strlen(LINE_BEGINS)) : 0;
		if (rc == -ENOMEM || rc == -E2BIG)
			return rc;
		if (rc < 0 && (*ret_bad)++ == 0)
			*ret_bad_at = number_of_line;
		number_of_line += ends;
		begins = ends;
	}
	return ferror(in) ? -EIO : 0;
}

static void drop_empty(struct mount_runs *runs, size_t first)
{
	size_t n = first;
	for (size_t i = first; i < runs->n; i++) {
		if (runs->runs[i].n == 0)
			run_done(&runs->runs[i]);
		else
			runs->runs[n++] = runs->runs[i];
	}
	runs->n = n;
}

int mount_runs_read(struct mount_runs *runs, const char *path, size_t *ret_bad, struct base_err *err)
{
	size_t first = runs->n, bad = 0, bad_at = 0;
	const char *quoted = base_quoted(path);
	cleanup_fclose FILE *in = fopen(path, "re");
	if (!in)
		return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
	int rc = take_lines(runs, first, in, &bad, &bad_at);
	if (rc == -E2BIG)
		return base_err_set(err, rc, "'%s': more than %d mounts, or %d readings of one", quoted, RUNS_MAX,
		        RUN_READINGS_MAX);
	if (rc < 0)
		return base_err_set(err, rc, "'%s': %s", quoted, base_err_str(rc));
	drop_empty(runs, first);
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
