/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of XML; shard/remote/xml.h first. */
#include "shard/remote/xml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replaces the five entities of XML, and numbers of bytes, in place. */
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
			long number = from[2] == 'x' ? strtol(from + 3, &end, 16) : strtol(from + 2, &end, 10);
			if (number > 0 && number < 128 && *end == ';') {
				c = (char)number;
				used = (size_t)(end + 1 - from);
			}
		}
		*to++ = c;
		from += used;
	}
	*to = 0;
}

char *remote_xml_element(const char *xml, const char *name, const char **ret_rest)
{
	char open[64], close[64];
	snprintf(open, sizeof(open), "<%s>", name);
	snprintf(close, sizeof(close), "</%s>", name);
	const char *begin = strstr(xml, open);
	const char *end = begin ? strstr(begin, close) : NULL;
	char *text = end ? strndup(begin + strlen(open), (size_t)(end - begin) - strlen(open)) : NULL;
	if (!text)
		return NULL;
	decode(text);
	if (ret_rest)
		*ret_rest = end + strlen(close);
	return text;
}
