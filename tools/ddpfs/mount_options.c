/* SPDX-License-Identifier: Apache-2.0 */
/* The table of mount options, and its parser; mount_options.h first. */
#include "tools/ddpfs/mount_options.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tier.h"
#include "shard/base/control_client.h"
#include "prefetch/sampler/seed_scan.h"
#include "shard/base/units.h"
#include "shard/index.h"
#include "shard/remote/location.h"
#include "tools/common/cli.h"
#include "tools/ddpfs/mounts.h"
#include <unistd.h>

enum {
	VALUE_MAX = 4096,     /* one option with its value */
	MEMORY_MIN = 8 << 20, /* what the engine needs (prefetch/prefetch.h) */
	ID_MAX = 0x7fffffff,  /* uid and gid */
	WATCHDOG_S = 20,      /* requests take less than a tenth, except behind a disk (fs/heartbeat.h) */
	WATCHDOG_MAX_S = 86400,
	TIMEOUT_MAX_S = 86400 * 7,
};

/* One option.  `value` is NULL when the option was given without '='. */
struct option_def {
	const char *key;
	const char *metavar; /* NULL: takes no value */
	const char *help;    /* one or two lines of at most 54 columns, with a newline between */
	int (*set)(struct options *o, const struct option_def *def, const char *value, struct base_err *err);
	size_t at;         /* offset in struct options of what set_word, set_flag or set_number sets */
	uint64_t min, max; /* of a number */
	const char *words; /* for set_word: "a|b|c" */
	size_t given_at;   /* offset of a bool that says that the option was given; 0: there is none */
	bool may_lack;     /* the value */
};
#define AT(member) offsetof(struct options, member)

_Static_assert(sizeof(enum fs_layout) == sizeof(int) && sizeof(enum fs_advance) == sizeof(int) &&
                       sizeof(enum base_log_level) == sizeof(int),
        "set_word");

static int bad_value(struct base_err *err, const char *key, const char *value, const char *allowed)
{
	return base_err_set(err, -EINVAL, "option %s: '%s' is not %s", key, base_quoted(value), allowed);
}

static int keep_text(struct options *o, const char *key, const char *value, const char **ret, struct base_err *err)
{
	if (o->n_strings == OPTIONS_STRINGS_MAX)
		return base_err_set(
		        err, -E2BIG, "option %s: more than %d options with a text", key, OPTIONS_STRINGS_MAX);
	const char *copy = options_keep(o, value);
	if (!copy)
		return base_err_set(err, -ENOMEM, "out of memory");
	*ret = copy;
	return 0;
}

/* A server in the background runs in "/", so a relative path must become absolute here, in the caller's directory. */
static int keep_path(struct options *o, const char *key, const char *value, const char **ret, struct base_err *err)
{
	char path[PATH_MAX];
	int r = mounts_absolute(value, path);
	if (r < 0)
		return base_err_set(err, r, "option %s: '%s': %s", key, base_quoted(value), strerror(-r));
	return keep_text(o, key, path, ret, err);
}

/* The n-th word of "a|b|c" stands for n. */
static int set_word(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	const char *word = def->words;
	char allowed[64];
	for (int n = 0; *word; n++) {
		size_t len = strcspn(word, "|");
		if (strlen(value) == len && memcmp(value, word, len) == 0) {
			*(int *)((char *)o + def->at) = n;
			return 0;
		}
		word += len + (word[len] == '|');
	}
	snprintf(allowed, sizeof(allowed), "one of %s", def->words);
	return bad_value(err, def->key, value, allowed);
}

static int set_flag(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	if (value && strcmp(value, "on") != 0 && strcmp(value, "off") != 0)
		return bad_value(err, def->key, value, "on or off");
	*(bool *)((char *)o + def->at) = !value || strcmp(value, "on") == 0;
	return 0;
}

static int set_view(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	if (strcmp(value, "rank") != 0 && strcmp(value, "all") != 0)
		return bad_value(err, def->key, value, "rank (this rank's files) or all (every file)");
	o->fs.view_all = value[0] == 'a';
	return 0;
}

