/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job: who this one is, by the launcher's environment, and a wire between them.
 *
 * torchrun, Slurm, Open MPI and PMI say rank and world; MASTER_ADDR says where rank 0 is (default: this machine).  Rank 0
 * listens on TRAIN_PORT, by default MASTER_PORT + 1 (torchrun's own store has MASTER_PORT).  The wire is a star of TCP
 * connections: enough for an id and for the gradients of a small model on processors; GPUs use NCCL.
 *
 * Threads: one at a time.  Errors: a sentence on standard error, and false. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_PEERS_H
#define DDPFS_GPU_STAGE_EXAMPLES_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peers {
	uint32_t rank, world, local_rank;
	int *sockets; /* rank 0: one a rank, its own unused; others: one, to rank 0 */
	float *part;  /* rank 0's room for another rank's numbers */
	size_t part_room;
};

/* Reads the environment and connects.  False: there is no job to be had. */
bool peers_open(struct peers *peers);
void peers_close(struct peers *peers);

bool peers_share(struct peers *peers, void *data, size_t bytes); /* rank 0's bytes go to every rank */
bool peers_sum(struct peers *peers, float *data, size_t n);      /* every rank gets the sums over all ranks */

#endif
