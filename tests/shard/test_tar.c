/* SPDX-License-Identifier: Apache-2.0 */
/* The tar container: what is written is read by the world's tars and by us; what they write is read by us. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "shard/bare.h"
#include "shard/tar.h"
#include "tests/shard/tree.h"

/* ------------------------------------------------------------------------------------------------ helpers */

struct bytes {
	uint8_t *p;
	size_t len, size;
};

static void append(struct bytes *b, const void *data, size_t len)
{
	if (b->len + len + 1 > b->size) {
		b->size = (b->len + len + 1) * 2;
		b->p = realloc(b->p, b->size);
	}
	if (data)
		memcpy(b->p + b->len, data, len);
	else
		memset(b->p + b->len, 0, len);
	b->len += len;
}

struct member {
	char *path;
	uint64_t length, content;
	int64_t mtime_s;
	uint32_t mode;
	bool directory;
};

static void append_member(struct bytes *b, struct member *m, bool with_content)
{
	struct shard_tar_meta meta = { m->path, m->length, m->mtime_s, m->mode, m->directory };
	size_t n = shard_tar_header_size(&meta);
	assert_true(n <= SHARD_TAR_HEADER_MAX && n % 512 == 0);
	uint8_t *header = malloc(n);
	shard_tar_header(&meta, header);
	append(b, header, n);
	free(header);
	m->content = b->len;
	if (!with_content)
		return;
	append(b, NULL, m->length);
	for (uint64_t i = 0; i < m->length; i++)
		b->p[m->content + i] = (uint8_t)(i * 31 + m->length);
	append(b, NULL, shard_tar_padding(m->length));
}

/* Lengths around every boundary of ustar's fields; slashes everywhere; bytes that are no UTF-8. */
static struct member *make_members(uint32_t *ret_n)
{
	struct member *m = calloc(400, sizeof *m);
	uint32_t n = 0;
	uint64_t rng = 7;
	static const int64_t times[] = { 0, 1, -1, -77, 1700000000, (INT64_C(1) << 33) - 1, INT64_C(1) << 33,
		INT64_C(1) << 36 };
	for (uint32_t i = 0; i < 300; i++) {
		size_t len = i < 270 ? 1 + i : 300 + tree_rand(&rng) % 3700;
		char *path = malloc(len + 8);
		sprintf(path, "%03x", i);
		size_t slash = 0;
		for (size_t at = 3; at < len; at++) {
			bool cut =
			        (tree_rand(&rng) % 40 == 0 || at - slash > 200) && path[at - 1] != '/' && at + 1 < len;
			path[at] = cut ? '/' : "xyz=.-"[tree_rand(&rng) % 6];
			slash = cut ? at : slash;
		}
		path[len < 3 ? 3 : len] = '\0';
		/* no "." and "..", which extractors treat on their own */
		for (char *s = path; (s = strstr(s, "/.")); s++)
			s[1] = 'd';
		if (i % 7 == 3)
			memcpy(path, "\xc3\xa9", 2);
		if (i % 11 == 5)
			path[0] = (char)0xff;
		sprintf(path + strlen(path), "%03x", i); /* unique, and no slash at the end */
		m[n] = (struct member){ .path = path,
			.length = i % 5 ? tree_rand(&rng) % 1500 : 512 * (i % 3),
			.mtime_s = times[tree_rand(&rng) % 8],
			.mode = 0600 | (tree_rand(&rng) & 0177),
			.directory = i % 13 == 12 };
		if (m[n].directory)
			m[n].length = 0;
		n++;
	}
	*ret_n = n;
	return m;
}

static void free_members(struct member *m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free(m[i].path);
	free(m);
}

/* Parses bytes as a caller would that reads at most `piece` at a time.  Calls `found` for each member. */
static int parse_all(const uint8_t *bytes, size_t len, size_t piece, struct base_err *err,
        void (*found)(void *arg, const struct shard_tar_member *m), void *arg)
{
	struct shard_tar_parser *parser;
	assert_int_equal(shard_tar_parser_new(&parser), 0);
	uint64_t offset = 0;
	size_t want = piece;
	int r;
	for (;;) {
		struct shard_tar_member m;
		size_t n = offset >= len ? 0 : len - offset < want ? len - offset : want, need = 0;
		/* an exact copy: reading past it is seen by the sanitizers */
		uint8_t *window = malloc(n ? n : 1);
		if (n)
			memcpy(window, bytes + offset, n);
		bool eof = offset + n >= len;
		r = shard_tar_parse(parser, window, n, offset, eof, err, &m, &offset, &need);
		if (r == 1 && m.content_offset + m.length > len)
			r = -EUCLEAN; /* the caller's part of the contract */
		if (r == 1)
			found(arg, &m);
		free(window);
		if (r <= 0)
			break;
		if (r == 2) {
			if (eof) {
				r = -EPROTO; /* asks for bytes that it was told do not exist */
				break;
			}
			assert_true(need > 0);
			want = need > piece ? need : piece;
		} else {
			want = piece;
			if (offset >= len)
				break;
		}
	}
	shard_tar_parser_free(parser);
	return r < 0 ? r : 0;
}

