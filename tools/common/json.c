/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes bytes for JSON; json.h first. */
#include "tools/common/json.h"

/* Returns the length of the UTF-8 sequence at s; 0 if it is invalid, overlong, a surrogate, or cut. */
static size_t utf8_length(const unsigned char *s, size_t len)
{
	unsigned char c = s[0];
	if (c < 0x80)
		return 1;
	size_t n = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
	if (n == 0 || n > len)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
	        (c == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

void json_put_string(FILE *out, const char *bytes, size_t len)
{
	const unsigned char *s = (const unsigned char *)bytes;
	putc('"', out);
	for (size_t i = 0; i < len;) {
		size_t n = utf8_length(s + i, len - i);
		if (n == 0)
			fprintf(out, "\\udc%02x", s[i++]);
		else if (s[i] == '"' || s[i] == '\\')
			fprintf(out, "\\%c", s[i++]);
		else if (s[i] < 0x20 || s[i] == 0x7f)
			fprintf(out, "\\u%04x", s[i++]);
		else {
			fwrite(s + i, 1, n, out);
			i += n;
		}
	}
	putc('"', out);
}
