/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whether a sanitizer watches the memory of this program.
 *
 * BASE_SANITIZED: 1 with AddressSanitizer or ThreadSanitizer, of gcc or clang; else 0. */
#ifndef DDPFS_SHARD_BASE_SANITIZED_H
#define DDPFS_SHARD_BASE_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BASE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BASE_SANITIZED 1
#endif
#endif

#ifndef BASE_SANITIZED
#define BASE_SANITIZED 0
#endif

#endif
