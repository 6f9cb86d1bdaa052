/* SPDX-License-Identifier: Apache-2.0 */
/* The main() of mkshard, with the list of subcommands; tools/common/cli.h and mkshard.h first. */
#include "tools/mkshard/mkshard.h"

#include <signal.h>

#include "shard/base/log.h"
#include "shard/index.h"
#include "shard/remote/credentials.h"
#include "shard/remote/secret_memory.h"
#include "tools/common/cli.h"

static const struct cli_command commands[] = {
	{ "pack", "pack files, directories and archives into shards", mkshard_pack },
	{ "index", "index tar shards in place, or rebuild an index", mkshard_index },
	{ "verify", "check every byte against its checksum", mkshard_verify },
	{ "info", "say what a dataset holds", mkshard_info },
	{ "stats", "measure how random an order is", mkshard_stats },
	{ "ls", "list files", mkshard_ls },
	{ "cat", "write files to standard output", mkshard_cat },
	{ "extract", "write files back as they were", mkshard_extract },
	{ 0 },
};

/* Handles SIGBUS, which a read of the mapped index gives if somebody truncates the file.  shard_index_check_err then
 * reports the change. */
static void on_sigbus(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code <= 0 || !shard_index_fault(info->si_addr))
		signal(sig, SIG_DFL); /* the signal comes again when this returns, and ends the program */
}

int main(int argc, char **argv)
{
	const struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	static const struct cli_program program = {
		.name = "mkshard",
		.doc = "Packs datasets of many files into tar shards with an index, for ddpfs.",
		.commands = commands,
	};
	remote_credentials_hide_environment();
	remote_secret_use_in_libraries();
	sigaction(SIGBUS, &action, NULL);
	base_log_init("mkshard", BASE_LOG_INFO, false);
	return cli_main(&program, argc, argv);
}
