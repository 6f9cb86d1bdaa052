/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of mkshard, and limits of their options.  Each subcommand is a main() of its own: it gets its argv
 * and returns the exit status (tools/common/cli.h).
 *
 * Threads: the main thread. */
#ifndef DDPFS_TOOLS_MKSHARD_MKSHARD_H
#define DDPFS_TOOLS_MKSHARD_MKSHARD_H

int mkshard_pack(int argc, char **argv);
int mkshard_index(int argc, char **argv);
int mkshard_verify(int argc, char **argv);
int mkshard_info(int argc, char **argv);
int mkshard_ls(int argc, char **argv);
int mkshard_cat(int argc, char **argv);
int mkshard_extract(int argc, char **argv);
int mkshard_stats(int argc, char **argv);

enum { MKSHARD_JOBS_MAX = 256, MKSHARD_TIMEOUT_S = 300, MKSHARD_TIMEOUT_MAX_S = 86400 * 7 };

/* The option of subcommands that read shards of stores: it fills the member `timeout_s`. */
#define MKSHARD_TIMEOUT_OPTION(type)                                                                                   \
	{                                                                                                              \
		"timeout", "SECONDS", "How long to wait for a store that does not answer (default: 300)",              \
		        CLI_NUMBER(type, timeout_s, 1, MKSHARD_TIMEOUT_MAX_S)                                          \
	}

/* The option of subcommands that read a dataset: it fills the member `index_file`. */
#define MKSHARD_INDEX_OPTION(type)                                                                                     \
	{                                                                                                              \
		"index", "FILE", "The index of DATASET, if it does not lie there ('mkshard index -o' made it)",        \
		        CLI_TEXT(type, index_file)                                                                     \
	}

#endif
