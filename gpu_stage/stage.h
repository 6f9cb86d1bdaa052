/* SPDX-License-Identifier: Apache-2.0 */
/* libddpfs_stage gives a process the samples of one rank as batches in memory, in epoch order, without a mount.
 *
 *     ddpfs_stage_open -> ddpfs_stage_next -> ... work on items[i].data ... -> ddpfs_batch_release -> next ...
 *
 * The engine of the mount reads ahead in the order of the epoch and verifies every sample.  The samples go into one
 * *arena* of fixed size.  A batch is a list of slices of the arena: nothing is copied when a batch is handed out.  What
 * the arena still holds of the last epoch is handed out again without a read.
 *
 * Ownership.  A stage owns the arena.  A batch holds its samples: their bytes stay valid, at the same address and
 * unchanged, until ddpfs_batch_release.  Later epochs and other batches share the bytes: never write to them, except
 * with DDPFS_STAGE_LEND.  When the batches that are held leave no room, ddpfs_stage_next waits for a release.  The
 * arena never grows.
 *
 * Room.  A batch has room if its samples and those that other batches hold are together not more than the arena
 * (stats.arena_bytes).  Each file counts rounded up to 4 KiB.  Sizes of samples and places of held batches do not
 * matter.  Samples that no batch holds make room.
 *
 * If the arena has enough free pages for a sample but no run of them, the sample lies apart: in a mapping of its own.
 * The arena gives as much memory back to the system meanwhile.  If the arena is pinned for a GPU, it gives nothing
 * back, and such samples take host memory besides it.  If the process may have no more addresses or mappings (ulimit
 * -v, vm.max_map_count), such a sample waits for a run.
 *
 * With a GPU, the same rule applies to the batch in GPU memory (stats.device_bytes).  If that has enough free bytes for
 * the batch but no run of them, the batch gets GPU memory of its own besides.  If the GPU has none, it waits for a run.
 *
 * Order.  Batches follow each other in the order in which they are handed out: two consumers that call
 * ddpfs_stage_next at once get neighbouring batches.  Ranks with equal options and equal world share out the epoch as
 * their mounts would.
 *
 * Threads.  Any thread may call any function, except that ddpfs_stage_close must run alone.  A stage has threads of its
 * own, so it does not survive fork(): open it in the process that uses it.
 *
 * Errors.  Functions return 0 (or 1) or a negative errno.  `error` (may be NULL) then names the file, the reason and
 * the next step.  Outputs are untouched on failure. */
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

/* What went wrong: filled by functions that fail. */
struct ddpfs_stage_error {
	int32_t code;                    /* negative errno; 0: nothing recorded */
	uint32_t file;                   /* the file it is about, or DDPFS_STAGE_NONE */
	uint32_t sample;                 /* its sample, or DDPFS_STAGE_NONE */
	char text[DDPFS_STAGE_TEXT_MAX]; /* a sentence, NUL-terminated */
};

