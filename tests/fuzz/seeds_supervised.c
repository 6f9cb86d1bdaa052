/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seed inputs of the fuzz targets of what a supervisor, its servers and its successor tell each other.
 *
 *   seeds_supervised DIRECTORY     fills DIRECTORY/takeover, DIRECTORY/handover, DIRECTORY/link */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/supervise/handover_memory.h"
#include "tools/ddpfs/takeover.h"

static void write_out(const char *directory, const char *name, const void *data, size_t len)
{
	char path[4300];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	FILE *f = fopen(path, "w");
	if (!f || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
		fprintf(stderr, "seeds_supervised: %s: cannot write it\n", path);
		exit(1);
	}
}

static void write_takeovers(const char *directory)
{
	struct takeover t = {
		.fs = { .dataset = "/d", .mountpoint = "/m", .view = SHARD_VIEW_OPTIONS_DEFAULT, .watchdog_s = 20 },
		.held = { .fuse_fd = 3,
		        .handover_fd = 4,
		        .inotify_fd = 5,
		        .control_fd = 6,
		        .mount = { .init_len = 104 } },
		.owner_pidfd = -1,
	};
	for (uint32_t n = 0; n < 3; n++) {
		t.fs.view.subdir = n ? "train" : NULL;
		t.fs.control_path = n == 2 ? "/run/x" : NULL;
		t.fs.view.n_past = n;
		char *text = takeover_write(&t);
		write_out(directory, n == 0 ? "0" : n == 1 ? "1" : "2", text, strlen(text));
		free(text);
	}
}

/* As tests/fuzz/fuzz_handover.c lays it out. */
static void write_handover(const char *directory)
{
	struct fs_handover_head *head;
	struct fs_handover *handover;
	struct fs_handover_counts counts = { .n = 3, .counts = { { 1, 2 }, { 3, 4 }, { 5, 6 } } };
	struct stat st;
	bool kept;
	int fd;
	const struct fs_handover_sizes sizes = {
		.n_views = 2, .view_bits = 200, .samples = 300, .dirs = 5, .files = 310
	};
	if (fs_handover_new(&fd, &head) < 0 || fs_handover_open(fd, &sizes, &handover, &kept) < 0)
		exit(1);
	for (uint32_t n = 0; n < 6; n++) {
		const struct fs_handover_view view = fs_handover_view(handover, n % 2);
		fs_handover_store(
		        &view, &(struct fs_handover_record){ .epoch = n, .map = n & 1, .flags = FS_HANDOVER_TRAINED });
		memset(view.maps[n & 1], 0x5a, 24);
		fs_handover_store_counts(handover, &counts);
	}
	fstat(fd, &st);
	st.st_size = st.st_size < 1 << 17 ? st.st_size : 1 << 17; /* the rest is zeros */
	uint8_t *bytes = malloc((size_t)st.st_size);
	if (!bytes || pread(fd, bytes, (size_t)st.st_size, 0) != st.st_size)
		exit(1);
	write_out(directory, "whole", bytes, (size_t)st.st_size);
	write_out(directory, "short", bytes, FS_HANDOVER_HEAD_BYTES);
	free(bytes);
	fs_handover_close(handover);
	close(fd);
}

static void write_links(const char *directory)
{
	struct {
		uint8_t with_fd;
		uint8_t message[sizeof(struct fs_channel_message)];
	} packet;
	struct fs_channel_message mounted = { .kind = FS_CHANNEL_MOUNTED,
		.mount = { .dev = 9, .init_len = 104, .resends = true } };
	struct fs_channel_message failed = { .kind = FS_CHANNEL_FAILED, .code = -5 };
	_Static_assert(sizeof(packet) == 1 + sizeof(mounted), "a packet and its first byte");
	memset(failed.text, 0, sizeof(failed.text));
	snprintf(failed.text, sizeof(failed.text), "no such thing");
	packet.with_fd = 1;
	memcpy(packet.message, &mounted, sizeof(mounted));
	write_out(directory, "mounted", &packet, sizeof(packet));
	memcpy(packet.message, &failed, sizeof(failed));
	write_out(directory, "failed", &packet, sizeof(packet));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*write)(const char *directory);
	} kinds[] = { { "takeover", write_takeovers }, { "handover", write_handover }, { "channel", write_links } };
	char path[4200];
	if (argc != 2)
		return 2;
	mkdir(argv[1], 0777);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		snprintf(path, sizeof(path), "%s/%s", argv[1], kinds[k].name);
		mkdir(path, 0777);
		kinds[k].write(path);
	}
	return 0;
}
