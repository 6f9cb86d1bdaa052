/* SPDX-License-Identifier: Apache-2.0 */
/* Demands of a test on the engine: one block each, asked for, waited for, and compared with what dataset.h wrote.
 *
 * Threads: any; one waits for one `struct asked`. Memory: the caller's, until the answer came. */
#ifndef DDPFS_TESTS_PREFETCH_ASKED_H
#define DDPFS_TESTS_PREFETCH_ASKED_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "prefetch/prefetch.h"

struct asked {
	struct prefetch_demand demand; /* first member: the callback gets its address */
	pthread_mutex_t lock;
	pthread_cond_t cv;
	/* Guarded by lock until `done`. */
	bool done;  /* the answer came */
	bool right; /* rc is 0, and the bytes are those of the dataset */
	int rc;
};

/* Gives a demand to the engine. Its `done` is set here. */
void asked_begin(struct prefetch *p, struct asked *a, struct prefetch_demand demand);

/* Waits for the answer and returns its rc; `right` is then set. */
int asked_wait(struct asked *a);

/* Does both. Fails the test if wrong bytes came, so it is for the thread that runs the test. */
int asked_get(struct prefetch *p, struct prefetch_demand demand);

#endif
