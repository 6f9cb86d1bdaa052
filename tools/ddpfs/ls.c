/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs ls`: lists every ddpfs mount of this host, in all mount namespaces; ask_server.h first.
 *
 * Of a server that does not answer, only the process id is known. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/ddpfs/ask_server.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/ddpfs.h"

struct arguments {
	bool json;
};

struct found {
	struct base_control_peer *peers;
	size_t n;
	struct base_control_silent *silent;
	size_t n_silent;
};

static int print_json(const struct found *found)
{
	json_t *list = json_array();
	for (size_t i = 0; i < found->n; i++) {
		json_t *info = json_loads(found->peers[i].info, 0, NULL);
		json_object_del(info, "ok");
		json_object_set_new(info, "socket", json_string(found->peers[i].socket));
		json_array_append_new(list, info);
	}
	for (size_t i = 0; i < found->n_silent; i++)
		json_array_append_new(
		        list, json_pack("{s:n, s:I, s:s, s:b}", "mountpoint", "pid", (json_int_t)found->silent[i].pid,
		                      "socket", found->silent[i].socket, "silent", 1));
	int r = json_dumpf(list, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(list);
	putchar('\n');
	return r < 0 ? cli_failf("cannot write to standard output") : CLI_DONE;
}

/* The names in a server's answer are already quoted for printing. */
static void print_table(const struct found *found)
{
	static const char silent[] = "(silent)";
	char target[1024];
	int width = (int)strlen(found->n_silent ? silent : "MOUNT");
	for (size_t i = 0; i < found->n; i++) {
		int len = (int)strlen(base_err_printable(found->peers[i].mountpoint, target, sizeof(target)));
		width = len > width ? len : width;
	}
	printf("%-*s  %-11s  %7s  %s\n", width, "MOUNT", "RANK", "PID", "DATASET");
	for (size_t i = 0; i < found->n; i++) {
		const struct base_control_peer *peer = &found->peers[i];
		char rank[64] = "all";
		char dataset[1024];
		if (peer->ranks > 1)
			snprintf(rank, sizeof(rank), "%u-%u of %u", peer->rank, peer->rank + peer->ranks - 1,
			        peer->world);
		else if (!peer->view_all)
			snprintf(rank, sizeof(rank), "%u of %u", peer->rank, peer->world);
		printf("%-*s  %-11s  %7d  %s\n", width, base_err_printable(peer->mountpoint, target, sizeof(target)),
		        rank, (int)peer->pid, base_err_printable(peer->dataset, dataset, sizeof(dataset)));
	}
	for (size_t i = 0; i < found->n_silent; i++)
		printf("%-*s  %-11s  %7d  %s\n", width, silent, "-", (int)found->silent[i].pid, "-");
}

int ddpfs_ls(int argc, char **argv)
{
	static const struct cli_line line = {
		.doc = "Lists the ddpfs mounts of this host: your own, for root everyone's; "
		       "those of 'ddpfs exec' too.",
		.options = { { "json", NULL, "Print a JSON array", CLI_FLAG(struct arguments, json) } }
	};
	struct arguments a = { 0 };
	struct found found;
	int status = CLI_DONE;
	cli_parse(&line, argc, argv, &a);
	int r = ask_survey(BASE_CONTROL_SURVEY_MS, &found.peers, &found.n, &found.silent, &found.n_silent);
	if (r < 0)
		return cli_failf("cannot list the mounts: %s", base_err_str(r));
	if (a.json)
		status = print_json(&found);
	else if (found.n + found.n_silent > 0)
		print_table(&found);
	else
		cli_note(geteuid() ? "no ddpfs mount of yours here" : "no ddpfs mount here");
	base_control_peers_free(found.peers, found.n);
	free(found.silent);
	return status;
}
