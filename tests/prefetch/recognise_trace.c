/* SPDX-License-Identifier: Apache-2.0 */
/* recognise_trace DATASET < paths
 *
 * Feeds the paths (relative to the dataset, one a line, in the order of their opens) to the recognition and prints what
 * it makes of them: for each track a line "track ID OPENS REPEATED AFTER TEXT", and its sequences "now ID FILE..." and
 * "next ID FILE...", as file ids' paths. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefetch/sampler/recognise.h"
#include "shard/base/cleanup.h"

static int work(struct prefetch_recognise *r)
{
	int rc;
	while ((rc = prefetch_recognise_step(r, UINT64_C(1000000000))) > 0)
		;
	return rc;
}

static void print_sequence(const struct shard_index *dataset, struct prefetch_recognise *r, uint32_t id, unsigned ahead)
{
	struct prefetch_sequence *sequence;
	char path[SHARD_PATH_MAX + 1];
	uint32_t file;
	if (prefetch_recognise_sequence(r, id, ahead, &sequence) < 0)
		return;
	printf("%s %u", ahead ? "next" : "now", id);
	for (uint64_t t = 0; t < prefetch_sequence_turns(sequence); t++) {
		if (prefetch_sequence_file(sequence, t, &file) == 0 &&
		        shard_index_file_path(dataset, file, path, sizeof(path)) >= 0)
			printf("\t%s", path);
	}
	printf("\n");
	prefetch_sequence_put(sequence);
}

static void print_tracks(const struct shard_index *dataset, struct prefetch_recognise *r)
{
	struct prefetch_recognised track;
	for (unsigned i = 0; prefetch_recognise_get(r, i, &track) == 0; i++) {
		char text[512];
		prefetch_recognise_describe(&track, text, sizeof(text));
		printf("track %u\t%lu\t%u\t%lu\t%s\t%s\n", track.id, (unsigned long)track.opens, track.repeated,
		        (unsigned long)track.after, text, track.list);
		print_sequence(dataset, r, track.id, 0);
		print_sequence(dataset, r, track.id, 1);
	}
}

int main(int argc, char **argv)
{
	struct shard_index *dataset = NULL;
	struct prefetch_recognise *r = NULL;
	struct base_err err = { 0 };
	cleanup_free char *line = NULL;
	size_t room = 0;
	ssize_t len;
	int rc = argc == 2 ? shard_index_open(argv[1], &err, &dataset) : -1;
	if (rc == 0)
		rc = prefetch_recognise_new(&(struct prefetch_recognise_options){ .index = dataset }, &r);
	for (uint32_t i = 1; rc == 0 && (len = getline(&line, &room, stdin)) > 0; i++) {
		enum shard_kind kind;
		uint32_t file;
		line[len - 1] = '\0';
		rc = shard_index_find_path(dataset, line, &kind, &file);
		if (rc == 0)
			prefetch_recognise_opened(r, &file, 1);
		if (rc == 0 && i % 16 == 0)
			rc = work(r);
	}
	if (rc == 0)
		rc = work(r);
	if (rc == 0)
		print_tracks(dataset, r);
	else
		fprintf(stderr, "recognise_trace: %s\n", err.text[0] ? err.text : base_err_str(rc));
	prefetch_recognise_free(r);
	if (dataset)
		shard_index_close(dataset);
	return rc == 0 ? 0 : 1;
}
