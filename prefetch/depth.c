/* SPDX-License-Identifier: Apache-2.0 */
/* The search for the best number of reads in flight; prefetch/depth.h first. */
#include "prefetch/depth.h"

enum {
	INTERVAL_NS = 30000000, /* long enough to average over batches that the device forms */
	HOLD = 64,              /* busy intervals between two trials: 2 s */
	HOLD_AGAIN = 8,         /* ... before a trial is made once more, or after a smaller depth was as good */
	FIXED = UINT32_MAX,     /* prefetch_depth.hold: no trials */
	SMALL_BYTES = 64 << 10, /* mean of the reads of an interval */
	QUEUE_NS = 2000000,     /* a demand may wait so long for small reads in flight */
	QUEUE_MAX = 128,        /* small reads; more were not measured */
};
static const double GAIN = 1.04; /* the rate must be so much higher with a larger depth; less is noise */
/* A link that is not full gives half as much again with half as many reads again. */
static const double GAIN_STORE = 1.2;
/* At the start each read that comes back allows so many more: the depth grows fourfold in the time of one read. */
static const uint32_t START_STEP = 3;

void prefetch_depth_init(struct prefetch_depth *depth, uint32_t fixed, bool store)
{
	*depth = (struct prefetch_depth){
		.depth = fixed ? fixed : PREFETCH_DEPTH_START,
		.settled = fixed ? fixed : PREFETCH_DEPTH_START,
		.up = true,
		.hold = fixed ? FIXED : 0,
		.starting = !fixed,
		.store = store,
		.gain = store ? GAIN_STORE : GAIN,
		.least = PREFETCH_DEPTH_MIN,
		.most_reads = store ? PREFETCH_DEPTH_MAX : PREFETCH_DEPTH_SMALL_MAX,
	};
}

/* Returns the largest depth for reads as they are now. */
static uint32_t most(const struct prefetch_depth *depth)
{
	uint64_t reads = depth->mean_bytes ? PREFETCH_DEPTH_BYTES / depth->mean_bytes : 0;
	if (reads < PREFETCH_DEPTH_MAX)
		return PREFETCH_DEPTH_MAX;
	return reads < depth->most_reads ? (uint32_t)reads : depth->most_reads;
}

/* Takes in the size of a read. When reads have got larger, the depth may be too large. */
static void take_size(struct prefetch_depth *depth, uint64_t bytes)
{
	depth->mean_bytes = depth->mean_bytes ? (depth->mean_bytes * 15 + bytes) / 16 : bytes;
	if (depth->hold == FIXED || depth->depth <= most(depth))
		return;
	depth->depth = depth->settled = most(depth);
	depth->full = false;
	depth->settled_rate = 0;
	depth->since_ns = 0;
}

/* Returns the depth of the next trial. */
static uint32_t next_trial(const struct prefetch_depth *depth)
{
	uint32_t d = depth->up ? depth->settled + depth->settled / 2 : depth->settled * 2 / 3;
	if (d < depth->least)
		d = depth->least;
	return d > most(depth) ? most(depth) : d;
}

/* Sets the smallest depth, after an interval of `took_ns` at the settled depth.  The fewer small reads are in flight,
 * the fewer come back at a time, and the engine wakes more often: with files of 4 KiB, 28 reads took 1.4 to 1.8 times
 * the engine's processor time of 128.  A trial does not tell, because a processor that is busy makes rates noisy. */
static void find_least(struct prefetch_depth *depth, uint64_t took_ns)
{
	uint64_t reads = (uint64_t)depth->reads * QUEUE_NS / took_ns;
	depth->least = depth->store || depth->bytes / depth->reads >= SMALL_BYTES || reads < PREFETCH_DEPTH_MIN
	                       ? PREFETCH_DEPTH_MIN
	               : reads > QUEUE_MAX ? QUEUE_MAX
	                                   : (uint32_t)reads;
}

/* Decides after an interval that gave `rate` (bytes per ns) at depth->depth. */
static void judge(struct prefetch_depth *depth, double rate)
{
	if (depth->depth == depth->settled) {
		/* A moving average, because others may use the device too. */
		depth->settled_rate = depth->settled_rate > 0 ? (depth->settled_rate * 3 + rate) / 4 : rate;
		if (depth->hold == FIXED)
			return;
		if (depth->settled < depth->least) {
			depth->depth = depth->settled = depth->least;
			depth->settled_rate = 0;
			return;
		}
		if (depth->hold) {
			depth->hold--;
			return;
		}
		depth->depth = next_trial(depth);
		if (depth->depth == depth->settled) {
			depth->full = depth->full && !depth->up; /* nobody knows what more reads would bring */
			depth->up = !depth->up;
			depth->hold = HOLD;
		}
		return;
	}
	/* A larger depth must raise the rate; a smaller one must keep it. */
	double needed = depth->up ? depth->settled_rate * depth->gain : depth->settled_rate / 1.01;
	if (rate >= needed) {
		depth->settled = depth->depth;
		depth->settled_rate = rate;
		depth->hold = depth->up ? 1 : HOLD_AGAIN;
		depth->failed = false;
		depth->full = depth->full && !depth->up;
	} else {
		/* One interval may be slow by chance, and HOLD intervals with too small a depth are long. */
		bool again = depth->store && depth->up && !depth->failed;
		depth->depth = depth->settled;
		depth->full = depth->full || (depth->up && !again);
		depth->up = again || !depth->up;
		depth->hold = again ? HOLD_AGAIN : HOLD;
		depth->failed = again;
	}
}

/* Takes in a read at the start, before any trial. */
static void start(struct prefetch_depth *depth, uint64_t took_ns)
{
	if (!depth->least_ns || took_ns < depth->least_ns)
		depth->least_ns = took_ns;
	if (took_ns > 2 * depth->least_ns || depth->depth >= most(depth))
		depth->starting = false;
	else
		depth->depth += START_STEP;
	if (depth->depth > most(depth))
		depth->depth = most(depth);
	depth->settled = depth->depth;
}

void prefetch_depth_feed(struct prefetch_depth *depth, uint64_t now_ns, uint64_t took_ns, uint64_t bytes, bool busy)
{
	if (!busy) {
		depth->since_ns = 0;
		return;
	}
	take_size(depth, bytes);
	if (depth->starting) {
		start(depth, took_ns);
		return;
	}
	if (!depth->since_ns) {
		depth->since_ns = now_ns;
		depth->bytes = 0;
		depth->reads = 0;
		return;
	}
	depth->bytes += bytes;
	depth->reads++;
	/* If fewer than three reads per place of the queue have come back, the interval measures latency and not the
	 * rate. */
	if (now_ns - depth->since_ns < INTERVAL_NS || depth->reads < 3 * depth->depth)
		return;
	if (depth->depth == depth->settled)
		find_least(depth, now_ns - depth->since_ns);
	judge(depth, (double)depth->bytes / (double)(now_ns - depth->since_ns));
	depth->since_ns = 0;
}

bool prefetch_depth_is_most(const struct prefetch_depth *depth)
{
	return depth->hold == FIXED || depth->settled >= most(depth);
}

uint64_t prefetch_depth_rate(const struct prefetch_depth *depth)
{
	return (uint64_t)(depth->settled_rate * 1e9);
}
