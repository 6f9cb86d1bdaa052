/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: what a mount's statistics say about its options and its trainer; doctor.h first. */
#include <stdio.h>
#include <string.h>

#include "shard/base/units.h"
#include "tools/ddpfs/doctor.h"

enum {
	OPENS_MIN = 500,     /* before so many opens, a share of them says nothing */
	MISSED_PERCENT = 20, /* of the opens; more is worth a word */
	LOST_PERCENT = 10,   /* of the samples that were read ahead */
	PROBLEMS_SHOWN = 3,
	COSTLY_BYTES = 64 << 20, /* of content, as in fs/mount_check.c */
};

static uint64_t number(const json_t *stats, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(stats, key));
	return value > 0 ? (uint64_t)value : 0;
}

static const char *text(const json_t *stats, const char *key)
{
	const char *value = json_string_value(json_object_get(stats, key));
	return value ? value : "";
}

static uint64_t percent(uint64_t part, uint64_t whole)
{
	return whole ? part * 100 / whole : 0;
}

/* What makes a trainer train on too little, or on the same order. */
static void say_sampler(const json_t *stats, json_t *findings)
{
	const char *note = text(stats, "recognised_note");
	size_t i;
	json_t *sampler;
	if (strstr(note, "view=all"))
		doctor_say(findings, DOCTOR_FAILURE,
		        "mount with -o view=all, or take the DistributedSampler out of the trainer",
		        "the trainer's sampler shards this rank's part once more, so each rank trains on a part of its "
		        "part");
	json_array_foreach(
	        (json_t *)(uintptr_t)json_object_get(stats, "samplers"), i, sampler) if (number(sampler, "repeated"))
	{
		doctor_say(findings, DOCTOR_FAILURE, "call sampler.set_epoch(epoch) at the begin of each epoch",
		        "the trainer reads the same permutation in each epoch (it came %llu times again)",
		        (unsigned long long)number(sampler, "repeated"));
		break;
	}
}

/* Errors of reads. */
static void say_errors(const json_t *stats, json_t *findings)
{
	uint64_t bad = number(stats, "bad_blocks");
	uint64_t failed = number(stats, "io_errors");
	uint64_t away_ns = number(stats, "store_away_ns");
	if (bad)
		doctor_say(findings, DOCTOR_FAILURE,
		        "run 'mkshard verify', restore the shards, or mount with -o on_bad=skip",
		        "%llu blocks were read whose checksum is wrong", (unsigned long long)bad);
	if (failed)
		doctor_say(findings, DOCTOR_FAILURE,
		        "read the kernel's log (dmesg), and look at the disk or the network",
		        "%llu reads of shards failed", (unsigned long long)failed);
	else if (number(stats, "errors") && !bad)
		doctor_say(findings, DOCTOR_FAILURE, "read the last problems in 'ddpfs stat'",
		        "%llu reads of the trainer were answered with an error",
		        (unsigned long long)number(stats, "errors"));
	if (away_ns)
		doctor_say(findings, DOCTOR_FAILURE,
		        "look at the network and the endpoint; reads wait until it answers",
		        "the store has not answered for %llu s: %s", (unsigned long long)(away_ns / 1000000000),
		        text(stats, "store_error"));
	if (number(stats, "restarts"))
		doctor_say(findings, DOCTOR_WARNING, "read the last problems in 'ddpfs stat', which say why it ended",
		        "the server was replaced %llu times", (unsigned long long)number(stats, "restarts"));
}

static void say_tier(const json_t *stats, json_t *findings)
{
	uint64_t off = number(stats, "tier_off");
	uint64_t bad = number(stats, "tier_bad");
	if (off)
		doctor_say(findings, DOCTOR_WARNING,
		        "make room on its disk, or remove the tier's file and give a smaller tier_size=; mount again",
		        "the tier is off: %s", strerror((int)off));
	if (bad)
		doctor_say(findings, DOCTOR_WARNING, "look at the tier's disk; what was damaged was fetched again",
		        "%llu blocks or entries of the tier were damaged", (unsigned long long)bad);
}

