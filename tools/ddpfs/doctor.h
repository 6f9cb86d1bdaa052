/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `ddpfs doctor`.  Each one looks at one thing and adds what it found to a list.
 *
 * A finding is a JSON object: level ("failure", "warning", "note" or "ok"), text (one sentence) and, except for "ok",
 * advice (one sentence that says what to do).  doctor.c adds the name of the check, and sorts the findings.
 * The checks take paths and values, so that tests can give them those of another machine.
 *
 * Threads: the main thread of a process that doctor.c starts for each check; a check may start threads of its own and
 * may change its process (namespaces).  If a check hangs, doctor.c gives it up. */
#ifndef DDPFS_TOOLS_DDPFS_DOCTOR_H
#define DDPFS_TOOLS_DDPFS_DOCTOR_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* FAILURE: something does not work.  WARNING: it works, but slower or less safe.  NOTE: nothing to mend. */
enum doctor_level { DOCTOR_OK, DOCTOR_NOTE, DOCTOR_WARNING, DOCTOR_FAILURE };

/* Returns the level of a finding; DOCTOR_FAILURE if it has none. */
enum doctor_level doctor_level_of(const json_t *finding);

/* Adds a finding.  advice: NULL for DOCTOR_OK only.  The text is cut at BASE_ERR_TEXT_MAX bytes. */
void doctor_say(json_t *findings, enum doctor_level level, const char *advice, const char *fmt, ...)
        __attribute__((format(printf, 4, 5)));

/* Returns a new list with the highest level first.  Findings of one level keep their order. */
json_t *doctor_sorted(const json_t *findings);

#define DOCTOR_INDEX_WHOLE (UINT64_C(64) << 20) /* bytes: a larger index is verified in part, where it is read */

/* ---- the host: doctor_host.c ---- */

/* What the kernel allows a process, from /proc/self/status. */
struct doctor_process {
	uid_t uid;         /* effective */
	bool may_mount;    /* has CAP_SYS_ADMIN */
	bool no_new_privs; /* set-uid programs gain nothing */
};
/* root: the directory with /proc; "": the real one. */
void doctor_process_read(const char *root, struct doctor_process *ret_process);

/* device: the path of /dev/fuse. */
void doctor_fuse(const char *device, json_t *findings);
/* search_path: as in PATH; NULL: not set. */
void doctor_fusermount(const char *search_path, const struct doctor_process *process, json_t *findings);
/* Changes the namespaces of this process. */
void doctor_namespaces(json_t *findings);
void doctor_io_uring(const char *root, json_t *findings);
void doctor_memlock(json_t *findings);
/* release: as uname(2) gives it, "6.1.0-18-amd64". */
void doctor_kernel(const char *release, json_t *findings);
/* root: the directory with /sys. */
void doctor_damon(const char *root, json_t *findings);
/* root: the directory with /proc and /sys.  content_bytes: of the dataset; 0: not known. */
void doctor_memory(const char *root, uint64_t content_bytes, json_t *findings);
/* Checks the directory of the control sockets; makes it as a mount would, and makes and removes a file there. */
void doctor_control(json_t *findings);

/* ---- the dataset: doctor_dataset.c ---- */

enum {
	DOCTOR_SUMS_MS = 2000,    /* time for checksums */
	DOCTOR_SUMS_BLOCKS = 256, /* blocks whose checksum is compared, at most */
	DOCTOR_DEVICE_MS = 2000,  /* time for the bandwidth */
	DOCTOR_DEVICE_DEPTH = 16, /* reads in flight */
	DOCTOR_DEVICE_READ = 1 << 20,
	DOCTOR_DEVICE_READS = 256, /* so 256 MiB at most */
};

/* What to do about an index that was named apart and is not that of the shards. */
#define DOCTOR_ADVICE_SEPARATE "name the index that was made of these shards, or make it anew with 'mkshard index -o'"

/* dataset: the path of a directory.  index_file: its index, if that does not lie there; else NULL.  Opens the index,
 * verifies it, and opens the shards. */
void doctor_dataset(const char *dataset, const char *index_file, json_t *findings);
/* Compares the checksums of some blocks, chosen at random. */
void doctor_sums(const char *dataset, const char *index_file, json_t *findings);
/* Reads at random places of the shards, past the page cache if the file system allows it. */
void doctor_device(const char *dataset, const char *index_file, json_t *findings);
/* The file system of a directory: is it full. */
void doctor_disk(const char *dir, json_t *findings);
/* Says why an index cannot be used.  rc, text: of shard_index_open or shard_index_verify. */
void doctor_say_index(json_t *findings, int rc, const char *text);
/* Returns the bytes of all files of a dataset; 0: its index cannot be read. */
uint64_t doctor_content_bytes(const char *dataset, const char *index_file);

/* Returns the median of n values (at least 1), and sorts them. */
uint64_t doctor_median(uint64_t *values, unsigned n);

/* ---- a dataset in a store: doctor_store.c ---- */

/* name: "s3://..." or "http(s)://...".  index_file: as for doctor_dataset.  Whether the store answers, how fast, and
 * where the credentials come from.  Without index_file it fetches the index if there is no copy of it on this host, as
 * a mount does.  Compares some checksums. */
void doctor_store(const char *name, const char *index_file, json_t *findings);

/* ---- the mount: doctor_mount.c ---- */

/* stats: what `ddpfs stat --json` prints. */
void doctor_mount(const json_t *stats, json_t *findings);

#endif