struct expect {
	struct member *members;
	uint32_t n, at;
};

static void expect_member(void *arg, const struct shard_tar_member *m)
{
	struct expect *e = arg;
	assert_true(e->at < e->n);
	const struct member *want = &e->members[e->at++];
	size_t len = strlen(m->path);
	assert_int_equal(m->type, want->directory ? SHARD_TAR_DIR : SHARD_TAR_FILE);
	if (want->directory && len && m->path[len - 1] == '/')
		len--;
	assert_int_equal(len, strlen(want->path));
	assert_memory_equal(m->path, want->path, len);
	assert_int_equal(m->length, want->length);
	assert_int_equal(m->mtime_s, want->mtime_s);
	assert_int_equal(m->mode, want->mode);
	if (want->content)
		assert_int_equal(m->content_offset, want->content);
}

static void write_file(const char *path, const struct bytes *b)
{
	FILE *f = fopen(path, "w");
	assert_int_equal(fwrite(b->p, 1, b->len, f), b->len);
	assert_int_equal(fclose(f), 0);
}

__attribute__((format(printf, 1, 2))) static bool run(const char *fmt, ...)
{
	char command[20000];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(command, sizeof command, fmt, ap);
	va_end(ap);
	int status = system(command);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool have(const char *program)
{
	return run("command -v %s >/dev/null 2>&1", program);
}

/* ------------------------------------------------------------------------------------------------ our own */

static void what_is_written_is_read_back(void **state)
{
	(void)state;
	struct bytes b = { 0 };
	struct expect e = { 0 };
	struct base_err err = { 0 };
	e.members = make_members(&e.n);
	for (uint32_t i = 0; i < e.n; i++)
		append_member(&b, &e.members[i], true);
	append(&b, NULL, 1024);
	static const size_t pieces[] = { 512, 1024, 1536, 5000, 1 << 20 };
	for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
		e.at = 0;
		if (parse_all(b.p, b.len, pieces[i], &err, expect_member, &e) < 0)
			fail_msg("%s", err.text);
		assert_int_equal(e.at, e.n);
	}
	free_members(e.members, e.n);
	free(b.p);
}

static void ustar_is_used_whenever_it_fits(void **state)
{
	(void)state;
	char path[400];
	struct shard_tar_meta meta = { .path = path };
	for (size_t len = 1; len <= 300; len++) {
		memset(path, 'n', len);
		path[len] = '\0';
		assert_int_equal(shard_tar_header_size(&meta) == 512, len <= 100);
		for (size_t slash = 1; slash + 1 < len; slash++) {
			path[slash] = '/';
			bool fits = len <= 100 || (slash <= 155 && len - slash - 1 <= 100);
			assert_int_equal(shard_tar_header_size(&meta) == 512, fits);
			path[slash] = 'n';
		}
	}
	strcpy(path, "f");
	meta.length = (UINT64_C(8) << 30) - 1;
	assert_int_equal(shard_tar_header_size(&meta), 512);
	meta.length++;
	assert_int_equal(shard_tar_header_size(&meta), 1536);
	/* the longest header there is fits its bound */
	char *longest = malloc(SHARD_PATH_MAX + 1);
	memset(longest, 0xff, SHARD_PATH_MAX);
	longest[SHARD_PATH_MAX] = '\0';
	struct shard_tar_meta big = { longest, SHARD_FILE_BYTES_MAX, INT64_MIN, 07777, true };
	assert_true(shard_tar_header_size(&big) <= SHARD_TAR_HEADER_MAX);
	free(longest);
}

static void sizes_of_8_gib_and_more_are_kept(void **state)
{
	(void)state;
	struct member big[] = { { .path = (char *)(uintptr_t) "small", .length = 5, .mode = 0644 },
		{ .path = (char *)(uintptr_t) "edge", .length = (UINT64_C(8) << 30) - 1, .mode = 0644 },
		{ .path = (char *)(uintptr_t) "big", .length = UINT64_C(8) << 30, .mode = 0644 },
		{ .path = (char *)(uintptr_t) "huge", .length = SHARD_FILE_BYTES_MAX, .mode = 0644 } };
	for (unsigned i = 0; i < 4; i++) {
		struct bytes b = { 0 };
		struct shard_tar_parser *p;
		struct shard_tar_member m;
		uint64_t next;
		size_t need;
		append_member(&b, &big[i], false);
		assert_int_equal(shard_tar_parser_new(&p), 0);
		assert_int_equal(shard_tar_parse(p, b.p, b.len, 0, false, NULL, &m, &next, &need), 1);
		assert_int_equal(m.length, big[i].length);
		assert_int_equal(next, b.len + big[i].length + shard_tar_padding(big[i].length));
		shard_tar_parser_free(p);

		/* and libarchive agrees */
		struct archive *a = archive_read_new();
		struct archive_entry *entry;
		archive_read_support_format_tar(a);
		append(&b, NULL, 1024);
		assert_int_equal(archive_read_open_memory(a, b.p, b.len), ARCHIVE_OK);
		assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_OK);
		assert_int_equal(archive_entry_size(entry), big[i].length);
		archive_read_free(a);
		free(b.p);
	}
}