/* Options of a stage.  All zero except `size` means: the whole dataset for one process, in the default order. */
struct ddpfs_stage_options {
	uint32_t size;       /* sizeof(struct ddpfs_stage_options) of the caller */
	uint32_t rank;       /* below world */
	uint32_t world;      /* 0: 1, or with a mount the rank and world of the mount */
	uint32_t threads_io; /* not 0: pread threads in place of io_uring */
	uint64_t seed;
	uint64_t epoch;        /* the first one */
	uint64_t start;        /* steps of that epoch that all ranks together have trained */
	uint64_t memory_bytes; /* arena and landing memory together; 0: a quarter of what is free, at most 4 GiB */
	const char *order;     /* "auto" "full" "chunk" "torch" "none"; NULL: auto */
	const char *deal;      /* "auto" "stride" "block"; NULL: auto */
	const char *tail;      /* "pad" "drop" "short"; NULL: pad */
	const char *subdir;    /* only samples below it are dealt; NULL: all */
	/* What happens with a bad sample (wrong checksum, or its shard cannot be read):
	 *   "eio"         its batch fails
	 *   "skip"        its batch comes without it
	 *   "substitute"  the next good sample of its directory takes its place
	 * With the last two, the samples of the quarantine list are left out of the order, or replaced in it, as the
	 * mount's on_bad does.  NULL: the state says how the list is used, and any other bad sample fails its batch. */
	const char *on_bad;
	/* Where batches lie.  "cpu" (or NULL): host memory.  "cuda:N": GPU N.  "cuda": the GPU that is current in the
	 * thread that opens the stage, otherwise GPU 0. */
	const char *backend;
	/* NULL, or a state of ddpfs_stage_state.  Order, deal, tail, seed, epoch, start, groups, redeal and subdir
	 * come from it.  Options that are given as well must agree with it (numbers: those that are not 0). */
	const char *state;
	/* GPU memory for batches; 0: a quarter of the arena.  Unless copy is "each", gathering takes as much pinned
	 * host memory besides memory_bytes. */
	uint64_t device_bytes;
	/* NULL, or called by ddpfs_stage_next for each sample that it finds bad and leaves out or replaces.  `error`
	 * names the sample and the reason.  The function must not call the stage. */
	void (*bad)(void *arg, const struct ddpfs_stage_error *error);
	void *bad_arg; /* passed to `bad` */
	/* How a batch gets to a GPU.  "each": one copy a file.  "packed": the processor gathers the batch, then one
	 * copy.  "auto" (or NULL): packed if files are small. */
	const char *copy;
	const char *quarantine; /* file of the list; NULL: the one in the dataset, if there is one; "": none */
	uint32_t timed; /* not 0: the GPU notes when each batch's copies begin and end, for ddpfs_batch_copied */
	/* The order deals the samples to `groups` groups, one for each host, which keep them for `redeal` epochs.  If
	 * groups divide world, a rank reads samples of one group only.  0: no groups; redeal 0: never dealt anew. */
	uint64_t groups;
	uint64_t redeal;
	const char *index; /* file of the index, if it does not lie with the shards; else NULL; not with a mount */
};

/* One file of a batch. */
struct ddpfs_item {
	const uint8_t *data; /* len bytes in host memory; never NULL */
	/* The same bytes where the consumer of the backend reads them.  cpu: equal to data.  cuda: in GPU memory, valid
	 * after ddpfs_batch_wait or _sync.  16-byte aligned; if all files of the batch have one length, one behind the
	 * other. */
	const uint8_t *device;
	uint64_t len;    /* bytes */
	uint64_t step;   /* global step of its sample: the position in the mount's file names */
	uint32_t file;   /* id, for ddpfs_stage_path */
	uint32_t sample; /* id; DDPFS_STAGE_NONE for a common file */
};

/* One batch.  Items of one sample (several files with --sample=key or --group) stand side by side.  Read only. */
struct ddpfs_batch {
	uint64_t epoch;
	uint64_t turn;      /* of the first sample: turns of the epoch, since its start, that this rank had before */
	uint32_t n_samples; /* in the batch; 0 only if on_bad=skip left out all of them */
	uint32_t n_items;   /* files, at least n_samples */
	const struct ddpfs_item *items;
	uint32_t n_turns; /* the batch covers turns [turn, turn + n_turns): its samples, and those left out */
};

/* Counters since the stage was opened, and gauges.  Each field is consistent by itself. */
struct ddpfs_stage_stats {
	uint64_t batches; /* handed out */
	uint64_t samples;
	uint64_t bytes;
	uint64_t ready;          /* samples that were in the arena when ddpfs_stage_next wanted them */
	uint64_t waited;         /* samples for which it waited */
	uint64_t asked;          /* samples that it demanded, because read-ahead had not brought them */
	uint64_t wait_ns;        /* time that ddpfs_stage_next waited for data, all calls */
	uint64_t wait_memory_ns; /* time that it waited for batches to be released */
	uint64_t arena_bytes;    /* size of the arena; constant */
	uint64_t used_bytes;     /* bytes of the arena in use */
	uint64_t held_bytes;     /* bytes of the arena that batches hold */
	uint64_t landing_bytes;  /* the engine's buffers in use, outside the arena */
	uint64_t refused;        /* blocks that were read ahead, but the arena had no room for them */
	uint64_t evicted;        /* samples dropped because a batch needed room at once */
	uint64_t reads;          /* submitted to the device */
	uint64_t read_bytes;
	uint64_t bad_blocks;        /* blocks whose checksum was wrong in two reads; each counts once */
	uint64_t io_errors;         /* reads that failed; each counts once, even if its second try succeeded */
	uint64_t left_out;          /* bad samples that on_bad=skip left out */
	uint64_t uploads;           /* batches sent to the GPU */
	uint64_t upload_copies;     /* copies queued for them */
	uint64_t upload_bytes;      /* bytes of these copies */
	uint64_t device_bytes;      /* GPU memory for batches; constant */
	uint64_t device_used_bytes; /* bytes of it in use */
	/* Bytes that this processor copied: into the arena, once, when a read has landed, and again when it gathers a
	 * batch for a GPU.  Handing out a batch in host memory copies nothing. */
	uint64_t copied_bytes;
	uint64_t replaced; /* bad samples that on_bad=substitute replaced */
	uint64_t told;     /* messages, to the mount that the stage was opened from, that say where the training is */
	uint64_t untold;   /* messages that the mount did not take */
	uint64_t changed;  /* samples that a consumer had changed (DDPFS_STAGE_LEND); they were read again */
	uint32_t depth;    /* reads that may be in flight now */
	uint32_t uring;    /* 1: io_uring, 0: pread threads */
	uint32_t direct;   /* 1: O_DIRECT */
	uint32_t backend_device; /* 0: host memory; else the GPU's ordinal + 1 */
	/* NUMA node of the arena, + 1: the node of the GPU, or with the cpu backend of the thread that opened the
	 * stage. 0: one node only, or the node is not known, or the process may not choose. */
	uint32_t numa_node;
};