/* Handles the keys of tools/common/view_options.h.  "/train/" and "train" mean the same subtree. */
static int set_view_key(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	char trimmed[VALUE_MAX];
	const char *kept = NULL;
	if (strcmp(def->key, "subdir") == 0) {
		value += strspn(value, "/");
		size_t len = strlen(value);
		while (len > 0 && value[len - 1] == '/')
			len--;
		memcpy(trimmed, value, len);
		trimmed[len] = '\0';
		value = trimmed;
	}
	int r = keep_text(o, def->key, value, &kept, err);
	if (r == 0)
		r = view_options_set(&o->view, def->key, kept, err);
	return r < 0 ? r : 0;
}

/* "3", "0-7" or "all". */
static int set_rank(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t first, last;
	char text[32];
	size_t len = strcspn(value, "-");
	o->all_ranks = strcmp(value, "all") == 0;
	o->fs.n_ranks = 0;
	if (o->all_ranks)
		return set_view_key(o, def, "0", err);
	if (value[len] == '\0')
		return set_view_key(o, def, value, err);
	snprintf(text, sizeof(text), "%.*s", (int)len, value);
	if (len >= sizeof(text) || base_parse_u64(text, SHARD_WORLD_MAX - 1, &first) < 0 ||
	        base_parse_u64(value + len + 1, SHARD_WORLD_MAX - 1, &last) < 0 || last < first)
		return bad_value(err, def->key, value, "a rank, such as 3, a range such as 0-7, or all");
	if (last - first >= FS_RANKS_MAX)
		return base_err_set(err, -EINVAL, "option %s: %s are %" PRIu64 " ranks: one mount shows at most %d",
		        def->key, value, last - first + 1, (int)FS_RANKS_MAX);
	o->fs.n_ranks = (uint32_t)(last - first + 1);
	return set_view_key(o, def, text, err);
}

static int set_memory(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t bytes;
	if (base_parse_size(value, &bytes) < 0)
		return bad_value(err, def->key, value, "a size such as 512M or 4G");
	if (bytes < MEMORY_MIN)
		return base_err_set(err, -EINVAL, "option %s: %s is too small: at least 8M", def->key, value);
	o->fs.memory_bytes = bytes;
	return 0;
}

static int set_tier(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	return keep_path(o, def->key, value, &o->fs.tier_dir, err);
}

static int set_tier_size(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t bytes;
	if (base_parse_size(value, &bytes) < 0 || bytes < CACHE_TIER_SIZE_MIN || bytes > CACHE_TIER_SIZE_MAX)
		return bad_value(err, def->key, value, "a size such as 200G, from 64M to 64T");
	o->fs.tier_bytes = bytes;
	return 0;
}

static int set_quarantine(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	const char *path;
	int r = keep_path(o, def->key, value, &path, err);
	if (r == 0)
		r = view_options_set(&o->view, def->key, path, err);
	return r < 0 ? r : 0;
}

/* Refuses a URL, which keep_path would take for a relative path, and messages would then show with its password. */
static int set_index(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	if (remote_resembles_url(value) && access(value, F_OK) < 0)
		return bad_value(
		        err, def->key, remote_quoted(value), "a file of this host: fetch the index, and name the file");
	return keep_path(o, def->key, value, &o->fs.index_file, err);
}

static int set_uid(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t id;
	const struct passwd *user = NULL;
	if (base_parse_u64(value, ID_MAX, &id) < 0) {
		user = getpwnam(value);
		if (!user)
			return bad_value(err, def->key, value, "a user id or the name of a user");
		id = user->pw_uid;
	}
	o->fs.uid = (uid_t)id;
	return 0;
}

static int set_gid(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t id;
	if (base_parse_u64(value, ID_MAX, &id) < 0) {
		const struct group *group = getgrnam(value);
		if (!group)
			return bad_value(err, def->key, value, "a group id or the name of a group");
		id = group->gr_gid;
	}
	o->fs.gid = (gid_t)id;
	return 0;
}

