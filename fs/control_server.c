/* SPDX-License-Identifier: Apache-2.0 */
/* The server's end of the control socket: its requests and its clients; fs/control_server.h first. */
#include "fs/control_server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <jansson.h>

#include "fs/budget.h"
#include "fs/server.h"
#include "shard/base/control_client.h"
#include "fs/follow_request.h"
#include "fs/recorder.h"
#include "fs/stats.h"
#include "fs/host_sharing.h"
#include "fs/sampler_streams.h"
#include "fs/sink.h"
#include "fs/watch.h"
#include "shard/base/cleanup.h"
#include "shard/base/cleanup_json.h"
#include "shard/base/log.h"
#include "shard/state.h"

enum {
	RESTART_MS = 30000,
};

struct client {
	int fd;     /* -1: free */
	int passed; /* a descriptor that came with the request; -1: none */
	char *in;
	size_t in_len;
	char *out; /* the reply that is being sent; until then no request is read */
	size_t out_len;
	size_t out_at;
	bool closing; /* close once `out` is sent */
	uint64_t seen_ns;
};

enum { NO_DESCRIPTOR_MS = 100 }; /* between two tries to accept a client without a descriptor for it */

struct fs_control {
	struct fs_server *server;
	int fd;              /* the supervisor's socket: it outlives this server */
	uint64_t refused_ns; /* when there was no descriptor for a client; 0: there was one */
	struct client clients[FS_CONTROL_CLIENTS_MAX];
};

/* ---- answers ---- */

static char *finish(json_t *reply)
{
	char *text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
	size_t len = text ? strlen(text) : 0;
	json_decref(reply);
	char *line = text ? realloc(text, len + 2) : NULL;
	if (!line) {
		free(text);
		return NULL;
	}
	line[len] = '\n';
	line[len + 1] = '\0';
	return line;
}

static json_t *refuse(const char *why)
{
	return json_pack("{s:b,s:s}", "ok", 0, "error", why);
}

/* Returns {"ok":true} with the members of `given`, or with `given` as the value of `key`; `key` NULL: the members. */
static json_t *with_object(const char *key, char *given)
{
	cleanup_free char *text = given;
	cleanup_json json_t *value = text ? json_loads(text, 0, NULL) : NULL;
	cleanup_json json_t *reply = json_pack("{s:b}", "ok", 1);
	if (!value || !reply)
		return refuse("out of memory");
	if (key)
		json_object_set(reply, key, value);
	else
		json_object_update(reply, value);
	return steal_ptr(&reply);
}

/* Whether a request is about this view. @view: the one that it names; NULL: it is about all ranks. */
static bool is_meant(const struct fs_view *view, const struct fs_view *one)
{
	return !view || view == one;
}

/* Makes an epoch the current one of each view that is meant. The order of the epoch is computed first, so that no view
 * is changed if there is no memory for it. */
static int set_epoch(struct fs_server *server, const struct fs_view *meant, uint64_t number)
{
	struct shard_epoch *epoch;
	int rc = shard_view_epoch(server->views[0]->order, number, &epoch);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; rc == 0 && i < server->n_views; i++) {
		struct fs_view *view = server->views[i];
		if (!is_meant(meant, view))
			continue;
		rc = fs_view_set_epoch(view, number);
		if (rc == 0) {
			fs_server_epoch_changed(server, view);
			fs_sink_epoch(server->sink, view, number);
		}
	}
	shard_epoch_put(epoch);
	return rc;
}

