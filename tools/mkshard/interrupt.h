/* SPDX-License-Identifier: Apache-2.0 */
/* What `mkshard pack` says when SIGINT (Ctrl-C) or SIGTERM ends it: what is kept, and the command that goes on.
 *
 * A signal ends the program at once, as it does without this; a rerun goes on from any place (publish.h).  The
 * text is made before, so that the handler only writes it.
 *
 * Threads: begin, total and end belong to one thread; add to any. */
#ifndef DDPFS_TOOLS_MKSHARD_INTERRUPT_H
#define DDPFS_TOOLS_MKSHARD_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

/* The command line as words for a shell.  malloc'd; NULL without memory. */
char *pack_command_line(int argc, char *const *argv);

/* From now on the two signals say something, unless they are ignored.  `partial` is DATASET.partial; `piped`: the
 * sources come through standard input. */
void pack_interrupt_begin(const char *partial, const char *command, bool piped);
void pack_interrupt_total(uint32_t n_shards);
/* n more shards are complete and in the journal. */
void pack_interrupt_add(uint32_t n_shards);
/* The two signals are what they were. */
void pack_interrupt_end(void);

#endif
