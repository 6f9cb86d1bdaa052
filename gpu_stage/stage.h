/* SPDX-License-Identifier: Apache-2.0 */
/* libddpfs_stage: a rank's samples of a packed dataset, in epoch order, as batches in memory, without a mount.
 *
 *     ddpfs_stage_open -> ddpfs_stage_next -> ... work on items[i].data ... -> ddpfs_batch_release -> next ...
 *
 * The engine of the mount reads ahead in the order of the epoch, verifies every sample, and puts it into one *arena* of
 * fixed size.  A batch is a list of slices of that arena: nothing is copied when it is handed out, and what the arena
 * still holds of the last epoch is handed out again without a read.
 *
 * Ownership.  A stage owns the arena.  A batch holds its samples: data stays valid, at the same address and unchanged,
 * until ddpfs_batch_release.  Data is shared (with later epochs and other batches): never write to it.
 * When what batches hold leaves no room, ddpfs_stage_next waits for a release; the arena never grows.
 *
 * Room.  A batch has room when its samples and those that other batches hold are together not more than the arena
 * (stats.arena_bytes), each file rounded up to 4 KiB: whatever their sizes, and wherever lies what is held.  What
 * nobody holds makes room.  A sample for which the arena has pages enough and no run of them lies apart, in a mapping
 * of its own, and the arena gives up as much memory meanwhile.  Where the arena is pinned for a GPU it gives up none,
 * and such samples take host memory besides it.  Where the process may have no more addresses or mappings (ulimit -v,
 * vm.max_map_count), such a sample waits for a run.
 * GPU memory must have room for the batch, too: there the same is true of stats.device_bytes.  A batch for which
 * these have bytes enough and no run of them gets GPU memory of its own, besides them, or waits for a run where the
 * GPU has none.
 *
 * Order.  Batches follow each other in the order they are handed out: two consumers that call ddpfs_stage_next at once get
 * neighbouring batches.  Ranks with equal options and world share out the epoch exactly as their mounts would.
 *
 * Threads.  All functions may be called from any thread, but for ddpfs_stage_close, which nothing may run beside.  A stage
 * has threads of its own: it does not survive fork(); open it in the process that uses it.
 *
 * Errors.  0 (or 1) or a negative errno; `error` (may be NULL) then names the file, the reason and the next step.
 * Outputs are untouched on failure. */
#ifndef DDPFS_GPU_STAGE_STAGE_H
#define DDPFS_GPU_STAGE_STAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DDPFS_EXPORT __attribute__((visibility("default")))
#else
#define DDPFS_EXPORT
#endif

#define DDPFS_STAGE_NONE UINT32_MAX /* no such file or sample */

enum {
	DDPFS_STAGE_TEXT_MAX = 1024,       /* bytes of an error's sentence, NUL included */
	DDPFS_STAGE_PATH_MAX = 4096 + 1,   /* room for any path, NUL included */
	DDPFS_STAGE_STATE_MAX = 4096,      /* room for any state, NUL included */
	DDPFS_STAGE_BATCH_MAX = 1 << 20,   /* samples of one batch */
	DDPFS_STAGE_MEMORY_MIN = 32 << 20, /* bytes of memory_bytes at least */
};

struct ddpfs_stage; /* opaque */

struct ddpfs_stage_error {
	int32_t code;    /* negative errno; 0 = nothing recorded */
	uint32_t file;   /* the file it is about, or DDPFS_STAGE_NONE */
	uint32_t sample; /* its sample, or DDPFS_STAGE_NONE */
	char text[DDPFS_STAGE_TEXT_MAX];
};

