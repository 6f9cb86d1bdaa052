# SPDX-License-Identifier: Apache-2.0
"""What goes back to the kubelet when a call fails."""


class Failure(Exception):
    """`code` is the name of a gRPC status code; `text` is what `kubectl describe pod` shows."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.text = code, text


def invalid(text):
    return Failure("INVALID_ARGUMENT", text)
