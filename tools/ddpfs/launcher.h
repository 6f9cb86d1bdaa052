/* SPDX-License-Identifier: Apache-2.0 */
/* The rank and the world size as a job's launcher tells its tasks: through environment variables.  `ddpfs exec` asks;
 * nothing else reads them (a plain mount takes its rank from its options only).
 *
 *   torchrun  RANK, WORLD_SIZE (torchrun, torch.distributed.launch, accelerate, deepspeed)
 *   horovod   HOROVOD_RANK, HOROVOD_SIZE
 *   ompi      OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE (Open MPI's mpirun)
 *   pmi       PMI_RANK, PMI_SIZE (MPICH, Intel MPI, srun --mpi=pmi2)
 *   slurm     SLURM_PROCID and SLURM_STEP_NUM_TASKS or SLURM_NTASKS, inside an srun step only: a batch script has
 *             SLURM_PROCID=0 too, and is no task
 *
 * Launchers nest: srun starts one torchrun or one orted a node, which start the ranks.  The variables of the outer one
 * are then still set and mean something else.  What is inside what is known for all pairs but one: a bare RANK (anyone
 * sets it) beside another launcher's, unless torchrun's own TORCHELASTIC_RUN_ID proves it.  There, two answers that
 * differ are an error, and a person must choose.
 *
 * Threads: reads the environment; call before threads start. */
#ifndef DDPFS_TOOLS_DDPFS_LAUNCHER_H
#define DDPFS_TOOLS_DDPFS_LAUNCHER_H

#include <stdint.h>

#include "shard/base/err.h"

enum { LAUNCHER_NOTE_MAX = 256 };

struct launcher {
	const char *name;      /* "torchrun", ...; static */
	const char *rank_name; /* the variables that were taken; static */
	const char *world_name;
	uint32_t rank; /* < world */
	uint32_t world;
	uint32_t local_world;         /* tasks of this host, or 0 when the launcher does not tell */
	char note[LAUNCHER_NOTE_MAX]; /* "" or what else was set and why it was passed over */
};

/* Finds the rank and world of this task.  `only` restricts the search to one launcher (a name from the list above);
 * NULL looks at all.
 * Returns 0; -ENOENT when no launcher's variables are set; -EINVAL for an unknown `only`, a value that is no number,
 * a rank without its world size, rank >= world, or two launchers that disagree (err names both). */
int launcher_find(const char *only, struct base_err *err, struct launcher *ret_launcher);

/* "torchrun, horovod, ompi, pmi, slurm" for messages and --help. */
const char *launcher_names(void);

#endif
