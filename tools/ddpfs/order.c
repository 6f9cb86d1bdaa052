/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs order`: prints the order of an epoch, or the place of one file in it, without a mount; shard/view.h first. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/view.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"

enum { PROGRESS_LINES = 4096 }; /* lines between two changes of the bar */

struct arguments {
	struct options options; /* as for a mount, so that a mount's -o text works unchanged */
	const char *dataset;
	const char *where;
	uint64_t limit; /* at most that many samples */
	bool json;
	bool null;
};

/* A sample at its place in the epoch. */
struct place {
	uint64_t position; /* over all ranks: PPPPPPPPPP in the names of a flat mount */
	uint32_t rank;
	uint64_t step; /* the turn of that rank */
	uint32_t sample;
};

static void print_json(const struct place *p, const char *path, size_t len)
{
	printf("{\"position\": %" PRIu64 ", \"rank\": %" PRIu32 ", \"step\": %" PRIu64 ", \"sample\": %" PRIu32
	       ", \"path\": ",
	        p->position, p->rank, p->step, p->sample);
	json_put_string(stdout, path, len);
	puts("}");
}

/* Prints all files of the sample, one a line. */
static int print_place(const struct arguments *a, const struct shard_index *index, const struct place *p)
{
	uint32_t files[SHARD_SAMPLE_FILES_MAX];
	char path[SHARD_PATH_MAX + 1];
	uint32_t n;
	int rc = shard_index_sample_files(index, p->sample, files, SHARD_SAMPLE_FILES_MAX, &n);

	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		int len = shard_index_file_path(index, files[i], path, sizeof(path));

		if (len < 0) {
			rc = len;
		} else if (a->json) {
			print_json(p, path, (size_t)len);
		} else {
			printf("%" PRIu64 "\t%" PRIu32 "\t", p->position, p->rank);
			if (a->null)
				fputs(path, stdout);
			else
				cli_put_name(path);
			putchar(a->null ? '\0' : '\n');
		}
	}
	return rc;
}

/* Prints the turns of one rank, or all positions in order. */
static int print_order(
        const struct arguments *a, const struct shard_view *view, const struct shard_epoch *epoch, struct base_err *err)
{
	const struct shard_deal *deal = shard_epoch_deal(epoch);
	bool one = a->options.view.set & VIEW_OPTIONS_SET_RANK;
	uint32_t rank = shard_view_options_get(view)->rank;
	uint64_t count = one ? shard_epoch_turns(epoch, rank) : shard_deal_end(deal) - deal->start;
	int rc = 0;

	if (count > a->limit)
		count = a->limit;
	if (!isatty(STDOUT_FILENO))
		progress_start("listing", 0, count);
	for (uint64_t i = 0; i < count && rc == 0 && !ferror(stdout); i++) {
		if (i % PROGRESS_LINES == PROGRESS_LINES - 1)
			progress_add(0, PROGRESS_LINES);
		struct place place = {
			.position = deal->start + (one ? i * deal->world + shard_deal_lane(deal, rank) : i),
			.step = one ? i : i / deal->world,
		};

		place.rank = one ? rank : shard_deal_rank(deal, place.position);
		rc = shard_epoch_step_sample(epoch, place.position, &place.sample);
		if (rc == 0)
			rc = print_place(a, shard_view_index(view), &place);
	}
	progress_done();
	return rc < 0 ? cli_damaged(err, a->dataset, rc) : 0;
}

static int find_sample(
        const struct arguments *a, const struct shard_index *index, uint32_t *ret_sample, struct base_err *err)
{
	enum shard_kind kind;
	struct shard_file file;
	uint32_t id;
	int rc = shard_index_find_path(index, a->where, &kind, &id);

	const char *quoted = base_quoted(a->where);
	if (rc == -ENOENT || rc == -ENOTDIR)
		return base_err_set(
		        err, -ENOENT, "'%s' holds no '%s'; 'mkshard ls' lists its files", a->dataset, quoted);
	if (rc == 0 && kind == SHARD_KIND_DIR)
		return base_err_set(err, -EISDIR, "'%s' is a directory; name a file", quoted);
	if (rc == 0)
		rc = shard_index_file(index, id, &file);
	if (rc < 0)
		return cli_damaged(err, a->dataset, rc);
	if (file.common)
		return base_err_set(err, -ENOENT, "'%s' is a common file: it is on every rank and never dealt", quoted);
	*ret_sample = file.sample;
	return 0;
}

static int print_where(
        const struct arguments *a, const struct shard_view *view, const struct shard_epoch *epoch, struct base_err *err)
{
	const struct shard_deal *deal = shard_epoch_deal(epoch);
	struct place p;
	int rc = find_sample(a, shard_view_index(view), &p.sample, err);

	if (rc < 0)
		return rc;
	rc = shard_epoch_find(epoch, p.sample, &p.position, &p.rank, &p.step);
	const char *quoted = base_quoted(a->where);
	if (rc == -ENOENT)
		return base_err_set(err, rc,
		        "'%s' does not come in epoch %" PRIu64
		        ": it is not below subdir=, or came before start=%" PRIu64 "%s",
		        quoted, shard_epoch_number(epoch), deal->start,
		        deal->tail == SHARD_TAIL_DROP ? ", or is dropped by tail=drop" : "");
	if (rc < 0)
		return cli_damaged(err, a->dataset, rc);
	if (a->json)
		print_json(&p, a->where, strlen(a->where));
	else
		printf("epoch %" PRIu64 ": position %" PRIu64 ", rank %" PRIu32 " of %" PRIu32 ", step %" PRIu64
		       " of %" PRIu64 "\n",
		        shard_epoch_number(epoch), p.position, p.rank, deal->world, p.step,
		        shard_epoch_turns(epoch, p.rank));
	return 0;
}

static int run(struct arguments *a, struct base_err *err)
{
	struct shard_index *index = NULL;
	struct shard_view *view = NULL;
	struct shard_epoch *epoch = NULL;
	int rc = cli_index_open(a->dataset, a->options.fs.index_file, err, &index);

	if (rc == 0)
		rc = view_options_finish(&a->options.view, index, err);
	if (rc == 0)
		rc = shard_view_new(index, &a->options.view.view, err, &view);
	if (rc == 0) {
		rc = shard_view_epoch(view, shard_view_options_get(view)->epoch, &epoch);
		if (rc < 0)
			base_err_set(err, rc, "out of memory for the order of %" PRIu64 " samples",
			        shard_view_samples(view));
	}
	if (rc == 0)
		rc = a->where ? print_where(a, view, epoch, err) : print_order(a, view, epoch, err);
	int stale = index ? shard_index_check_err(index, err) : 0;
	if (stale < 0)
		rc = stale;
	shard_epoch_put(epoch);
	shard_view_free(view);
	shard_index_close(index);
	return rc;
}

int ddpfs_order(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET",
		"Print the order of an epoch: position, rank and path of each sample, as the ranks will see them; "
		"only one rank's with -o rank=,world=.",
		.options = { { "options", "OPTIONS",
		                     "Options as for a mount: rank, world, order, deal, tail, seed, epoch, start, "
		                     "state, subdir, ...",
		                     'o', CLI_CALL(struct arguments, options, options_take) },
		        { "limit", "N", "Stop after N samples",
		                CLI_NUMBER(struct arguments, limit, 0, UINT64_MAX - 1) },
		        { "where", "PATH", "Say only at which position, rank and step this file comes",
		                CLI_TEXT(struct arguments, where) },
		        { "null", NULL, "End each line with NUL instead of a newline", '0',
		                CLI_FLAG(struct arguments, null) },
		        { "json", NULL, "Print one JSON object a line", CLI_FLAG(struct arguments, json) } },
		.words = { { "DATASET", .at = offsetof(struct arguments, dataset) } } };
	struct arguments a = { .limit = UINT64_MAX };
	struct base_err err = { 0 };
	int rc;

	options_init(&a.options);
	cli_parse(&line, argc, argv, &a);
	if (options_check_rank(&a.options, &err) < 0)
		cli_usage("%s", err.text);
	if (a.options.fs.n_ranks > 0)
		cli_usage("several ranks are for 'ddpfs mount': give one rank=R");
	rc = run(&a, &err);
	options_done(&a.options);
	return rc < 0 ? cli_fail(&err) : CLI_DONE;
}
