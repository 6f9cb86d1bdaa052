/* fuse-over-io_uring (Linux 6.14; Documentation/filesystems/fuse/fuse-io-uring.rst): READs, LOOKUPs and the rest come through
 * rings of shared memory, one a processor, and are answered there, without a read(2) and a write(2) each on /dev/fuse.
 *
 * On with `-o io_uring` only, where meson found a libfuse that can (3.19; 3.18 loses answers that another thread gives than the
 * ring's) and the kernel offers it (/sys/module/fuse/parameters/enable_uring); else the mount is as any other and the log says
 * why.  Two things are different then:
 *
 *   - A ring's next request comes through the thread that submitted the last answer, as its task work (6.18,
 *     fs/fuse/dev_uring.c).  The engine's threads wait in the kernel for pages of our own mount (a store), and such a request
 *     may be what keeps the page locked: so they do not answer, the `replier` does it for them.
 *   - What was in a dead server's rings is not handed out again (FUSE_NOTIFY_RESEND knows /dev/fuse only): the mount ends with its
 *     server, and cannot be restarted.
 *
 * The rings' threads (libfuse's, `fuse-ring-N`, one a processor) run fs_ops as the workers do, and must not wait either: what they answer
 * leaves when they are back.  They end with the process, so what they use is never freed before.  The helper answers some of their
 * requests itself: it waits for nothing of the mount in the kernel. */
#ifndef DDPFS_FS_RINGS_H
#define DDPFS_FS_RINGS_H

#include "fs/server.h"

enum {
	FS_RINGS_DEPTH = 8,            /* requests that one processor's ring holds; more wait in the kernel */
	FS_RINGS_BYTES_MIN = 128 << 10 /* of a request's memory, and so of a READ */
};

/* An answer that is ready.  The caller's object, until send is called. */
struct fs_rings_answer {
	void (*send)(struct fs_rings_answer *answer);
	struct fs_rings_answer *next; /* rings' */
};

/* Before INIT.  *ret_rings is NULL, with a line in the log, where it cannot be, and also without -o io_uring.  -ENOMEM, -EAGAIN. */
int fs_rings_new(struct fs_server *server, struct fs_rings **ret_rings);

/* Sends what is waiting, and joins the replier.  The engine must have ended, the session not yet.  NULL is fine. */
void fs_rings_free(struct fs_rings *rings);

/* For libfuse: its option, and what INIT agrees on (rings may be NULL: none then). */
enum { FS_RINGS_OPTION_BYTES = 64 };
void fs_rings_option(char ret_option[FS_RINGS_OPTION_BYTES]);
void fs_rings_want(struct fs_rings *rings, struct fuse_conn_info *conn);

/* INIT was answered: whether requests come through rings, else a line in the log says why not. */
bool fs_rings_started(struct fs_rings *rings);

/* Whether a request came through a ring. */
bool fs_rings_brought(fuse_req_t req);

/* Where the answer's bytes go, of a request that came through a ring: `size` bytes there, valid until it is answered; NULL for any
 * other request.  fuse_reply_buf from there copies nothing. */
uint8_t *fs_rings_payload(fuse_req_t req, size_t size);

/* Any thread: send is called by the replier, soon. */
void fs_rings_send(struct fs_rings *rings, struct fs_rings_answer *answer);

/* Bytes of memory of one request, on a host of so many processors: all rings together have 64 MiB, or what the least takes. */
uint32_t fs_rings_request_bytes(unsigned processors);

/* Whether the kernel that sent this INIT has rings to offer. */
bool fs_rings_offered(const uint8_t *init, uint32_t len);

#endif
