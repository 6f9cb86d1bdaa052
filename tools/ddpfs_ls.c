/* ddpfs ls: every ddpfs mount of this host that answers, in whatever mount namespace. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/control.h"
#include "tools/cli.h"
#include "tools/ddpfs.h"

enum { KEY_JSON = 256 };

struct arguments {
	bool json;
};

static const struct argp_option argp_options[] = {
	{ "json", KEY_JSON, NULL, 0, "Print a JSON array", 0 },
	{ 0 },
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct arguments *a = state->input;
	switch (key) {
	case KEY_JSON:
		a->json = true;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "'%s' is one argument too many", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int print_json(const struct fs_control_peer *peers, size_t n)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++) {
		json_t *info = json_loads(peers[i].info, 0, NULL);
		json_object_del(info, "ok");
		json_object_set_new(info, "socket", json_string(peers[i].socket));
		json_array_append_new(list, info);
	}
	int r = json_dumpf(list, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	json_decref(list);
	putchar('\n');
	return r < 0 ? cli_failf("cannot write to standard output") : CLI_DONE;
}

/* A server's answer has its names quoted. */
static void print_table(const struct fs_control_peer *peers, size_t n)
{
	char target[1024];
	int width = (int)strlen("MOUNT");
	for (size_t i = 0; i < n; i++) {
		int len = (int)strlen(base_err_printable(peers[i].mountpoint, target, sizeof(target)));
		width = len > width ? len : width;
	}
	printf("%-*s  %-11s  %7s  %s\n", width, "MOUNT", "RANK", "PID", "DATASET");
	for (size_t i = 0; i < n; i++) {
		char rank[32] = "all";
		char dataset[1024];
		if (!peers[i].view_all)
			snprintf(rank, sizeof(rank), "%u of %u", peers[i].rank, peers[i].world);
		printf("%-*s  %-11s  %7d  %s\n", width, base_err_printable(peers[i].mountpoint, target, sizeof(target)),
		        rank, (int)peers[i].pid, base_err_printable(peers[i].dataset, dataset, sizeof(dataset)));
	}
}

int ddpfs_ls(int argc, char **argv)
{
	static const struct argp argp = {
		.options = argp_options,
		.parser = parse_option,
		.doc = "Lists the ddpfs mounts of this host: your own, for root everyone's; those of 'ddpfs exec' too."
	};
	struct arguments a = { 0 };
	struct fs_control_peer *peers;
	size_t n;
	int status = CLI_DONE;
	cli_parse(&argp, argc, argv, &a);
	int r = fs_control_list(&peers, &n);
	if (r < 0)
		return cli_failf("cannot list the mounts: %s", base_err_str(r));
	if (a.json)
		status = print_json(peers, n);
	else if (n > 0)
		print_table(peers, n);
	else
		cli_note("no ddpfs mount here");
	fs_control_peers_free(peers, n);
	return status;
}