/* ------------------------------------------------------------------------------------------------ the world's
 * readers */

static void libarchive_reads_what_is_written(void **state)
{
	(void)state;
	struct bytes b = { 0 };
	uint32_t n;
	struct member *m = make_members(&n);
	for (uint32_t i = 0; i < n; i++)
		append_member(&b, &m[i], true);
	append(&b, NULL, 1024);

	struct archive *a = archive_read_new();
	archive_read_support_format_tar(a);
	assert_int_equal(archive_read_open_memory(a, b.p, b.len), ARCHIVE_OK);
	for (uint32_t i = 0; i < n; i++) {
		struct archive_entry *entry;
		int r = archive_read_next_header(a, &entry);
		/* ARCHIVE_WARN: a name that the locale cannot show; raw bytes are still there */
		assert_true(r == ARCHIVE_OK || r == ARCHIVE_WARN);
		const char *path = archive_entry_pathname(entry);
		if (path) {
			size_t len = strlen(path) - (m[i].directory && path[strlen(path) - 1] == '/');
			assert_int_equal(len, strlen(m[i].path));
			assert_memory_equal(path, m[i].path, len);
		}
		assert_int_equal(archive_entry_size(entry), m[i].length);
		assert_int_equal(archive_entry_mtime(entry), m[i].mtime_s);
		assert_int_equal(archive_entry_perm(entry), m[i].mode);
		uint8_t *content = malloc(m[i].length + 1);
		assert_int_equal(archive_read_data(a, content, m[i].length + 1), m[i].length);
		if (m[i].length)
			assert_memory_equal(content, b.p + m[i].content, m[i].length);
		free(content);
	}
	struct archive_entry *entry;
	assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_EOF);
	archive_read_free(a);
	free_members(m, n);
	free(b.p);
}

static void gnu_tar_extracts_what_is_written(void **state)
{
	(void)state;
	if (!have("tar"))
		skip();
	char *dir = tree_scratch(), path[9000];
	struct bytes b = { 0 };
	uint32_t n;
	struct member *m = make_members(&n);
	for (uint32_t i = 0; i < n; i++)
		append_member(&b, &m[i], true);
	append(&b, NULL, 1024);
	snprintf(path, sizeof path, "%s/a.tar", dir);
	write_file(path, &b);
	assert_true(run("cd %s && mkdir out && tar -xf a.tar -C out 2>err", dir));
	for (uint32_t i = 0; i < n; i++) {
		struct stat st;
		snprintf(path, sizeof path, "%s/out/%s", dir, m[i].path);
		assert_int_equal(lstat(path, &st), 0);
		assert_int_equal(S_ISDIR(st.st_mode), m[i].directory);
		if (m[i].directory)
			continue;
		assert_int_equal(st.st_size, m[i].length);
		/* ext4 keeps times up to the year 2446, other file systems not even that */
		if (m[i].mtime_s >= 0 && m[i].mtime_s < INT32_MAX)
			assert_int_equal(st.st_mtime, m[i].mtime_s);
		size_t len;
		uint8_t *content = tree_read(path, &len);
		assert_memory_equal(content, b.p + m[i].content, len);
		free(content);
	}
	assert_true(run("rm -rf %s/out", dir));
	tree_scratch_done(dir);
	free_members(m, n);
	free(b.p);
}

static void python_reads_what_is_written(void **state)
{
	(void)state;
	if (!have("python3"))
		skip();
	char *dir = tree_scratch(), path[4200];
	struct bytes b = { 0 };
	uint32_t n;
	struct member *m = make_members(&n);
	for (uint32_t i = 0; i < n; i++)
		append_member(&b, &m[i], true);
	append(&b, NULL, 1024);
	snprintf(path, sizeof path, "%s/a.tar", dir);
	write_file(path, &b);
	snprintf(path, sizeof path, "%s/list", dir);
	FILE *f = fopen(path, "w");
	for (uint32_t i = 0; i < n; i++)
		fprintf(f, "%s\n%llu %lld %u %d\n", m[i].path, (unsigned long long)m[i].length, (long long)m[i].mtime_s,
		        m[i].mode, m[i].directory);
	fclose(f);
	assert_true(
	        run("cd %s && PYTHONUTF8=1 python3 -c '\n"
	            "import tarfile\n"
	            "lines = open(\"list\", \"rb\").read().split(b\"\\n\")\n"
	            "t = tarfile.open(\"a.tar\")\n"
	            "members = list(t)\n"
	            "assert len(members) == len(lines) // 2, len(members)\n"
	            "for i, m in enumerate(members):\n"
	            "    size, mtime, mode, isdir = map(int, lines[2 * i + 1].split())\n"
	            "    assert m.name.encode(\"utf-8\", \"surrogateescape\") == lines[2 * i], (m.name, lines[2 * i])\n"
	            "    assert (m.size, m.mtime, m.mode, m.isdir()) == (size, mtime, mode, bool(isdir)), m.name\n"
	            "    if m.isfile(): assert t.extractfile(m).read() == bytes((k * 31 + size) %% 256 for k in "
	            "range(size))\n"
	            "'",
	                dir));
	tree_scratch_done(dir);
	free_members(m, n);
	free(b.p);
}

