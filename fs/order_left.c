/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the latest opens with what is known; fs/order_left.h first. */
#include "fs/order_left.h"

bool fs_order_left_update(struct fs_order_left *left, uint64_t opens, uint64_t explained, uint64_t orders)
{
	uint64_t latest = opens - left->opens;
	/* An open that only seemed to fit is taken back later. */
	uint64_t fit = explained > left->explained ? explained - left->explained : 0;
	bool is_left = false;
	if (orders == left->orders) {
		if (latest < FS_ORDER_LEFT_OPENS)
			return left->left;
		is_left = orders != 0 && fit * (left->left ? FS_ORDER_LEFT_BACK : FS_ORDER_LEFT_SHARE) < latest;
	}
	*left = (struct fs_order_left){ .left = is_left, .opens = opens, .explained = explained, .orders = orders };
	return is_left;
}
