/* SPDX-License-Identifier: Apache-2.0 */
/* `ddpfs doctor`: the list of findings; doctor.h first. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shard/base/err.h"
#include "tools/ddpfs/doctor.h"

static const char *const levels[] = { "ok", "note", "warning", "failure" };

enum doctor_level doctor_level_of(const json_t *finding)
{
	const char *name = json_string_value(json_object_get(finding, "level"));
	for (int i = 0; i < DOCTOR_FAILURE; i++)
		if (name && strcmp(name, levels[i]) == 0)
			return (enum doctor_level)i;
	return DOCTOR_FAILURE;
}

void doctor_say(json_t *findings, enum doctor_level level, const char *advice, const char *fmt, ...)
{
	char text[BASE_ERR_TEXT_MAX], printable[BASE_ERR_TEXT_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	base_err_printable(text, printable, sizeof(printable));
	json_t *finding = json_pack("{ss ss}", "level", levels[level], "text", printable);
	if (finding && advice)
		json_object_set_new(finding, "advice", json_string(advice));
	json_array_append_new(findings, finding);
}

json_t *doctor_sorted(const json_t *findings)
{
	json_t *sorted = json_array();
	for (int level = DOCTOR_FAILURE; level >= DOCTOR_OK; level--)
		for (size_t i = 0; i < json_array_size(findings); i++)
			if ((int)doctor_level_of(json_array_get(findings, i)) == level)
				json_array_append(sorted, json_array_get(findings, i));
	return sorted;
}
