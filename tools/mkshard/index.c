/* SPDX-License-Identifier: Apache-2.0 */
/* `mkshard index`: makes an index for tar shards in their place, or remakes that of a packed dataset, on this host or
 * in a store; index.h first. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shard/base/cleanup.h"
#include "shard/base/units.h"
#include "shard/build.h"
#include "shard/index.h"
#include "shard/pack.h"
#include "shard/remote/location.h"
#include "shard/remote/store.h"
#include "shard/unfinished.h"
#include "tools/common/cli.h"
#include "tools/mkshard/mkshard.h"
#include "tools/mkshard/index.h"
#include "tools/mkshard/sample_rules.h"
#include "tools/mkshard/shards.h"
#include "tools/common/progress.h"

struct index_args {
	const char *dataset;
	struct cli_rest shards;
	struct mkshard_rules given;
	bool keep_going, force, by_shard;
	uint64_t jobs, timeout_s;
	const char *output; /* the index is written here, and nothing to the dataset; NULL: it goes into the dataset */
};

static bool rules_given(const struct index_args *args)
{
	return args->given.sample_given || args->given.group_given || args->given.common_given;
}

struct indexing {
	const struct index_args *args;
	struct remote_store *store; /* in which the dataset lies; NULL: on this host */
	bool there;                 /* the store has an index, which is replaced */
	struct found_shard *shards;
	uint32_t n_shards;
	bool packed; /* `mkshard pack` wrote the shards, and they are in their dataset */
	struct shard_pack_rules rules;
	struct shard_pack_options options;
	pthread_mutex_t lock;
	struct base_err err;   /* of failed_shard; guarded by lock */
	uint32_t failed_shard; /* the lowest one that failed, so that every run names the same one; guarded by lock */
};

/* Which shards */