static json_t *answer_epoch(struct fs_server *server, struct fs_view *view, json_t *request)
{
	json_t *set = json_object_get(request, "set");
	json_t *advance = json_object_get(request, "advance");
	const char *mode = json_string_value(advance);
	struct fs_view_progress progress;
	/* Check the whole request before doing any of it: a refused request changes nothing. */
	if (set && (!json_is_integer(set) || json_integer_value(set) < 0 ||
	                   (uint64_t)json_integer_value(set) > FS_EPOCH_MAX))
		return refuse("\"set\" must be an epoch: a whole number from 0 to 4294967295");
	if (advance && (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "off") != 0)))
		return refuse("\"advance\" must be \"auto\" or \"off\"");
	int rc = set ? set_epoch(server, view, (uint64_t)json_integer_value(set)) : 0;
	if (rc < 0)
		return refuse(base_err_str(rc));
	for (uint32_t i = 0; mode && i < server->n_views; i++)
		if (is_meant(view, server->views[i]))
			fs_view_set_advance(server->views[i], strcmp(mode, "auto") == 0);
	fs_watch_drain(server->watch);
	fs_server_progress(server, view, &progress);
	json_t *reply = json_pack("{s:b,s:I,s:I,s:I,s:s}", "ok", 1, "epoch", (json_int_t)progress.epoch, "turns",
	        (json_int_t)progress.turns, "opened", (json_int_t)progress.n_opened, "advance",
	        progress.automatic ? "auto" : "off");
	if (reply && view && view->all)
		fs_sampler_streams_stats(server, view, reply);
	return reply;
}

/* Reads a whole number; *ret_value stays as it is if none is given. Returns false if it is no whole number. */
static bool whole(const json_t *value, uint64_t *ret_value)
{
	if (value && (!json_is_integer(value) || json_integer_value(value) < 0))
		return false;
	if (value)
		*ret_value = (uint64_t)json_integer_value(value);
	return true;
}

/* Records what was trained, in every view that is meant. */
static int set_trained(struct fs_server *server, const struct fs_view *meant, uint64_t epoch, uint64_t steps)
{
	int rc = 0;
	for (uint32_t i = 0; rc == 0 && i < server->n_views; i++)
		if (is_meant(meant, server->views[i]))
			rc = fs_view_set_trained(server->views[i], epoch, steps);
	return rc;
}

/* Without a rank it tells the state of the first one with a reader, and records for all of them. */
static json_t *answer_state(struct fs_server *server, struct fs_view *meant, json_t *request)
{
	struct fs_view *view = meant ? meant : fs_server_first_reader(server);
	json_t *steps = json_object_get(request, "steps");
	json_t *turns = json_object_get(request, "turns");
	json_t *which = json_object_get(request, "epoch");
	struct fs_view_progress progress;
	char text[SHARD_STATE_MAX];
	uint64_t epoch;
	uint64_t trained;
	int rc = 0;
	if (view->all && view->layout == FS_LAYOUT_TREE)
		return refuse("a mount with view=all has no resume state: every file is there in every epoch, and the "
		              "trainer's own sampler goes on where it stopped (share/doc/ddpfs/tools/RESUME.md)");
	if (steps && turns)
		return refuse("\"steps\" and \"turns\" both say what was trained: give one of them");
	if (which && !steps && !turns)
		return refuse("\"epoch\" goes with \"steps\" or \"turns\"");
	if ((steps || turns) && !which && !meant && server->lowest_epoch != server->highest_epoch)
		return refuse("the ranks are in different epochs: \"epoch\" must say in which one it was trained, or "
		              "\"rank\" which rank is meant");
	fs_view_trained(view, &epoch, &trained);
	if (steps || turns) {
		fs_view_progress(view, &progress);
		epoch = progress.epoch;
	}
	if (!whole(steps, &trained))
		return refuse("\"steps\" must be a whole number of global steps");
	if (!whole(turns, &trained))
		return refuse("\"turns\" must be a whole number of one rank's samples");
	if (!whole(which, &epoch))
		return refuse("\"epoch\" must be a whole number");
	if (turns)
		rc = fs_view_steps(view, epoch, trained, &trained);
	if (turns && rc == -ERANGE)
		return refuse("\"turns\" or \"epoch\" is too large: no rank has so many samples in an epoch, or "
		              "there is no such epoch");
	/* The given epoch counts, even if a loader lists a later one already. */
	if (rc == 0)
		rc = shard_state_format(view->order, epoch, trained, text, sizeof(text));
	if (rc == -EINVAL)
		return refuse("the mount began this epoch after that step: steps count from the epoch's beginning");
	if (rc == 0 && (steps || turns) && set_trained(server, meant, epoch, trained) < 0)
		return refuse("an epoch has fewer steps than that: steps count the samples of all ranks");
	return rc < 0 ? refuse(base_err_str(rc)) : with_object("state", strdup(text));
}