/* Opens a packed dataset and starts to read ahead.
 *
 * dataset  the directory that holds the index, the name of a dataset in a store, or the root of a mount.  With
 *          options->index it is the place of the shards.  With a mount, these come from the mount: dataset, index,
 *          order, deal, tail, seed, groups, redeal, subdir, epoch, start (as `ddpfs ctl MNT state` recorded it), and,
 *          unless options->world is given, rank and world.
 * options  NULL: all zero.
 *
 * The state and epoch of a mount follow the stage: they are where the oldest batch begins that is not released.  The
 * mount reads nothing ahead meanwhile.  It hears of a place a moment later, at the latest before ddpfs_stage_close
 * returns.  If it does not answer, only stats.untold says so.  A mount does not follow if options->world is given, or
 * if the stage has another order than the mount (from a state).  For the mount a released batch counts as trained: a
 * consumer that copies batches and releases them early must keep states of ddpfs_stage_state instead.
 *
 * Returns 0, or
 * -EINVAL                    an option has no meaning, or contradicts the state or the mount
 * -ENOENT, -EACCES           the dataset, subdir or quarantine list does not exist, or cannot be read
 * -EUCLEAN, -EBADMSG         the index, the state or the list is damaged
 * -EPROTONOSUPPORT           the index or the state has an unknown version
 * -ESTALE                    the state or the list is of another dataset, the mount has another list, or the index
 *                            is not that of the shards
 * -ENODATA                   the rank has no samples
 * -ENODEV, -EIO              there is no GPU or driver; the GPU failed
 * -ENOMEM                    of the host or the GPU
 * or an error of reading the mount's files or of starting a thread. */
DDPFS_EXPORT int ddpfs_stage_open(const char *dataset, const struct ddpfs_stage_options *options,
        struct ddpfs_stage_error *error, struct ddpfs_stage **ret_stage);

/* Ends the threads and unmaps the arena, after everything that reads it on a GPU has run.  No other call may run beside
 * it.  NULL: does nothing.
 * Returns 0, or -EBUSY while a batch is not released; then nothing happens. */
DDPFS_EXPORT int ddpfs_stage_close(struct ddpfs_stage *stage);

/* Flags of ddpfs_stage_next and ddpfs_stage_get. */
enum {
	/* Return -EAGAIN instead of waiting for batches to be released, or for another thread that is in
	 * ddpfs_stage_next. */
	DDPFS_STAGE_NOWAIT = 1 << 0,
	/* Return -EAGAIN if batches that are not released have left no room, in the arena or in GPU memory, for
	 * DDPFS_STAGE_BRIEF_MS (each), or if another thread is in ddpfs_stage_next for so long.  For callers that must
	 * look at something else meanwhile.  The half-finished batch is given up, so use it for waits that are rare. */
	DDPFS_STAGE_BRIEFLY = 1 << 1,
	/* The consumer may write to the bytes of the batch until it releases the batch.  No other batch has the same
	 * memory meanwhile.  The library verifies the samples again before it hands them out again.  Without this
	 * flag the bytes are read only. */
	DDPFS_STAGE_LEND = 1 << 2,
};
enum { DDPFS_STAGE_BRIEF_MS = 500 };