static int compare_names(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* Lists the tar files in a dataset's directory, sorted by name. */
static int find_shards(const char *dataset, char ***ret_names, int *ret_n, struct base_err *err)
{
	const char *quoted = base_quoted(dataset);
	struct dirent **entries = NULL;
	struct compressed_tars compressed = { 0 };
	int there = scandir(dataset, &entries, NULL, compare_names), n = 0, rc = 0;
	if (there < 0)
		return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
	char **names = calloc((size_t)there + 1, sizeof(*names));
	for (int i = 0; i < there; i++) {
		const char *name = entries[i]->d_name;
		bool shard = found_shard_is_name(name);
		if (!names || (shard && asprintf(&names[n], "%s/%s", dataset, name) < 0))
			rc = base_err_set(err, -ENOMEM, "out of memory"); /* the program ends here */
		if (shard)
			n++;
		else
			compressed_tars_take(&compressed, name);
		free(entries[i]);
	}
	free(entries);
	compressed_tars_warn(&compressed);
	if (rc == 0 && n == 0)
		rc = base_err_set(
		        err, -ENOENT, "'%s' holds no shards; name them: mkshard index %s SHARD.tar...", quoted, quoted);
	if (rc) {
		free(names);
		return rc;
	}
	*ret_names = names;
	*ret_n = n;
	return 0;
}

/* Sets the path of a shard in the index: relative if it lies below the dataset, else absolute. */
static int stored_path(struct found_shard *shard, const char *dataset, struct base_err *err)
{
	cleanup_free char *root = realpath(dataset, NULL);
	cleanup_free char *path = realpath(shard->file, NULL);
	if (!root || !path)
		return base_err_set(
		        err, -errno, "'%s': %s", base_quoted(root ? shard->file : dataset), strerror(errno));
	size_t len = strlen(root);
	bool below = !strncmp(path, root, len) && path[len] == '/';
	shard->stored = strdup(below ? path + len + 1 : path);
	return shard->stored ? 0 : base_err_set(err, -ENOMEM, "out of memory");
}

/* Sets the prefix: "train-0001" for "/data/train-0001.tar". */
static int name_prefix(struct found_shard *shard, struct base_err *err)
{
	const char *name = strrchr(shard->file, '/');
	name = name ? name + 1 : shard->file;
	size_t len = strlen(name);
	if (len > 4 && !strcmp(name + len - 4, ".tar"))
		len -= 4;
	shard->prefix = strndup(name, len);
	return shard->prefix ? 0 : base_err_set(err, -ENOMEM, "out of memory");
}

/* Reading */

static int parse_shard(void *arg, uint32_t number)
{
	struct indexing *indexing = arg;
	struct found_shard *shard = &indexing->shards[number];
	struct base_err err = { 0 };
	const struct index_args *args = indexing->args;
	int rc = shard->absent ? 0 : found_shard_parse(shard, indexing->store, args->timeout_s, args->keep_going, &err);
	if (rc == 0)
		return 0;
	lock_for_scope(&indexing->lock);
	if (!indexing->err.code || number < indexing->failed_shard) {
		indexing->err = err;
		indexing->failed_shard = number;
	}
	return rc;
}

static int read_shards(struct indexing *indexing, struct base_err *err)
{
	uint64_t total = 0;
	for (uint32_t s = 0; s < indexing->n_shards; s++) {
		struct stat st;
		if (indexing->store)
			total += indexing->shards[s].size_bytes;
		else if (stat(indexing->shards[s].file, &st) == 0)
			total += (uint64_t)st.st_size;
	}
	progress_start("indexing", total, 0);
	int rc = shard_run(indexing->n_shards, mkshard_jobs(indexing->args->jobs), "index", parse_shard, indexing);
	progress_done();
	if (rc)
		*err = indexing->err;
	return rc;
}

/* Samples */

/* Whether the shards look like WebDataset's: files of one key side by side, and samples of several files. */
static bool looks_keyed(const struct indexing *indexing)
{
	struct mkshard_keys keys = { 0 };
	for (uint32_t s = 0; s < indexing->n_shards; s++) {
		const struct found_shard *shard = &indexing->shards[s];
		keys.last = NULL;
		for (uint64_t i = 0; i < shard->n_files; i++) {
			if (!shard->files[i].directory)
				mkshard_keys_see(&keys, found_path(shard, &shard->files[i]));
		}
	}
	return mkshard_keys_paired(&keys);
}

/* Finds a shard that says how the dataset was packed: the first one of a tar dataset, any one of a bare dataset.
 * Returns NULL if `mkshard pack` did not write these shards. */
static const struct found_shard *find_packed(const struct indexing *indexing)
{
	const struct found_shard *first = indexing->shards;
	if (indexing->args->shards.n > 0)
		return NULL;
	while (first->absent && first < indexing->shards + indexing->n_shards - 1)
		first++;
	return first->record || first->container == SHARD_BARE ? first : NULL;
}

/* Whether the shards have names of `mkshard pack`, but the first one is missing, which says how they were packed. */
static bool lost_their_record(const struct indexing *indexing)
{
	const struct found_shard *lowest = &indexing->shards[0];
	const char *name = strrchr(lowest->file, '/');
	char own[32];
	unsigned number;
	if (indexing->args->shards.n > 0 || !name || sscanf(++name, "shard-%u.tar", &number) != 1)
		return false;
	return !strcmp(name, shard_pack_shard_name(number, SHARD_TAR, own)) && (number > 0 || lowest->absent);
}

static int settle_rules(struct indexing *indexing, struct base_err *err)
{
	const struct index_args *args = indexing->args;
	const struct found_shard *first = find_packed(indexing);
	uint32_t n_shards = 0;
	bool bare = first && first->container == SHARD_BARE;
	indexing->packed = first;
	if (!first && lost_their_record(indexing))
		return base_err_set(err, -ENOENT,
		        "'%s/shard-000000.tar' is missing or damaged: it says how the others were packed; restore "
		        "it, or name the shards to index them as they are",
		        args->dataset);
	if (!first) {
		indexing->rules = args->given.rules;
		if (args->given.automatic)
			indexing->rules.sample = looks_keyed(indexing) ? SHARD_PACK_KEY : SHARD_PACK_FILE;
		return 0;
	}
	shard_pack_rules_init(&indexing->rules);
	int rc =
	        bare ? 0 : shard_pack_record_parse(first->record, &indexing->rules, &indexing->options, &n_shards, err);
	if (rc)
		return base_err_prefix(err, "'%s'", first->file);
	if (bare) { /* the footer says for each file to which sample it belongs, and whether it is common */
		indexing->options.shuffle = first->dataset.shuffled;
		indexing->options.seed = first->dataset.pack_seed;
		n_shards = first->dataset.n_shards ? first->dataset.n_shards : indexing->n_shards;
	}
	if (rules_given(args)) {
		shard_pack_rules_done(&indexing->rules);
		indexing->rules = args->given.rules;
	}
	for (uint32_t s = 0; s < n_shards || s < indexing->n_shards; s++) {
		char name[32];
		shard_pack_shard_name(s, first->container, name);
		if (s >= indexing->n_shards || strcmp(indexing->shards[s].stored, name))
			return s < n_shards ? base_err_set(err, -ENOENT,
			                              "'%s/%s' is missing, one of %u shards; restore it, or pack again",
			                              args->dataset, name, n_shards)
			                    : base_err_set(err, -EEXIST,
			                              "'%s' holds more shards than the %u that were packed; move the "
			                              "others away",
			                              args->dataset, n_shards);
	}
	return 0;
}

/* Files of one name */

static int on_clash(
        void *arg, const struct shard_pack_item *item, const struct shard_pack_item *kept, struct base_err *err)
{
	struct indexing *indexing = arg;
	struct found_shard *shard = &indexing->shards[item->source];
	const struct found_shard *other = &indexing->shards[kept->source];
	const char *advice = shard == other ? "" : "; give --by-shard to keep the files of shards apart";
	const char *path = base_quoted(item->path);
	const char *kept_path = base_quoted(kept->path);
	const char *here = base_quoted(shard->file);
	const char *there = base_quoted(other->file);
	if (err->code == -EEXIST && shard == other)
		base_err_set(err, -EEXIST, "'%s' comes twice in '%s'", path, here);
	else if (err->code == -EEXIST)
		base_err_set(err, -EEXIST, "'%s' comes twice: in '%s' and in '%s'%s", path, there, here, advice);
	else
		base_err_set(err, -ENOTDIR,
		        "'%s' of '%s' and '%s' of '%s': one is a file where the other needs a directory%s", path, here,
		        kept_path, there, advice);
	if (!indexing->args->keep_going)
		return err->code;
	shard->files[item->source_offset].left_out = true;
	return found_shard_leave_out(shard, err->text);
}

/* Finds files that clash with an earlier one.  The first clash is an error; with --keep-going such files are left
 * out. */
static int find_clashes(struct indexing *indexing, struct base_err *err)
{
	uint64_t n = 0;
	for (uint32_t s = 0; s < indexing->n_shards; s++)
		n += indexing->shards[s].n_files;
	cleanup_free struct shard_pack_item *items = malloc((n + 1) * sizeof(*items));
	if (!items)
		return base_err_set(err, -ENOMEM, "out of memory");
	n = 0;
	for (uint32_t s = 0; s < indexing->n_shards; s++) {
		const struct found_shard *shard = &indexing->shards[s];
		for (uint64_t i = 0; i < shard->n_files; i++)
			items[n++] = (struct shard_pack_item){
				.path = found_path(shard, &shard->files[i]),
				.directory = shard->files[i].directory,
				.source = s,
				.source_offset = i,
			};
	}
	struct shard_pack_options options = { .clash = on_clash, .clash_arg = indexing };
	return shard_pack_sort(&options, items, &n, err);
}

/* The index */

static int add_file(struct indexing *indexing, struct shard_builder *builder, const struct found_shard *shard,
        uint32_t number, const struct found_file *found, struct base_err *err)
{
	const char *path = found_path(shard, found), *key;
	size_t len;
	if (found->directory)
		return shard_builder_add_dir(builder, path, found->mode, found->mtime_s, err);
	cleanup_free char *group = NULL;
	bool bare = shard->container == SHARD_BARE;
	/* A sample lies in one shard, so equal keys of different shards are different samples. */
	if (bare && found->group != FOUND_NO_GROUP) {
		key = shard->paths + found->group;
		len = strlen(key);
	}
	if ((bare ? found->group != FOUND_NO_GROUP : shard_pack_key(&indexing->rules, path, &key, &len)) &&
	        asprintf(&group, "%u/%.*s", number, (int)len, key) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	struct shard_build_file file = {
		.path = path,
		.shard = number,
		.offset = found->offset,
		.length = found->length,
		.xxh3 = found->xxh3,
		.block_sums = found->length > SHARD_BLOCK ? shard->blocks + found->first_block : NULL,
		.mtime_s = found->mtime_s,
		.mode = found->mode,
		.common = bare ? found->common : shard_pack_is_common(&indexing->rules, path),
		.group = group,
	};
	return shard_builder_add_file(builder, &file, err);
}

/* Files that differ from the index that is replaced. */
struct change {
	uint64_t n;
	const char *first;
};

/* Compares a file with the index that is replaced.  Returns 0 if they agree or the old index has no such file;
 * -EBADMSG if the content differs; -EUCLEAN if the old record cannot be read. */
static int compare_with_old(const struct shard_index *old, const char *path, const struct found_file *found)
{
	enum shard_kind kind;
	struct shard_file file;
	uint32_t id;
	int rc = shard_index_find_path(old, path, &kind, &id);
	if (rc == -ENOENT || rc == -ENOTDIR || (rc == 0 && kind != SHARD_KIND_FILE))
		return 0;
	if (rc < 0 || shard_index_file(old, id, &file) < 0)
		return -EUCLEAN;
	return file.length != found->length || file.xxh3 != found->xxh3 ? -EBADMSG : 0;
}

/* The new index takes the checksums of the present bytes.  So it would accept all damage since the old index was
 * made; this warns of it. */
static void warn_of_changes(const struct indexing *indexing)
{
	struct shard_index *old = NULL;
	struct change changed = { 0 }, unread = { 0 };
	const char *dataset = base_quoted(indexing->args->dataset);
	const char *name = base_quoted(indexing->args->output ? indexing->args->output : SHARD_INDEX_NAME);
	int rc = shard_index_open_with(indexing->args->dataset, indexing->args->output, NULL, &old);
	if (rc < 0 && rc != -ENOENT)
		cli_warn("the old index of '%s' cannot be read (%s), so the files cannot be compared with it. The new "
		         "index takes their bytes as they are. To compare, restore a copy of '%s' and run this command "
		         "again",
		        dataset, base_err_str(rc), name);
	if (rc < 0)
		return;
	for (uint32_t s = 0; s < indexing->n_shards; s++) {
		const struct found_shard *shard = &indexing->shards[s];
		for (uint64_t i = 0; !shard->absent && i < shard->n_files; i++) {
			const struct found_file *found = &shard->files[i];
			const char *path = found_path(shard, found);
			rc = found->directory || found->left_out ? 0 : compare_with_old(old, path, found);
			if (rc == 0)
				continue;
			struct change *change = rc == -EUCLEAN ? &unread : &changed;
			change->first = change->first ? change->first : path;
			change->n++;
		}
	}
	if (changed.n)
		cli_warn("%" PRIu64
		         " of the files of '%s' differ from the old index, first '%s': they are damaged, or somebody "
		         "wrote them anew. The new index takes their bytes as they are",
		        changed.n, dataset, base_quoted(changed.first));
	if (unread.n)
		cli_warn("the old index of '%s' is damaged, so %" PRIu64
		         " of its files (first '%s') cannot be compared with it. The new index takes their bytes as "
		         "they are. To compare, restore a copy of '%s' and run this command again",
		        dataset, unread.n, base_quoted(unread.first), name);
	shard_index_close(old);
}

/* Returns where the index is written on this host; the caller frees it. */
static int index_path(const struct indexing *indexing, struct base_err *err, char **ret_path)
{
	const struct index_args *args = indexing->args;
	if (indexing->store && !args->output)
		return index_store_place(indexing->store, err, ret_path);
	int n = args->output ? asprintf(ret_path, "%s", args->output)
	                     : asprintf(ret_path, "%s/" SHARD_INDEX_NAME, args->dataset);
	if (n < 0)
		*ret_path = NULL;
	return n < 0 ? base_err_set(err, -ENOMEM, "out of memory") : 0;
}

static int build(struct indexing *indexing, uint64_t *ret_files, struct base_err *err)
{
	struct shard_builder *builder = NULL;
	int rc = shard_builder_new(&builder);
	uint64_t files = 0;
	uint32_t number = 0;
	if (rc)
		return base_err_set(err, rc, "out of memory");
	for (uint32_t s = 0; s < indexing->n_shards && rc == 0; s++) {
		const struct found_shard *shard = &indexing->shards[s];
		if (shard->absent)
			continue;
		rc = shard_builder_add_shard(builder, shard->stored, shard->container, shard->size_bytes,
		        indexing->packed ? 0 : shard->mtime_ns, err);
		for (uint64_t i = 0; i < shard->n_files && rc == 0; i++) {
			if (shard->files[i].left_out)
				continue;
			rc = add_file(indexing, builder, shard, number, &shard->files[i], err);
			files += !shard->files[i].directory;
		}
		number++;
	}
	cleanup_free char *path = NULL;
	if (rc == 0 && files == 0)
		rc = base_err_set(err, -ENOENT, "'%s': its shards hold no files", indexing->args->dataset);
	if (rc == 0)
		rc = index_path(indexing, err, &path);
	if (rc == 0)
		rc = shard_builder_finish(builder, path, indexing->packed && indexing->options.shuffle,
		        indexing->packed ? indexing->options.seed : 0, err);
	if ((rc == -EEXIST || rc == -ENOTDIR) && !indexing->args->keep_going) {
		struct base_err named = { 0 };
		if (find_clashes(indexing, &named) == rc)
			*err = named; /* this sentence names the shards */
	}
	if (rc == 0 && indexing->store && !indexing->args->output)
		rc = index_store_send(indexing->store, path, err);
	shard_builder_free(builder);
	*ret_files = files;
	return rc;
}

/* Checks that no shard of the command line lies in an unfinished packing. */
static int check_unfinished(char **names, uint32_t n, struct base_err *err)
{
	char dir[PATH_MAX], last[PATH_MAX] = "";
	for (uint32_t s = 0; s < n; s++) {
		const char *slash = strrchr(names[s], '/');
		int len = snprintf(
		        dir, sizeof(dir), "%.*s", slash ? (int)(slash - names[s] + 1) : 1, slash ? names[s] : ".");
		if (len >= (int)sizeof(dir) || !strcmp(dir, last))
			continue;
		int rc = shard_unfinished_check(dir, err);
		if (rc)
			return rc;
		memcpy(last, dir, sizeof(last));
	}
	return 0;
}

static int prepare(struct indexing *indexing, char **names, int n, struct base_err *err)
{
	const struct index_args *args = indexing->args;
	int rc = 0;
	indexing->n_shards = (uint32_t)n;
	indexing->shards = calloc((size_t)n, sizeof(*indexing->shards));
	if (!indexing->shards)
		return base_err_set(err, -ENOMEM, "out of memory");
	for (int s = 0; s < n && rc == 0; s++) {
		struct found_shard *shard = &indexing->shards[s];
		shard->file = strdup(names[s]);
		rc = shard->file ? stored_path(shard, args->dataset, err) : base_err_set(err, -ENOMEM, "out of memory");
		if (rc && rc != -ENOMEM && args->keep_going) {
			shard->absent = true;
			rc = found_shard_leave_out(shard, strerror(-rc));
		}
	}
	return rc;
}

static uint64_t list_left_out(const struct indexing *indexing)
{
	uint64_t n = 0;
	for (uint32_t s = 0; indexing->shards && s < indexing->n_shards; s++) {
		const struct found_shard *shard = &indexing->shards[s];
		for (uint64_t i = 0; i < shard->n_left_out; i++, n++)
			cli_note("left out '%s': %s", base_quoted(shard->file), shard->left_out[i]);
	}
	return n;
}

static void report(const struct indexing *indexing, uint64_t files, uint64_t left_out)
{
	uint64_t bytes = 0;
	uint32_t n_shards = 0;
	char size[16];
	static const char *const how[] = { "one file each", "by key", "by --group" };
	for (uint32_t s = 0; s < indexing->n_shards; s++) {
		bytes += indexing->shards[s].absent ? 0 : indexing->shards[s].size_bytes;
		n_shards += !indexing->shards[s].absent;
	}
	printf("%s: %" PRIu64 " file%s in %u shard%s, %s; samples: %s", base_quoted(indexing->args->dataset), files,
	        files == 1 ? "" : "s", n_shards, n_shards == 1 ? "" : "s", base_format_size(bytes, size),
	        how[indexing->rules.sample]);
	if (left_out)
		printf("; %" PRIu64 " left out", left_out);
	printf("\n");
}

/* Bytes that a shell takes as they are. */
#define SAFE                                                                                                           \
	"abcdefghijklmnopqrstuvwxyz"                                                                                   \
	"ABCDEFGHIJKLMNOPQRSTUVWXYZ"                                                                                   \
	"0123456789_./:@%+-,="

/* Prints a word of a command line, so that a shell takes it as it is. */
static void print_word(const char *word)
{
	if (word[strspn(word, SAFE)] == '\0') {
		fputs(word, stdout);
		return;
	}
	putchar('\'');
	for (; *word; word++)
		fputs(*word == '\'' ? "'\\''" : (char[2]){ *word, '\0' }, stdout);
	putchar('\'');
}

/* Says how to mount a dataset whose index does not lie with its shards. */
static void print_mount(const struct index_args *args)
{
	cleanup_free char *path = realpath(args->output, NULL), *option = malloc(2 * PATH_MAX + 64);
	char *to = option;
	if (!path || !option)
		return;
	to = stpcpy(to, "index=");
	for (const char *from = path; *from; from++) { /* escaped as in an option of a mount */
		if (strchr(",\\\"", *from))
			*to++ = '\\';
		*to++ = *from;
	}
	stpcpy(to, ",rank=0,world=1");
	printf("to mount it: ddpfs mount -o ");
	print_word(option);
	putchar(' ');
	print_word(args->dataset);
	printf(" MNT\n");
}

/* Checks that --output can be written, before all shards are read. */
static int check_output(const struct index_args *args, struct base_err *err)
{
	const char *quoted = base_quoted(args->output), *slash = strrchr(args->output, '/');
	cleanup_free char *dir = NULL;
	if (access(args->output, F_OK) == 0 && !args->force)
		return base_err_set(err, -EEXIST, "'%s' exists already; give --force to replace it", quoted);
	if (asprintf(&dir, "%.*s", slash ? (int)(slash - args->output + 1) : 1, slash ? args->output : ".") < 0) {
		dir = NULL;
		return base_err_set(err, -ENOMEM, "out of memory");
	}
	return access(dir, W_OK) < 0 ? base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno)) : 0;
}

