# SPDX-License-Identifier: Apache-2.0
"""The programs of the wheel: each entry point becomes the program, by execv(2).  tools/package/wheel places this
file beside the package ddpfs, not in it: a program that starts must not wait for the import of numpy."""

import os
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddpfs", "native")
# The bundled OpenSSL looks for certificates in /etc/ssl, as Debian, Arch and Alpine place them.  Red Hat has its own place.
DEFAULT = "/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"
OTHERS = "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"


def program(name):
    """The path of a program of this wheel."""
    return os.path.join(HERE, "bin", name)


def find_certificates():
    """Names the system's certificates to ddpfs, if they are not where OpenSSL looks and nobody named them."""
    if "SSL_CERT_FILE" not in os.environ and not any(map(os.path.exists, DEFAULT)):
        for path in filter(os.path.exists, OTHERS):
            os.environ["SSL_CERT_FILE"] = path
            break


def run(name):
    find_certificates()
    target = program("ddpfs" if name == "mount.ddpfs" else name)
    try:
        os.execv(target, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {target}: {error.strerror}: install ddpfs anew (pip install --force-reinstall ddpfs)")


def mkshard():
    run("mkshard")


def ddpfs():
    run("ddpfs")


def mount_ddpfs():
    run("mount.ddpfs")
