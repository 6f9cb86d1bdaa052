/* SPDX-License-Identifier: Apache-2.0 */
/* Parses tar members from bytes; shard/tar.h first. */
#include "shard/tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shard/tar_private.h"

/* Attributes from pax or GNU records, which override the header's fields. */
struct attrs {
	char path[SHARD_PATH_MAX + 1];
	char link[SHARD_PATH_MAX + 1];
	bool has_path, has_link, has_size, has_mtime;
	uint64_t size;
	int64_t mtime_s;
};

struct shard_tar_parser {
	struct attrs global; /* of 'g' records: valid to the end of the archive */
	struct attrs local;  /* of the member whose header is next */
	bool pending;        /* `local` has records for the next member; they begin at pending_offset */
	uint64_t pending_offset;
	char path[SHARD_PATH_MAX + 1]; /* these two belong to the member that was returned */
	char link[SHARD_PATH_MAX + 1];
};

/* Offsets stay far from overflow, because a member ends at most 2^48 bytes after its header. */
#define OFFSET_MAX (UINT64_C(1) << 62)

bool tar_is_utf8(const char *s, size_t len)
{
	const unsigned char *p = (const unsigned char *)s, *end = p + len;
	while (p < end) {
		size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
		if (n == 0 || n > (size_t)(end - p))
			return false;
		for (size_t i = 1; i < n; i++)
			if ((p[i] & 0xc0) != 0x80)
				return false;
		if ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
		        (*p == 0xf4 && p[1] > 0x8f))
			return false;
		p += n;
	}
	return true;
}

int shard_tar_parser_new(struct shard_tar_parser **ret_parser)
{
	struct shard_tar_parser *parser = calloc(1, sizeof *parser);
	if (!parser)
		return -ENOMEM;
	*ret_parser = parser;
	return 0;
}

void shard_tar_parser_free(struct shard_tar_parser *parser)
{
	free(parser);
}

/* ------------------------------------------------------------------------------------------------ fields */

/* Parses octal digits between blanks, or GNU's base-256 (first bit set; two's complement, big-endian). */
static int parse_number(const char *field, size_t n, int64_t *ret_value)
{
	const unsigned char *p = (const unsigned char *)field;
	if (p[0] & 0x80) {
		bool negative = p[0] & 0x40;
		uint64_t value = negative ? UINT64_MAX << 6 | (p[0] & 0x3f) : p[0] & 0x3f;
		for (size_t i = 1; i < n; i++) {
			/* the top nine bits must be equal, else the shift loses some */
			uint64_t top = value >> 55;
			if (top != (negative ? 0x1ff : 0))
				return -ERANGE;
			value = value << 8 | p[i];
		}
		*ret_value = (int64_t)value;
		return 0;
	}

	size_t i = 0;
	while (i < n && p[i] == ' ')
		i++;
	uint64_t value = 0; /* at most 12 digits: 36 bits */
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++)
		value = value << 3 | (uint64_t)(p[i] - '0');
	for (; i < n; i++)
		if (p[i] != ' ' && p[i] != '\0')
			return -EINVAL;
	*ret_value = (int64_t)value;
	return 0;
}

static bool checksum_ok(const uint8_t *block)
{
	const struct tar_block *h = (const struct tar_block *)(const void *)block;
	int64_t want, unsigned_sum = 0, signed_sum = 0;
	if (parse_number(h->chksum, sizeof h->chksum, &want) < 0)
		return false;
	for (size_t i = 0; i < SHARD_TAR_BLOCK; i++) {
		bool blank = i >= offsetof(struct tar_block, chksum) && i < offsetof(struct tar_block, type);
		uint8_t byte = blank ? ' ' : block[i];
		unsigned_sum += byte;
		signed_sum += (int8_t)byte; /* the tar of Sun and NeXT adds signed bytes */
	}
	return want == unsigned_sum || want == signed_sum;
}

static bool block_is_zero(const uint8_t *block)
{
	static const uint8_t zero[SHARD_TAR_BLOCK];
	return memcmp(block, zero, sizeof zero) == 0;
}