static json_t *answer_consumed(struct fs_server *server, struct fs_view *view, json_t *request)
{
	json_t *which = json_object_get(request, "epoch");
	json_t *steps = json_object_get(request, "steps");
	char text[SHARD_STATE_MAX];
	uint64_t epoch = 0;
	uint64_t trained = 0;
	bool changed = false;
	if (!view)
		return refuse("this mount shows several ranks: \"rank\" must say which one is meant");
	if (!which || !whole(which, &epoch))
		return refuse("\"epoch\" must be a whole number");
	if (!steps || !whole(steps, &trained))
		return refuse("\"steps\" must be a whole number of global steps");
	int rc = shard_state_format(view->order, epoch, trained, text, sizeof(text));
	if (rc == 0)
		rc = fs_view_consumed(view, epoch, trained, &changed);
	bool began = rc == 0 && fs_view_begin(view); /* the library reads for the rank */
	if (changed || began)
		fs_server_epoch_changed(server, view);
	if (rc == -EINVAL)
		return refuse("the mount began this epoch after that step: steps count from the epoch's beginning");
	return rc < 0 ? refuse(base_err_str(rc)) : with_object("state", strdup(text));
}

/* A rank gets a new trainer. What the one before opened must not count for it. */
static json_t *answer_reset(struct fs_server *server, struct fs_view *meant, json_t *request)
{
	(void)request;
	if (server->options.n_ranks == 0)
		return refuse("this mount shows one rank only: unmount it and mount it again");
	fs_watch_drain(server->watch); /* opens until now are those of the old trainer */
	for (uint32_t i = 0; i < server->n_views; i++) {
		struct fs_view *view = server->views[i];
		int rc = is_meant(meant, view) ? fs_view_reset(view) : 0;
		if (rc < 0)
			return refuse(base_err_str(rc));
		if (is_meant(meant, view)) {
			fs_sampler_streams_forget(server->samplers[i]);
			fs_server_epoch_changed(server, view);
		}
	}
	return json_pack("{s:b}", "ok", 1);
}

static json_t *answer_unmount(struct fs_server *server, struct fs_view *view, json_t *request)
{
	(void)view;
	bool lazy = json_is_true(json_object_get(request, "lazy"));
	fs_sink_hold(server->sink);
	int rc = fs_server_unmount(server, lazy);
	fs_sink_release(server->sink);
	if (rc == -EBUSY)
		return refuse(
		        "busy: files or directories of the mount are in use (`lsof` or `fuser -vm` shows by whom); a "
		        "lazy unmount detaches it at once");
	if (rc == -EXDEV)
		return refuse(
		        "another file system is mounted over it, or over a directory above it: unmount that one first");
	if (rc < 0)
		return refuse(strerror(-rc));
	/* When the last user is gone, the kernel ends the session, and so the server: at once, or after a lazy
	 * unmount when the last file is closed. */
	return json_pack("{s:b}", "ok", 1);
}

/* Returns false if the claims do not have the right form. */
static bool take_claims(struct fs_budget *budget, uint32_t servers, json_t *mounts, json_t *list)
{
	struct fs_memory_claim claims[FS_BUDGET_CLAIMS_MAX];
	size_t n = json_array_size(list);
	if (!mounts && !list)
		return true; /* from an older program */
	if (!json_is_integer(mounts) || json_integer_value(mounts) < 1 || json_integer_value(mounts) > UINT32_MAX ||
	        !json_is_array(list) || n >= FS_BUDGET_CLAIMS_MAX)
		return false;
	for (size_t i = 0; i < n; i++) {
		json_int_t bytes;
		int fixed;
		if (json_unpack(json_array_get(list, i), "[I, b]", &bytes, &fixed) < 0 || bytes < 0 ||
		        bytes > FS_MEMORY_CLAIM_MAX)
			return false;
		claims[i] = (struct fs_memory_claim){ .want_bytes = (uint64_t)bytes, .fixed = fixed };
	}
	fs_budget_met(budget, servers, (uint32_t)json_integer_value(mounts), claims, n);
	return true;
}

