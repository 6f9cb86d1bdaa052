# SPDX-License-Identifier: Apache-2.0
"""The CSI node driver of ddpfs: attributes, pod_numbers, api_server, mounts, servers, service, in this order of
reading."""
