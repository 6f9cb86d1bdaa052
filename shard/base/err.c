/* SPDX-License-Identifier: Apache-2.0 */
/* Errors that have a sentence, and file names made printable; shard/base/err.h first. */
#include "shard/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int base_err_set(struct base_err *err, int code, const char *fmt, ...)
{
	if (!err)
		return code;

	/* Not formatted into err->text, because an argument may be err->text. */
	char text[BASE_ERR_TEXT_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);

	err->code = code;
	memcpy(err->text, text, sizeof text);
	return code;
}

int base_err_prefix(struct base_err *err, const char *fmt, ...)
{
	char text[BASE_ERR_TEXT_MAX];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);

	/* "prefix: ", then as much of the old text as fits.  It may be cut. */
	size_t used = n < 0 ? 0 : (size_t)n;
	if (used > sizeof text - 3)
		used = sizeof text - 3;
	text[used++] = ':';
	text[used++] = ' ';
	for (const char *s = err->text; *s && used < sizeof text - 1;)
		text[used++] = *s++;
	text[used] = '\0';
	memcpy(err->text, text, sizeof text);
	return err->code;
}

/* Returns the bytes of the UTF-8 sequence at s; 0 if it is not well-formed (RFC 3629: no overlong forms, no surrogates,
 * nothing above U+10FFFF) or not printable (control characters, also C1). */
static unsigned utf8_printable(const unsigned char *s)
{
	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] != 0x7f;

	unsigned n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	for (unsigned i = 1; i < n; i++) /* a NUL ends the loop, so it never reads past the string */
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
	        (s[0] == 0xf4 && s[1] > 0x8f) || (s[0] == 0xc2 && s[1] < 0xa0))
		return 0;
	return n;
}

static const char *print(const char *name, const char *backslash, char *buf, unsigned size)
{
	if (size == 0)
		return buf;

	const unsigned char *s = (const unsigned char *)name;
	unsigned used = 0;
	unsigned safe = 0; /* the longest prefix of whole characters that leaves room for "..." */
	while (*s) {
		char piece[8];
		unsigned from = utf8_printable(s), n = from; /* bytes taken, bytes printed */
		if (*s == '\\') {
			n = (unsigned)snprintf(piece, sizeof piece, "%s", backslash);
		} else if (from > 0) {
			memcpy(piece, s, n);
		} else {
			n = (unsigned)snprintf(piece, sizeof piece, "\\x%02x", *s);
			from = 1;
		}
		if (used + n >= size) {
			if (size > 4)
				memcpy(buf + safe, "...", 4);
			else
				buf[0] = '\0';
			return buf;
		}
		memcpy(buf + used, piece, n);
		used += n;
		s += from;
		if (used + 4 <= size)
			safe = used;
	}
	buf[used] = '\0';
	return buf;
}

const char *base_err_quote(const char *name, char *buf, unsigned size)
{
	return print(name, "\\\\", buf, size); /* doubled, so that "\x41" in a name is not an escape */
}

const char *base_err_printable(const char *text, char *buf, unsigned size)
{
	return print(text, "\\", buf, size);
}

const char *base_err_str(int code)
{
	switch (code) {
	case 0:
		return "no error";
	case -EBADMSG:
		return "checksum mismatch";
	case -EUCLEAN:
		return "impossible structure (damaged or not what it claims to be)";
	case -EPROTONOSUPPORT:
		return "written by a newer version (unknown format bit)";
	case -ESTALE:
		return "a shard changed since the index was made";
	case -EKEYREJECTED:
		return "the server's certificate is not trusted";
	default: {
		const char *text = strerrordesc_np(-code);
		return text ? text : "unknown error";
	}
	}
}