static int set_umask(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	size_t digits = strspn(value, "01234567");
	if (digits == 0 || digits > 4 || value[digits])
		return bad_value(err, def->key, value, "an octal mask such as 022");
	o->fs.umask = (mode_t)strtoul(value, NULL, 8) & 0777;
	return 0;
}

static int set_number(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	uint64_t n;
	int r = base_parse_u64(value, def->max, &n);
	if (r == -ERANGE)
		return base_err_set(
		        err, -EINVAL, "option %s: %s is too large: at most %" PRIu64, def->key, value, def->max);
	if (r < 0)
		return bad_value(err, def->key, value, "a number");
	if (n < def->min)
		return bad_value(err, def->key, value, "a number of threads: at least 1");
	*(uint32_t *)((char *)o + def->at) = (uint32_t)n;
	return 0;
}

static int set_control(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	const char *path;
	int r = keep_path(o, def->key, value, &path, err);
	if (r < 0)
		return r;
	if (strlen(path) >= BASE_CONTROL_PATH_MAX)
		return base_err_set(err, -EINVAL,
		        "option %s: the path of a unix socket has at most %d bytes, from the root on: choose a "
		        "shorter one",
		        def->key, BASE_CONTROL_PATH_MAX - 1);
	o->fs.control_path = path;
	return 0;
}

static int set_log(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	o->fs.log_history = true; /* `ddpfs report` reads it there when the mount is gone */
	return keep_path(o, def->key, value, &o->log_file, err);
}

/* "s3_region=R" sets DDPFS_S3_REGION=R, which the code of stores reads (shard/remote/credentials.h).  Servers,
 * ddpfs-keys and the program of `ddpfs restart` inherit it. */
static int set_s3(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	char name[64];
	(void)o;
	int len = snprintf(name, sizeof(name), "DDPFS_%s", def->key);
	for (int i = 0; i < len; i++)
		name[i] = (char)toupper((unsigned char)name[i]);
	return setenv(name, value, 1) == 0 ? 0 : base_err_set(err, -errno, "option %s: %s", def->key, strerror(errno));
}

static int set_s3_addressing(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	if (strcmp(value, "path") != 0 && strcmp(value, "virtual") != 0)
		return bad_value(err, def->key, value, "path or virtual");
	return set_s3(o, def, value, err);
}

static int set_s3_flag(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	(void)value;
	return set_s3(o, def, "1", err);
}

static int set_s3_path(struct options *o, const struct option_def *def, const char *value, struct base_err *err)
{
	const char *path;
	int rc = keep_path(o, def->key, value, &path, err);
	return rc < 0 ? rc : set_s3(o, def, path, err);
}

