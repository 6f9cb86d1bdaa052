/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a message when SIGINT (Ctrl-C) or SIGTERM ends `mkshard pack`: what is kept, and the command that goes on.
 *
 * The signal still ends the program at once; a rerun can go on from any point (publish.h).  The texts are prepared
 * before, so that the handler calls only functions of signal-safety(7).
 *
 * Threads: one thread calls begin, total and end; any thread may call pack_interrupt_add. */
#ifndef DDPFS_TOOLS_MKSHARD_INTERRUPT_H
#define DDPFS_TOOLS_MKSHARD_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the command line that goes on, quoted for a shell: the given one without --restart, which would remove what
 * is kept.  malloc'd; NULL without memory. */
char *pack_command_line(int argc, char *const *argv);

/* Installs the handler for both signals, except for a signal that is ignored.  `partial` is DATASET.partial;
 * `store` is the name of the dataset in the store to which complete shards go, or NULL if they stay in `partial`;
 * `command` is the text of pack_command_line, or NULL; `piped` means that the sources come through standard input. */
void pack_interrupt_begin(const char *partial, const char *store, const char *command, bool piped);
/* Sets the number of shards of the plan. */
void pack_interrupt_total(uint32_t n_shards);
/* Counts n_shards more shards that are complete and in the journal. */
void pack_interrupt_add(uint32_t n_shards);
/* Restores the handlers of both signals. */
void pack_interrupt_end(void);

#endif