/* Makes the directory for the index.  *ret_made: it did not exist. */
static int check_target(const struct index_args *args, bool *ret_made, struct base_err *err)
{
	const char *quoted = base_quoted(args->dataset);
	if (args->output) {
		struct stat st;
		if (stat(args->dataset, &st) < 0)
			return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
		int rc = args->shards.n == 0 ? shard_unfinished_check(args->dataset, err) : 0;
		return rc < 0 ? rc : check_output(args, err);
	}
	if (args->shards.n == 0)
		return shard_unfinished_check(args->dataset, err); /* rebuilding */
	*ret_made = mkdir(args->dataset, 0777) == 0;
	if (!*ret_made && errno != EEXIST)
		return base_err_set(err, -errno, "'%s': %s", quoted, strerror(errno));
	cleanup_free char *path = NULL;
	if (asprintf(&path, "%s/" SHARD_INDEX_NAME, args->dataset) < 0)
		return base_err_set(err, -ENOMEM, "out of memory");
	if (access(path, F_OK) == 0 && !args->force)
		return base_err_set(err, -EEXIST, "'%s' has an index already; give --force to replace it", quoted);
	return 0;
}

static int open_store(struct indexing *indexing, struct base_err *err)
{
	const struct index_args *args = indexing->args;
	int rc = args->output ? check_output(args, err) : 0;
	if (rc < 0)
		return rc;
	return index_store_open(args->dataset, !args->output, args->force, err, &indexing->store, &indexing->there);
}

