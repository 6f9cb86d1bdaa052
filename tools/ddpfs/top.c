/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs top`: shows what mounts do now; top_model.h and terminal.h first.
 *
 * On a terminal it redraws one table; otherwise it prints one table, or JSON object, after the other. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shard/base/cleanup.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/terminal.h"
#include "tools/ddpfs/top_model.h"

enum { KEY_BATCH = 'b', KEY_JSON = 256 };

enum {
	CELL_MAX = 16,       /* bytes of a number in the table */
	SHOWN_MIN = 12,      /* columns that a mountpoint gets at least */
	SHOWN_MAX = 4096,    /* bytes of one that are shown */
	ANSWER_MS_MAX = 500, /* how long all servers together have to answer */
};

struct arguments {
	struct cli_rest targets;
	double delay_s;
	uint64_t count; /* readings; 0: without end */
	bool batch;
	bool json;
};

static int take_delay(void *at, char *arg, struct base_err *err)
{
	char *end;
	double seconds = strtod(arg, &end);
	if (end == arg || *end || !(seconds >= 0.1 && seconds <= 3600))
		return base_err_set(err, -EINVAL, "--delay=%s: seconds from 0.1 to 3600 are needed", arg);
	*(double *)at = seconds;
	return 0;
}

/* ---- numbers that need few columns; powers of 1024 ---- */

static const char unknown[] = "-";

static void put_size(char *cell, double bytes)
{
	static const char units[] = "BKMGTPE";
	size_t unit = 0;
	for (; bytes >= 999.5 && unit + 1 < sizeof(units) - 1; unit++)
		bytes /= 1024;
	snprintf(cell, CELL_MAX,
	        bytes < 9.995 && unit   ? "%.2f%c"
	        : bytes < 99.95 && unit ? "%.1f%c"
	                                : "%.0f%c",
	        bytes, units[unit]);
}

static void put_time(char *cell, uint64_t ns)
{
	double us = (double)ns / 1e3;
	if (us < 999.5)
		snprintf(cell, CELL_MAX, "%.0fus", us);
	else if (us < 999.5e3)
		snprintf(cell, CELL_MAX, us < 9995 ? "%.1fms" : "%.0fms", us / 1e3);
	else
		snprintf(cell, CELL_MAX, us < 99.5e6 ? "%.1fs" : "%.0fs", us / 1e6);
}

static void put_share(char *cell, double part, double whole)
{
	double percent = whole > 0 ? 100 * part / whole : -1;
	if (percent < 0)
		snprintf(cell, CELL_MAX, "%s", unknown);
	else
		snprintf(cell, CELL_MAX, percent < 99.95 ? "%.1f%%" : "%.0f%%", percent);
}

/* ---- the table ---- */

/* A line: a mount, or all of them together. */
struct line {
	const struct watched_mount *mount; /* NULL: the total */
	const struct watched_counts *c;
	const struct watched_rates *r;
	bool same_epoch;
};

static void put_rank(char *cell, const struct line *l)
{
	if (l->mount && !l->mount->mountpoint)
		return; /* its server has not answered yet */
	if (!l->mount || l->mount->view_all)
		snprintf(cell, CELL_MAX, "%s", l->mount ? "all" : "");
	else if (l->mount->ranks > 1)
		snprintf(cell, CELL_MAX, "%u-%u/%u", l->mount->rank, l->mount->rank + l->mount->ranks - 1,
		        l->mount->world);
	else
		snprintf(cell, CELL_MAX, "%u/%u", l->mount->rank, l->mount->world);
}

static void put_number(char *cell, double number)
{
	snprintf(cell, CELL_MAX, "%.0f", number);
}

enum column {
	RANK,
	EPOCH,
	DONE,
	FILES,
	CACHE,
	OUT,
	READ,
	WASTE,
	HITS,
	WAIT,
	P50,
	P99,
	MAX,
	WINDOW,
	DEPTH,
	MEMORY,
	TIER,
	FILL,
	REQUESTS,
	RETRIES,
	THROTTLED,
	HEDGED,
	BYTE_P50,
	BYTE_P99,
	N_COLUMNS
};

/* Whether a column is only for mounts of a store. */
static bool of_store(enum column column)
{
	return column >= REQUESTS && column <= BYTE_P99;
}

/* A cell that it leaves alone is unknown. */
static void put(char *cell, enum column column, const struct line *l)
{
	const struct watched_counts *c = l->c;
	const struct watched_rates *r = l->r;
	if (column == RANK)
		put_rank(cell, l);
	if (column == RANK || !c ||
	        ((column == FILES || column == CACHE || column == OUT || column == READ || column == WASTE) &&
	                !r->known))
		return;
	if ((column == TIER || column == FILL) && !c->tier_room_bytes)
		return;
	if (of_store(column) && (!c->store_requests || (column == REQUESTS && !r->known)))
		return;
	switch (column) {
	case EPOCH:
		snprintf(cell, CELL_MAX, "%" PRIu64 "%s", c->epoch, l->same_epoch ? "" : "+");
		break;
	case DONE:
		put_share(cell, (double)c->position, (double)c->turns);
		break;
	case FILES:
		put_number(cell, r->opens);
		break;
	case CACHE:
		put_size(cell, r->cached);
		break;
	case OUT:
		put_size(cell, r->delivered);
		break;
	case READ:
		put_size(cell, r->read);
		break;
	case WASTE:
		put_size(cell, r->wasted);
		break;
	case HITS:
		put_share(cell, watched_hit_rate(r), 1);
		break;
	case WAIT:
		put_share(cell, r->waited, r->known ? 1 : 0);
		break;
	case P50:
		put_time(cell, c->wait_p50_ns);
		break;
	case P99:
		put_time(cell, c->wait_p99_ns);
		break;
	case MAX:
		put_time(cell, c->wait_max_ns);
		break;
	case WINDOW:
		put_share(cell, (double)c->window_bytes, (double)c->window_limit_bytes);
		break;
	case DEPTH:
		put_number(cell, (double)c->depth);
		break;
	case MEMORY:
		put_size(cell, (double)c->resident_bytes);
		break;
	case TIER:
		put_share(cell, r->tier, r->known ? r->tier + r->read : 0);
		break;
	case FILL:
		put_share(cell, (double)c->tier_used_bytes, (double)c->tier_room_bytes);
		break;
	case REQUESTS:
		put_number(cell, r->requests);
		break;
	case RETRIES:
		put_share(cell, r->retries, r->known ? r->requests : 0);
		break;
	case THROTTLED:
		put_share(cell, r->throttled, r->known ? r->requests : 0);
		break;
	case HEDGED:
		put_share(cell, r->hedged, r->known ? r->requests : 0);
		break;
	case BYTE_P50:
		put_time(cell, c->store_first_byte_p50_ns);
		break;
	case BYTE_P99:
		put_time(cell, c->store_first_byte_p99_ns);
		break;
	case RANK:
	case N_COLUMNS:
		break;
	}
}

static const struct {
	const char *title;
	int width;
	int importance; /* on a narrow terminal, columns of least importance go first */
} columns[N_COLUMNS] = {
	[RANK] = { "RANK", 7, 22 },
	[EPOCH] = { "EPOCH", 5, 20 },
	[DONE] = { "DONE", 5, 21 },
	[FILES] = { "FILES/s", 7, 23 },
	[CACHE] = { "CACHE/s", 7, 6 },
	[OUT] = { "OUT/s", 5, 19 },
	[READ] = { "READ/s", 6, 12 },
	[WASTE] = { "WASTE/s", 7, 7 },
	[HITS] = { "HITS", 5, 18 },
	[WAIT] = { "WAIT", 5, 17 },
	[P50] = { "P50", 5, 8 },
	[P99] = { "P99", 5, 16 },
	[MAX] = { "MAX", 5, 13 },
	[WINDOW] = { "WINDOW", 6, 10 },
	[DEPTH] = { "DEPTH", 5, 9 },
	[MEMORY] = { "MEMORY", 6, 15 },
	[TIER] = { "TIER", 5, 14 },
	[FILL] = { "FILL", 5, 11 },
	[REQUESTS] = { "REQ/s", 5, 5 },
	[RETRIES] = { "RETRY", 5, 2 },
	[THROTTLED] = { "THROT", 5, 3 },
	[HEDGED] = { "HEDGE", 5, 0 },
	[BYTE_P50] = { "BYTE50", 6, 1 },
	[BYTE_P99] = { "BYTE99", 6, 4 },
};

struct layout {
	bool shown[N_COLUMNS];
	int name; /* columns of the mountpoint */
};

static int width_of(const struct layout *layout)
{
	int width = layout->name;
	for (int i = 0; i < N_COLUMNS; i++)
		width += layout->shown[i] ? columns[i].width + 1 : 0;
	return width;
}

static int columns_of(const char *text)
{
	int n = 0;
	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

/* What is wrong with a mount; NULL: nothing. */
static const char *remark_of(const struct watched_mount *mount)
{
	return mount->misuse ? mount->misuse : mount->read_ahead_note;
}

static const char *mark_of(const struct watched_mount *mount)
{
	return mount->misuse ? "! " : "? ";
}

/* The names in a server's answer are already quoted; the user's target is not. */
static const char *name_of(const struct watched_mount *mount, char *buf)
{
	char pid[32];
	snprintf(pid, sizeof(pid), "@%d", (int)mount->pid);
	const char *name = mount->mountpoint ? mount->mountpoint : mount->target ? mount->target : pid;
	static const char *const marks[] = {
		[WATCHED_LIVE] = "", [WATCHED_SILENT] = "(silent) ", [WATCHED_GONE] = "(gone) "
	};
	const char *mark = remark_of(mount) ? mark_of(mount) : marks[mount->state];
	size_t n = strlen(mark);
	memcpy(buf, mark, n);
	base_err_printable(name, buf + n, SHOWN_MAX - (unsigned)n);
	return buf;
}

static int longest_name(const struct watched *watched)
{
	int longest = SHOWN_MIN;
	for (size_t i = 0; i < watched->n; i++) {
		char name[SHOWN_MAX];
		int n = columns_of(name_of(&watched->mounts[i], name));
		longest = n > longest ? n : longest;
	}
	return longest;
}

static bool has_tier(const struct watched *watched)
{
	for (size_t i = 0; i < watched->n; i++)
		if (watched->mounts[i].counted && watched->mounts[i].counts.tier_room_bytes)
			return true;
	return false;
}

static bool has_store(const struct watched *watched)
{
	for (size_t i = 0; i < watched->n; i++)
		if (watched->mounts[i].counted && watched->mounts[i].counts.store_requests)
			return true;
	return false;
}

/* width: columns of the terminal; 0: no limit. */
static struct layout lay_out(const struct watched *watched, unsigned width)
{
	int longest = longest_name(watched);
	bool tier = has_tier(watched), store = has_store(watched);
	struct layout layout = { .name = longest };
	for (int i = 0; i < N_COLUMNS; i++)
		layout.shown[i] = of_store((enum column)i) ? store : tier || (i != TIER && i != FILL);
	if (!width)
		return layout;
	layout.name = SHOWN_MIN;
	for (int least = 0; width_of(&layout) > (int)width && least < N_COLUMNS; least++)
		for (int i = 0; i < N_COLUMNS; i++)
			if (columns[i].importance == least)
				layout.shown[i] = false;
	int room = (int)width - width_of(&layout) + layout.name;
	layout.name = room < longest ? room : longest;
	if (layout.name < 1)
		layout.name = 1;
	return layout;
}

/* Cuts a long path at its beginning, because its end says more. */
static void print_name(FILE *out, const char *name, int room)
{
	int width = columns_of(name), left = room > 3 ? room - 2 : room;
	const char *from = name;
	for (int skip = width > room ? width - left : 0; skip > 0; skip--)
		do
			from++;
		while (((unsigned char)*from & 0xc0) == 0x80);
	fprintf(out, "%s%s%*s", from > name && room > 3 ? ".." : "", from, width < room ? room - width : 0, "");
}

static void print_line(FILE *out, const struct layout *layout, const char *name, const struct line *line)
{
	print_name(out, name, layout->name);
	for (int i = 0; i < N_COLUMNS; i++) {
		char cell[CELL_MAX];
		snprintf(cell, sizeof(cell), "%s", unknown);
		if (layout->shown[i])
			put(cell, (enum column)i, line);
		if (layout->shown[i])
			fprintf(out, " %*s", columns[i].width, cell);
	}
}

static void print_titles(FILE *out, const struct layout *layout)
{
	print_name(out, "MOUNT", layout->name);
	for (int i = 0; i < N_COLUMNS; i++)
		if (layout->shown[i])
			fprintf(out, " %*s", columns[i].width, columns[i].title);
}

static void print_total(FILE *out, const struct layout *layout, const struct watched *watched)
{
	struct watched_counts counts;
	struct watched_rates rates;
	struct line line = { .c = &counts, .r = &rates };
	watched_total(watched, &counts, &rates, &line.same_epoch);
	print_line(out, layout, "total", &line);
}

static void print_mount(FILE *out, const struct layout *layout, const struct watched_mount *mount)
{
	char name[SHOWN_MAX];
	struct line line = {
		.mount = mount, .c = mount->counted ? &mount->counts : NULL, .r = &mount->rates, .same_epoch = true
	};
	print_line(out, layout, name_of(mount, name), &line);
}

static struct tm local_time(void)
{
	time_t now = time(NULL);
	struct tm tm = { 0 };
	localtime_r(&now, &tm);
	return tm;
}

/* What the mark of a mount means.  The text comes from the server. */
static void format_remark(const struct watched_mount *mount, char buf[static SHOWN_MAX])
{
	char text[SHOWN_MAX / 2], name[SHOWN_MAX / 2];
	snprintf(buf, SHOWN_MAX, "%s%s: %s", mark_of(mount),
	        base_err_printable(mount->mountpoint ? mount->mountpoint : unknown, name, sizeof(name)),
	        base_err_printable(remark_of(mount), text, sizeof(text)));
}

/* ---- plain text and JSON ---- */

static void print_batch(const struct watched *watched)
{
	struct layout layout = lay_out(watched, 0);
	char when[32];
	struct tm now = local_time();
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &now);
	printf("%s  %zu mount%s\n", when, watched->n, watched->n == 1 ? "" : "s");
	print_titles(stdout, &layout);
	putchar('\n');
	for (size_t i = 0; i < watched->n; i++) {
		print_mount(stdout, &layout, &watched->mounts[i]);
		putchar('\n');
	}
	print_total(stdout, &layout, watched);
	putchar('\n');
	for (size_t i = 0; i < watched->n; i++) {
		char text[SHOWN_MAX];
		if (!remark_of(&watched->mounts[i]))
			continue;
		format_remark(&watched->mounts[i], text);
		puts(text);
	}
	putchar('\n');
}

static void set_integer(json_t *object, const char *key, uint64_t value)
{
	json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void set_rate(json_t *object, const char *key, bool known, double value)
{
	json_object_set_new(object, key, known ? json_real(value) : json_null());
}

static void set_counts(json_t *object, const struct watched_counts *c, const struct watched_rates *r)
{
	double hits = watched_hit_rate(r);
	set_integer(object, "epoch", c->epoch);
	set_rate(object, "seconds", r->known, r->seconds);
	set_rate(object, "hit_rate", hits >= 0, hits);
	for (int i = 0; i < WATCHED_COUNTERS; i++) {
		const struct watched_counter *counter = &watched_counters[i];
		if (counter->shown)
			set_integer(object, counter->shown, *(const uint64_t *)((const char *)c + counter->at));
		if (counter->rate_key)
			set_rate(object, counter->rate_key, r->known,
			        *(const double *)((const char *)r + counter->rate_at));
	}
}

static json_t *mount_json(const struct watched_mount *mount)
{
	static const char *const states[] = { "live", "silent", "gone" };
	char name[SHOWN_MAX];
	json_t *object = json_object();
	const char *place = mount->mountpoint ? mount->mountpoint : mount->target;
	json_object_set_new(
	        object, "mountpoint", place ? json_string(base_err_printable(place, name, sizeof(name))) : json_null());
	set_integer(object, "pid", (uint64_t)mount->pid);
	json_object_set_new(object, "view", json_string(mount->view_all ? "all" : "rank"));
	set_integer(object, "rank", mount->rank);
	set_integer(object, "world", mount->world);
	json_object_set_new(object, "state", json_string(states[mount->state]));
	if (mount->misuse)
		json_object_set_new(object, "misuse", json_string(mount->misuse));
	if (mount->read_ahead_note)
		json_object_set_new(object, "read_ahead_note", json_string(mount->read_ahead_note));
	if (mount->counted)
		set_counts(object, &mount->counts, &mount->rates);
	return object;
}

static void print_json(const struct watched *watched)
{
	struct watched_counts counts;
	struct watched_rates rates;
	struct timespec now;
	bool same_epoch;
	json_t *object = json_object(), *mounts = json_array(), *total = json_object();
	clock_gettime(CLOCK_REALTIME, &now);
	watched_total(watched, &counts, &rates, &same_epoch);
	set_counts(total, &counts, &rates);
	for (size_t i = 0; i < watched->n; i++)
		json_array_append_new(mounts, mount_json(&watched->mounts[i]));
	json_object_set_new(object, "time", json_real((double)now.tv_sec + (double)now.tv_nsec / 1e9));
	json_object_set_new(object, "mounts", mounts);
	json_object_set_new(object, "total", total);
	json_dumpf(object, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
	json_decref(object);
	putchar('\n');
}

/* ---- the loops ---- */

static int delay_ms(const struct arguments *a)
{
	return (int)(a->delay_s * 1000);
}

static unsigned answer_ms(const struct arguments *a)
{
	int ms = delay_ms(a);
	return ms < ANSWER_MS_MAX ? (unsigned)ms : ANSWER_MS_MAX;
}

static void sleep_until(struct timespec *next, int ms)
{
	next->tv_sec += ms / 1000;
	next->tv_nsec += ms % 1000 * 1000000L;
	if (next->tv_nsec >= 1000000000) {
		next->tv_nsec -= 1000000000;
		next->tv_sec++;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, NULL) == EINTR)
		;
}

/* The first reading is not printed: rates need two. */
static int run_batch(const struct arguments *a, struct watched *watched)
{
	struct timespec next;
	clock_gettime(CLOCK_MONOTONIC, &next);
	int rc = watched_read(watched, answer_ms(a));
	for (uint64_t i = 0; rc == 0 && (!a->count || i < a->count); i++) {
		sleep_until(&next, delay_ms(a));
		rc = watched_read(watched, answer_ms(a));
		if (rc < 0)
			break;
		if (a->json)
			print_json(watched);
		else
			print_batch(watched);
		if (fflush(stdout) < 0)
			return cli_failf("cannot write to standard output: %s", strerror(errno));
	}
	return rc < 0 ? cli_failf("%s", base_err_str(rc)) : CLI_DONE;
}

/* Begins line `row` of `rows`.  It erases the old line before the new one is written: after a line that is as wide as
 * the terminal, the cursor stands on the last character, and an erase would delete that.  The last line also erases
 * all lines below it. */
static void begin_line(FILE *out, size_t row, size_t rows, const char *look)
{
	fprintf(out, "%s%s%s", row ? "\n" : "\033[H", look, row + 1 < rows ? "\033[K" : "\033[J");
}

/* What the user chose by keys. */
struct look {
	size_t scroll;
	bool help;
};

static void print_help_screen(FILE *out, unsigned width, unsigned height)
{
	static const char *const lines[] = {
		"RANK             the rank and the world, or all",
		"EPOCH, DONE      the epoch, and how much of it this rank has read",
		"FILES/s          files opened",
		"CACHE/s          bytes of them that were in the page cache",
		"OUT/s, READ/s    bytes to the trainer; bytes from the shards",
		"WASTE/s          bytes read ahead that nobody uses",
		"HITS             files that were in memory when they were opened",
		"WAIT             time that readers waited, as a share of the time",
		"P50, P99, MAX    how long a read waited that was not in memory",
		"WINDOW, DEPTH    share of the window that is read ahead; reads in flight",
		"MEMORY           bytes in memory",
		"TIER, FILL       bytes that came from the tier; how full it is",
		"REQ/s            requests to the store",
		"RETRY, HEDGE     of these: in place of one that failed; beside a slow one",
		"THROT            answers that ask for fewer requests (429, 503)",
		"BYTE50, BYTE99   time to the first byte of an answer, median and 99%",
		"!                the trainer uses this mount wrongly: see below the mounts",
		"?                its order is not known, so files come late: see below",
		"",
		"q: quit   h: help   up, down (k, j): scroll",
		"'ddpfs stat MNT' has all counters, 'ddpfs doctor MNT' says what is wrong.",
	};
	enum { LINES = sizeof(lines) / sizeof(lines[0]) };
	size_t rows = height < LINES + 1 ? height : LINES + 1;
	begin_line(out, 0, rows, "\033[1m");
	fprintf(out, "%.*s\033[0m", (int)width, "ddpfs top: what the columns mean   h: back");
	for (size_t i = 1; i < rows; i++) {
		begin_line(out, i, rows, "");
		fprintf(out, "%.*s", (int)width, lines[i - 1]);
	}
}

/* Prints the meaning of each mark that the `shown` mounts have, in the rows from `row` to `rows`. */
static void print_remarks(
        FILE *out, const struct watched_mount *mounts, size_t shown, size_t row, size_t rows, unsigned width)
{
	for (size_t i = 0; i < shown && row < rows; i++) {
		char text[SHOWN_MAX];
		if (!remark_of(&mounts[i]))
			continue;
		format_remark(&mounts[i], text);
		begin_line(out, row++, rows, "");
		fprintf(out, "%.*s", (int)width, text);
	}
}

static size_t count_remarks(const struct watched_mount *mounts, size_t n)
{
	size_t remarks = 0;
	for (size_t i = 0; i < n; i++)
		remarks += remark_of(&mounts[i]) != NULL;
	return remarks;
}

/* Prints the screen: a status line, titles, the total, as many mounts as fit, from *scroll on, and what their marks
 * mean. */
static void print_table(FILE *out, const struct arguments *a, const struct watched *watched, size_t *scroll)
{
	unsigned width, height;
	char when[16], head[128];
	terminal_size(&width, &height);
	struct layout layout = lay_out(watched, width);
	size_t room = height > 3 ? height - 3 : 0;
	if (*scroll + room > watched->n)
		*scroll = watched->n > room ? watched->n - room : 0;
	struct tm now = local_time();
	strftime(when, sizeof(when), "%H:%M:%S", &now);
	snprintf(head, sizeof(head), "ddpfs top  %s  %zu mount%s, every %g s   q: quit   h: help%s", when, watched->n,
	        watched->n == 1 ? "" : "s", a->delay_s, watched->n > room ? "   up, down: scroll" : "");
	size_t shown = watched->n - *scroll < room ? watched->n - *scroll : room;
	size_t rows = height < 3 ? height : 3 + (watched->n ? shown : room > 0);
	const struct watched_mount *first = watched->mounts ? watched->mounts + *scroll : NULL;
	size_t notes = count_remarks(first, shown);
	notes = notes < height - rows ? notes : height - rows;
	rows += notes;
	begin_line(out, 0, rows, "");
	fprintf(out, "%.*s", (int)width, head);
	if (height > 1) {
		begin_line(out, 1, rows, "\033[7m");
		print_titles(out, &layout);
		fprintf(out, "\033[0m");
	}
	if (height > 2) {
		begin_line(out, 2, rows, "\033[1m");
		print_total(out, &layout, watched);
		fprintf(out, "\033[0m");
	}
	for (size_t i = 0; i < shown; i++) {
		begin_line(out, 3 + i, rows, "");
		print_mount(out, &layout, &first[i]);
	}
	print_remarks(out, first, shown, rows - notes, rows, width);
	if (!watched->n && room) {
		begin_line(out, 3, rows, "");
		fprintf(out, "no ddpfs mount here");
	}
}

static void print_screen(FILE *out, const struct arguments *a, const struct watched *watched, struct look *look)
{
	unsigned width, height;
	terminal_size(&width, &height);
	if (look->help)
		print_help_screen(out, width, height);
	else
		print_table(out, a, watched, &look->scroll);
	fprintf(out, "\033[m"); /* marks the end of a frame; tests wait for it */
}

static int draw(const struct arguments *a, const struct watched *watched, struct look *look)
{
	cleanup_free char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	if (!out)
		return -ENOMEM;
	print_screen(out, a, watched, look);
	return fclose(out) == 0 ? terminal_draw(text, len) : -ENOMEM;
}

static int64_t ms_left(const struct timespec *next)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t ms = (int64_t)(next->tv_sec - now.tv_sec) * 1000 + (next->tv_nsec - now.tv_nsec) / 1000000;
	return ms < 0 ? 0 : ms;
}

/* Handles keys and changes of size until the next reading is due.  Returns true if the program shall end. */
static bool wait_for_next(const struct arguments *a, struct terminal *terminal, const struct watched *watched,
        struct look *look, int *ret_signal)
{
	struct timespec next;
	clock_gettime(CLOCK_MONOTONIC, &next);
	next.tv_sec += delay_ms(a) / 1000;
	next.tv_nsec += delay_ms(a) % 1000 * 1000000L;
	for (;;) {
		int key = 0;
		switch (terminal_wait(terminal, (int)ms_left(&next), &key)) {
		case TERMINAL_TIME:
			return false;
		case TERMINAL_HANGUP:
			return true;
		case TERMINAL_SIGNAL:
			*ret_signal = key;
			return true;
		case TERMINAL_KEY:
			if (key == 'q' || key == 'Q')
				return true;
			look->help = (key == 'h' || key == 'H' || key == '?') && !look->help;
			if (key == TERMINAL_DOWN || key == 'j')
				look->scroll++;
			if ((key == TERMINAL_UP || key == 'k') && look->scroll)
				look->scroll--;
			break;
		case TERMINAL_REDRAW:
			break;
		}
		if (draw(a, watched, look) < 0)
			return true;
	}
}

static int run_screen(const struct arguments *a, struct watched *watched)
{
	struct terminal terminal;
	struct look look = { 0 };
	int signal_number = 0;
	int rc = terminal_open(&terminal);
	for (uint64_t i = 0; rc == 0 && (!a->count || i < a->count); i++) {
		rc = watched_read(watched, answer_ms(a));
		if (rc == 0)
			rc = draw(a, watched, &look);
		if (rc < 0 || wait_for_next(a, &terminal, watched, &look, &signal_number))
			break;
	}
	terminal_close(&terminal, signal_number);
	return rc < 0 ? cli_failf("%s", base_err_str(rc)) : CLI_DONE;
}

int ddpfs_top(int argc, char **argv)
{
	static const struct cli_line line = { "[MNT|@PID...]",
		"Shows what mounts do right now; without MNT, all of this host.\v"
		"Keys: q quits, h says what the columns mean, up and down scroll.  Where standard output is no "
		"terminal: as --batch.",
		.options = { { "batch", NULL, "Print plain text, one table after the other", 'b',
		                     CLI_FLAG(struct arguments, batch) },
		        { "delay", "SECONDS", "Time between two readings (default 1)", 'd',
		                CLI_CALL(struct arguments, delay_s, take_delay) },
		        { "json", NULL, "Print one JSON object a line and reading", CLI_FLAG(struct arguments, json) },
		        { "count", "COUNT", "End after that many readings", 'n',
		                CLI_NUMBER(struct arguments, count, 1, INT64_MAX) } },
		.more = true, .rest = offsetof(struct arguments, targets) };
	struct arguments a = { .delay_s = 1 };
	struct base_err err = { 0 };
	struct watched watched;
	cli_parse(&line, argc, argv, &a);
	if (watched_open(a.targets.words, (size_t)a.targets.n, &err, &watched) < 0)
		return cli_fail(&err);
	int status = a.batch || a.json || !terminal_fit() ? run_batch(&a, &watched) : run_screen(&a, &watched);
	watched_close(&watched);
	return status;
}
