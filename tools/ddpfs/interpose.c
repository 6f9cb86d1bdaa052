/* SPDX-License-Identifier: Apache-2.0 */
/* libddpfs_interpose.so: isatty() that asks the kernel only where the answer can be yes.
 *
 * Python's open(path) calls isatty() on every file.  On a FUSE file that ioctl(TCGETS) is a request to the daemon, which
 * the kernel never stops sending: 40 of the 53 us that reading a resident 4 KiB file takes.  Only a character device can
 * be a terminal, and fstat() of a file in the mount is answered from the kernel's attribute cache.
 *
 * `ddpfs exec` puts this into LD_PRELOAD of the command (and so of all its children); --no-interpose does not. */
#include <errno.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

__attribute__((visibility("default"))) int isatty(int fd)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return 0; /* errno is EBADF, as isatty(3) says */
	if (!S_ISCHR(st.st_mode)) {
		errno = ENOTTY;
		return 0;
	}
	/* What glibc's and musl's isatty() do. */
	struct termios unused;
	return tcgetattr(fd, &unused) == 0;
}
