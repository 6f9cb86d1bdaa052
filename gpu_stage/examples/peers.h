/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job: the rank of this process, from the launcher's environment, and connections between ranks.
 *
 * torchrun, Slurm, Open MPI and PMI set rank and world; MASTER_ADDR names the host of rank 0 (default: this
 * machine).  Rank 0 listens on TRAIN_PORT, by default MASTER_PORT + 1 (torchrun's own store has MASTER_PORT).  Every
 * other rank has a TCP connection to rank 0.  That suffices for an id, and for the gradients of a small model on
 * processors; GPUs use NCCL.
 *
 * Threads: one at a time.  Errors: a function prints a sentence on standard error and returns false. */
#ifndef DDPFS_GPU_STAGE_EXAMPLES_PEERS_H
#define DDPFS_GPU_STAGE_EXAMPLES_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peers {
	uint32_t rank, world, local_rank;
	int *sockets;     /* rank 0: one for each rank, its own unused; other ranks: one, to rank 0 */
	float *part;      /* rank 0: room for the numbers of another rank */
	size_t part_room; /* of `part`, in numbers */
};

/* Reads the environment and connects the ranks.  Returns false if the ranks cannot connect. */
bool peers_open(struct peers *peers);
void peers_close(struct peers *peers);

/* Copies rank 0's bytes to every rank. */
bool peers_share(struct peers *peers, void *data, size_t bytes);
/* Sums n numbers over all ranks; every rank gets the sums, which are the same in every run. */
bool peers_sum(struct peers *peers, float *data, size_t n);

#endif