static const struct option_def options_known[] = {
	{ "rank", "R|A-B|all",
	        "this rank, from 0; or ranks A to B (all: every one),\neach in a directory rankR of the mount; needs "
	        "world",
	        .set = set_rank },
	{ "world", "W", "number of ranks", .set = set_view_key },
	{ "view", "rank|all",
	        "this rank's files (rank), or every file, for trainers\nthat bring their own sampler (all)",
	        .set = set_view },
	{ "layout", "flat|tree",
	        "names that sort in epoch order (flat), or the original\ndirectories (tree); default: flat, tree with "
	        "view=all",
	        .set = set_word, AT(fs.layout), .words = "flat|tree", .given_at = AT(layout_set) },
	{ "order", "MODE", "auto, full, chunk, torch or none (default: auto)", .set = set_view_key },
	{ "deal", "MODE", "auto, stride or block (default: auto)", .set = set_view_key },
	{ "tail", "RULE", "pad, drop or short: when samples do not divide by\nranks (default: pad)",
	        .set = set_view_key },
	{ "seed", "N", "seed of the order (default: 0)", .set = set_view_key },
	{ "epoch", "N", "first epoch (default: 0)", .set = set_view_key },
	{ "start", "G", "samples of that epoch that all ranks together have\ntrained already (default: 0)",
	        .set = set_view_key },
	{ "past", "WxS+...", "deal=block: the steps S that each earlier number W of\nranks has trained of it",
	        .set = set_view_key },
	{ "state", "[-]FILE",
	        "resume: take order, seed, epoch, start, ... from\nFILE; with -FILE begin anew when there is none",
	        .set = set_view_key },
	{ "index", "FILE", "the index, if it does not lie with the shards; made by\n'mkshard index -o FILE'",
	        .set = set_index },
	{ "subdir", "DIR", "deal only the samples below DIR", .set = set_view_key },
	{ "chunk", "SIZE", "order=chunk: bytes of neighbouring samples kept\ntogether", .set = set_view_key },
	{ "pool", "SIZE", "order=chunk: bytes of chunks mixed with each other", .set = set_view_key },
	{ "groups", "G", "deal the samples to G groups, one a host, which keep\nthem for several epochs",
	        .set = set_view_key },
	{ "redeal", "K", "deal the groups anew after each K epochs (default:\nnever)", .set = set_view_key },
	{ "fill_class", "on|off",
	        "show one file of another rank in a class that would\nbe empty (layout=tree; default: off)",
	        .set = set_flag, AT(fs.fill_class), .may_lack = true },
	{ "advance", "auto|off", "go to the next epoch when the trainer lists again\n(default: auto)", .set = set_word,
	        AT(fs.advance), .words = "auto|off" },
	{ "memory", "SIZE", "memory to use, page cache included (default: it\nfollows what the host leaves free)",
	        .set = set_memory },
	{ "tier", "DIR",
	        "keep what is read in a file on a local disk that all\nmounts of the user share; needs tier_size",
	        .set = set_tier },
	{ "tier_size", "SIZE", "bytes of that file, at most", .set = set_tier_size },
	{ "on_bad", "RULE",
	        "eio, skip or substitute: quarantined samples stay, go,\nor get a stand-in of their directory "
	        "(default: eio)",
	        .set = set_view_key },
	{ "quarantine", "FILE", "the list (default: the one in DATASET, that\n'mkshard verify --quarantine' writes)",
	        .set = set_quarantine },
	{ "uid", "USER", "owner of all files (default: the one who mounts)", .set = set_uid,
	        .given_at = AT(fs.set_uid) },
	{ "gid", "GROUP", "group of all files", .set = set_gid, .given_at = AT(fs.set_gid) },
	{ "umask", "MASK", "permission bits to remove, octal", .set = set_umask },
	{ "allow_other", NULL, "let other users in, as permissions say", .set = set_flag, AT(fs.allow_other) },
	{ "noexec", NULL, "do not let programs of the dataset be started", .set = set_flag, AT(fs.noexec) },
	{ "threads", "N", "threads that answer the kernel: at most 64", .set = set_number, AT(fs.threads), 1,
	        FS_THREADS_MAX },
	{ "seed_search", "THREADS",
	        "threads that look for the seed of a RandomSampler that\nnobody seeded: a CPU minute an epoch "
	        "(default: 0)",
	        .set = set_number, AT(fs.scan_threads), 0, PREFETCH_SEED_SCAN_THREADS_MAX },
	{ "control", "SOCKET",
	        "path of the control socket, to be named in the place\nof MNT then (default: one that is found by "
	        "itself)",
	        .set = set_control },
	{ "timeout", "SECONDS",
	        "how long readers wait for a dataset that is away\nwhile its server is replaced (default: 60)",
	        .set = set_number, AT(fs.timeout_s), 0, TIMEOUT_MAX_S, .given_at = AT(fs.timeout_set) },
	{ "watchdog", "SECONDS", "replace a server that hangs for so long; 0: never\n(default: 20)", .set = set_number,
	        AT(fs.watchdog_s), 0, WATCHDOG_MAX_S },
	{ "s3_profile", "NAME", "S3: profile of ~/.aws/credentials and ~/.aws/config", .set = set_s3 },
	{ "s3_credentials", "FILE", "S3: read FILE, not ~/.aws/credentials", .set = set_s3_path },
	{ "s3_endpoint", "URL", "S3: a store that is not AWS", .set = set_s3 },
	{ "s3_region", "REGION", "S3: region of the bucket", .set = set_s3 },
	{ "s3_addressing", "HOW", "S3: path or virtual, where the bucket stands in\naddresses",
	        .set = set_s3_addressing },
	{ "s3_anonymous", NULL, "S3: send no signature, for public buckets", .set = set_s3_flag },
	{ "s3_requester_pays", NULL, "S3: you pay for the requests", .set = set_s3_flag },
	{ "log_level", "LEVEL", "error, warning, info or debug (default: info)", .set = set_word, AT(log_level),
	        .words = "error|warning|info|debug", .given_at = AT(log_level_set) },
	{ "log", "FILE", "write log lines to FILE (default: stderr in front,\nsyslog in the background)",
	        .set = set_log },
	{ "debug", NULL, "print every request of the kernel on stderr", .set = set_flag, AT(fs.debug) },
};
enum { OPTIONS_KNOWN = sizeof(options_known) / sizeof(options_known[0]) };