/* Hands out the next n samples of this rank's epoch as one batch.
 *
 * n          1 .. DDPFS_STAGE_BATCH_MAX; the last batch of an epoch may have fewer samples
 * flags      see above
 * ret_batch  give it to ddpfs_batch_release
 *
 * A thread that itself holds all of the arena, and waits here, waits for ever: it must release first.
 *
 * Returns 1 and the batch, or 0 when the epoch has ended (until ddpfs_stage_set_epoch), or
 * -EBADMSG   a checksum is wrong; error names the sample and its ids, here and in the next three
 * -EIO       a read failed
 * -ENOENT    the shard is gone
 * -ESTALE    the shard changed.  With error->sample DDPFS_STAGE_NONE: somebody wrote into index.ddpfs.  Nothing is
 *            handed out after this: close the stage.  If somebody cuts the file, as cp does before it writes, SIGBUS
 *            can end the process: replace datasets by rename(2)
 * -ENOBUFS   the batch is larger than the arena, or than the stage's GPU memory, whatever is released
 * -EAGAIN    see DDPFS_STAGE_NOWAIT and DDPFS_STAGE_BRIEFLY
 * -EINVAL    n is out of range
 * -EIO, -ENODEV  the GPU has failed: close the stage
 * -ENOMEM
 * After an error nothing is handed out, and the next call tries the same samples again.  ddpfs_stage_skip passes over
 * them. */
DDPFS_EXPORT int ddpfs_stage_next(struct ddpfs_stage *stage, uint32_t n, unsigned flags,
        struct ddpfs_stage_error *error, struct ddpfs_batch **ret_batch);

/* Passes over the next n samples of this rank; fewer at the epoch's end.  Returns 0. */
DDPFS_EXPORT int ddpfs_stage_skip(struct ddpfs_stage *stage, uint64_t n);

/* Hands out one file as a batch of one item; the place in the order does not move.  turn and step are 0.
 *
 * path  of the file, relative to the dataset's root
 *
 * Returns 1 and the batch, or -ENOENT (no such file), -EISDIR, -ENOTDIR (a file stands in the middle of the path), or
 * an error of ddpfs_stage_next. */
DDPFS_EXPORT int ddpfs_stage_get(struct ddpfs_stage *stage, const char *path, unsigned flags,
        struct ddpfs_stage_error *error, struct ddpfs_batch **ret_batch);

enum { DDPFS_BATCH_STREAMS_MAX = 4 };

/* Makes work that is queued on `stream` from now on run after the batch's copies have arrived.  The host does not wait.
 * With the cpu backend nothing happens.
 *
 * stream  a cudaStream_t or CUstream of the stage's GPU; NULL is the default stream.  The batch remembers it: it
 *         must live until the release.
 *
 * Returns 0, or -EINVAL (a stream of another GPU), -ENOSPC (more than DDPFS_BATCH_STREAMS_MAX streams), -EIO or -ENODEV
 * (the GPU has failed), -ENOMEM. */
DDPFS_EXPORT int ddpfs_batch_wait(struct ddpfs_batch *batch, void *stream, struct ddpfs_stage_error *error);

/* The host waits until the batch's copies have arrived.  Returns 0, or -EIO, -ENODEV (the GPU has failed). */
DDPFS_EXPORT int ddpfs_batch_sync(struct ddpfs_batch *batch, struct ddpfs_stage_error *error);

/* Tells when the batch's copies to its GPU began and ended.  The host waits until they have arrived.  For profiles.
 *
 * since  an event (cudaEvent_t or CUevent) of the same GPU, made with timing, that has passed: times are seconds after
 *        it
 *
 * The stage must be opened with `timed`.  Returns 0, or -EINVAL (no such event, or the stage is not timed), -ENOTSUP
 * (the cpu backend copies nothing), -EIO, -ENODEV. */
DDPFS_EXPORT int ddpfs_batch_copied(struct ddpfs_batch *batch, void *since, double *ret_begin_s, double *ret_end_s,
        struct ddpfs_stage_error *error);

/* Gives the samples of a batch back.  The batch and its items are gone.  Never waits.  NULL: does nothing.  Kernels
 * that were queued on streams given to ddpfs_batch_wait may still read the batch: its memory is used again after
 * them. */
DDPFS_EXPORT void ddpfs_batch_release(struct ddpfs_batch *batch);

