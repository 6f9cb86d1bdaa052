/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that glibc 2.28 lacks, by their system calls: tools/package/wheel puts this before every source (-include).
 * The headers come first, because a declaration that follows a macro of its name would be expanded. */
#ifndef DDPFS_TOOLS_PACKAGE_GLIBC_2_28_H
#define DDPFS_TOOLS_PACKAGE_GLIBC_2_28_H

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define gettid() ((pid_t)syscall(SYS_gettid))                                         /* glibc 2.30 */
#define getcpu(cpu, node) ((int)syscall(SYS_getcpu, (cpu), (node), NULL))             /* glibc 2.29 */
#define close_range(first, last, flags) ((int)syscall(436, (first), (last), (flags))) /* glibc 2.34 */

/* strerrordesc_np(3) of glibc 2.32: untranslated, and NULL for an unknown number.  A program that sets LC_MESSAGES gets
 * translated words here. */
static inline const char *glibc_2_28_strerrordesc(int code)
{
	return code >= 0 && code <= EHWPOISON ? strerror(code) : NULL;
}
#define strerrordesc_np(code) glibc_2_28_strerrordesc(code) /* glibc 2.32 */

#endif
