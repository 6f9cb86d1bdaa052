/* SPDX-License-Identifier: Apache-2.0 */
/* An epoll_ctl that refuses sockets with an odd number for some time, as when fs.epoll.max_user_watches is reached; for
 * programs linked with --wrap=epoll_ctl. */
#include <errno.h>
#include <sys/epoll.h>

int __real_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);

int __wrap_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	static unsigned added, refused; /* one thread adds sockets; the first descriptor is added before it starts */
	if (op == EPOLL_CTL_ADD && added++ > 0 && fd % 2 && refused < 200) {
		refused++;
		errno = ENOSPC;
		return -1;
	}
	return __real_epoll_ctl(epfd, op, fd, event);
}
