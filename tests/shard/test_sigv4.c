/* SPDX-License-Identifier: Apache-2.0 */
/* Signature Version 4 against the vectors that AWS publishes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shard/remote/sigv4.h"
#include "shard/remote/uri.h"

/* The AWS signature test suite (aws-sig-v4-test-suite; those cases that do not normalize paths, as S3 does not). */
static void signatures_are_those_of_the_test_suite(void **state)
{
	(void)state;
	static const struct {
		const char *name, *method, *path, *query;
		struct remote_header headers[4];
		size_t n_headers;
		const char *payload, *signature;
	} cases[] = {
		{ "get-vanilla", "GET", "/", "", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31" },
		{ "get-utf8", "GET", "/%E1%88%B4", "", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85" },
		{ "get-space-unnormalized", "GET", "/example%20space/", "", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741" },
		{ "get-slashes-unnormalized", "GET", "//example//", NULL, { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5" },
		{ "get-slash-dot-slash-unnormalized", "GET", "/./", "", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145" },
		{ "get-header-value-order", "GET", "/", "", { { "my-header1", "value4,value1,value3,value2" } }, 1,
		        REMOTE_SIGV4_EMPTY, "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01" },
		{ "get-header-value-trim", "GET", "/", "",
		        { { "my-header2", "  \"a   b   c\"  " }, { "my-header1", " value1" } }, 2, REMOTE_SIGV4_EMPTY,
		        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736" },
		{ "get-vanilla-query-order-encoded", "GET", "/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
		        { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac" },
		{ "get-vanilla-empty-query-key", "GET", "/", "Param1=value1", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb" },
		{ "get-vanilla-query-unreserved", "GET", "/",
		        "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz="
		        "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
		        { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197" },
		{ "get-vanilla-with-session-token", "GET", "/", "",
		        { { "x-amz-security-token",
		                "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267" } },
		        1, REMOTE_SIGV4_EMPTY, "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8" },
		{ "post-vanilla-query", "POST", "/", "Param1=value1", { { NULL, NULL } }, 0, REMOTE_SIGV4_EMPTY,
		        "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11" },
		{ "post-x-www-form-urlencoded", "POST", "/", "",
		        { { "content-length", "13" }, { "content-type", "application/x-www-form-urlencoded" },
		                { "x-amz-content-sha256",
		                        "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e" } },
		        3, "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
		        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b" },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct remote_header headers[8] = { { "x-amz-date", "20150830T123600Z" },
			{ "host", "example.amazonaws.com" } };
		memcpy(headers + 2, cases[i].headers, cases[i].n_headers * sizeof(headers[0]));
		char authorization[REMOTE_SIGV4_AUTHORIZATION_MAX];
		assert_int_equal(remote_sigv4_sign(&(struct remote_sigv4){ .access_key = "AKIDEXAMPLE",
		                                           .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
		                                           .region = "us-east-1",
		                                           .service = "service",
		                                           .method = cases[i].method,
		                                           .path = cases[i].path,
		                                           .query = cases[i].query,
		                                           .headers = headers,
		                                           .n_headers = 2 + cases[i].n_headers,
		                                           .payload_hash = cases[i].payload,
		                                           .date = "20150830T123600Z" },
		                         authorization),
		        0);
		const char *signature = strstr(authorization, "Signature=");
		assert_non_null(signature);
		if (strcmp(signature + strlen("Signature="), cases[i].signature) != 0)
			fail_msg("%s: %s", cases[i].name, authorization);
	}
}

/* The four examples of "Authenticating Requests: Using the Authorization Header", Amazon S3 API Reference. */
static void signatures_are_those_of_the_s3_manual(void **state)
{
	(void)state;
	static const char body[] = "Welcome to Amazon S3.";
	static const struct {
		const char *method, *path, *query, *body;
		struct remote_header headers[3];
		size_t n_headers;
		const char *signature;
	} cases[] = {
		{ "GET", "/test.txt", "", "", { { "range", "bytes=0-9" } }, 1,
		        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41" },
		{ "PUT", "/test%24file.text", "", body,
		        { { "date", "Fri, 24 May 2013 00:00:00 GMT" },
		                { "x-amz-storage-class", "REDUCED_REDUNDANCY" } },
		        2, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd" },
		{ "GET", "/", "lifecycle", "", { { NULL, NULL } }, 0,
		        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543" },
		{ "GET", "/", "prefix=J&max-keys=2", "", { { NULL, NULL } }, 0,
		        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7" },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char hash[REMOTE_SIGV4_HASH_SIZE], authorization[REMOTE_SIGV4_AUTHORIZATION_MAX];
		remote_sigv4_hash(cases[i].body, strlen(cases[i].body), hash);
		struct remote_header headers[8] = { { "host", "examplebucket.s3.amazonaws.com" },
			{ "x-amz-content-sha256", hash }, { "x-amz-date", "20130524T000000Z" } };
		memcpy(headers + 3, cases[i].headers, cases[i].n_headers * sizeof(headers[0]));
		assert_int_equal(remote_sigv4_sign(&(struct remote_sigv4){ .access_key = "AKIAIOSFODNN7EXAMPLE",
		                                           .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
		                                           .region = "us-east-1",
		                                           .service = "s3",
		                                           .method = cases[i].method,
		                                           .path = cases[i].path,
		                                           .query = cases[i].query,
		                                           .headers = headers,
		                                           .n_headers = 3 + cases[i].n_headers,
		                                           .payload_hash = hash,
		                                           .date = "20130524T000000Z" },
		                         authorization),
		        0);
		const char *signature = strstr(authorization, "Signature=");
		assert_non_null(signature);
		assert_string_equal(signature + strlen("Signature="), cases[i].signature);
	}
}

static void paths_are_encoded_once(void **state)
{
	(void)state;
	static const char *const cases[][2] = { { "a b/c=d+e~f.tar", "a%20b/c%3Dd%2Be~f.tar" },
		{ "\xe1\x88\xb4", "%E1%88%B4" }, { "100%25", "100%2525" }, { "", "" } };
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *encoded = remote_uri_encode(cases[i][0], strlen(cases[i][0]), true);
		assert_string_equal(encoded, cases[i][1]);
		remote_uri_decode(encoded);
		assert_string_equal(encoded, cases[i][0]);
		free(encoded);
	}
	char text[] = "a%zz%2";
	remote_uri_decode(text);
	assert_string_equal(text, "a%zz%2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signatures_are_those_of_the_test_suite),
		cmocka_unit_test(signatures_are_those_of_the_s3_manual),
		cmocka_unit_test(paths_are_encoded_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