/* Zeroed but for `size` it means: the whole dataset to one process, default order. */
struct ddpfs_stage_options {
	uint32_t size;       /* sizeof(struct ddpfs_stage_options) of the caller */
	uint32_t rank;       /* below world */
	uint32_t world;      /* 0 = 1; of a mount: rank and world as the mount has them */
	uint32_t threads_io; /* not 0: pread threads instead of io_uring */
	uint64_t seed;
	uint64_t epoch;        /* the first one */
	uint64_t start;        /* steps of that epoch that all ranks together have trained */
	uint64_t memory_bytes; /* arena and landing memory together; 0 = a quarter of what is free, at most 4 GiB */
	const char *order;     /* "auto" "full" "chunk" "torch" "none"; NULL = auto */
	const char *deal;      /* "auto" "stride" "block"; NULL = auto */
	const char *tail;      /* "pad" "drop" "short"; NULL = pad */
	const char *subdir;    /* only samples below it are dealt; NULL = all */
	const char
	        *on_bad; /* a sample that cannot be had (damaged, or its shard is): "eio": fails its batch; "skip": is
	                          left out of it; "substitute": its stand-in comes, the next good sample of its
	                          directory.  With the last two the samples of the quarantine list are left out of the
	                          order, or replaced in it, as the mount's on_bad does.  NULL: the list as the state says,
	                          and what else is bad fails its batch */
	const char *backend; /* "cpu" (or NULL): batches in host memory; "cuda:N": on GPU N; "cuda": on the GPU that
	                          is current in the thread that opens the stage, else GPU 0 */
	const char
	        *state; /* NULL, or a state of ddpfs_stage_state: order, deal, tail, seed, epoch, start and subdir are
	                          taken from it; those given here as well must agree (numbers: those that are not 0) */
	uint64_t device_bytes; /* GPU memory for batches; 0 = a quarter of the arena.  What is packed on its way takes
	                          as much pinned host memory, besides memory_bytes */
	void (*bad)(void *arg, const struct ddpfs_stage_error *error); /* NULL, or called by ddpfs_stage_next for each
	                          sample found to be bad that is left out or replaced: what, why; must not call the stage */
	void *bad_arg;
	const char *copy;       /* to a GPU: "each": one copy a file; "packed": gathered by this processor, one copy a
	                          batch; "auto" (or NULL): packed where files are small */
	const char *quarantine; /* file of the list; NULL: the one beside the index, if there is one; "": none */
	uint32_t timed; /* not 0: the GPU notes when each batch's copies begin and end, for ddpfs_batch_copied */
};

/* One file of a batch. */
struct ddpfs_item {
	const uint8_t *data;   /* len bytes in host memory; not NULL, also when len is 0 */
	const uint8_t *device; /* the same where the backend's consumer reads it: equal to data with the cpu backend; in
	                          GPU memory after ddpfs_batch_wait or _sync.  16-byte aligned, or one behind the other
	                          where all files of the batch have one length */
	uint64_t len;          /* bytes */
	uint64_t step;         /* global step of its sample: the position in the mount's file names */
	uint32_t file;         /* id, for ddpfs_stage_path */
	uint32_t sample;       /* id; DDPFS_STAGE_NONE for a common file */
};

/* Items of one sample (several files with --sample=key or --group) stand side by side.  Read only. */
struct ddpfs_batch {
	uint64_t epoch;
	uint64_t turn;      /* of the first sample: how many this rank had of the epoch before (since its start) */
	uint32_t n_samples; /* in the batch; 0 only where on_bad=skip left none of them */
	uint32_t n_items;   /* files, at least n_samples */
	const struct ddpfs_item *items;
	uint32_t n_turns; /* it covers turns [turn, turn + n_turns): its samples, and those left out */
};

