/* SPDX-License-Identifier: Apache-2.0 */
/* mount.ddpfs: the helper that mount(8) runs for `mount -t ddpfs` and for fstab lines; mount_options.h first.
 *
 * mount(8), "EXTERNAL HELPERS", calls
 *     mount.ddpfs DATASET MNT [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
 * and returns the helper's exit status. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/ddpfs/ddpfs.h"
#include "tools/ddpfs/daemonize.h"

/* mount(8), "EXIT STATUS" */
enum { MOUNT_EX_USAGE = 1, MOUNT_EX_SYSERR = 2, MOUNT_EX_USER = 8, MOUNT_EX_FAIL = 32 };

static void print_help(void)
{
	printf("Usage: mount.ddpfs DATASET MNT [-fnsv] [-o OPTIONS]\n"
	       "Mounts DATASET on the directory MNT; the helper that 'mount -t ddpfs' runs.\n"
	       "\n"
	       "  -f                 Check dataset, mountpoint and options, mount nothing\n"
	       "  -n                 Taken for mount(8)'s sake, means nothing here\n"
	       "  -o OPTIONS         Mount options, see below; may be repeated\n"
	       "  -s                 Skip unknown options instead of refusing them\n"
	       "  -t TYPE            Taken for mount(8)'s sake, means nothing here\n"
	       "  -v                 Say what was mounted\n"
	       "  -?, --help         Give this help list\n"
	       "  -V, --version      Print program version\n"
	       "\n");
	options_print_help(stdout);
}

static int say(int status, const char *text)
{
	fprintf(stderr, "mount.ddpfs: %s\n", text);
	return status;
}

struct flags {
	bool fake;
	bool verbose;
};

/* Returns -1 if the program goes on, else the exit status. */
static int parse(int argc, char **argv, struct options *options, struct flags *flags)
{
	static const struct option longs[] = { { "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' }, { 0 } };
	struct base_err err = { 0 };
	const char *texts[OPTIONS_STRINGS_MAX];
	int n = 0;
	int c;
	opterr = 0;
	while ((c = getopt_long(argc, argv, "fhnsvo:t:N:V", longs, NULL)) != -1) {
		switch (c) {
		case 'f':
			flags->fake = true;
			break;
		case 'v':
			flags->verbose = true;
			break;
		case 's':
			options->sloppy = true;
			break;
		case 'o':
			if (n == OPTIONS_STRINGS_MAX)
				return say(MOUNT_EX_USAGE, "too many -o");
			texts[n++] = optarg;
			break;
		case 'n':
		case 't':
			break;
		case 'N':
			return say(MOUNT_EX_USAGE,
			        "-N is not supported: run it as 'nsenter --mount=NAMESPACE mount -t ddpfs ...'");
		case 'V':
			printf("mount.ddpfs (ddpfs) " DDPFS_VERSION "\n");
			return 0;
		case 'h':
			print_help();
			return 0;
		default:
			/* '?' is the option -?, but getopt also returns it for an unknown option. */
			if (optopt == '?') {
				print_help();
				return 0;
			}
			return say(MOUNT_EX_USAGE,
			        "unknown option or one without its value: 'mount.ddpfs --help' lists them");
		}
	}
	/* Parse -o after all flags, because -s may stand after -o. */
	for (int i = 0; i < n; i++)
		if (options_parse(options, texts[i], &err) < 0)
			return say(MOUNT_EX_USAGE, err.text);
	if (argc - optind != 2)
		return say(MOUNT_EX_USAGE, "usage: mount.ddpfs DATASET MNT [-o OPTIONS]");
	return -1;
}

static int mount_it(const struct options *options, const struct flags *flags)
{
	struct base_err err = { 0 };
	pid_t server;
	if (flags->fake)
		return 0;
	ddpfs_warn_of_hidden(options);
	int r = serve_background(&(struct serve_background){ .options = options, .owner_pidfd = -1 }, &err, &server);
	if (r < 0)
		return say(r == -EINTR ? MOUNT_EX_USER : MOUNT_EX_FAIL, err.text);
	if (flags->verbose)
		printf("mount.ddpfs: %s mounted on %s, server %d\n", options->fs.dataset, options->fs.mountpoint,
		        (int)server);
	return 0;
}

int mount_ddpfs(int argc, char **argv)
{
	struct options options;
	struct flags flags = { 0 };
	struct base_err err = { 0 };
	bool usage;
	options_init(&options);
	int status = parse(argc, argv, &options, &flags);
	if (status < 0) {
		int r = ddpfs_prepare(&options, argv[optind], argv[optind + 1], false, &err, &usage);
		if (r < 0)
			status = say(usage ? MOUNT_EX_USAGE : MOUNT_EX_FAIL, err.text);
		else
			status = mount_it(&options, &flags);
	}
	options_done(&options);
	return status;
}