/* Goes to the beginning of an epoch, forwards or back.  In the epoch with which the stage was opened or resumed, that
 * is its `start`.  If another thread is in ddpfs_stage_next, waits until that returns.
 * Returns 0, or -ENOMEM,
 * -ENODATA (the rank has no samples), or an error of the index. */
DDPFS_EXPORT int ddpfs_stage_set_epoch(struct ddpfs_stage *stage, uint64_t epoch, struct ddpfs_stage_error *error);

/* Tells where the stage is: the epoch, the turns handed out of it, and the turns that this rank has in it.  Outputs may
 * be NULL.  Returns 0. */
DDPFS_EXPORT int ddpfs_stage_position(
        struct ddpfs_stage *stage, uint64_t *ret_epoch, uint64_t *ret_turn, uint64_t *ret_turns);

/* Tells how many turns `epoch` has for this rank: the samples of one pass.
 * Returns 0, or -ENOMEM or an error of the index. */
DDPFS_EXPORT int ddpfs_stage_turns(struct ddpfs_stage *stage, uint64_t epoch, uint64_t *ret_turns);

/* Writes the resume state after every rank has *trained* its first `turns` turns of `epoch`.  For the last batch
 * trained these are batch->epoch and batch->turn + batch->n_turns.  The state resumes with any world.
 *
 * buf  NUL-terminated JSON; DDPFS_STAGE_STATE_MAX bytes suffice
 *
 * Returns 0, or -ERANGE (buf is too small, or `turns` is more than the epoch has), -ENAMETOOLONG (subdir), -ENOMEM, or
 * another error of shard_state_format. */
DDPFS_EXPORT int ddpfs_stage_state(
        struct ddpfs_stage *stage, uint64_t epoch, uint64_t turns, char *buf, size_t buf_size);

/* Goes to where a state was written, by this job or by a job with another world.  Rank and world stay as they are.
 * Batches that are not released stay valid.
 *
 * Returns 0, or -EUCLEAN, -EPROTONOSUPPORT, -EFBIG (this is no state), -ESTALE (of another dataset), -EINVAL (the stage
 * was opened with another order, deal, tail, subdir or seed), -ENOMEM.  After an error the stage is unchanged. */
DDPFS_EXPORT int ddpfs_stage_resume(struct ddpfs_stage *stage, const char *state, struct ddpfs_stage_error *error);

/* Writes the path of a file, relative to the dataset's root, NUL-terminated; DDPFS_STAGE_PATH_MAX bytes suffice.
 * Returns its length, or -EINVAL (no such file), -ERANGE (buf is too small), an error of the index. */
DDPFS_EXPORT int ddpfs_stage_path(struct ddpfs_stage *stage, uint32_t file, char *buf, size_t buf_size);

/* Gives the address and size of the arena, constant while the stage is open.  items[i].data lies in it, except for
 * samples that lie apart (section Room above). */
DDPFS_EXPORT void ddpfs_stage_arena(struct ddpfs_stage *stage, const uint8_t **ret_base, uint64_t *ret_bytes);

/* Fills the counters. */
DDPFS_EXPORT void ddpfs_stage_stats_get(struct ddpfs_stage *stage, struct ddpfs_stage_stats *ret_stats);

/* Writes the way of a sample's bytes, in words for a log, NUL-terminated: how they are read, where they lie, and how
 * they get to a GPU.  For a GPU it also says why GPUDirect Storage (cuFile) is not used.
 * Returns its length, or
 * -ERANGE (DDPFS_STAGE_TEXT_MAX bytes suffice). */
DDPFS_EXPORT int ddpfs_stage_route(struct ddpfs_stage *stage, char *buf, size_t buf_size);

/* The version of the library, for example "0.1.0".  The string lives as long as the library. */
DDPFS_EXPORT const char *ddpfs_stage_version(void);

/* ---- a dataset opened by paths ----
 *
 *     ddpfs_files_open -> ddpfs_files_find, ddpfs_files_list -> ddpfs_files_read -> ... -> ddpfs_files_close
 *
 * Look-ups, listings and reads of ranges, without an order, a mount or an arena.  A stage is not needed.  All reads of
 * one call are in flight at once, up to a limit.  Every block is verified before a byte of it is given.  Nothing is
 * read ahead.
 *
 * Threads.  Any thread may call any function, except that ddpfs_files_close must run alone.  The object has threads of
 * its own, so it does not survive fork(): open it in the process that uses it.
 *
 * Errors.  As above.  Every function that takes `error` may return -ESTALE: somebody wrote into index.ddpfs.  Then
 * close the object.  ddpfs_stage_next says when SIGBUS can end the process. */

