/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point that libFuzzer and replay.c share. */
#ifndef DDPFS_TESTS_FUZZ_FUZZ_H
#define DDPFS_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