/* ------------------------------------------------------------------------------------------------ the world's
 * writers */

struct seen {
	const char *dir; /* with the extracted originals */
	const uint8_t *archive;
	uint32_t files, dirs, links;
};

/* A member that another program wrote: its bytes must be those of the original file. */
static void compare_with_original(void *arg, const struct shard_tar_member *m)
{
	struct seen *s = arg;
	char path[9000];
	struct stat st;
	s->files += m->type == SHARD_TAR_FILE;
	s->dirs += m->type == SHARD_TAR_DIR;
	s->links += m->type == SHARD_TAR_LINK || m->type == SHARD_TAR_SYMLINK;
	snprintf(path, sizeof path, "%s/%s", s->dir, m->path);
	assert_int_equal(lstat(path, &st), 0);
	if (m->type == SHARD_TAR_SYMLINK) {
		char target[SHARD_PATH_MAX + 1] = { 0 };
		assert_true(readlink(path, target, SHARD_PATH_MAX) > 0);
		assert_string_equal(target, m->link);
		return;
	}
	assert_int_equal(m->mtime_s, st.st_mtime);
	assert_int_equal(m->mode, st.st_mode & 07777);
	if (m->type != SHARD_TAR_FILE)
		return;
	assert_int_equal(m->length, st.st_size);
	size_t len;
	uint8_t *content = tree_read(path, &len);
	assert_memory_equal(content, s->archive + m->content_offset, len);
	free(content);
}

/* A directory with what archives differ in: long names, long link targets, hard links, negative and late times. */
static void make_originals(const char *dir)
{
	assert_true(run("cd %s && D=$(printf 'd%%.0s' $(seq 150)) && E=$D/$(printf 'e%%.0s' $(seq 120)) && "
	                "mkdir -p src/$E && cd src && echo short > a && printf '%%0600d' 0 > b && : > empty && "
	                "echo long > $E/$(printf 'f%%.0s' $(seq 200)) && echo mid > $D/$(printf 'g%%.0s' $(seq 99)) && "
	                "echo name > $(printf 'n%%.0s' $(seq 100)) && echo name > $(printf 'm%%.0s' $(seq 101)) && "
	                "ln a hard && ln -s a soft && ln -s $(printf '../%%.0s' $(seq 60))x longlink && "
	                "touch -d '1969-12-31 20:00:00 UTC' b && touch -d '2300-01-01 UTC' empty && chmod 0701 b && "
	                "echo x > \"$(printf 'caf\\303\\251')\"",
	        dir));
}

static void archives_of_other_programs_are_read(void **state)
{
	(void)state;
	static const struct {
		const char *program, *command;
		bool deep; /* the format holds all names */
	} writers[] = {
		{ "tar", "tar --format=gnu -cf a.tar -C src .", true },
		{ "tar", "tar --format=posix -cf a.tar -C src .", true },
		{ "tar", "tar --format=posix --pax-option=globexthdr.name=g,comment=x,atime:=1 -cf a.tar -C src .",
		        true },
		{ "tar", "tar --format=ustar -cf a.tar -C src ./a ./hard ./soft", false },
		{ "tar", "tar --format=v7 -cf a.tar -C src ./a ./hard ./soft", false },
		{ "tar", "tar --format=oldgnu -b1 -cf a.tar -C src .", true },
		{ "python3",
		        "python3 -c 'import tarfile\nwith tarfile.open(\"a.tar\",\"w\",format=tarfile.GNU_FORMAT) as "
		        "t: t.add(\"src\",\".\")'",
		        true },
		{ "python3",
		        "python3 -c 'import tarfile\nwith tarfile.open(\"a.tar\",\"w\",format=tarfile.PAX_FORMAT) as "
		        "t: t.add(\"src\",\".\")'",
		        true },
		{ "python3",
		        "python3 -c 'import tarfile\nwith "
		        "tarfile.open(\"a.tar\",\"w\",format=tarfile.PAX_FORMAT,pax_headers={\"comment\":\"g\"}) as t: "
		        "t.add(\"src\",\".\")'",
		        true },
	};
	char *dir = tree_scratch(), path[4200], src[4200];
	unsigned ran = 0;
	make_originals(dir);
	snprintf(src, sizeof src, "%s/src", dir);
	for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++) {
		if (!have(writers[i].program)) {
			print_message("skipped: no %s\n", writers[i].program);
			continue;
		}
		if (!run("cd %s && rm -f a.tar && PYTHONUTF8=1 LC_ALL=C.UTF-8 %s 2>err", dir, writers[i].command))
			fail_msg("%s", writers[i].command);
		size_t len;
		struct base_err err = { 0 };
		snprintf(path, sizeof path, "%s/a.tar", dir);
		struct seen s = { .dir = src, .archive = tree_read(path, &len) };
		for (size_t piece = 512; piece < 100000; piece *= 3)
			if (parse_all(s.archive, len, piece & ~(size_t)511, &err, compare_with_original, &s) < 0)
				fail_msg("%s: %s", writers[i].command, err.text);
		assert_true(s.files > 0 && s.links > 0);
		if (writers[i].deep) {
			assert_int_equal(s.files % 5, 0);
			assert_int_equal(s.files / 5 + s.links / 5 + s.dirs / 5, 14);
		}
		free((void *)(uintptr_t)s.archive);
		ran++;
	}
	print_message("%u archives of other programs\n", ran);
	assert_true(ran >= 5);
	assert_true(run("rm -rf %s", dir));
	free(dir);
}