static int number_error(struct base_err *err, const char *what, uint64_t offset)
{
	return base_err_set(
	        err, -EUCLEAN, "impossible %s in the header at byte %llu", what, (unsigned long long)offset);
}

static int parse_size_field(const struct tar_block *h, uint64_t offset, struct base_err *err, uint64_t *ret_size)
{
	int64_t size;
	if (parse_number(h->size, sizeof h->size, &size) < 0 || size < 0 || (uint64_t)size > SHARD_FILE_BYTES_MAX)
		return number_error(err, "size", offset);
	*ret_size = (uint64_t)size;
	return 0;
}

/* ------------------------------------------------------------------------------------------------ pax, GNU names */

static int set_string(char *to, bool *has, const char *value, size_t len, uint64_t offset, struct base_err *err)
{
	if (len > SHARD_PATH_MAX)
		return base_err_set(err, -ENAMETOOLONG, "a path of %zu bytes at byte %llu; the limit is %d", len,
		        (unsigned long long)offset, SHARD_PATH_MAX);
	if (memchr(value, '\0', len))
		return base_err_set(err, -EUCLEAN, "a path with a NUL byte at byte %llu", (unsigned long long)offset);
	memcpy(to, value, len);
	to[len] = '\0';
	*has = len > 0; /* an empty value removes the record */
	return 0;
}

/* Parses [-]digits[.digits]; rounds to the earlier second. */
static int parse_pax_time(const char *s, size_t len, int64_t *ret_s)
{
	size_t i = 0;
	bool negative = len > 0 && s[0] == '-', fraction = false;
	int64_t value = 0;
	i += negative;
	if (i == len)
		return -EINVAL;
	for (; i < len && s[i] >= '0' && s[i] <= '9'; i++)
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, s[i] - '0', &value))
			return -ERANGE;
	if (i < len && s[i] == '.')
		for (i++; i < len && s[i] >= '0' && s[i] <= '9'; i++)
			fraction = fraction || s[i] != '0';
	if (i != len)
		return -EINVAL;
	*ret_s = negative ? -value - fraction : value;
	return 0;
}

static int parse_pax_size(const char *s, size_t len, uint64_t *ret_size)
{
	uint64_t value = 0;
	if (len == 0)
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return -EINVAL;
		value = value * 10 + (uint64_t)(s[i] - '0');
		if (value > SHARD_FILE_BYTES_MAX)
			return -ERANGE;
	}
	*ret_size = value;
	return 0;
}

static bool key_is(const char *key, size_t len, const char *name)
{
	return len == strlen(name) && memcmp(key, name, len) == 0;
}

static int apply_record(struct attrs *attrs, const char *key, size_t key_len, const char *value, size_t len,
        uint64_t offset, struct base_err *err)
{
	if (key_is(key, key_len, "path"))
		return set_string(attrs->path, &attrs->has_path, value, len, offset, err);
	if (key_is(key, key_len, "linkpath"))
		return set_string(attrs->link, &attrs->has_link, value, len, offset, err);
	if (key_is(key, key_len, "size")) {
		attrs->has_size = len > 0;
		if (len > 0 && parse_pax_size(value, len, &attrs->size) < 0)
			return number_error(err, "pax size", offset);
	} else if (key_is(key, key_len, "mtime")) {
		attrs->has_mtime = len > 0;
		if (len > 0 && parse_pax_time(value, len, &attrs->mtime_s) < 0)
			return number_error(err, "pax mtime", offset);
	} else if (key_len >= 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
		return base_err_set(err, -EOPNOTSUPP,
		        "a sparse file at byte %llu: its bytes do not lie in one piece; write the archive without "
		        "--sparse",
		        (unsigned long long)offset);
	}
	return 0;
}

