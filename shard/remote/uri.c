/* SPDX-License-Identifier: Apache-2.0 */
/* Percent-encoding; shard/remote/uri.h first. */
#include "shard/remote/uri.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool unreserved(unsigned char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
	       c == '_' || c == '~';
}

char *remote_uri_encode(const char *text, size_t len, bool slashes)
{
	static const char digits[] = "0123456789ABCDEF";
	if (len > (SIZE_MAX - 1) / 3)
		return NULL;
	char *encoded = malloc(3 * len + 1);
	char *at = encoded;
	for (size_t i = 0; encoded && i < len; i++) {
		unsigned char c = (unsigned char)text[i];
		if (unreserved(c) || (slashes && c == '/')) {
			*at++ = (char)c;
		} else {
			*at++ = '%';
			*at++ = digits[c >> 4];
			*at++ = digits[c & 15];
		}
	}
	if (encoded)
		*at = 0;
	return encoded;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void remote_uri_decode(char *text)
{
	char *to = text;
	for (const char *from = text; *from; from++) {
		int high = from[0] == '%' ? digit(from[1]) : -1;
		int low = high >= 0 ? digit(from[2]) : -1;
		if (low >= 0 && (high || low)) {
			*to++ = (char)(high << 4 | low);
			from += 2;
		} else {
			*to++ = *from;
		}
	}
	*to = 0;
}
