# SPDX-License-Identifier: Apache-2.0
"""Stores for the tests of this folder, on 127.0.0.1."""

import shutil

import pytest

from helpers.http_store import HttpStore, certificate_of_localhost

AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_REGION",
       "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS",
       "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE",
       "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, scratch):
    """No credentials of whoever runs the tests, no instance metadata, and copies of indexes of the test's own."""
    for name in AWS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(scratch / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(scratch / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("DDPFS_INDEX_DIR", str(scratch / "indexes"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def http_store(scratch):
    """A directory `scratch/objects` that an HTTP server shows."""
    (scratch / "objects").mkdir()
    with HttpStore(scratch / "objects", scratch) as store:
        store.root = scratch / "objects"
        yield store


@pytest.fixture
def tls_store(scratch):
    """An HTTPS server whose certificate nobody signed, and the certificate."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    certificate, key = certificate_of_localhost(scratch / "cert")
    (scratch / "tls").mkdir()
    with HttpStore(scratch / "tls", scratch, tls=(certificate, key)) as store:
        store.root, store.certificate = scratch / "tls", certificate
        yield store


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """moto with a bucket "data"."""
    pytest.importorskip("moto", reason="moto is not installed")
    from helpers.s3_server import REGION, S3Server

    with S3Server(tmp_path_factory.mktemp("s3")) as one:
        one.client().create_bucket(Bucket="data", CreateBucketConfiguration={"LocationConstraint": REGION})
        yield one


@pytest.fixture
def s3(server, clean_environment, monkeypatch):
    """A boto3 client; the bucket "data" is empty, and the environment has the keys."""
    del clean_environment
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = server.client()
    for found in client.list_objects_v2(Bucket="data").get("Contents", []):
        client.delete_object(Bucket="data", Key=found["Key"])
    return client
