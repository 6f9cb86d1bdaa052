# SPDX-License-Identifier: Apache-2.0
"""The CSI node driver of ddpfs: attributes, mounts, servers, service, in this order of reading."""