/* Why opens wait. */
static void say_misses(const json_t *stats, json_t *findings)
{
	uint64_t opens = number(stats, "opens");
	uint64_t missed = percent(number(stats, "misses"), opens);
	uint64_t fetched = number(stats, "fetched");
	const char *note = text(stats, "read_ahead_note");
	const char *order = text(stats, "order_note");
	bool unknown = strcmp(text(stats, "order_source"), "unknown") == 0;
	if (*note)
		doctor_say(findings, DOCTOR_WARNING,
		        "do so (share/doc/ddpfs/tools/ORDERS.md), seed the sampler with seed + epoch, or mount a rank "
		        "view",
		        "%s", note);
	else if (opens >= OPENS_MIN && missed >= MISSED_PERCENT && unknown && *order)
		doctor_say(findings, DOCTOR_WARNING,
		        "if the order stays unknown, announce it (share/doc/ddpfs/tools/ORDERS.md), or seed the "
		        "sampler",
		        "%llu%% of the opens waited, the order is %s", (unsigned long long)missed, order);
	else if (opens >= OPENS_MIN && missed >= MISSED_PERCENT && unknown)
		doctor_say(findings, DOCTOR_WARNING,
		        "run the trainer under 'ddpfs exec', announce the order (ddpfs.torch.follow(loader), 'ddpfs "
		        "ctl MNT follow LIST', ddpfs.Mount.follow), or seed the sampler",
		        "%llu%% of the opens waited, because nobody told the order and it is not recognised",
		        (unsigned long long)missed);
	else if (opens >= OPENS_MIN && missed >= MISSED_PERCENT)
		doctor_say(findings, DOCTOR_WARNING,
		        "compare device_rate of 'ddpfs stat' with what the trainer reads: give more memory=, or a "
		        "faster "
		        "disk",
		        "%llu%% of the opens waited although the order is known", (unsigned long long)missed);
	if (fetched >= OPENS_MIN && percent(number(stats, "lost"), fetched) >= LOST_PERCENT)
		doctor_say(findings, DOCTOR_WARNING,
		        "give less memory=, or raise the memory limit of the cgroup; look at DAMON",
		        "the kernel took back %llu%% of the samples that were read ahead",
		        (unsigned long long)percent(number(stats, "lost"), fetched));
	if (strcmp(text(stats, "io"), "pread") == 0 && !json_object_get(stats, "store_requests"))
		doctor_say(findings, DOCTOR_WARNING, "allow io_uring to the process that mounts, and mount again",
		        "this mount reads with pread(2), because io_uring was refused when it began");
}

/* Ranks that fetch the same chunks from a store: fs/mount_check.c. */
static void say_shared_chunks(const json_t *stats, json_t *findings)
{
	uint64_t world = number(stats, "world");
	if (!json_object_get(stats, "store_requests") || json_object_get(stats, "tier_hits") ||
	        strcmp(text(stats, "view"), "rank") != 0 || strcmp(text(stats, "order"), "chunk") != 0 ||
	        strcmp(text(stats, "deal"), "stride") != 0 || world < 2 || number(stats, "groups") > 1 ||
	        number(stats, "content_bytes") < COSTLY_BYTES)
		return;
	char advice[128];
	snprintf(advice, sizeof(advice),
	        "mount all ranks of a new job with groups=%llu,redeal=1 (share/doc/ddpfs/tools/STORES.md)",
	        (unsigned long long)world);
	doctor_say(findings, DOCTOR_WARNING, advice,
	        "each of the %llu ranks takes a part of every chunk (order=chunk, deal=stride), so the store sends up "
	        "to %llu times the bytes, in many requests",
	        (unsigned long long)world, (unsigned long long)world);
}

static void say_problems(const json_t *stats, json_t *findings)
{
	const json_t *problems = json_object_get(stats, "problems");
	size_t n = json_array_size(problems);
	for (size_t i = n > PROBLEMS_SHOWN ? n - PROBLEMS_SHOWN : 0; i < n; i++)
		doctor_say(findings, DOCTOR_WARNING, "find the message in share/doc/ddpfs/tools/MESSAGES.md",
		        "the server's log says: %s", text(json_array_get(problems, i), "text"));
}

void doctor_mount(const json_t *stats, json_t *findings)
{
	char size[16];
	say_sampler(stats, findings);
	say_errors(stats, findings);
	say_tier(stats, findings);
	say_misses(stats, findings);
	say_shared_chunks(stats, findings);
	say_problems(stats, findings);
	if (number(stats, "quarantined"))
		doctor_say(findings, DOCTOR_NOTE, "run 'mkshard verify', and pack the dataset again",
		        "%llu samples are on the quarantine list", (unsigned long long)number(stats, "quarantined"));
	doctor_say(findings, DOCTOR_OK, NULL, "%llu opens, %llu%% of them waited; order: %s; memory %s",
	        (unsigned long long)number(stats, "opens"),
	        (unsigned long long)percent(number(stats, "misses"), number(stats, "opens")),
	        *text(stats, "order_source") ? text(stats, "order_source") : "own",
	        base_format_size(number(stats, "memory_bytes"), size));
}
