/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and prints sizes and numbers; shard/base/units.h first. */
#include "shard/base/units.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* Returns log2 of the factor of a suffix "", "B", "K", "KB", "KiB", ...: 0, 10, 20 ...; -1: not a suffix. */
static int suffix_shift(const char *s)
{
	static const char letters[] = "kmgt";
	int shift = 0;

	char c = (char)(*s | 0x20);
	const char *hit = *s ? strchr(letters, c) : NULL;
	if (hit) {
		shift = 10 * (int)(hit - letters + 1);
		s++;
		if ((*s | 0x20) == 'i') {
			s++;
			if ((*s | 0x20) != 'b') /* "Ki" without "B" is not allowed */
				return -1;
		}
	}
	if ((*s | 0x20) == 'b')
		s++;
	return *s == '\0' ? shift : -1;
}

int base_parse_size(const char *text, uint64_t *ret_bytes)
{
	const char *s = text;
	uint64_t whole = 0;

	if (!is_digit(*s))
		return -EINVAL;
	bool overflow = false;
	for (; is_digit(*s); s++)
		if (__builtin_mul_overflow(whole, 10, &whole) ||
		        __builtin_add_overflow(whole, (uint64_t)(*s - '0'), &whole))
			overflow = true;

	/* The fraction is digits / scale.  Digits after the 18th do not change the number of bytes. */
	uint64_t digits = 0, scale = 1;
	if (*s == '.') {
		if (!is_digit(*++s))
			return -EINVAL;
		for (; is_digit(*s); s++) {
			if (scale < UINT64_C(1000000000000000000)) {
				digits = digits * 10 + (uint64_t)(*s - '0');
				scale *= 10;
			}
		}
	}

	int shift = suffix_shift(s);
	if (shift < 0)
		return -EINVAL;
	if (overflow || whole > (uint64_t)INT64_MAX >> shift)
		return -ERANGE;
	uint64_t part = (uint64_t)(((unsigned __int128)digits << shift) / scale);
	uint64_t bytes = (whole << shift) + part;
	if (bytes > INT64_MAX)
		return -ERANGE;
	*ret_bytes = bytes;
	return 0;
}

int base_parse_u64(const char *text, uint64_t max, uint64_t *ret_value)
{
	uint64_t value = 0;
	bool overflow = false;

	if (!is_digit(*text))
		return -EINVAL;
	for (; is_digit(*text); text++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		        __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
			overflow = true;
	if (*text)
		return -EINVAL;
	if (overflow || value > max)
		return -ERANGE;
	*ret_value = value;
	return 0;
}

const char *base_format_size(uint64_t bytes, char buf[static 16])
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };

	if (bytes < 1024) {
		snprintf(buf, 16, "%u B", (unsigned)bytes);
		return buf;
	}
	unsigned unit = 0;
	double value = (double)bytes / 1024;
	while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) { /* this value would print as 1024.0 */
		value /= 1024;
		unit++;
	}
	snprintf(buf, 16, "%.1f %s", value, units[unit]);
	return buf;
}

void base_format_hex(const uint8_t *bytes, unsigned n, char *buf)
{
	for (unsigned i = 0; i < n; i++)
		snprintf(buf + 2 * (size_t)i, 3, "%02x", bytes[i]);
}

int base_find_name(const char *const *names, unsigned n, const char *text)
{
	for (unsigned i = 0; i < n; i++) {
		if (strcmp(text, names[i]) == 0)
			return (int)i;
	}
	return -EINVAL;
}