/* Parses records "LEN key=value\n" ... */
static int parse_pax(struct attrs *attrs, const char *text, size_t len, uint64_t offset, struct base_err *err)
{
	while (len > 0) {
		size_t record = 0, i = 0;
		for (; i < len && text[i] >= '0' && text[i] <= '9' && record <= len; i++)
			record = record * 10 + (size_t)(text[i] - '0');
		/* the shortest record has " k=\n" after the number */
		if (i == 0 || i >= len || text[i] != ' ' || record > len || record < i + 4 || text[record - 1] != '\n')
			return base_err_set(
			        err, -EUCLEAN, "a malformed pax record at byte %llu", (unsigned long long)offset);
		const char *key = text + i + 1;
		const char *equals = memchr(key, '=', (size_t)(text + record - 1 - key));
		if (!equals || equals == key)
			return base_err_set(
			        err, -EUCLEAN, "a malformed pax record at byte %llu", (unsigned long long)offset);
		int r = apply_record(attrs, key, (size_t)(equals - key), equals + 1,
		        (size_t)(text + record - 1 - equals - 1), offset, err);
		if (r < 0)
			return r;
		text += record;
		len -= record;
	}
	return 0;
}

/* Stores records that describe the next member (x, L, K) or all later members (g). */
static int parse_extension(
        struct shard_tar_parser *p, char type, const char *data, size_t size, uint64_t offset, struct base_err *err)
{
	if (type == 'g')
		return parse_pax(&p->global, data, size, offset, err);

	if (!p->pending) {
		p->pending = true;
		p->pending_offset = offset;
	}
	if (type == 'x' || type == 'X') /* the tar of Solaris writes 'X' */
		return parse_pax(&p->local, data, size, offset, err);
	size_t len = strnlen(data, size);
	if (type == 'L')
		return set_string(p->local.path, &p->local.has_path, data, len, offset, err);
	return set_string(p->local.link, &p->local.has_link, data, len, offset, err);
}

/* ------------------------------------------------------------------------------------------------ members */

static bool is_extension(char type)
{
	return type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K';
}

/* Writes the path that the header block has: prefix and name. */
static void header_path(const struct tar_block *h, char *path)
{
	size_t at = 0;
	/* Only a header with the magic of POSIX has a prefix; GNU's ("ustar  ") has times there.  Joerg Schilling's
	 * star marks its header with "tar" at byte 508, and has times after a prefix of 131 bytes. */
	if (memcmp(h->magic, "ustar", 6) == 0 && h->prefix[0]) {
		bool star = memcmp(h->pad + 8, "tar", 4) == 0;
		at = strnlen(h->prefix, star ? 131 : TAR_PREFIX_BYTES);
		memcpy(path, h->prefix, at);
		path[at++] = '/';
	}
	size_t len = strnlen(h->name, TAR_NAME_BYTES);
	memcpy(path + at, h->name, len);
	path[at + len] = '\0';
}

static enum shard_tar_type member_type(char type, const char *path)
{
	switch (type) {
	case '\0': /* v7: a name with a slash at its end is a directory */
	case '0':
	case '7': {
		size_t len = strlen(path);
		return type != '7' && len > 0 && path[len - 1] == '/' ? SHARD_TAR_DIR : SHARD_TAR_FILE;
	}
	case '1':
		return SHARD_TAR_LINK;
	case '2':
		return SHARD_TAR_SYMLINK;
	case '3':
	case '4':
	case '6':
		return SHARD_TAR_DEVICE;
	case '5':
		return SHARD_TAR_DIR;
	default:
		return SHARD_TAR_OTHER;
	}
}

static const struct attrs *pick(const struct shard_tar_parser *p, size_t has)
{
	if (*(const bool *)((const char *)&p->local + has))
		return &p->local;
	return *(const bool *)((const char *)&p->global + has) ? &p->global : NULL;
}

static int fill_member(struct shard_tar_parser *p, const struct tar_block *h, uint64_t offset, struct base_err *err,
        struct shard_tar_member *ret)
{
	const struct attrs *a;
	int64_t mode, mtime_s;
	uint64_t size = 0;
	int r = parse_size_field(h, offset, err, &size);
	if (r < 0)
		return r;
	if (parse_number(h->mode, sizeof h->mode, &mode) < 0)
		return number_error(err, "mode", offset);
	if (parse_number(h->mtime, sizeof h->mtime, &mtime_s) < 0)
		return number_error(err, "mtime", offset);
	if ((a = pick(p, offsetof(struct attrs, has_size))))
		size = a->size;
	if ((a = pick(p, offsetof(struct attrs, has_mtime))))
		mtime_s = a->mtime_s;

