/* SPDX-License-Identifier: Apache-2.0 */
/* The cleanup attribute for JSON objects (shard/base/cleanup.h): gives the variable's reference back. */
#ifndef DDPFS_SHARD_BASE_CLEANUP_JSON_H
#define DDPFS_SHARD_BASE_CLEANUP_JSON_H

#include <jansson.h>

static inline void base_cleanup_json(json_t **value)
{
	json_decref(*value);
}

#define cleanup_json __attribute__((cleanup(base_cleanup_json)))

#endif