struct ddpfs_stage_stats {
	uint64_t batches; /* handed out */
	uint64_t samples;
	uint64_t bytes;
	uint64_t ready;          /* samples that were in the arena when they were wanted */
	uint64_t waited;         /* ... that were waited for */
	uint64_t asked;          /* ... that the read-ahead had not brought and were asked for by name */
	uint64_t wait_ns;        /* time that ddpfs_stage_next waited for data, all calls */
	uint64_t wait_memory_ns; /* ... for batches to be released */
	uint64_t arena_bytes;    /* size of the arena; constant */
	uint64_t used_bytes;     /* of it in use */
	uint64_t held_bytes;     /* of that held by batches */
	uint64_t landing_bytes;  /* the engine's buffers in use, outside of the arena */
	uint64_t refused;        /* blocks read ahead for which the arena had no room */
	uint64_t evicted;        /* samples dropped because room was needed at once */
	uint64_t reads;          /* submitted to the device */
	uint64_t read_bytes;
	uint64_t bad_blocks;        /* blocks whose checksum did not match, read twice; each counted once */
	uint64_t io_errors;         /* reads that failed, each once, also when its second try succeeded */
	uint64_t left_out;          /* samples found to be bad, by on_bad=skip */
	uint64_t uploads;           /* batches sent to the GPU */
	uint64_t upload_copies;     /* copies queued for them */
	uint64_t upload_bytes;      /* their bytes */
	uint64_t device_bytes;      /* GPU memory for batches; constant */
	uint64_t device_used_bytes; /* of it in use */
	uint64_t
	        copied_bytes; /* copied by this processor: into the arena, once, when a read has landed, and again where
	                               copy=packed gathers; nothing is copied when a batch in host memory is handed out */
	uint64_t replaced;    /* samples found to be bad, by on_bad=substitute */
	uint64_t told;        /* messages to the mount that the stage was opened from, where its training is */
	uint64_t untold;      /* ... that it did not take */
	uint64_t changed; /* samples in which a consumer had changed bytes (DDPFS_STAGE_LEND); they were fetched anew */
	uint32_t depth;   /* reads in flight allowed now */
	uint32_t uring;   /* 1: io_uring, 0: pread threads */
	uint32_t direct;  /* 1: O_DIRECT */
	uint32_t backend_device; /* 0: host memory; else the GPU's ordinal + 1 */
	uint32_t numa_node; /* that the arena is taken from (the GPU's; with the cpu backend that of the thread which
	                               opened the stage), + 1; 0: one node only, or not known, or not allowed to choose */
};

/* Opens a packed dataset (the directory that holds its index) and starts to read ahead.
 * `dataset` may be the root of a mount instead: dataset, order, deal, tail, seed, subdir, epoch and start (as recorded by
 * `ddpfs ctl MNT state`) are then the mount's, and rank and world unless options.world is given.
 * The mount's cursor follows, unless options.world is given or the stage's order is not the mount's (a state of another one):
 * its epoch and its state are where the oldest batch that is not released begins.  For that a released batch counts as
 * trained: who copies batches and releases them early keeps states of ddpfs_stage_state instead.  The mount reads nothing
 * ahead meanwhile.  It hears of it a moment later, and at the latest before ddpfs_stage_close returns; when it does not
 * answer, nothing but stats.untold says so.
 * -EINVAL (options), -ENOENT, -EACCES, -EUCLEAN, -EBADMSG, -EPROTONOSUPPORT (index), -ESTALE (state of another dataset),
 * -ENODEV (no GPU, or no driver), -EIO (GPU), -ENOMEM. */
DDPFS_EXPORT int ddpfs_stage_open(const char *dataset, const struct ddpfs_stage_options *options,
        struct ddpfs_stage_error *error, struct ddpfs_stage **ret_stage);

/* Ends the threads and unmaps the arena, after what reads it on a GPU has run.  -EBUSY while a batch is not released: nothing happens then.  NULL is fine. */
DDPFS_EXPORT int ddpfs_stage_close(struct ddpfs_stage *stage);