static void archives_of_libarchive_are_read(void **state)
{
	(void)state;
	static const struct {
		const char *format;
		bool anything; /* holds every name, time and size */
	} formats[] = { { "pax", true }, { "paxr", true }, { "gnutar", false }, { "ustar", false },
		{ "v7tar", false } };
	struct expect e = { 0 };
	struct member *all = make_members(&e.n), *some = calloc(e.n, sizeof *some);
	uint32_t n_all = e.n;
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		size_t size = 8 << 20, used = 0;
		uint8_t *bytes = malloc(size);
		struct base_err err = { 0 };
		struct archive *a = archive_write_new();
		assert_int_equal(archive_write_set_format_by_name(a, formats[i].format), ARCHIVE_OK);
		archive_write_add_filter_none(a);
		assert_int_equal(archive_write_open_memory(a, bytes, size, &used), ARCHIVE_OK);
		e.members = some;
		e.n = e.at = 0;
		for (uint32_t k = 0; k < n_all; k++) {
			struct archive_entry *entry = archive_entry_new();
			/* pax wants names in Unicode; the old formats want them short and their times in eleven
			 * digits */
			bool plain = strlen(all[k].path) < 99 && all[k].mtime_s >= 0 && all[k].mtime_s < INT32_MAX;
			if ((uint8_t)all[k].path[0] >= 0x80 || (!formats[i].anything && !plain)) {
				archive_entry_free(entry);
				continue;
			}
			archive_entry_set_pathname(entry, all[k].path);
			archive_entry_set_size(entry, (int64_t)all[k].length);
			archive_entry_set_mtime(entry, all[k].mtime_s, 0);
			archive_entry_set_perm(entry, (mode_t)all[k].mode);
			archive_entry_set_filetype(entry, all[k].directory ? AE_IFDIR : AE_IFREG);
			assert_int_equal(archive_write_header(a, entry), ARCHIVE_OK);
			for (uint64_t b = 0; b < all[k].length; b++)
				archive_write_data(a, "z", 1);
			archive_entry_free(entry);
			some[e.n] = all[k];
			some[e.n++].content = 0;
		}
		assert_int_equal(archive_write_close(a), ARCHIVE_OK);
		archive_write_free(a);
		assert_true(e.n > 20);
		if (parse_all(bytes, used, 512, &err, expect_member, &e) < 0)
			fail_msg("%s: %s", formats[i].format, err.text);
		assert_int_equal(e.at, e.n);
		free(bytes);
	}
	free(some);
	free_members(all, n_all);
}

static void sparse_archives_are_refused_with_a_reason(void **state)
{
	(void)state;
	if (!have("tar"))
		skip();
	static const char *const formats[] = { "--format=gnu", "--format=posix --sparse-version=1.0",
		"--format=posix --sparse-version=0.0", "--format=posix --sparse-version=0.1" };
	char *dir = tree_scratch(), path[4200];
	assert_true(run("cd %s && truncate -s 1M holes && echo x >> holes && echo y > before", dir));
	snprintf(path, sizeof path, "%s/a.tar", dir);
	for (unsigned i = 0; i < 4; i++) {
		if (!run("cd %s && tar -S %s -cf a.tar before holes", dir, formats[i]))
			fail_msg("tar -S %s", formats[i]);
		size_t len;
		struct base_err err = { 0 };
		uint8_t *bytes = tree_read(path, &len);
		struct seen s = { .dir = dir, .archive = bytes };
		assert_int_equal(parse_all(bytes, len, 10240, &err, compare_with_original, &s), -EOPNOTSUPP);
		assert_int_equal(s.files, 1);
		assert_non_null(strstr(err.text, "sparse file at byte "));
		free(bytes);
	}
	tree_scratch_done(dir);
}

/* ------------------------------------------------------------------------------------------------ hand-made */