static json_t *answer_neighbour(struct fs_server *server, struct fs_view *view, json_t *request)
{
	(void)view;
	json_t *servers = json_object_get(request, "servers");
	if (!json_is_integer(servers) || json_integer_value(servers) < 1 || json_integer_value(servers) > UINT32_MAX)
		return refuse("\"servers\" must be how many servers of the dataset there are");
	if (!take_claims(server->budget, (uint32_t)json_integer_value(servers), json_object_get(request, "mounts"),
	            json_object_get(request, "claims")))
		return refuse(
		        "\"claims\" must be pairs of bytes and true or false, \"mounts\" how many mounts there are");
	fs_host_sharing_met(server->host_sharing, (uint32_t)json_integer_value(servers));
	return json_pack("{s:b}", "ok", 1);
}

/* The supervisor first checks that the program can go on, which takes a moment. The mount is served meanwhile. */
static json_t *answer_restart(struct fs_server *server, struct fs_view *view, json_t *request)
{
	(void)view;
	const char *program = json_string_value(json_object_get(request, "program"));
	struct fs_channel_message answer;
	bool stop = false;
	if (!program || strlen(program) >= sizeof(answer.text))
		return refuse("\"program\" must be the path of the program that is to go on");
	int rc = fs_channel_ask(server->channel->channel, FS_CHANNEL_RESTART, 0, program, RESTART_MS, &stop, &answer);
	if (stop) {
		fs_server_stop(server);
		return refuse("the mount is being taken away");
	}
	if (rc < 0)
		return refuse(rc == -ETIMEDOUT ? "the supervisor does not answer" : "the supervisor is gone");
	if (answer.code < 0)
		return refuse(answer.text);
	server->restart = true;
	return json_pack("{s:b}", "ok", 1);
}

static json_t *answer_info(struct fs_server *server, struct fs_view *view, json_t *request)
{
	(void)request;
	return with_object(NULL, fs_info_json(server, view));
}

static json_t *answer_stat(struct fs_server *server, struct fs_view *view, json_t *request)
{
	(void)request;
	return with_object("stats", fs_stats_json(server, view));
}

static json_t *answer_history(struct fs_server *server, struct fs_view *view, json_t *request)
{
	uint64_t after_ms = 0;
	(void)view;
	if (!whole(json_object_get(request, "after"), &after_ms))
		return refuse("\"after\" must be a whole number of milliseconds since the mount was made");
	json_t *reply = fs_recorder_json(server->recorder, after_ms);
	if (!reply)
		return refuse("out of memory");
	json_object_set_new(reply, "ok", json_true());
	return reply;
}

static json_t *follow(
        struct fs_server *server, struct fs_view *view, json_t *request, const struct fs_follow_input *input)
{
	if (server->options.n_ranks > 0)
		return refuse(
		        "a mount of several ranks follows the orders of its ranks: announce orders to a mount with "
		        "view=all, or to one of a single rank");
	return fs_follow_request(server, view, request, input);
}

static json_t *answer_follow(struct fs_server *server, struct fs_view *view, json_t *request)
{
	const struct fs_follow_input input = { .fd = server->control_passed };
	return follow(server, view, request, &input);
}