	header_path(h, p->path);
	if ((a = pick(p, offsetof(struct attrs, has_path))))
		memcpy(p->path, a->path, sizeof p->path);
	size_t link_len = strnlen(h->linkname, TAR_NAME_BYTES);
	memcpy(p->link, h->linkname, link_len);
	p->link[link_len] = '\0';
	if ((a = pick(p, offsetof(struct attrs, has_link))))
		memcpy(p->link, a->link, sizeof p->link);

	enum shard_tar_type type = member_type(h->type, p->path);
	if (type == SHARD_TAR_LINK && size > 0)
		return base_err_set(err, -EUCLEAN,
		        "a hard link with a size at byte %llu: programs disagree whether content follows; write the "
		        "archive "
		        "with GNU tar",
		        (unsigned long long)offset);
	if (p->path[0] == '\0' && type != SHARD_TAR_OTHER)
		return base_err_set(err, -EUCLEAN, "a member without a name at byte %llu", (unsigned long long)offset);
	/* POSIX: no content follows these, whatever their size field says */
	if (type != SHARD_TAR_FILE && type != SHARD_TAR_OTHER)
		size = 0;

	*ret = (struct shard_tar_member){
		.path = p->path,
		.link = p->link,
		.type = type,
		.header_offset = p->pending ? p->pending_offset : offset,
		.content_offset = offset + SHARD_TAR_BLOCK,
		.length = size,
		.mtime_s = mtime_s,
		.mode = (uint32_t)mode & 07777,
	};
	return 0;
}

/* Says what a file seems to be that does not begin with a header, because "checksum" or "truncated" alone does not
 * help. */
static const char *foreign_format(const uint8_t *bytes, size_t len)
{
	static const struct {
		const char *magic, *name;
	} formats[] = { { "\x1f\x8b", "gzip" }, { "\x28\xb5\x2f\xfd", "zstd" }, { "\xfd\x37zXZ", "xz" },
		{ "BZh", "bzip2" }, { "PK\x03\x04", "zip" } };
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		size_t n = strlen(formats[i].magic);
		if (len >= n && memcmp(bytes, formats[i].magic, n) == 0)
			return formats[i].name;
	}
	return NULL;
}

/* Sets the sentence for such a file.  Returns 0 if the bytes, which begin at `offset`, do not tell. */
static int foreign_error(const uint8_t *bytes, size_t len, uint64_t offset, struct base_err *err)
{
	const char *format = offset == 0 ? foreign_format(bytes, len) : NULL;
	if (!format)
		return 0;
	return base_err_set(err, -EUCLEAN,
	        "not a plain tar archive but %s: pack it with 'mkshard pack', or decompress it first", format);
}

static int bad_header(const uint8_t *block, uint64_t offset, struct base_err *err)
{
	int rc = foreign_error(block, SHARD_TAR_BLOCK, offset, err);
	if (rc < 0)
		return rc;
	return base_err_set(err, -EBADMSG, "header checksum mismatch at byte %llu%s", (unsigned long long)offset,
	        offset == 0 ? " (not a tar archive?)" : "");
}

static int truncated(const uint8_t *bytes, size_t len, uint64_t offset, struct base_err *err)
{
	int rc = foreign_error(bytes, len, offset, err);
	if (rc < 0)
		return rc;
	return base_err_set(
	        err, -EUCLEAN, "truncated: ends at byte %llu within a header", (unsigned long long)(offset + len));
}

int shard_tar_more_error(uint64_t end, uint64_t size, struct base_err *err)
{
	return base_err_set(err, -EUCLEAN,
	        "the archive ends at byte %llu and %llu bytes follow, which tar does not read: another archive, put "
	        "behind it? Unpack all of it with 'tar -xif' and pack that, or give --keep-going to leave out what "
	        "follows",
	        (unsigned long long)end, (unsigned long long)(size - end));
}

/* What the bytes begin with. */
enum step { STEP_MEMBER, STEP_EXTENSION, STEP_MORE, STEP_END };