/* Patterns of fnmatch(3).  mount(8), fstab and systemd use these options themselves, or they hold for every ddpfs
 * mount (read-only, without devices, set-id bits and access times). */
static const char *const options_ignored[] = { "defaults", "ro", "rw", "auto", "noauto", "nofail", "user", "user=*",
	"nouser", "users", "owner", "noowner", "group", "nogroup", "_netdev", "x-*", "X-*", "comment=*", "helper=*",
	"uhelper=*", "suid", "nosuid", "dev", "nodev", "exec", "atime", "noatime", "diratime", "nodiratime", "relatime",
	"norelatime", "strictatime", "nostrictatime", "lazytime", "nolazytime", "sync", "async", "dirsync", "silent",
	"loud", "iversion", "noiversion", "mand", "nomand", "default_permissions" };
enum { OPTIONS_IGNORED = sizeof(options_ignored) / sizeof(options_ignored[0]) };

static bool is_ignored(const char *text)
{
	for (int i = 0; i < OPTIONS_IGNORED; i++)
		if (fnmatch(options_ignored[i], text, 0) == 0)
			return true;
	return false;
}

static int unknown(const char *key, struct base_err *err)
{
	struct cli_nearest nearest = { 0 };
	for (int i = 0; i < OPTIONS_KNOWN; i++)
		cli_nearest_try(&nearest, key, options_known[i].key);
	const char *quoted = base_quoted(key);
	if (nearest.word)
		return base_err_set(err, -EINVAL, "unknown option '%s': did you mean %s?", quoted, nearest.word);
	return base_err_set(err, -EINVAL, "unknown option '%s': 'ddpfs mount --help' lists the options", quoted);
}

/* Applies one "key" or "key=value". */
static int apply(struct options *o, char *text, struct base_err *err)
{
	if (is_ignored(text)) {
		o->writable |= strcmp(text, "rw") == 0;
		return 0;
	}
	char *value = strchr(text, '=');
	if (value)
		*value++ = '\0';
	for (int i = 0; i < OPTIONS_KNOWN; i++) {
		const struct option_def *known = &options_known[i];
		if (strcmp(text, known->key) != 0)
			continue;
		if (value && !known->metavar)
			return base_err_set(err, -EINVAL, "option %s takes no value", known->key);
		if (known->metavar && (!value || !*value) && !known->may_lack)
			return base_err_set(
			        err, -EINVAL, "option %s needs a value: %s=%s", known->key, known->key, known->metavar);
		int rc = known->set(o, known, value, err);
		if (rc == 0 && known->given_at)
			*(bool *)((char *)o + known->given_at) = true;
		return rc;
	}
	return o->sloppy ? 0 : unknown(text, err);
}

