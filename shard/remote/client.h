/* SPDX-License-Identifier: Apache-2.0 */
/* Reads ranges of objects, hundreds at the same time, by one thread around libcurl's multi interface.
 *
 *     submit --> queue --> http thread: transfers --> data of the read --> done list --> wait
 *                  ^            |
 *                  '-- retry ---'
 *
 * A read is one range of one object.  A transfer is one HTTP request for the rest of a read.  A read is served by one
 * transfer, sometimes by several:
 *
 *  - Connections that fail, bodies that end early, 429 and 5xx: another transfer continues at the byte where the last
 *    one ended.  Pauses grow, with jitter; Retry-After is obeyed.  A read fails when nothing came for `timeout_ns`,
 *    also if Retry-After names a later time.
 *  - If more than a fifth of the latest answers are 429 or 503, half as many transfers run at the same time, at most
 *    once in a round trip.  Otherwise the number grows by a quarter, up to REMOTE_TRANSFERS_MAX.
 *  - Let P be the 90th percentile of the time to the first byte.  A read that gets no byte for 3 x P gets another
 *    transfer, which asks for the rest ("The Tail at Scale", Dean and Barroso 2013).  At most 3% of transfers are such.
 *    The transfer that is further on writes; bytes that arrived before are skipped.
 *  - A transfer that gets no byte for 20 x P, at least 5 s, is ended, and the read is tried again.  Each next try has
 *    twice as much time, up to 60 s.
 *
 * Objects do not change: the first answer tells ETag (else Last-Modified) and size.  An answer with others is -ESTALE,
 * and requests say If-Match.
 *
 * Threads: any thread may submit.  One thread (the owner) calls the rest; any thread may call remote_client_wake and
 * remote_client_stats_get. */
#ifndef DDPFS_SHARD_REMOTE_CLIENT_H
#define DDPFS_SHARD_REMOTE_CLIENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shard/base/err.h"
#include "shard/remote/store.h"

enum {
	REMOTE_TRANSFERS_MAX = 512,     /* at the same time */
	REMOTE_READ_MAX = 1 << 30,      /* bytes of a read */
	REMOTE_TIMEOUT_DEFAULT_S = 300, /* for which a read waits for a store that does not answer */
	REMOTE_TIMEOUT_LEAST_S = 10,    /* ... if its reader has waited elsewhere before */
};

struct remote_client; /* opaque */

/* An object of a store, and what its first answer told. */
struct remote_object {
	char *key;           /* owned */
	char *url;           /* owned */
	uint64_t size_bytes; /* an object of another size is -ESTALE; UINT64_MAX: not known */
	/* Of the http thread: */
	char etag[256];    /* "": not known yet, or the store has none */
	char modified[64]; /* Last-Modified */
};

/* Makes an object for a path relative to the dataset.  Sends nothing.
 * Returns 0, -ENAMETOOLONG, -ENOMEM. */
int remote_object_new(
        struct remote_store *store, const char *path, uint64_t size_bytes, struct remote_object **ret_object);
/* Frees an object; no read of it is in flight.  NULL is allowed. */
void remote_object_free(struct remote_object *object);

/* One read.  The owner keeps it until remote_client_wait has returned it. */
struct remote_read {
	struct remote_object *object;
	uint64_t offset; /* of the first byte in the object */
	uint32_t len;    /* bytes, 1 .. REMOTE_READ_MAX; offset + len is at most the object's size */
	uint8_t *data;   /* room for len bytes */
	/* For how long its reader has waited elsewhere.  So much less of the timeout is left, but never less than
	 * REMOTE_TIMEOUT_LEAST_S. */
	uint64_t waited_ns;
	/* The result: len, or -ESTALE (the object was replaced, or is shorter), -ENOENT, -EACCES, -ETIMEDOUT (the store
	 * did not answer in time), -EOPNOTSUPP (it does not answer ranges), -ELOOP, -EPROTO (redirects that
	 * are not followed), -ENOMEM, or -ECANCELED. */
	int res;
	struct remote_read *next; /* in the list that remote_client_wait returns */

	/* Of the http thread: */
	uint32_t high;        /* bytes that are there */
	unsigned transfers;   /* under way */
	unsigned tries;       /* that failed since the last byte came */
	uint64_t begun_ns;    /* when its latest transfer began; 0: none has begun */
	uint64_t due_ns;      /* when the next try begins */
	uint64_t progress_ns; /* when its first transfer began, or its last byte came */
	uint64_t live_ns;     /* the store's live time at the later of begun_ns and progress_ns */
	struct remote_read *queued_next;
};

struct remote_stats {
	uint64_t requests;                             /* transfers that were begun */
	uint64_t retries;                              /* ... because another one failed */
	uint64_t hedged;                               /* ... beside a slow one */
	uint64_t throttled;                            /* answers 429 and 503 */
	uint64_t bytes;                                /* of bodies that arrived, used or not */
	uint64_t wasted_bytes;                         /* of these, what was there already */
	uint64_t first_byte_p50_ns, first_byte_p99_ns; /* of the last 256 transfers */
	uint64_t answers;                              /* of which a byte of an object came */
	uint64_t first_byte_ns, body_ns;               /* their times until that byte, and from it on, added */
	uint64_t first_byte_least_ns;                  /* the shortest of all; 0: none yet */
	uint32_t limit;                                /* transfers that may run at the same time, now */
	uint32_t running;                              /* that run now */
	uint64_t cpu_ns;                               /* processor time of the http thread */
	pid_t tid;                                     /* ... and its number */
	/* How long reads have waited for a store that does not answer; 0: it answers. */
	uint64_t away_ns;
	char error[256]; /* the reason of the latest failure; "": none yet */
};

/* Starts the thread.  store: not owned, outlives the client.  timeout_ns: how long a read waits while nothing comes;
 * 0: REMOTE_TIMEOUT_DEFAULT_S.
 * Returns 0; -ENOMEM, -EAGAIN. */
int remote_client_new(struct remote_store *store, uint64_t timeout_ns, struct remote_client **ret_client);
/* Ends the thread.  Reads that are under way end with -ECANCELED and are not returned.  NULL is allowed. */
void remote_client_free(struct remote_client *client);

/* Submits a read. */
void remote_client_submit(struct remote_client *client, struct remote_read *read);

/* Waits until a read is done, remote_client_wake is called, or the time is over.  timeout_ns: < 0: no limit; 0: do not
 * wait.  *ret_done: the list of reads that are done, or NULL. */
void remote_client_wait(struct remote_client *client, int64_t timeout_ns, struct remote_read **ret_done);
/* Ends all reads, and those that are submitted later, with -ECANCELED.  remote_client_wait returns them.  Any
 * thread. */
void remote_client_cancel(struct remote_client *client);
/* Makes the current or the next remote_client_wait return. */
void remote_client_wake(struct remote_client *client);

void remote_client_stats_get(struct remote_client *client, struct remote_stats *ret_stats);

#endif
