/* SPDX-License-Identifier: Apache-2.0 */
/* Names of layout=flat: made from paths, split, and turned back into paths; fs/name.h first. */
#include "fs/name.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "fs/ino.h"

enum {
	HASH_LEN = 9, /* '~' and 8 hex digits */
	EPOCH_DIGITS = 4,
	STEP_DIGITS = 10,
	DIGITS_MAX = 12, /* of a step: 2^32 samples, and the padding of 2^20 ranks, stay below 10^12 global steps */
};

static size_t encoded_len(const char *path, size_t len)
{
	size_t n = len;
	for (size_t i = 0; i < len; i++)
		if (path[i] == '%' || path[i] == '/')
			n += 2;
	return n;
}

/* Encodes as much of the path as fits in `max` bytes: whole escapes and whole UTF-8 characters only. */
static size_t encode_some(const char *path, size_t len, size_t max, char *out)
{
	size_t n = 0;
	size_t i = 0;
	while (i < len) {
		char c = path[i];
		size_t need = c == '%' || c == '/' ? 3 : 1;
		if (n + need > max)
			break;
		if (need == 3)
			memcpy(out + n, c == '%' ? "%25" : "%2F", 3);
		else
			out[n] = c;
		n += need;
		i++;
	}
	/* Cut inside a character: remove its continuation bytes and its first byte. */
	if (i < len && ((unsigned char)path[i] & 0xc0) == 0x80) {
		size_t back = 0;
		while (back < 3 && back + 1 < n && ((unsigned char)out[n - 1 - back] & 0xc0) == 0x80)
			back++;
		if (((unsigned char)out[n - 1 - back] & 0xc0) == 0xc0)
			n -= back + 1;
	}
	return n;
}

/* Finds the extension that a cut name keeps: from the last '.' of the last component, if it is short and not the
 * whole component. */
static const char *extension(const char *path, size_t len, size_t *ret_len)
{
	for (size_t i = len; i > 1 && len - i < FS_NAME_EXT_MAX; i--) {
		char c = path[i - 1];
		if (c == '/' || c == '%' || ((unsigned char)c & 0x80))
			break;
		if (c == '.' && path[i - 2] != '/') {
			*ret_len = len - (i - 1);
			return path + i - 1;
		}
	}
	*ret_len = 0;
	return path + len;
}

size_t fs_name_encode(const char *path, size_t path_len, size_t max, char ret_name[static SHARD_NAME_MAX + 1])
{
	assert(max >= 32 && max <= SHARD_NAME_MAX);
	size_t n;
	if (encoded_len(path, path_len) <= max) {
		n = encode_some(path, path_len, max, ret_name);
	} else {
		size_t ext_len;
		const char *ext = extension(path, path_len, &ext_len);
		n = encode_some(path, path_len, max - HASH_LEN - ext_len, ret_name);
		n += (size_t)snprintf(ret_name + n, HASH_LEN + 1, "~%08x", (unsigned)XXH3_64bits(path, path_len));
		memcpy(ret_name + n, ext, ext_len);
		n += ext_len;
	}
	ret_name[n] = '\0';
	return n;
}

/* Writes digits without snprintf, which would cost more than all the rest of a listing's entry. */
static size_t put_digits(char *out, uint64_t value, size_t width)
{
	char tmp[20];
	size_t n = 0;
	do {
		tmp[n++] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	while (n < width)
		tmp[n++] = '0';
	for (size_t i = 0; i < n; i++)
		out[i] = tmp[n - 1 - i];
	return n;
}

size_t fs_name_flat(
        uint64_t epoch, uint64_t step, const char *path, size_t path_len, char ret_name[static SHARD_NAME_MAX + 1])
{
	char encoded[SHARD_NAME_MAX + 1];
	size_t n = put_digits(ret_name, epoch, EPOCH_DIGITS);
	ret_name[n++] = '-';
	n += put_digits(ret_name + n, step, STEP_DIGITS);
	ret_name[n++] = '-';
	size_t len = fs_name_encode(path, path_len, SHARD_NAME_MAX - n, encoded);
	memcpy(ret_name + n, encoded, len + 1);
	return n + len;
}

/* Reads digits up to '-': at least `width`, and more only without a leading zero. Returns what follows the '-', or
 * NULL. */
static const char *get_digits(const char *s, size_t width, uint64_t *ret_value)
{
	uint64_t value = 0;
	size_t n = 0;
	for (; s[n] >= '0' && s[n] <= '9'; n++) {
		if (n == DIGITS_MAX)
			return NULL;
		value = value * 10 + (uint64_t)(s[n] - '0');
	}
	if (n < width || s[n] != '-' || (n > width && s[0] == '0'))
		return NULL;
	*ret_value = value;
	return s + n + 1;
}

int fs_name_parse(const char *name, uint64_t *ret_epoch, uint64_t *ret_step)
{
	uint64_t epoch;
	uint64_t step;
	const char *s = get_digits(name, EPOCH_DIGITS, &epoch);
	if (!s || epoch > FS_EPOCH_MAX)
		return -ENOENT;
	s = get_digits(s, STEP_DIGITS, &step);
	if (!s || *s == '\0')
		return -ENOENT;
	*ret_epoch = epoch;
	*ret_step = step;
	return 0;
}

int fs_name_decode(const char *name, size_t len, char *ret_path)
{
	size_t n = 0;
	for (size_t i = 0; i < len; i++) {
		if (name[i] != '%') {
			ret_path[n++] = name[i];
		} else if (len - i >= 3 && memcmp(name + i, "%25", 3) == 0) {
			ret_path[n++] = '%';
			i += 2;
		} else if (len - i >= 3 && memcmp(name + i, "%2F", 3) == 0) {
			ret_path[n++] = '/';
			i += 2;
		} else {
			return -ENOENT;
		}
	}
	ret_path[n] = '\0';
	return 0;
}

int fs_name_number(const char *text, size_t len, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;
	if (len == 0 || len > 19 || (len > 1 && text[0] == '0'))
		return -ENOENT;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -ENOENT;
		value = value * 10 + (uint64_t)(text[i] - '0');
	}
	if (value > max)
		return -ENOENT;
	*ret_value = value;
	return 0;
}