static int find_in_store(struct indexing *indexing, char **names, int n, struct base_err *err)
{
	const struct index_args *args = indexing->args;
	return index_store_find(indexing->store, names, (uint32_t)n, mkshard_jobs(args->jobs), args->keep_going, err,
	        &indexing->shards, &indexing->n_shards);
}

static int find_on_host(struct indexing *indexing, char **names, int n, struct base_err *err)
{
	for (int s = 0; s < n; s++)
		if (remote_is_url(names[s]))
			return base_err_set(err, -EINVAL,
			        "'%s' is in a store, so DATASET must be there too; --output=FILE writes the index on "
			        "this host",
			        remote_quoted(names[s]));
	int rc = check_unfinished(names, (uint32_t)n, err);
	return rc == 0 ? prepare(indexing, names, n, err) : rc;
}

static int run_index(struct indexing *indexing, char **names, int n, struct base_err *err)
{
	uint64_t files = 0;
	int rc = indexing->store ? find_in_store(indexing, names, n, err) : find_on_host(indexing, names, n, err);
	for (uint32_t s = 0; s < indexing->n_shards && rc == 0 && indexing->args->by_shard; s++)
		rc = name_prefix(&indexing->shards[s], err);
	if (rc == 0)
		rc = read_shards(indexing, err);
	if (rc == 0)
		rc = settle_rules(indexing, err);
	if (rc == 0 && indexing->args->keep_going)
		rc = find_clashes(indexing, err);
	if (rc == 0 && (!indexing->store || indexing->there || indexing->args->output))
		warn_of_changes(indexing);
	if (rc == 0)
		rc = build(indexing, &files, err);
	uint64_t left_out = rc == 0 || rc == -ENOENT ? list_left_out(indexing) : 0;
	if (rc == 0)
		report(indexing, files, left_out);
	if (rc == 0 && indexing->args->output)
		print_mount(indexing->args);
	return rc ? rc : left_out ? 1 : 0;
}

