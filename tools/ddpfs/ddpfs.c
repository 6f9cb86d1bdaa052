/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of ddpfs and mount.ddpfs, with the list of subcommands; tools/common/cli.h and ddpfs.h first. */
#include "tools/ddpfs/ddpfs.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "shard/remote/credentials.h"
#include "shard/remote/secret_memory.h"
#include "tools/common/cli.h"

static const struct cli_command commands[] = {
	{ "mount", "mount a dataset", ddpfs_mount },
	{ "umount", "unmount it", ddpfs_umount },
	{ "restart", "put this program in the place of a mount's server", ddpfs_restart },
	{ "exec", "run a command with a dataset mounted just for it", ddpfs_exec },
	{ "ls", "list the mounts of this host", ddpfs_ls },
	{ "stat", "show what a mount did", ddpfs_stat },
	{ "doctor", "find what is wrong with a host, a dataset or a mount", ddpfs_doctor },
	{ "top", "watch what mounts do right now", ddpfs_top },
	{ "report", "write a page with plots of what mounts did", ddpfs_report },
	{ "ctl", "follow an order, set a mount's epoch, save its resume state", ddpfs_ctl },
	{ "order", "print the order of an epoch without a mount", ddpfs_order },
	{ "tier", "show, verify or empty a tier", ddpfs_tier },
	{ "warm", "fill a tier without a mount", ddpfs_warm },
	{ "takeover", NULL, ddpfs_takeover },
	{ NULL, NULL, NULL },
};

static const struct cli_program program = {
	.name = "ddpfs",
	.doc = "Mounts datasets that mkshard packed: each rank of a training job sees its own shuffled part.",
	.commands = commands,
};

/* A caller may have closed standard streams.  Then a pipe or /dev/fuse could get descriptor 1 and receive output. */
static void open_standard_streams(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

/* `mount -o remount,... MNT` and `mount -t fuse.ddpfs` use the kernel's type, fuse.ddpfs.  mount.fuse(8) then runs
 * "ddpfs SOURCE MNT -o OPTIONS" with an absolute source; no subcommand has a slash in its name. */
static bool called_by_mount_fuse(int argc, char **argv)
{
	return argc >= 3 && argv[1][0] != '-' && strchr(argv[1], '/') && (argc == 3 || argv[3][0] == '-');
}

int main(int argc, char **argv)
{
	remote_credentials_hide_environment();
	remote_secret_use_in_libraries();
	open_standard_streams();
	const char *base = argc > 0 ? strrchr(argv[0], '/') : NULL;
	base = base ? base + 1 : argc > 0 ? argv[0] : "";
	if (strcmp(base, "mount.ddpfs") == 0 || strcmp(base, "mount.fuse.ddpfs") == 0)
		return mount_ddpfs(argc, argv);
	if (called_by_mount_fuse(argc, argv))
		return mount_ddpfs(argc, argv);
	return cli_main(&program, argc, argv);
}