static const struct command {
	const char *name;
	json_t *(*answer)(struct fs_server *server, struct fs_view *view, json_t *request);
	const char *keys[13]; /* besides "cmd" and "rank"; ended by NULL */
} commands[] = {
	{ "info", answer_info, { NULL } },
	{ "stat", answer_stat, { NULL } },
	{ "history", answer_history, { "after", NULL } },
	{ "epoch", answer_epoch, { "set", "advance", NULL } },
	{ "state", answer_state, { "steps", "turns", "epoch", NULL } },
	{ "consumed", answer_consumed, { "epoch", "steps", NULL } },
	{ "reset", answer_reset, { NULL } },
	{ "unmount", answer_unmount, { "lazy", NULL } },
	{ "neighbour", answer_neighbour, { "servers", "mounts", "claims", NULL } },
	{ "restart", answer_restart, { "program", NULL } },
	{ "follow", answer_follow,
	        { "list", "how", "form", "bytes", "listing", "dir", "table", "skip_unknown", "buffer", "reason", "size",
	                "from", NULL } },
};

static bool knows(const struct command *command, const char *key)
{
	if (strcmp(key, "cmd") == 0 || strcmp(key, "rank") == 0)
		return true;
	for (int k = 0; command->keys[k]; k++)
		if (strcmp(key, command->keys[k]) == 0)
			return true;
	return false;
}

/* Finds the view of a request: the one of its rank, or the only one. NULL: all ranks. Returns false if the mount does
 * not show this rank. */
static bool find_view(struct fs_server *server, json_t *request, struct fs_view **ret_view)
{
	uint64_t rank = 0;
	json_t *value = json_object_get(request, "rank");
	*ret_view = server->options.n_ranks == 0 ? server->views[0] : NULL;
	if (!value)
		return true;
	if (!whole(value, &rank))
		return false;
	for (uint32_t i = 0; i < server->n_views; i++)
		if (server->views[i]->options.rank == rank)
			*ret_view = server->views[i];
	return *ret_view && (*ret_view)->options.rank == rank;
}

/* Finds the command of a request. NULL: there is none, and *ret_refusal says why. */
static const struct command *find(json_t *request, json_t **ret_refusal)
{
	const char *cmd = json_string_value(json_object_get(request, "cmd"));
	const struct command *found = NULL;
	const char *key;
	json_t *value;
	if (!json_is_object(request) || !cmd) {
		*ret_refusal = refuse("a request is one line of JSON: {\"cmd\":\"info\"}");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(cmd, commands[i].name) == 0)
			found = &commands[i];
	if (!found) {
		*ret_refusal =
		        refuse("unknown command: info, stat, history, epoch, state, consumed, follow, reset, unmount "
		               "and restart are known");
		return NULL;
	}
	json_object_foreach(request, key, value)
	{
		if (!knows(found, key)) {
			*ret_refusal = refuse("the request has a key that this command does not know");
			return NULL;
		}
	}
	return found;
}

char *fs_control_answer(struct fs_server *server, const char *line, size_t len)
{
	json_t *refusal = NULL;
	cleanup_json json_t *request = json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL);
	const struct command *command = find(request, &refusal);
	struct fs_view *view;
	if (!command)
		return finish(refusal);
	if (!find_view(server, request, &view))
		return finish(refuse("\"rank\" must be a rank that the mount shows"));
	return finish(command->answer(server, view, request));
}

char *fs_control_answer_guest(struct fs_server *server, uid_t uid, uint64_t ino, const char *bytes, size_t len)
{
	const char *end = memchr(bytes, '\n', len);
	json_t *refusal = NULL;
	struct fs_node node;
	if (!end)
		return finish(refuse("a request is one line of JSON, and what is announced comes behind it"));
	cleanup_json json_t *request = json_loadb(bytes, (size_t)(end - bytes), JSON_REJECT_DUPLICATES, NULL);
	const struct command *command = find(request, &refusal);
	if (!command)
		return finish(refusal);
	if (command->answer != answer_follow)
		return finish(refuse(
		        "only announcements (follow) are taken from users of the mount: other requests go to the "
		        "control socket, and are for root and the user who mounted"));
	if (fs_server_node(server, ino, &node) < 0 || node.kind != FS_ROOT || !fs_server_view(server, node))
		return finish(refuse("announce at the root of the mount: this is a directory below it"));
	const struct fs_follow_input input = {
		.fd = -1, .guest = true, .uid = uid, .data = end + 1, .size = len - (size_t)(end + 1 - bytes)
	};
	return finish(follow(server, fs_server_view(server, node), request, &input));
}

