/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the headers of tar members; shard/tar.h first. */
#include "shard/tar.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "shard/tar_private.h"

/* The largest number in the 11 octal digits of ustar. */
#define OCTAL_11_MAX ((UINT64_C(1) << 33) - 1)

/* The records of the pax header before a member. */
struct pax {
	char text[SHARD_PATH_MAX + 256];
	size_t len;
};

/* Writes the path as stored: directories end in '/'.  Returns its length. */
static size_t stored_path(const struct shard_tar_meta *meta, char buf[SHARD_PATH_MAX + 2])
{
	size_t len = strlen(meta->path);
	assert(len > 0 && len <= SHARD_PATH_MAX);
	memcpy(buf, meta->path, len);
	if (meta->directory && buf[len - 1] != '/')
		buf[len++] = '/';
	buf[len] = '\0';
	return len;
}

/* Splits a path into ustar's prefix[155] '/' name[100].  Returns whether it fits.  *ret_split is the length of the
 * prefix; 0 if the name alone is enough. */
static bool ustar_split(const char *path, size_t len, size_t *ret_split)
{
	if (len <= TAR_NAME_BYTES) {
		*ret_split = 0;
		return true;
	}
	/* The last slash that is not the last character: the longest prefix, as GNU tar does. */
	size_t at = len - 1 < TAR_PREFIX_BYTES + 1 ? len - 1 : TAR_PREFIX_BYTES + 1;
	while (at > 0) {
		at--;
		if (path[at] == '/' && at > 0 && at <= TAR_PREFIX_BYTES && at + 1 < len) {
			if (len - at - 1 > TAR_NAME_BYTES)
				return false; /* a shorter prefix makes the name even longer */
			*ret_split = at;
			return true;
		}
	}
	return false;
}

/* Appends "LEN key=value\n".  LEN counts its own digits too. */
static void pax_add(struct pax *pax, const char *key, const char *value, size_t value_len)
{
	size_t body = 1 + strlen(key) + 1 + value_len + 1; /* " key=value\n" */
	size_t len = body + 1, digits = 1;
	for (;;) {
		digits = (size_t)snprintf(NULL, 0, "%zu", len);
		if (body + digits == len)
			break;
		len = body + digits;
	}
	assert(pax->len + len < sizeof pax->text);
	char *p = pax->text + pax->len;
	p += sprintf(p, "%zu %s=", len, key);
	memcpy(p, value, value_len);
	p[value_len] = '\n';
	pax->len += len;
}

static void pax_collect(const struct shard_tar_meta *meta, struct pax *pax)
{
	char path[SHARD_PATH_MAX + 2], number[24];
	size_t split, len = stored_path(meta, path);

	pax->len = 0;
	if (!ustar_split(path, len, &split)) {
		/* pax text is UTF-8; other bytes need hdrcharset=BINARY before them */
		if (!tar_is_utf8(path, len))
			pax_add(pax, "hdrcharset", "BINARY", 6);
		pax_add(pax, "path", path, len);
	}
	if (meta->length > OCTAL_11_MAX)
		pax_add(pax, "size", number, (size_t)sprintf(number, "%" PRIu64, meta->length));
	if (meta->mtime_s < 0 || (uint64_t)meta->mtime_s > OCTAL_11_MAX)
		pax_add(pax, "mtime", number, (size_t)sprintf(number, "%" PRId64, meta->mtime_s));
}

/* Writes n bytes: n - 1 octal digits and a NUL. */
static void put_octal(char *field, size_t n, uint64_t value)
{
	field[--n] = '\0';
	while (n > 0) {
		field[--n] = (char)('0' + (value & 7));
		value >>= 3;
	}
}

static void put_header(uint8_t *buf, const char *prefix, size_t prefix_len, const char *name, size_t name_len,
        uint64_t length, uint64_t mtime_s, uint32_t mode, char type)
{
	struct tar_block *h = (struct tar_block *)(void *)buf;
	memset(h, 0, sizeof *h);
	memcpy(h->name, name, name_len);
	memcpy(h->prefix, prefix, prefix_len);
	put_octal(h->mode, sizeof h->mode, mode & 07777);
	put_octal(h->uid, sizeof h->uid, 0);
	put_octal(h->gid, sizeof h->gid, 0);
	put_octal(h->size, sizeof h->size, length);
	put_octal(h->mtime, sizeof h->mtime, mtime_s);
	h->type = type;
	memcpy(h->magic, "ustar", 6);
	memcpy(h->version, "00", 2);
	put_octal(h->devmajor, sizeof h->devmajor, 0);
	put_octal(h->devminor, sizeof h->devminor, 0);

	memset(h->chksum, ' ', sizeof h->chksum);
	uint32_t sum = 0;
	for (size_t i = 0; i < SHARD_TAR_BLOCK; i++)
		sum += buf[i];
	put_octal(h->chksum, 7, sum); /* six digits, NUL; the eighth byte stays a space */
}

size_t shard_tar_header_size(const struct shard_tar_meta *meta)
{
	struct pax pax;
	pax_collect(meta, &pax);
	if (pax.len == 0)
		return SHARD_TAR_BLOCK;
	return 2 * SHARD_TAR_BLOCK + pax.len + shard_tar_padding(pax.len);
}

void shard_tar_header(const struct shard_tar_meta *meta, uint8_t *buf)
{
	struct pax pax;
	char path[SHARD_PATH_MAX + 2];
	size_t len = stored_path(meta, path), split = 0;
	pax_collect(meta, &pax);

	if (pax.len > 0) {
		/* A reader that does not know pax writes the records into a file of this name. */
		const char *slash = strrchr(meta->path, '/');
		const char *base = slash && slash[1] ? slash + 1 : "member";
		if (!slash)
			base = meta->path;
		put_header(buf, "PaxHeaders", 10, base, strnlen(base, TAR_NAME_BYTES), pax.len, 0, 0644, 'x');
		buf += SHARD_TAR_BLOCK;
		size_t padding = shard_tar_padding(pax.len);
		memcpy(buf, pax.text, pax.len);
		memset(buf + pax.len, 0, padding);
		buf += pax.len + padding;
	}

	bool fits = ustar_split(path, len, &split);
	const char *name = split ? path + split + 1 : path;
	size_t name_len = fits ? strlen(name) : TAR_NAME_BYTES;
	bool old = meta->mtime_s < 0 || (uint64_t)meta->mtime_s > OCTAL_11_MAX;
	put_header(buf, path, split, name, name_len, meta->length > OCTAL_11_MAX ? 0 : meta->length,
	        old ? 0 : (uint64_t)meta->mtime_s, meta->mode, meta->directory ? '5' : '0');
}
