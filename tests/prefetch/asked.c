/* SPDX-License-Identifier: Apache-2.0 */
/* Demands on the engine that are waited for; tests/prefetch/asked.h first. */
#include "tests/prefetch/asked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shard/base/cleanup.h"
#include "tests/prefetch/dataset.h"

static void answered(struct prefetch_demand *demand, int rc, const uint8_t *bytes, uint32_t len)
{
	struct asked *a = (struct asked *)demand;
	lock_for_scope(&a->lock);
	a->rc = rc;
	a->right = rc == 0 && dataset_equal(demand->file, (uint64_t)demand->block * SHARD_BLOCK, bytes, len);
	a->done = true;
	pthread_cond_signal(&a->cv);
}

void asked_begin(struct prefetch *p, struct asked *a, struct prefetch_demand demand)
{
	*a = (struct asked){ .demand = demand };
	a->demand.done = answered;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->cv, NULL);
	prefetch_demand(p, &a->demand);
}

int asked_wait(struct asked *a)
{
	lock_for_scope(&a->lock);
	while (!a->done)
		pthread_cond_wait(&a->cv, &a->lock);
	return a->rc;
}

int asked_get(struct prefetch *p, struct prefetch_demand demand)
{
	struct asked a;
	asked_begin(p, &a, demand);
	int rc = asked_wait(&a);
	assert_true(rc < 0 || a.right);
	return rc;
}