/* ---- the socket ---- */

int fs_control_open(struct fs_server *server, struct fs_control **ret_control)
{
	struct fs_control *control = calloc(1, sizeof(*control));
	if (!control)
		return -ENOMEM;
	control->server = server;
	control->fd = server->channel->control_fd;
	for (size_t i = 0; i < FS_CONTROL_CLIENTS_MAX; i++)
		control->clients[i] = (struct client){ .fd = -1, .passed = -1 };
	*ret_control = control;
	return 0;
}

static void client_done(struct client *client)
{
	close(client->fd);
	if (client->passed >= 0)
		close(client->passed);
	free(client->in);
	free(client->out);
	*client = (struct client){ .fd = -1, .passed = -1 };
}

void fs_control_close(struct fs_control *control)
{
	if (!control)
		return;
	for (size_t i = 0; i < FS_CONTROL_CLIENTS_MAX; i++)
		if (control->clients[i].fd >= 0)
			client_done(&control->clients[i]);
	free(control);
}

static uint64_t silent_ms(const struct client *client)
{
	return (base_now_ns() - client->seen_ns) / 1000000;
}

/* Finds a place that is free, or that of the client that was silent for longest. */
static struct client *best_place(struct fs_control *control)
{
	struct client *best = &control->clients[0];
	for (size_t i = 0; i < FS_CONTROL_CLIENTS_MAX && best->fd >= 0; i++)
		if (control->clients[i].fd < 0 || control->clients[i].seen_ns < best->seen_ns)
			best = &control->clients[i];
	return best;
}

/* Milliseconds until another client can be accepted; 0: now. */
static int full_ms(struct fs_control *control)
{
	uint64_t since_ms = control->refused_ns ? (base_now_ns() - control->refused_ns) / 1000000 : NO_DESCRIPTOR_MS;
	if (since_ms < NO_DESCRIPTOR_MS)
		return (int)(NO_DESCRIPTOR_MS - since_ms);
	const struct client *best = best_place(control);
	uint64_t ms = best->fd < 0 ? FS_CONTROL_SILENT_MS : silent_ms(best);
	return ms >= FS_CONTROL_SILENT_MS ? 0 : (int)(FS_CONTROL_SILENT_MS - ms);
}

size_t fs_control_polls(struct fs_control *control, struct pollfd polls[FS_CONTROL_POLLS_MAX], int *ret_timeout_ms)
{
	size_t n = 0;
	int full = full_ms(control);
	int timeout_ms = full ? full : -1;
	if (!full)
		polls[n++] = (struct pollfd){ .fd = control->fd, .events = POLLIN };
	for (size_t i = 0; i < FS_CONTROL_CLIENTS_MAX; i++) {
		const struct client *client = &control->clients[i];
		if (client->fd < 0)
			continue;
		polls[n++] = (struct pollfd){ .fd = client->fd, .events = client->out ? POLLOUT : POLLIN };
		uint64_t idle_ms = silent_ms(client);
		int left = idle_ms >= FS_CONTROL_IDLE_MS ? 0 : (int)(FS_CONTROL_IDLE_MS - idle_ms);
		if (timeout_ms < 0 || left < timeout_ms)
			timeout_ms = left;
	}
	*ret_timeout_ms = timeout_ms;
	return n;
}

static bool may_ask(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
		return false;
	return cred.uid == 0 || cred.uid == geteuid();
}

