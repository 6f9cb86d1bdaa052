/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of XML; shard/remote/xml.h first. */
#include "shard/remote/xml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shard/base/cleanup.h"
#include "shard/base/err.h"

/* Writes a character of Unicode as UTF-8.  Returns how many bytes it has: no more than its number in XML. */
static size_t put_utf8(unsigned long number, char *to)
{
	if (number < 0x80) {
		to[0] = (char)number;
		return 1;
	}
	size_t n = number < 0x800 ? 2 : number < 0x10000 ? 3 : 4;
	for (size_t i = n; i-- > 1; number >>= 6)
		to[i] = (char)(0x80 | (number & 0x3f));
	to[0] = (char)((0xf00UL >> n) | number);
	return n;
}

/* Replaces the five entities of XML, and numbers of characters, in place. */
static void decode(char *text)
{
	static const struct {
		const char *name;
		char c;
	} entities[] = { { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&quot;", '"' }, { "&apos;", '\'' } };
	char *to = text;
	for (const char *from = text; *from;) {
		size_t used = 1;
		char c = *from;
		for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++) {
			if (strncmp(from, entities[i].name, strlen(entities[i].name)) == 0) {
				c = entities[i].c;
				used = strlen(entities[i].name);
			}
		}
		if (strncmp(from, "&#", 2) == 0) {
			char *end = NULL;
			unsigned long number =
			        from[2] == 'x' ? strtoul(from + 3, &end, 16) : strtoul(from + 2, &end, 10);
			if (number > 0 && number <= 0x10ffff && *end == ';') {
				to += put_utf8(number, to);
				from = end + 1;
				continue;
			}
		}
		*to++ = c;
		from += used;
	}
	*to = 0;
}

char *remote_xml_outer(const char *xml, const char *name, const char **ret_rest)
{
	char open[64], close[64];
	snprintf(open, sizeof(open), "<%s>", name);
	snprintf(close, sizeof(close), "</%s>", name);
	const char *begin = strstr(xml, open);
	const char *end = begin ? strstr(begin, close) : NULL;
	char *text = end ? strndup(begin + strlen(open), (size_t)(end - begin) - strlen(open)) : NULL;
	if (text && ret_rest)
		*ret_rest = end + strlen(close);
	return text;
}

char *remote_xml_element(const char *xml, const char *name, const char **ret_rest)
{
	char *text = remote_xml_outer(xml, name, ret_rest);
	if (text)
		decode(text);
	return text;
}

void remote_xml_quoted(const char *xml, const char *name, char *room, unsigned size)
{
	cleanup_free char *text = remote_xml_element(xml, name, NULL);
	base_err_quote(text ? text : "", room, size);
}
