/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rank and world from the environment variables of a job's launcher.  Only `ddpfs exec` uses it; a plain mount
 * takes its rank from its options.
 *
 *   torchrun  RANK, WORLD_SIZE (torchrun, torch.distributed.launch, accelerate, deepspeed)
 *   horovod   HOROVOD_RANK, HOROVOD_SIZE
 *   ompi      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE (Open MPI's mpirun)
 *   pmi       PMI_RANK, PMI_SIZE (MPICH, Intel MPI, srun --mpi=pmi2)
 *   slurm     SLURM_PROCID and SLURM_STEP_NUM_TASKS or SLURM_NTASKS, only inside an srun step: a batch script has
 *             SLURM_PROCID=0 too, but is no task
 *
 * Launchers nest: srun starts one torchrun or one orted a node, and these start the ranks.  The variables of the
 * outer launcher are then still set, but they describe the inner launcher.  The list above is ordered from inner to
 * outer.  One case is unclear: RANK is set beside another launcher's variables, but TORCHELASTIC_RUN_ID is not, so
 * anyone may have set RANK.  If the two answers differ then, the function fails, and the user must choose.
 *
 * Threads: reads the environment; call before other threads start. */
#ifndef DDPFS_TOOLS_DDPFS_LAUNCHER_H
#define DDPFS_TOOLS_DDPFS_LAUNCHER_H

#include <stdint.h>

#include "shard/base/err.h"

enum { LAUNCHER_NOTE_MAX = 256 };

struct launcher {
	const char *name;             /* "torchrun", ...; static */
	const char *rank_name;        /* the variable of the rank; static */
	const char *world_name;       /* the variable of the world; static */
	uint32_t rank;                /* < world */
	uint32_t world;               /* number of ranks, at most SHARD_WORLD_MAX */
	uint32_t local_world;         /* ranks of this host; 0 if the launcher does not say */
	char note[LAUNCHER_NOTE_MAX]; /* which other variables were ignored, and why; "" if none */
};

/* Finds rank and world of this task.  `only` restricts the search to one launcher (a name from the list above); NULL
 * means all.
 *
 * Returns 0; -ENOENT if no launcher's variables are set; -EINVAL with a sentence for an unknown `only`, a value that
 * is no number, a rank without its world, rank >= world, or two launchers that disagree. */
int launcher_find(const char *only, struct base_err *err, struct launcher *ret_launcher);

/* Returns "torchrun, horovod, ompi, pmi, slurm", for messages and --help. */
const char *launcher_names(void);

#endif
