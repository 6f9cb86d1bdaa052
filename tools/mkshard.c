/* mkshard: makes and inspects datasets. */
#include "tools/mkshard.h"

#include "tools/cli.h"

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

int main(int argc, char **argv)
{
	static const struct cli_program program = {
		.name = "mkshard",
		.doc = "Packs datasets of many files into tar shards with an index, for ddpfs.",
		.commands = commands,
	};
	return cli_main(&program, argc, argv);
}