enum {
	DDPFS_FILES_MEMORY = 32 << 20, /* bytes of blocks that are read or were read last, at most */
	DDPFS_FILES_NAME_MAX = 256,    /* room for any name, NUL included */
};

struct ddpfs_files; /* opaque */

/* A file or a directory. */
struct ddpfs_entry {
	uint64_t len;                    /* bytes; 0 for a directory */
	uint64_t xxh3;                   /* XXH3-64 of the content; 0 for a directory */
	int64_t mtime_s;                 /* since 1970 */
	uint32_t id;                     /* of a file: as in struct ddpfs_item; of a directory: another number */
	uint32_t mode;                   /* permission bits */
	uint32_t is_dir;                 /* 1: a directory, 0: a file */
	char name[DDPFS_FILES_NAME_MAX]; /* last part of its path, NUL-terminated; empty for the root */
};

/* Bytes of a file that ddpfs_files_read reads. */
struct ddpfs_range {
	uint64_t offset; /* of the first byte in the file */
	uint64_t len;    /* bytes wanted */
	uint8_t *data;   /* room for len bytes, of the caller */
	uint64_t got;    /* set: bytes read; less than len where the file ends; 0 if rc < 0 */
	uint32_t file;   /* id */
	int32_t rc;      /* set: 0 or a negative errno */
};

/* Opens a dataset.
 *
 * dataset  the directory that holds the index, or the name of a dataset in a store
 *
 * Returns 0, or
 * -ENOENT, -EACCES     the dataset does not exist, or cannot be read
 * -EUCLEAN, -EBADMSG   the index is damaged
 * -EPROTONOSUPPORT     the index has an unknown version
 * -ENOMEM, -EAGAIN     there is no memory, or no thread can be started
 * or an error of the store. */
DDPFS_EXPORT int ddpfs_files_open(const char *dataset, struct ddpfs_stage_error *error, struct ddpfs_files **ret_files);

/* The same for an index that does not lie with the shards.
 *
 * dataset  the directory of the shards, or their place in a store
 * index    the file of the index, which `mkshard index -o` makes; NULL: as ddpfs_files_open
 *
 * Returns as ddpfs_files_open; -ESTALE: the index is not that of the shards. */
DDPFS_EXPORT int ddpfs_files_open_with(
        const char *dataset, const char *index, struct ddpfs_stage_error *error, struct ddpfs_files **ret_files);

/* Ends the threads and closes the dataset.  No other call may run beside it.  NULL: does nothing. */
DDPFS_EXPORT void ddpfs_files_close(struct ddpfs_files *files);

/* Finds a file or a directory.
 *
 * path  relative to the dataset's root; "" is the root
 *
 * Returns 0, or -ENOENT (no such path), -ENOTDIR (a file stands in the middle of the path), or an error of the
 * index. */
DDPFS_EXPORT int ddpfs_files_find(
        struct ddpfs_files *files, const char *path, struct ddpfs_stage_error *error, struct ddpfs_entry *ret_entry);

/* Lists a directory: first its directories, then its files.
 *
 * dir      id of a directory
 * cookie   in: 0 for the beginning, or what the last call left in it; out: where the next call goes on
 * entries  room for n
 *
 * Returns how many entries it filled in, 0 at the end; or -EINVAL (no such directory or cookie), or an error of the
 * index. */
DDPFS_EXPORT int ddpfs_files_list(struct ddpfs_files *files, uint32_t dir, uint64_t *cookie, uint32_t n,
        struct ddpfs_stage_error *error, struct ddpfs_entry *entries);

/* Reads ranges of files, of one file or of many.  Waits until all are read.  Sets got and rc of each range.
 *
 * Returns 0, or the rc of the first range that failed:
 * -EBADMSG   a checksum is wrong; error names the file, here and in the next three
 * -EIO       a read failed
 * -ENOENT    the shard is gone
 * -ESTALE    the shard or the index changed
 * -EINVAL    no such file
 * -ENOMEM
 * or an error of the index. */
DDPFS_EXPORT int ddpfs_files_read(
        struct ddpfs_files *files, struct ddpfs_range *ranges, uint32_t n, struct ddpfs_stage_error *error);

#ifdef __cplusplus
}
#endif

#endif
