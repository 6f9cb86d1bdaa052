# SPDX-License-Identifier: Apache-2.0
"""Asks the API server of the cluster for a pod, as the driver's service account.

The token is a secret: it goes into a header of the request, and into no error or log."""

import http.client
import json
import os
import re
import ssl
from urllib.parse import quote

from ddpfs_csi.failure import Failure

TIMEOUT_S = 5  # of each step of a call; the kubelet gives a call two minutes, and asks again
POD_BYTES_MAX = 8 << 20  # etcd takes 1.5 MiB
NEEDS = "a chart with lookupPods: true gives the driver what it needs"


class ApiServer:
    """Every method may be called by any thread: each call makes a connection of its own."""

    def __init__(self, account, timeout_s=TIMEOUT_S):
        """`account` is the directory with `token` and `ca.crt`, which are read each time: the kubelet renews them."""
        self._account, self._timeout_s = account, timeout_s

    def _credentials(self):
        """(token, TLS context)."""
        try:
            with open(os.path.join(self._account, "token"), "rb") as f:
                token = f.read().strip()
            context = ssl.create_default_context(cafile=os.path.join(self._account, "ca.crt"))
        except OSError as error:
            raise Failure("FAILED_PRECONDITION",
                          f"the driver's service account cannot be read: {error}: {NEEDS}") from None
        # http.client would quote a header that it refuses.
        if not re.fullmatch(rb"[!-~]+", token):
            raise Failure("FAILED_PRECONDITION", f"the driver's service account has no token of plain text: {NEEDS}")
        # Python 3.13 refuses CAs of many clusters, which lack an extension.  Kubernetes' own clients take them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return token.decode(), context

    def _get(self, path):
        """(status, body)."""
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise Failure("FAILED_PRECONDITION", "KUBERNETES_SERVICE_HOST is not set: the driver runs in no cluster")
        token, context = self._credentials()
        connection = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(POD_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise Failure("UNAVAILABLE", f"the API server {host}:{port} does not answer: {error}") from None
        finally:
            connection.close()

    def find_pod(self, namespace, name, uid):
        """The pod as the API has it; raises Failure."""
        if not namespace or not name or not uid:
            raise Failure("FAILED_PRECONDITION", "the kubelet did not say which pod asks: the CSIDriver object needs "
                          "podInfoOnMount: true")
        status, body = self._get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
        if status in (401, 403):
            raise Failure("PERMISSION_DENIED", f"the API server answers {status}: the driver's service account may not "
                          f"get pod '{namespace}/{name}': {NEEDS}")
        if status == 404:
            raise Failure("NOT_FOUND", f"the API server has no pod '{namespace}/{name}'")
        if status != 200:
            raise Failure("UNAVAILABLE", f"the API server answers {status} when asked for pod '{namespace}/{name}'")
        try:
            pod = json.loads(body)
            found = pod["metadata"]["uid"]
        except (ValueError, KeyError, TypeError):
            raise Failure("UNAVAILABLE", f"what the API server sends is not pod '{namespace}/{name}'") from None
        if found != uid:
            raise Failure("NOT_FOUND", f"pod '{namespace}/{name}' is another one of this name: its uid is {found}, the "
                          f"kubelet's is {uid}")
        return pod