enum {
	DDPFS_STAGE_NOWAIT = 1 << 0, /* -EAGAIN instead of waiting for batches to be released */
	/* -EAGAIN once batches that are not released have left no room in the arena, or none in the GPU's memory, for
	 * DDPFS_STAGE_BRIEF_MS each: for callers who must look at something else meanwhile.  What had been put
	 * together is let go of, so it is for waits that are rare. */
	DDPFS_STAGE_BRIEFLY = 1 << 1,
	/* The consumer may write to the bytes of the batch until it releases it.  No other batch has the same memory
	 * meanwhile, and the samples are verified again before they are handed out again.  Without it the bytes are
	 * read only. */
	DDPFS_STAGE_LEND = 1 << 2,
};
enum { DDPFS_STAGE_BRIEF_MS = 500 };

/* The next n samples (1 .. DDPFS_STAGE_BATCH_MAX) of this rank's epoch as one batch; fewer at the epoch's end.
 * Returns 1 and the batch; 0 when the epoch has ended (until ddpfs_stage_set_epoch); or -EBADMSG (checksum), -EIO,
 * -ESTALE (shard changed), -ENOENT (shard gone): error names the sample, and its ids; -ESTALE with error->sample
 * DDPFS_STAGE_NONE: somebody wrote into index.ddpfs; nothing is handed out any more, close the stage.  (Whoever cuts
 * the file, as cp does before it writes, can end the process by SIGBUS: replace datasets by rename(2).); -ENOBUFS:
 * the batch is larger than the arena, or than the GPU's memory of the stage, whatever is released; -EAGAIN: see
 * DDPFS_STAGE_NOWAIT, _BRIEFLY;  -EINVAL (n), -ENOMEM;  -EIO, -ENODEV: the GPU has failed; close the stage. After an
 * error nothing is handed out and the next call tries the same samples again; ddpfs_stage_skip passes them over. A
 * thread that holds all of the arena itself and waits here waits for ever: release first. */
DDPFS_EXPORT int ddpfs_stage_next(struct ddpfs_stage *stage, uint32_t n, unsigned flags,
        struct ddpfs_stage_error *error, struct ddpfs_batch **ret_batch);

/* Passes over the next n samples of this rank (fewer at the end).  Returns 0. */
DDPFS_EXPORT int ddpfs_stage_skip(struct ddpfs_stage *stage, uint64_t n);

/* One file by its path in the dataset, as a batch of one item (turn and step are 0); the order does not move.
 * Returns 1, -ENOENT, -EISDIR, -ENOTDIR, or as ddpfs_stage_next. */
DDPFS_EXPORT int ddpfs_stage_get(struct ddpfs_stage *stage, const char *path, unsigned flags,
        struct ddpfs_stage_error *error, struct ddpfs_batch **ret_batch);

enum { DDPFS_BATCH_STREAMS_MAX = 4 };

/* For a GPU: what is queued on `stream` (a cudaStream_t or CUstream of the stage's device; NULL is the default stream)
 * from now on runs after the batch's copies have arrived.  The host does not wait.  The batch remembers the stream, which
 * must live until the release.  Nothing to do with the cpu backend.
 * Returns 0, -EINVAL (a stream of another GPU), -ENOSPC (more than DDPFS_BATCH_STREAMS_MAX streams), -EIO, -ENODEV, -ENOMEM. */
DDPFS_EXPORT int ddpfs_batch_wait(struct ddpfs_batch *batch, void *stream, struct ddpfs_stage_error *error);

/* The host waits until the batch's copies have arrived.  Returns 0, -EIO, -ENODEV. */
DDPFS_EXPORT int ddpfs_batch_sync(struct ddpfs_batch *batch, struct ddpfs_stage_error *error);

/* When the batch's copies to its GPU began and ended, in seconds after `since`: an event (cudaEvent_t or CUevent) of that GPU,
 * with timing, that has passed.  The host waits until they have arrived.  For profiles: the stage must be opened with `timed`.
 * Returns 0, -EINVAL (no such event, or not timed), -ENOTSUP (the cpu backend copies nothing), -EIO, -ENODEV. */