static void put_sum(uint8_t *block, bool is_signed)
{
	int sum = 0;
	char digits[16];
	memset(block + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		sum += is_signed ? (int8_t)block[i] : block[i];
	snprintf(digits, sizeof digits, "%06o", (unsigned)sum);
	memcpy(block + 148, digits, 7);
}

static void make_block(uint8_t *block, const char *name, const char *size, char type)
{
	memset(block, 0, 512);
	memcpy(block, name, strlen(name));
	memcpy(block + 100, "0000644", 7);
	memcpy(block + 124, size, strnlen(size, 12));
	memcpy(block + 136, "00000000000", 11);
	block[156] = (uint8_t)type;
	memcpy(block + 257,
	        "ustar\0"
	        "00",
	        8);
	put_sum(block, false);
}

static int parse_block(const uint8_t *bytes, size_t len, bool eof, struct base_err *err, struct shard_tar_member *m)
{
	struct shard_tar_parser *p;
	uint64_t next;
	size_t need;
	static char path[SHARD_PATH_MAX + 1];
	assert_int_equal(shard_tar_parser_new(&p), 0);
	int r = shard_tar_parse(p, bytes, len, 0, eof, err, m, &next, &need);
	if (r == 1) {
		strcpy(path, m->path);
		m->path = path;
		m->link = NULL;
	}
	shard_tar_parser_free(p);
	return r;
}

static void both_checksum_conventions_count(void **state)
{
	(void)state;
	uint8_t block[512];
	struct shard_tar_member m;
	struct base_err err = { 0 };
	make_block(block, "\xe9\xe9\xe9", "00000000000", '0');
	assert_int_equal(parse_block(block, 512, false, &err, &m), 1);
	put_sum(block, true);
	assert_int_equal(parse_block(block, 512, false, &err, &m), 1);
	block[0] ^= 1;
	assert_int_equal(parse_block(block, 512, false, &err, &m), -EBADMSG);
	assert_non_null(strstr(err.text, "checksum mismatch at byte 0"));
}

static void numbers_come_in_octal_and_base_256(void **state)
{
	(void)state;
	static const struct {
		char field[12];
		int rc;
		uint64_t length;
	} cases[] = {
		{ "00000000017", 1, 15 },
		{ "         17 ", 1, 15 },
		{ "17", 1, 15 },
		{ "", 1, 0 },
		{ "            ", 1, 0 },
		{ { '7', '7', '7', '7', '7', '7', '7', '7', '7', '7', '7', '7' }, 1, 0xfffffffff },
		{ "8", -EUCLEAN, 0 },
		{ "1x", -EUCLEAN, 0 },
		{ "-1", -EUCLEAN, 0 },
		{ "1 1", -EUCLEAN, 0 },
		{ { (char)0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1 }, 1, (UINT64_C(2) << 32) + 1 },
		{ { (char)0x80, 0, 0, 0, 0, 0, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff },
		        1, SHARD_FILE_BYTES_MAX },
		{ { (char)0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0 }, -EUCLEAN, 0 },
		{ { (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff,
		          (char)0xff, (char)0xff, (char)0xff, (char)0xff },
		        -EUCLEAN, 0 },
		{ { (char)0x80, 1 }, -EUCLEAN, 0 },
		{ { (char)0xbf, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff, (char)0xff,
		          (char)0xff, (char)0xff, (char)0xff, (char)0xff },
		        -EUCLEAN, 0 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		uint8_t block[512];
		struct shard_tar_member m;
		make_block(block, "f", "", '0');
		memcpy(block + 124, cases[i].field, 12);
		put_sum(block, false);
		if (parse_block(block, 512, false, NULL, &m) != cases[i].rc)
			fail_msg("case %zu", i);
		if (cases[i].rc == 1)
			assert_int_equal(m.length, cases[i].length);
	}
}

static void damaged_pax_headers_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int rc;
	} cases[] = {
		{ "9 path=a\n", 1 },
		{ "9 path=a\n11 size=12\n", 1 },
		{ "14 mtime=-1.5\n", 1 },
		{ "8 path=\n", 1 }, /* takes it back */
		{ "8 path=a\n", -EUCLEAN },
		{ "10 path=a\n", 1 },
		{ "11 path=a\n", -EUCLEAN },
		{ "99999999999999999999999999999 path=a\n", -EUCLEAN },
		{ "path=a\n", -EUCLEAN },
		{ " 9 path=a\n", -EUCLEAN },
		{ "9 path a\n", -EUCLEAN },
		{ "6 =xx\n", -EUCLEAN },
		{ "0 a=b\n", -EUCLEAN },
		{ "3 \n", -EUCLEAN },
		{ "10 size=x\n", -EUCLEAN },
		{ "11 size=-1\n", -EUCLEAN },
		{ "30 size=18446744073709551616\n", -EUCLEAN },
		{ "25 size=281474976710656\n", -EUCLEAN },
		{ "11 mtime=x\n", -EUCLEAN },
		{ "11 mtime=-\n", -EUCLEAN },
		{ "22 GNU.sparse.major=1\n", -EOPNOTSUPP },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		uint8_t bytes[1536] = { 0 };
		char size[12];
		struct shard_tar_member m;
		snprintf(size, sizeof size, "%011o", (unsigned)strlen(cases[i].text));
		make_block(bytes, "x", size, 'x');
		memcpy(bytes + 512, cases[i].text, strlen(cases[i].text));
		make_block(bytes + 1024, "plain", "00000000003", '0');
		if (parse_block(bytes, 1536, false, NULL, &m) != cases[i].rc)
			fail_msg("'%s'", cases[i].text);
		if (i == 1) {
			assert_string_equal(m.path, "a");
			assert_int_equal(m.length, 12);
		}
		if (i == 2)
			assert_int_equal(m.mtime_s, -2);
		if (i == 3)
			assert_string_equal(m.path, "plain");
	}
}

static void odd_archives_are_refused_with_a_reason(void **state)
{
	(void)state;
	uint8_t bytes[2048] = { 0 };
	struct shard_tar_member m;
	struct base_err err = { 0 };

	assert_int_equal(parse_block(bytes, 0, true, &err, &m), 0); /* an empty file is an empty archive */
	assert_int_equal(parse_block(bytes, 1024, true, &err, &m), 0);
	assert_int_equal(parse_block(bytes, 512, true, &err, &m), 0);
	assert_int_equal(parse_block(bytes, 512, false, &err, &m), 2);
	assert_int_equal(parse_block(bytes, 100, true, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "truncated"));

	memcpy(bytes, "\x1f\x8b", 2);
	assert_int_equal(parse_block(bytes, 2048, false, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "gzip"));
	assert_int_equal(parse_block(bytes, 100, true, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "gzip"));
	memset(bytes, 0, 512);
	make_block(bytes + 512, "f", "0", '0');
	assert_int_equal(parse_block(bytes, 2048, false, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "lone zero block"));

	make_block(bytes, "link", "00000000005", '1');
	assert_int_equal(parse_block(bytes, 512, false, &err, &m), -EUCLEAN);
	make_block(bytes, "", "00000000005", '0');
	assert_int_equal(parse_block(bytes, 512, false, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "without a name"));
	make_block(bytes, "f", "00000004000", '0');
	assert_int_equal(parse_block(bytes, 2048, true, &err, &m), -EUCLEAN); /* 2048 bytes of content do not fit */
	assert_non_null(strstr(err.text, "ends at byte 2560"));
	make_block(bytes, "x", "77777777777", 'x');
	assert_int_equal(parse_block(bytes, 512, false, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "the limit is"));
	make_block(bytes, "M", "0", 'M');
	assert_int_equal(parse_block(bytes, 512, false, &err, &m), -EOPNOTSUPP);
	/* a pax header that belongs to nothing */
	memset(bytes, 0, sizeof bytes);
	make_block(bytes, "x", "00000000011", 'x');
	memcpy(bytes + 512, "9 path=a\n", 9);
	assert_int_equal(parse_block(bytes, 2048, true, &err, &m), -EUCLEAN);
	assert_non_null(strstr(err.text, "without its member at byte 0"));
}

static void count_member(void *arg, const struct shard_tar_member *m)
{
	(void)m;
	++*(unsigned *)arg;
}

static void truncation_anywhere_is_seen_or_harmless(void **state)
{
	(void)state;
	struct bytes b = { 0 };
	struct base_err err = { 0 };
	char *deep = malloc(601);
	memset(deep, 'p', 600);
	deep[600] = '\0';
	struct member m[] = { { .path = (char *)(uintptr_t) "one", .length = 700, .mode = 0644 },
		{ .path = deep, .length = 100, .mode = 0644 } };
	append_member(&b, &m[0], true);
	append_member(&b, &m[1], true);
	size_t content_end = m[1].content + 100;
	append(&b, NULL, 1024);
	for (size_t len = 0; len <= b.len; len++) {
		unsigned members = 0;
		int r = parse_all(b.p, len, 512, &err, count_member, &members);
		if (len >= content_end)
			assert_true(r == 0 ? members == 2 : len < m[1].content + 512 || len % 512 != 0);
		else if (r == 0) /* only where a member ends: no reader can know more */
			assert_true(len == 0 || (len > m[0].content + 700 - 1 && len <= m[0].content + 1024));
		assert_int_not_equal(r, -EPROTO);
	}
	free(deep);
	free(b.p);
}

/* ------------------------------------------------------------------------------------------------ bare */

static void a_bare_footer_keeps_everything(void **state)
{
	(void)state;
	const struct shard_bare_dataset dataset = { .n_shards = 7, .shuffled = true, .pack_seed = 99 };
	struct tree t;
	struct shard_bare_writer *w;
	tree_random(
	        &(struct tree_options){
	                .seed = 77, .n_files = 200, .exact = true, .groups = true, .commons = true, .big = true },
	        &t);
	for (unsigned misalign = 0; misalign < 8; misalign++) {
		uint64_t at = misalign;
		const uint8_t *bytes;
		size_t len;
		assert_int_equal(shard_bare_writer_new(&w), 0);
		struct shard_bare_entry dir = { .path = "a/empty", .mode = 0750, .mtime_s = -3, .directory = true };
		assert_int_equal(shard_bare_writer_add(w, &dir), 0);
		for (uint32_t i = 0; i < t.n_files; i++) {
			const struct tree_file *f = &t.files[i];
			struct shard_bare_entry e = { .path = f->path,
				.group = f->group,
				.block_sums = f->sums,
				.offset = at,
				.length = f->length,
				.xxh3 = f->xxh3,
				.mtime_s = f->mtime_s,
				.mode = f->mode,
				.common = f->common };
			assert_int_equal(shard_bare_writer_add(w, &e), 0);
			at += f->length;
		}
		assert_int_equal(shard_bare_writer_finish(w, at, &dataset, &bytes, &len), 0);

		uint64_t total = at + len, padding = -at & 7;
		struct shard_bare_info info;
		struct shard_bare_reader r;
		struct shard_bare_entry e;
		struct base_err err = { 0 };
		assert_int_equal(shard_bare_trailer(bytes + len - SHARD_BARE_TRAILER, total, &err, &info), 0);
		assert_int_equal(info.footer_offset, at + padding);
		assert_int_equal(info.n_entries, t.n_files + 1);
		assert_int_equal(info.dataset.n_shards, 7);
		assert_int_equal(info.dataset.pack_seed, 99);
		assert_true(info.dataset.shuffled);
		assert_int_equal(shard_bare_reader_init(&r, &info, bytes + padding, info.footer_bytes, &err), 0);
		assert_int_equal(shard_bare_reader_next(&r, &err, &e), 1);
		assert_string_equal(e.path, "a/empty");
		assert_true(e.directory && e.mode == 0750 && e.mtime_s == -3);
		uint64_t want_offset = misalign;
		for (uint32_t i = 0; i < t.n_files; i++) {
			const struct tree_file *f = &t.files[i];
			if (shard_bare_reader_next(&r, &err, &e) != 1)
				fail_msg("%s", err.text);
			assert_string_equal(e.path, f->path);
			assert_int_equal(e.group == NULL, f->group == NULL);
			if (f->group)
				assert_string_equal(e.group, f->group);
			assert_int_equal(e.offset, want_offset);
			assert_int_equal(e.length, f->length);
			assert_int_equal(e.xxh3, f->xxh3);
			assert_int_equal(e.mtime_s, f->mtime_s);
			assert_int_equal(e.mode, f->mode & 07777);
			assert_int_equal(e.common, f->common);
			if (f->length > SHARD_BLOCK)
				assert_memory_equal(e.block_sums, f->sums, shard_units(f->length, SHARD_BLOCK) * 8);
			else
				assert_null(e.block_sums);
			want_offset += f->length;
		}
		assert_int_equal(shard_bare_reader_next(&r, &err, &e), 0);
		assert_int_equal(shard_bare_writer_add(w, &dir), -EINVAL); /* spent */
		shard_bare_writer_free(w);
	}
	tree_done(&t);
}

static void a_damaged_bare_footer_is_refused(void **state)
{
	(void)state;
	const struct shard_bare_dataset none = { 0 };
	struct shard_bare_writer *w;
	const uint8_t *bytes;
	size_t len;
	assert_int_equal(shard_bare_writer_new(&w), 0);
	struct shard_bare_entry e = { .path = "a", .length = 8 };
	assert_int_equal(shard_bare_writer_add(w, &e), 0);
	e = (struct shard_bare_entry){ .path = "b", .offset = 4, .length = 8 };
	assert_int_equal(shard_bare_writer_add(w, &e), -EINVAL); /* overlaps */
	e = (struct shard_bare_entry){ .path = "b", .offset = 8, .length = 8, .group = "g" };
	assert_int_equal(shard_bare_writer_add(w, &e), 0);
	assert_int_equal(shard_bare_writer_finish(w, 15, &none, &bytes, &len), -EINVAL); /* too short for b */
	assert_int_equal(shard_bare_writer_finish(w, 16, &none, &bytes, &len), 0);

	uint64_t *copy = malloc(len); /* aligned, exact */
	struct shard_bare_info info;
	struct shard_bare_reader r;
	for (size_t bit = 0; bit < len * 8; bit++) {
		memcpy(copy, bytes, len);
		((uint8_t *)copy)[bit / 8] ^= (uint8_t)(1U << bit % 8);
		if (shard_bare_trailer((uint8_t *)copy + len - 64, 16 + len, NULL, &info) == 0)
			assert_int_equal(
			        shard_bare_reader_init(&r, &info, (uint8_t *)copy, info.footer_bytes, NULL), -EBADMSG);
	}
	memcpy(copy, bytes, len);
	for (uint64_t total = 0; total < 16 + len + 100; total++)
		if (total != 16 + len)
			assert_int_equal(shard_bare_trailer((uint8_t *)copy + len - 64, total, NULL, &info), -EUCLEAN);
	free(copy);
	shard_bare_writer_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_is_read_back),
		cmocka_unit_test(ustar_is_used_whenever_it_fits),
		cmocka_unit_test(sizes_of_8_gib_and_more_are_kept),
		cmocka_unit_test(libarchive_reads_what_is_written),
		cmocka_unit_test(gnu_tar_extracts_what_is_written),
		cmocka_unit_test(python_reads_what_is_written),
		cmocka_unit_test(archives_of_other_programs_are_read),
		cmocka_unit_test(archives_of_libarchive_are_read),
		cmocka_unit_test(sparse_archives_are_refused_with_a_reason),
		cmocka_unit_test(both_checksum_conventions_count),
		cmocka_unit_test(numbers_come_in_octal_and_base_256),
		cmocka_unit_test(damaged_pax_headers_are_refused),
		cmocka_unit_test(odd_archives_are_refused_with_a_reason),
		cmocka_unit_test(truncation_anywhere_is_seen_or_harmless),
		cmocka_unit_test(a_bare_footer_keeps_everything),
		cmocka_unit_test(a_damaged_bare_footer_is_refused),
	};
	return cmocka_run_group_tests_name("shard/tar", tests, NULL, NULL);
}
