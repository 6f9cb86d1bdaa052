/* The last words of a server whose mapped index vanishes under it.
 *
 * index.ddpfs is mapped, and every tool of ours replaces it as a whole; who truncates it in place takes pages away that
 * are in use, and the next look at one is SIGBUS.  Nothing can be answered then: the supervisor is told why, in one line for the
 * log, and the signal does what it always does. */
#ifndef DDPFS_FS_SIGBUS_H
#define DDPFS_FS_SIGBUS_H

/* Takes SIGBUS of the process, for one dataset and mountpoint; `channel`: fs/link.h.  Call from main, before there are threads that
 * could meet it. */
void fs_sigbus_take(int channel, const char *dataset, const char *mountpoint);
void fs_sigbus_give_back(void); /* nothing when not taken */

#endif