/* Copies the next option of *text into buf, without escapes and quotes, and moves *text behind its comma. */
static int next_option(const char **text, char buf[VALUE_MAX], struct base_err *err)
{
	const char *p = *text;
	size_t len = 0;
	bool quoted = false;
	for (; *p && (quoted || *p != ','); p++) {
		char c = *p;
		if (c == '"') {
			quoted = !quoted;
			continue;
		}
		if (c == '\\' && (p[1] == ',' || p[1] == '\\' || p[1] == '"'))
			c = *++p;
		if (len == VALUE_MAX - 1)
			return base_err_set(err, -EINVAL, "an option is longer than %d bytes", VALUE_MAX - 1);
		buf[len++] = c;
	}
	if (quoted)
		return base_err_set(err, -EINVAL, "a '\"' in the options is not closed");
	buf[len] = '\0';
	*text = *p ? p + 1 : p;
	return 0;
}

void options_init(struct options *options)
{
	*options = (struct options){
		.fs = { .view = SHARD_VIEW_OPTIONS_DEFAULT, .watchdog_s = WATCHDOG_S, .timeout_s = FS_TIMEOUT_S },
		.view = VIEW_OPTIONS_DEFAULT,
		.log_level = BASE_LOG_INFO
	};
}

void options_done(struct options *options)
{
	view_options_done(&options->view);
	for (unsigned i = 0; i < options->n_strings; i++)
		free(options->strings[i]);
	options->n_strings = 0;
}

const char *options_keep(struct options *options, const char *text)
{
	if (options->n_strings == OPTIONS_STRINGS_MAX)
		return NULL;
	char *copy = strdup(text);
	if (copy)
		options->strings[options->n_strings++] = copy;
	return copy;
}

/* Runs before the parser: mount(8) puts the kernel's options (user_id=, ...) before "remount", and the parser would
 * refuse those first. */
static int refuse_remount(const char *text, struct base_err *err)
{
	while (*text) {
		char buf[VALUE_MAX];
		int r = next_option(&text, buf, err);
		if (r < 0)
			return r;
		if (strcmp(buf, "remount") == 0)
			return base_err_set(err, -EINVAL,
			        "a ddpfs mount cannot be remounted: unmount it and mount it again, or use 'ddpfs ctl' "
			        "to set its epoch");
	}
	return 0;
}

