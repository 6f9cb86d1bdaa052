/* SPDX-License-Identifier: Apache-2.0 */
/* A process that asks providers for credentials, for a server whose system calls are filtered (fs/supervise/confine.h):
 * the server may start no program, and a credential_process is one.
 *
 *     server --"1 byte"--> agent --> providers (shard/remote/credentials.h)
 *            <--struct remote_credentials, or a sentence--
 *
 * The process is called ddpfs-keys.  It ends when its server ends.
 *
 * Threads: one at a time calls remote_agent_ask. */
#ifndef DDPFS_SHARD_REMOTE_CREDENTIALS_AGENT_H
#define DDPFS_SHARD_REMOTE_CREDENTIALS_AGENT_H

#include "shard/remote/credentials.h"

/* Starts the agent: before the process has threads, and before it takes its filter.  *ret_fd: the connection to it; the
 * caller closes it, which ends the agent.
 * Returns 0, or -errno of socketpair(2) or fork(2). */
int remote_agent_start(int *ret_fd);
/* From now on, processes that are started keep no stderr.  For a server in the background, whose caller may wait until
 * nobody holds the other end of its pipe.  Before there is a second thread. */
void remote_agent_quiet(void);

/* Asks the agent.  Blocks until it answers.  ret_credentials is freed with remote_credentials_free.
 * Returns 0, or with a sentence: -EPIPE: the agent has ended; -ENOMEM; an error of remote_credentials_get. */
int remote_agent_ask(int fd, struct base_err *err, struct remote_credentials **ret_credentials);

#endif
