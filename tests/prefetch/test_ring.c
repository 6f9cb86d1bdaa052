/* SPDX-License-Identifier: Apache-2.0 */
/* What a restricted ring still does, that the engine's is one, and that it works without IORING_FEAT_EXT_ARG. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "prefetch/io_backend.h"
#include "prefetch/ring.h"

static struct io_uring ring;
static char buf[16];
static unsigned hidden_features; /* of rings made from now on */

/* In the place of liburing's own, for prefetch/ too. */
int io_uring_queue_init_params(unsigned entries, struct io_uring *ret_ring, struct io_uring_params *params)
{
	int (*real)(unsigned, struct io_uring *, struct io_uring_params *);
	*(void **)&real = dlsym(RTLD_NEXT, "io_uring_queue_init_params");
	int rc = real ? real(entries, ret_ring, params) : -ENOSYS;
	if (rc == 0)
		ret_ring->features &= ~hidden_features;
	return rc;
}

static int setup(void **state)
{
	(void)state;
	return prefetch_ring_init(&ring, 8, 0, IORING_SETUP_R_DISABLED) < 0;
}

static int teardown(void **state)
{
	(void)state;
	prefetch_ring_exit(&ring);
	ring.ring_fd = -1;
	return 0;
}

static struct io_uring_sqe *sqe(void)
{
	struct io_uring_sqe *got = io_uring_get_sqe(&ring);
	if (!got)
		abort();
	return got;
}

static int result(void)
{
	struct io_uring_cqe *cqe;
	int res;
	assert_int_equal(io_uring_submit(&ring), 1);
	assert_int_equal(io_uring_wait_cqe(&ring, &cqe), 0);
	res = cqe->res;
	io_uring_cqe_seen(&ring, cqe);
	return res;
}

static void it_reads_and_does_nothing_else(void **state)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int event = eventfd(0, EFD_CLOEXEC);
	(void)state;
	assert_int_equal(prefetch_ring_restrict(&ring), 0);
	io_uring_prep_read(sqe(), fd, buf, sizeof(buf), 0);
	assert_int_equal(result(), sizeof(buf));
	io_uring_prep_openat(sqe(), AT_FDCWD, "/dev/null", O_WRONLY, 0);
	assert_int_equal(result(), -EACCES);
	io_uring_prep_write(sqe(), event, buf, 8, 0);
	assert_int_equal(result(), -EACCES);
	io_uring_prep_connect(sqe(), fd, NULL, 0);
	assert_int_equal(result(), -EACCES);
	io_uring_prep_nop(sqe());
	assert_int_equal(result(), -EACCES);
	assert_int_equal(io_uring_register_eventfd(&ring, event), -EACCES);
	assert_int_equal(io_uring_register_files(&ring, &fd, 1), -EACCES);
	close(event);
	close(fd);
}

/* The descriptor of a ring other than `ring`. */
static int other_ring(void)
{
	char path[64];
	char place[64];
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t len = readlink(path, place, sizeof(place) - 1);
		if (len > 0 && fd != ring.ring_fd && (place[len] = '\0', strstr(place, "[io_uring]")))
			return fd;
	}
	return -1;
}

static void the_engines_is_restricted(void **state)
{
	struct cache_arena *arena;
	struct prefetch_io_backend *io;
	int event = eventfd(0, EFD_CLOEXEC);
	(void)state;
	assert_int_equal(cache_arena_new(8 << 20, &arena), 0);
	assert_int_equal(prefetch_io_uring(8, arena, &io), 0);
	int fd = other_ring();
	assert_true(fd >= 0);
	assert_int_equal(syscall(SYS_io_uring_register, fd, IORING_REGISTER_EVENTFD, &event, 1), -1);
	assert_int_equal(errno, EACCES);
	prefetch_io_free(io);
	cache_arena_free(arena);
	close(event);
}

/* Before Linux 5.11 liburing waits with an operation of its own, whose completion is not the engine's. */
static void a_wait_with_a_time_limit_needs_no_ext_arg(void **state)
{
	enum { ROUNDS = 20, LIMIT_NS = 1000000 };
	struct cache_arena *arena;
	struct prefetch_io_backend *io;
	struct prefetch_op *done = NULL;
	struct prefetch_object object = { .fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), .align = 1 };
	(void)state;
	assert_true(object.fd >= 0);
	assert_int_equal(cache_arena_new(8 << 20, &arena), 0);
	hidden_features = IORING_FEAT_EXT_ARG;
	assert_int_equal(prefetch_io_uring(8, arena, &io), 0);
	hidden_features = 0;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct prefetch_op op = {
			.object = &object, .entry = 8, .data = cache_arena_segment(arena, 0), .len = 64
		};
		prefetch_io_wait(io, LIMIT_NS, &done); /* nothing is under way: it ends by its limit */
		assert_null(done);
		prefetch_io_submit(io, &op);
		while (!done)
			prefetch_io_wait(io, LIMIT_NS, &done);
		assert_ptr_equal(done, &op);
		assert_int_equal(done->res, 64);
		assert_null(done->next);
	}
	prefetch_io_free(io);
	cache_arena_free(arena);
	close(object.fd);
}

/* Forbids io_uring_enter to this thread. */
static void refuse_enter(int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_enter, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };
	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
}

struct refused {
	int error, rc; /* of the filter; of prefetch_io_uring */
};

static void *make_refused(void *arg)
{
	struct refused *refused = arg;
	struct cache_arena *arena;
	struct prefetch_io_backend *io = NULL;
	refuse_enter(refused->error);
	assert_int_equal(cache_arena_new(8 << 20, &arena), 0);
	refused->rc = prefetch_io_uring(8, arena, &io);
	if (refused->rc == 0)
		prefetch_io_free(io);
	cache_arena_free(arena);
	return NULL;
}

static void a_ring_that_cannot_be_entered_is_refused_at_once(void **state)
{
	static const int errors[] = { EPERM, ENOSYS, EACCES };
	(void)state;
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		struct refused refused = { .error = errors[i] };
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, make_refused, &refused), 0);
		pthread_join(thread, NULL);
		assert_int_equal(refused.rc, -errors[i]);
	}
	assert_int_equal(other_ring(), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(it_reads_and_does_nothing_else, setup, teardown),
		cmocka_unit_test(the_engines_is_restricted),
		cmocka_unit_test(a_wait_with_a_time_limit_needs_no_ext_arg),
		cmocka_unit_test(a_ring_that_cannot_be_entered_is_refused_at_once),
	};
	if (setup(NULL) != 0) {
		fputs("this kernel forbids io_uring, or it is older than Linux 5.10\n", stderr);
		return 77;
	}
	teardown(NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