static void accept_clients(struct fs_control *control)
{
	while (full_ms(control) == 0) {
		struct client *client = best_place(control);
		int fd = accept4(control->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		/* Without a descriptor the client stays in the queue, and poll(2) would return at once. */
		control->refused_ns = fd < 0 && (errno == EMFILE || errno == ENFILE) ? base_now_ns() : 0;
		if (fd < 0)
			return;
		if (!may_ask(fd)) {
			close(fd);
			continue;
		}
		if (client->fd >= 0)
			client_done(client);
		*client = (struct client){
			.fd = fd, .passed = -1, .in = malloc(BASE_CONTROL_LINE_MAX), .seen_ns = base_now_ns()
		};
		if (!client->in)
			client_done(client);
	}
}

static void client_send(struct client *client)
{
	while (client->out_at < client->out_len) {
		ssize_t n =
		        send(client->fd, client->out + client->out_at, client->out_len - client->out_at, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			client_done(client);
			return;
		}
		client->out_at += (size_t)n;
	}
	free(client->out);
	client->out = NULL;
	if (client->closing)
		client_done(client);
}

/* Answers the first whole line that has arrived, if there is one. */
static void client_answer(struct fs_control *control, struct client *client)
{
	char *end = memchr(client->in, '\n', client->in_len);
	if (end) {
		size_t len = (size_t)(end - client->in);
		control->server->control_passed = client->passed;
		client->out = fs_control_answer(control->server, client->in, len);
		control->server->control_passed = -1;
		if (client->passed >= 0)
			close(client->passed);
		client->passed = -1;
		client->in_len -= len + 1;
		memmove(client->in, end + 1, client->in_len);
	} else if (client->in_len == BASE_CONTROL_LINE_MAX) {
		client->out = finish(refuse("the request is longer than 65536 bytes"));
		client->closing = true;
	} else {
		return;
	}
	if (!client->out) {
		client_done(client);
		return;
	}
	client->out_len = strlen(client->out);
	client->out_at = 0;
	client_send(client);
}

/* Receives bytes, and perhaps a descriptor. A second one before the request is answered replaces the first. */
static ssize_t client_receive(struct client *client)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { .iov_base = client->in + client->in_len,
		.iov_len = BASE_CONTROL_LINE_MAX - client->in_len };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	/* The buffer has room for one descriptor (two with its padding); the kernel closes all others. */
	ssize_t n = recvmsg(client->fd, &msg, MSG_CMSG_CLOEXEC);
	for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
			if (client->passed >= 0)
				close(client->passed);
			memcpy(&client->passed, (char *)c + at, sizeof(int));
		}
	}
	return n;
}

static void client_serve(struct fs_control *control, struct client *client)
{
	client->seen_ns = base_now_ns();
	if (client->out) {
		client_send(client);
	} else {
		ssize_t n = client_receive(client);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			return;
		if (n <= 0) {
			client_done(client);
			return;
		}
		client->in_len += (size_t)n;
	}
	/* Several requests may come at once; the next one waits while a reply is being sent. */
	while (client->fd >= 0 && !client->out && memchr(client->in, '\n', client->in_len))
		client_answer(control, client);
	if (client->fd >= 0 && !client->out && client->in_len == BASE_CONTROL_LINE_MAX)
		client_answer(control, client);
}

void fs_control_serve(struct fs_control *control, const struct pollfd *polls, size_t n)
{
	uint64_t now = base_now_ns();
	for (size_t i = 0; i < n; i++) {
		if (!polls[i].revents)
			continue;
		if (polls[i].fd == control->fd) {
			accept_clients(control);
			continue;
		}
		for (size_t c = 0; c < FS_CONTROL_CLIENTS_MAX; c++)
			if (control->clients[c].fd == polls[i].fd)
				client_serve(control, &control->clients[c]);
	}
	for (size_t c = 0; c < FS_CONTROL_CLIENTS_MAX; c++) {
		struct client *client = &control->clients[c];
		if (client->fd >= 0 && now > client->seen_ns &&
		        now - client->seen_ns > FS_CONTROL_IDLE_MS * UINT64_C(1000000))
			client_done(client);
	}
}