int options_parse(struct options *options, const char *text, struct base_err *err)
{
	int refused = refuse_remount(text, err);
	if (refused < 0)
		return refused;
	while (*text) {
		char buf[VALUE_MAX];
		int r = next_option(&text, buf, err);
		if (r == 0 && buf[0])
			r = apply(options, buf, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int options_take(void *at, char *text, struct base_err *err)
{
	return options_parse(at, text, err);
}

int options_check_rank(struct options *o, struct base_err *err)
{
	if (!(o->view.set & VIEW_OPTIONS_SET_RANK))
		return 0;
	if (!(o->view.set & VIEW_OPTIONS_SET_WORLD))
		return base_err_set(err, -EINVAL, "world is missing: add -o world=W, the number of ranks");
	uint32_t world = o->view.view.world;
	if (o->all_ranks && world > FS_RANKS_MAX)
		return base_err_set(err, -EINVAL,
		        "rank=all with world=%u: one mount shows at most %d ranks: give those of this host, such as "
		        "rank=0-7",
		        world, (int)FS_RANKS_MAX);
	if (o->all_ranks)
		o->fs.n_ranks = world;
	uint32_t rank = o->view.view.rank + (o->fs.n_ranks ? o->fs.n_ranks - 1 : 0); /* the last one */
	if (rank >= world)
		return base_err_set(err, -EINVAL, "rank=%u is not below world=%u: ranks count from 0 to %u", rank,
		        world, world - 1);
	return 0;
}

int options_finish(struct options *o, struct base_err *err)
{
	struct fs_options *fs = &o->fs;
	if (fs->tier_dir && !fs->tier_bytes)
		return base_err_set(
		        err, -EINVAL, "tier_size is missing: add tier_size=SIZE, at most what the disk has");
	if (!fs->tier_dir && fs->tier_bytes)
		return base_err_set(err, -EINVAL, "tier is missing: add tier=DIR, a directory on a local disk");
	bool rank = o->view.set & VIEW_OPTIONS_SET_RANK;
	bool world = o->view.set & VIEW_OPTIONS_SET_WORLD;
	if (fs->view_all && (rank || world))
		return base_err_set(err, -EINVAL,
		        "view=all shows every file to everyone: leave out rank and world, or leave out "
		        "view=all to see one rank's part");
	if (!fs->view_all && !rank && !world)
		return base_err_set(err, -EINVAL,
		        "rank and world are missing: add -o rank=R,world=W to see that rank's part, or "
		        "-o view=all to see every file");
	if (!fs->view_all && !rank)
		return base_err_set(
		        err, -EINVAL, "rank is missing: add -o rank=R, a number from 0 to %u", o->view.view.world - 1);
	int r = options_check_rank(o, err);
	if (r < 0)
		return r;
	if (!o->layout_set)
		fs->layout = fs->view_all ? FS_LAYOUT_TREE : FS_LAYOUT_FLAT;
	/* With view=all the mount shows every file again, but the user expects the rest of the epoch. */
	const char *resumes = o->view.state_path        ? "state"
	                      : o->view.view.n_past > 0 ? "past"
	                      : o->view.view.start > 0  ? "start"
	                                                : NULL;
	if (resumes && fs->view_all && fs->layout == FS_LAYOUT_TREE)
		return base_err_set(err, -EINVAL,
		        "%s= is for rank views: view=all shows every file in every epoch, and it is the trainer's own "
		        "sampler that goes on where it stopped. Leave %s= out, and see share/doc/ddpfs/tools/RESUME.md",
		        resumes, resumes);
	if (o->view.view.groups > 1 && fs->view_all)
		return base_err_set(err, -EINVAL,
		        "groups= is for rank views: view=all shows every file to everyone. Leave groups= out, or give "
		        "rank and world");
	if (fs->fill_class && (fs->view_all || fs->layout != FS_LAYOUT_TREE))
		return base_err_set(err, -EINVAL,
		        "fill_class=on needs layout=tree and view=rank: elsewhere no class can be "
		        "empty");
	return 0;
}

int options_settle_view(struct options *o, struct base_err *err)
{
	struct shard_index *index = NULL;
	int r = 0;
	if (o->view.state_path || o->view.view.on_bad != SHARD_ON_BAD_EIO)
		r = cli_index_open(o->fs.dataset, o->fs.index_file, err, &index);
	if (r == 0)
		r = view_options_finish(&o->view, index, err);
	shard_index_close(index);
	if (r < 0)
		return r;
	o->fs.view = o->view.view;
	return 0;
}

void options_print_help(FILE *out)
{
	fprintf(out, "Mount options (-o KEY=VALUE,...):\n");
	for (int i = 0; i < OPTIONS_KNOWN; i++) {
		char left[32];
		const struct option_def *known = &options_known[i];
		snprintf(left, sizeof(left), "%s%s%s", known->key, known->metavar ? "=" : "",
		        known->metavar ? known->metavar : "");
		const char *line = known->help;
		size_t len = strcspn(line, "\n");
		fprintf(out, "  %-20s  %.*s\n", left, (int)len, line);
		if (line[len])
			fprintf(out, "  %-20s  %s\n", "", line + len + 1);
	}
}

char *options_help_filter(int key, const char *text, void *input)
{
	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA)
		return (char *)(uintptr_t)text; /* argp: return the text itself if nothing changes */
	char *list = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&list, &size);
	if (!out)
		return NULL;
	options_print_help(out);
	fclose(out);
	return list;
}