DDPFS_EXPORT int ddpfs_batch_copied(struct ddpfs_batch *batch, void *since, double *ret_begin_s, double *ret_end_s,
        struct ddpfs_stage_error *error);

/* Gives the samples back.  The batch and its items are gone.  NULL is fine.  Kernels that were queued on streams given to
 * ddpfs_batch_wait may still read it: its memory is used again after them.  Never waits. */
DDPFS_EXPORT void ddpfs_batch_release(struct ddpfs_batch *batch);

/* Goes to the beginning of an epoch (of the epoch the stage was opened or resumed with: to its `start`), forwards or back.
 * Waits for a ddpfs_stage_next in another thread to return first.  -ENOMEM, index errors. */
DDPFS_EXPORT int ddpfs_stage_set_epoch(struct ddpfs_stage *stage, uint64_t epoch, struct ddpfs_stage_error *error);

/* Where the stage is: epoch, turns handed out of it, and the epoch's turns for this rank.  Outputs may be NULL. */
DDPFS_EXPORT int ddpfs_stage_position(
        struct ddpfs_stage *stage, uint64_t *ret_epoch, uint64_t *ret_turn, uint64_t *ret_turns);

/* Turns that `epoch` has for this rank: the samples of one pass.  -ENOMEM, index errors. */
DDPFS_EXPORT int ddpfs_stage_turns(struct ddpfs_stage *stage, uint64_t epoch, uint64_t *ret_turns);

/* Writes the resume state (JSON, NUL-terminated) after every rank has *trained* its first `turns` turns of `epoch`: those
 * of the last batch trained are batch->epoch and batch->turn + batch->n_turns.  The state resumes with any world.
 * -ERANGE when buf is too small (DDPFS_STAGE_STATE_MAX suffices) or `turns` past the end, -ENAMETOOLONG, -ENOMEM. */
DDPFS_EXPORT int ddpfs_stage_state(
        struct ddpfs_stage *stage, uint64_t epoch, uint64_t turns, char *buf, size_t buf_size);

/* Goes to where a state was written, by this job or by one with another world; rank and world stay as they are.
 * Batches that are out stay valid.  -EUCLEAN, -EPROTONOSUPPORT, -EFBIG (no state), -ESTALE (another dataset),
 * -EINVAL (the stage was opened with another order, deal, tail, subdir or seed), -ENOMEM; the stage is unchanged
 * then. */
DDPFS_EXPORT int ddpfs_stage_resume(struct ddpfs_stage *stage, const char *state, struct ddpfs_stage_error *error);

/* The path of a file, relative to the dataset's root, NUL-terminated.  Returns its length, -EINVAL (no such file),
 * -ERANGE (DDPFS_STAGE_PATH_MAX suffices), index errors. */
DDPFS_EXPORT int ddpfs_stage_path(struct ddpfs_stage *stage, uint32_t file, char *buf, size_t buf_size);

/* The arena, constant while the stage is open: items[i].data lies in it, but for samples that lie apart (Room). */
DDPFS_EXPORT void ddpfs_stage_arena(struct ddpfs_stage *stage, const uint8_t **ret_base, uint64_t *ret_bytes);

/* Each field is consistent by itself. */
DDPFS_EXPORT void ddpfs_stage_stats_get(struct ddpfs_stage *stage, struct ddpfs_stage_stats *ret_stats);

/* The way of a sample's bytes, in words for a log: how they are read, where they lie, how they get to a GPU, and for a GPU why not
 * by GPUDirect Storage (cuFile).  NUL-terminated.  Returns its length, -ERANGE (DDPFS_STAGE_TEXT_MAX suffices). */
DDPFS_EXPORT int ddpfs_stage_route(struct ddpfs_stage *stage, char *buf, size_t buf_size);

DDPFS_EXPORT const char *ddpfs_stage_version(void);

#ifdef __cplusplus
}
#endif

#endif