static int step(struct shard_tar_parser *p, const uint8_t *bytes, size_t len, uint64_t offset, bool at_eof,
        struct base_err *err, size_t *ret_size)
{
	if (len < SHARD_TAR_BLOCK) {
		*ret_size = SHARD_TAR_BLOCK;
		if (!at_eof)
			return STEP_MORE;
		/* Some programs do not write the blocks that end an archive. */
		return len == 0 && !p->pending ? STEP_END : truncated(bytes, len, offset, err);
	}

	if (block_is_zero(bytes)) {
		if (p->pending)
			return base_err_set(err, -EUCLEAN, "a pax header without its member at byte %llu",
			        (unsigned long long)p->pending_offset);
		*ret_size = SHARD_TAR_END;
		if (len < SHARD_TAR_END)
			return at_eof ? STEP_END : STEP_MORE;
		if (block_is_zero(bytes + SHARD_TAR_BLOCK))
			return STEP_END;
		return base_err_set(err, -EUCLEAN, "a lone zero block at byte %llu, with data behind it",
		        (unsigned long long)offset);
	}

	const struct tar_block *h = (const struct tar_block *)(const void *)bytes;
	if (!checksum_ok(bytes))
		return bad_header(bytes, offset, err);
	if (h->type == 'S')
		return base_err_set(err, -EOPNOTSUPP,
		        "a sparse file at byte %llu: its bytes do not lie in one piece; write the archive without "
		        "--sparse",
		        (unsigned long long)offset);
	if (h->type == 'M')
		return base_err_set(err, -EOPNOTSUPP, "a continued file of a multi-volume archive at byte %llu",
		        (unsigned long long)offset);
	if (!is_extension(h->type))
		return STEP_MEMBER;

	uint64_t size = 0;
	int r = parse_size_field(h, offset, err, &size);
	if (r < 0)
		return r;
	if (size > SHARD_TAR_PAX_MAX)
		return base_err_set(err, -EUCLEAN, "an extended header of %llu bytes at byte %llu; the limit is %d",
		        (unsigned long long)size, (unsigned long long)offset, SHARD_TAR_PAX_MAX);
	*ret_size = SHARD_TAR_BLOCK + (size_t)size + shard_tar_padding(size);
	if (len >= *ret_size) {
		r = parse_extension(p, h->type, (const char *)bytes + SHARD_TAR_BLOCK, (size_t)size, offset, err);
		return r < 0 ? r : STEP_EXTENSION;
	}
	return at_eof ? truncated(bytes, len, offset, err) : STEP_MORE;
}

int shard_tar_parse(struct shard_tar_parser *parser, const uint8_t *bytes, size_t len, uint64_t offset, bool at_eof,
        struct base_err *err, struct shard_tar_member *ret_member, uint64_t *ret_next, size_t *ret_need)
{
	if (offset > OFFSET_MAX)
		return base_err_set(err, -EFBIG, "the archive is over 4 EiB");

	for (;;) {
		size_t size = 0;
		int r = step(parser, bytes, len, offset, at_eof, err, &size);
		if (r < 0)
			return r;
		switch ((enum step)r) {
		case STEP_END:
			*ret_next = offset;
			return 0;
		case STEP_MORE:
			*ret_next = offset;
			*ret_need = size;
			return 2;
		case STEP_EXTENSION:
			bytes += size;
			len -= size;
			offset += size;
			continue;
		case STEP_MEMBER:
			break;
		}

		struct shard_tar_member member;
		r = fill_member(parser, (const struct tar_block *)(const void *)bytes, offset, err, &member);
		if (r < 0)
			return r;
		uint64_t content_end = member.content_offset + member.length;
		if (at_eof && content_end > offset + len)
			return base_err_set(err, -EUCLEAN,
			        "truncated: the member at byte %llu ends at byte %llu, the archive at %llu",
			        (unsigned long long)offset, (unsigned long long)content_end,
			        (unsigned long long)(offset + len));
		*ret_member = member;
		*ret_next = content_end + shard_tar_padding(member.length);
		parser->pending = false;
		parser->local.has_path = parser->local.has_link = parser->local.has_size = parser->local.has_mtime =
		        false;
		return 1;
	}
}