int mkshard_index(int argc, char **argv)
{
	static const struct cli_line line = { "DATASET [SHARD.tar...]",
		"Index tar shards where they lie, without copying them.\vDATASET is the directory for the index; it is "
		"made when it does not exist.  Without shards: builds the index of a packed dataset, or of the tar "
		"files in DATASET, anew.  DATASET may be in a store: s3://BUCKET/PREFIX, or https:// and http:// with "
		"--output and the URLs of the shards.  If DATASET can only be read, give --output.",
		.options = { { "sample", "WHAT",
		                     "A sample is a 'file', or with 'key' all neighbouring files whose names are "
		                     "equal up to the first dot (WebDataset); auto (default) takes 'key' where the "
		                     "shards look like it",
		                     .group = 1, CLI_CALL(struct index_args, given, mkshard_take_sample) },
		        { "group", "REGEX",
		                "Files of a shard for which the first parentheses of this POSIX extended regular "
		                "expression match the same text form one sample",
		                .group = 1, CLI_CALL(struct index_args, given, mkshard_take_group) },
		        { "common", "GLOB", "Files shown on every rank, never dealt (may be repeated; default: none)",
		                .group = 1, CLI_CALL(struct index_args, given, mkshard_take_common) },
		        { "by-shard", NULL, "Put each shard's files below a directory named after the shard",
		                .group = 1, CLI_FLAG(struct index_args, by_shard) },
		        { "keep-going", NULL,
		                "Leave out members that a dataset cannot hold and what is damaged, list it, and exit "
		                "with 1",
		                .group = 2, CLI_FLAG(struct index_args, keep_going) },
		        { "force", NULL, "Replace an index that exists", .group = 2,
		                CLI_FLAG(struct index_args, force) },
		        { "jobs", "N", "Shards read at once (default: processors)", 'j', 3,
		                CLI_NUMBER(struct index_args, jobs, 1, MKSHARD_JOBS_MAX) },
		        { "output", "FILE", "Write the index to FILE, and nothing to DATASET: mount with index=FILE",
		                'o', 3, CLI_TEXT(struct index_args, output) },
		        MKSHARD_TIMEOUT_OPTION(struct index_args) },
		.words = { { "DATASET", .at = offsetof(struct index_args, dataset) } }, .more = true,
		.rest = offsetof(struct index_args, shards) };
	struct index_args args = { .given = { .automatic = true, .knows_auto = true }, .timeout_s = MKSHARD_TIMEOUT_S };
	struct shard_pack_rules *rules = &args.given.rules;
	struct base_err err = { 0 };
	bool made = false;
	shard_pack_rules_init(rules);
	cli_parse(&line, argc, argv, &args);
	struct indexing indexing = { .args = &args };
	pthread_mutex_init(&indexing.lock, NULL);
	char **names = args.shards.words;
	int n = args.shards.n;
	bool remote = remote_is_url(args.dataset);
	int rc = remote ? open_store(&indexing, &err) : check_target(&args, &made, &err);
	if (rc == 0 && remote)
		args.dataset = remote_store_name(indexing.store);
	if (rc == 0 && !remote && n == 0)
		rc = find_shards(args.dataset, &names, &n, &err);
	if (rc == -ENOENT && !remote && access(args.dataset, F_OK) < 0)
		remote_check_kind(args.dataset, &err);
	if (rc == 0)
		rc = run_index(&indexing, names, n, &err);
	if (rc < 0 && made)
		rmdir(args.dataset);
	for (uint32_t s = 0; indexing.shards && s < indexing.n_shards; s++)
		found_shard_done(&indexing.shards[s]);
	free(indexing.shards);
	if (indexing.packed && !rules_given(&args)) /* otherwise indexing.rules is a copy of args.given.rules */
		shard_pack_rules_done(&indexing.rules);
	shard_pack_rules_done(rules);
	for (int i = 0; names != args.shards.words && i < n; i++)
		free(names[i]);
	if (names != args.shards.words)
		free(names);
	pthread_mutex_destroy(&indexing.lock);
	remote_store_close(indexing.store);
	if (rc < 0)
		return cli_fail(&err);
	return rc ? CLI_FAILED : CLI_DONE;
}
