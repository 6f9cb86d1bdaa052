/* SPDX-License-Identifier: Apache-2.0 */
/* Names of datasets: what of them may be kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "shard/remote/location.h"

static void a_name_that_is_kept_has_no_password_and_no_query(void **state)
{
	static const struct {
		const char *name, *kept;
	} cases[] = {
		{ "/data/images", "/data/images" },
		{ "/data/what?", "/data/what?" },
		{ "", "" },
		{ "s3://bucket/images", "s3://bucket/images" },
		{ "s3://bucket/x?X-Amz-Signature=hidden", "s3://bucket/x" },
		{ "https://host:80/x?sig=hidden", "https://host:80/x" },
		{ "s3://KEY:hidden/x@bucket/x", "s3://" },
		{ "s3:/KEY:hidden@bucket/x", "s3:/" },
		{ "https://me:hidden%40host/x", "https://" },
		{ "https://me:hid?den@host/x", "https://" },
	};
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char kept[64];
		snprintf(kept, sizeof(kept), "%.*s", (int)remote_public_len(cases[i].name), cases[i].name);
		assert_string_equal(kept, cases[i].kept);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_name_that_is_kept_has_no_password_and_no_query) };
	return cmocka_run_group_tests_name("shard/remote/location", tests, NULL, NULL);
}
