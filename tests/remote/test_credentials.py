# SPDX-License-Identifier: Apache-2.0
"""Credentials are found where botocore finds them, and renewed under a running mount (shard/remote/credentials.h)."""

import concurrent.futures
import datetime
import hashlib
import hmac
import http.server
import json
import os
import re
import shutil
import threading
import time
import urllib.parse
from pathlib import Path

import pytest

from helpers import datasets, private, tools
from helpers.waiting import wait_until


@pytest.fixture
def bucket(scratch, http_store, monkeypatch, build_dir):
    """A dataset s3://bucket/train of a store that takes only requests of one access key: `bucket(key)` sets it."""
    files = datasets.write_tree(scratch / "source", classes=2, per_class=30, sizes=(30_000,))
    (http_store.root / "bucket").mkdir()
    tools.mkshard("pack", "--shard-size=1M", scratch / "source", http_store.root / "bucket" / "train")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", http_store.url)

    def accept(key, **faults):
        http_store.set(key=key, **faults)
    accept.files = files
    return accept


@pytest.fixture
def provider():
    """A server on this host that answers each request with what `provider.answers[(method, path)]` returns for its headers
    and its body: a text, or (status, text); `provider.url` is its root."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            found = server.answers.get((self.command, self.path.split("?")[0]))
            text = found(self.headers, body) if found else None
            server.seen[self.path] = server.seen.get(self.path, 0) + 1
            busy = server.seen[self.path] <= server.busy
            status, text = text if isinstance(text, tuple) else (200 if text is not None else 404, text)
            self.send_response(503 if busy else status)
            self.send_header("Content-Length", str(len(text or "")))
            self.end_headers()
            self.wfile.write((text or "").encode())

        do_GET = do_PUT = do_POST = answer

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answers, server.seen = {}, {}
    server.busy = 0  # so many first requests of each path are answered with status 503
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


SECRET_KEYS = ("SECRET", "x")  # those of keys() and of the files of profiles


def keys(access_key, seconds=None, token="TOKEN", name="Token"):
    found = {"AccessKeyId": access_key, "SecretAccessKey": "SECRET", name: token}
    if seconds is not None:
        at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
        found["Expiration"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(found)


def shows_dataset():
    return tools.mkshard("info", "s3://bucket/train").stdout


def refusal():
    """What `mkshard info` says when it fails."""
    done = tools.run([tools.tool("mkshard"), "info", "s3://bucket/train"], check=False)
    assert done.returncode == 1
    return done.stderr


def test_environment(bucket, monkeypatch):
    bucket("AKENV")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("profile, credentials, config", [
    (None, "[other]\naws_access_key_id=NO\naws_secret_access_key=x\n[default]\naws_access_key_id = AKFILE\n"
           "aws_secret_access_key = x\n", ""),
    ("train", "[train]\n# a comment\naws_access_key_id=AKFILE\naws_secret_access_key=x\n", "[profile train]\nregion=eu-west-1\n"),
    ("train", "", "[profile other]\naws_access_key_id=NO\n[profile train]\ns3 =\n  aws_access_key_id = NO\n"
                  "aws_access_key_id=AKFILE\naws_secret_access_key=x\n"),
    (None, "", "[default]\r\naws_access_key_id=AKFILE\r\naws_secret_access_key=x\r\n"),
    ("my team", "[my team]\naws_secret_access_key=x\n", "[profile \"my team\"]\naws_access_key_id=AKFILE\n"
                "aws_secret_access_key=x\n[profile 'other team']\naws_access_key_id=NO\n"),
    (None, "", "[default]\n  aws_access_key_id: AKFILE\n  aws_secret_access_key: x;y#z\n"),
    (None, "", "[default]\naws_secret_access_key=x\ns3 =\n  # a comment\n\n\taws_access_key_id = NO\n"
               "  ; another one\naws_access_key_id=AKFILE\n  continues it\n"),
], ids=["credentials", "profile", "config", "carriage-returns", "quoted", "all-indented", "nested"])
def test_files(profile, credentials, config, bucket, scratch, monkeypatch):
    bucket("AKFILE")
    (scratch / "credentials").write_text(credentials)
    (scratch / "config").write_text(config)
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("variables", [["AWS_PROFILE"], ["AWS_DEFAULT_PROFILE"], ["AWS_DEFAULT_PROFILE", "AWS_PROFILE"]])
def test_the_variable_that_names_the_profile(variables, bucket, scratch, monkeypatch):
    """botocore takes the first of these (configprovider.BOTOCORE_DEFAUT_SESSION_VARIABLES)."""
    bucket("AKFILE")
    (scratch / "config").write_text("[profile a]\naws_access_key_id=AKFILE\naws_secret_access_key=x\n"
                                    "[profile b]\naws_access_key_id=NO\naws_secret_access_key=x\n")
    for name, profile in zip(variables, "ab"):
        monkeypatch.setenv(name, profile)
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("config, environment", [
    ("endpoint_url = URL\n", {}),
    ("services = my store\nendpoint_url = http://127.0.0.1:1\n"
     "[services \"my store\"]\nsts =\n  endpoint_url = http://127.0.0.1:1\ns3 =\n  endpoint_url = URL\n", {}),
    ("services = none\n", {"AWS_ENDPOINT_URL": "URL"}),
    ("endpoint_url = http://127.0.0.1:1\nignore_configured_endpoint_urls = true\n",
     {"DDPFS_S3_ENDPOINT": "URL", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}),
    ("endpoint_url = URL\nignore_configured_endpoint_urls = true\n",
     {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false"}),
], ids=["profile", "services", "environment", "own", "not-ignored"])
def test_the_endpoint_of_a_profile(config, environment, bucket, http_store, scratch, monkeypatch):
    bucket("AKFILE")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    (scratch / "config").write_text("[default]\naws_access_key_id=AKFILE\naws_secret_access_key=x\n" +
                                    config.replace("URL", http_store.url))
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("URL", http_store.url))
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("variable, whose", [
    ("DDPFS_S3_ENDPOINT", "S3 (s3_endpoint=, AWS_ENDPOINT_URL)"),
    ("AWS_ENDPOINT_URL_S3", "S3 (s3_endpoint=, AWS_ENDPOINT_URL)"),
    ("AWS_ENDPOINT_URL_STS", "STS (AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL)"),
])
def test_an_endpoint_with_a_password_is_refused(variable, whose, bucket, scratch, monkeypatch):
    (scratch / "config").write_text(f"[default]\nrole_arn = role/t\nsource_profile = default\n{BASE}")
    monkeypatch.setenv(variable, "https://user:SECRETofTheEndpoint@127.0.0.1:1/")
    said = refusal()
    assert f"the endpoint of {whose} has a user or password" in said and "SECRET" not in said and "user:" not in said


def test_services_that_are_not_there_are_said(bucket, scratch, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    (scratch / "config").write_text("[default]\nservices = store\n")
    assert f"{scratch}/config has no section [services store]" in refusal()


@pytest.mark.parametrize("environment, config", [
    ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"}, ""),
    ({}, "ignore_configured_endpoint_urls = true\n"),
], ids=["environment", "profile"])
def test_configured_endpoints_can_be_ignored(environment, config, bucket, scratch, monkeypatch):
    """The request goes to AWS; a proxy that is not there keeps it on this host."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    (scratch / "config").write_text("[default]\naws_access_key_id=AKFILE\naws_secret_access_key=x\n" + config)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = tools.waits_for_store(tools.tool("mkshard"), "info", "s3://bucket/train")
    assert "https://bucket.s3.us-east-1.amazonaws.com/train" in said


@pytest.mark.parametrize("style, said", [("virtual", "bucket.127.0.0.1"), ("vhost", "neither 'virtual' nor 'path'")])
def test_the_addressing_style_of_a_profile(style, said, bucket, http_store, scratch):
    (scratch / "config").write_text("[default]\naws_access_key_id=AKFILE\naws_secret_access_key=x\n"
                                    f"s3 =\n  max_queue_size = 10\n  addressing_style = {style}\n")
    # There is no such host, and a style that is none is refused at once.
    assert said in (tools.waits_for_store(tools.tool("mkshard"), "info", "s3://bucket/train") if style == "virtual" else refusal())


def test_a_program(bucket, scratch):
    bucket("AKPROCESS")
    (scratch / "answer").write_text(keys("AKPROCESS", name="SessionToken"))
    (scratch / "config").write_text(f"[default]\ncredential_process = cat {scratch}/answer\n")
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("said, config", [
    ("sso_session, and ddpfs cannot log in", "sso_session = work\nsso_account_id = 1\nsso_role_name = t\n"
     "[sso-session work]\nsso_region = eu-west-1\nsso_start_url = https://example.com/start\n"),
    ("sso_start_url, and ddpfs cannot log in", "sso_start_url = https://example.com/start\nsso_account_id = 1\n"),
    ("login_session, and ddpfs cannot log in", "login_session = arn:aws:iam::1:user/u\n"),
    ("mfa_serial, and ddpfs cannot ask for a code", "role_arn = arn:aws:iam::1:role/t\nsource_profile = base\n"
     "mfa_serial = arn:aws:iam::1:mfa/d\n[profile base]\naws_access_key_id=AKBASE\naws_secret_access_key=x\n"),
], ids=["sso", "sso-before-sessions", "login", "code"])
def test_a_profile_that_only_aws_can_use(said, config, bucket, provider, scratch, monkeypatch):
    """It is refused by name, with the way out, and no other provider is asked in its place."""
    config = f"[profile train]\n{config}"
    bucket("AKEXPORTED")
    provider.answers["GET", "/creds"] = lambda _headers, _body: keys("AKCONTAINER")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider.url + "/creds")
    (scratch / "config").write_text(config)
    monkeypatch.setenv("AWS_PROFILE", "train")
    line = "credential_process = aws configure export-credentials --profile train --format process"
    text = refusal()
    assert f"profile 'train' has {said}" in text and f"'{line}'" in text
    # What the sentence says helps; `aws` is a script here.
    (scratch / "answer").write_text(keys("AKEXPORTED", name="SessionToken"))
    (scratch / "bin").mkdir()
    (scratch / "bin/aws").write_text(f"#!/bin/sh\ntest \"$*\" = 'configure export-credentials --profile train --format process' "
                                     f"&& cat {scratch}/answer\n")
    (scratch / "bin/aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{scratch}/bin", prepend=":")
    (scratch / "config").write_text(f"{config}[profile exported]\n{line}\n")
    monkeypatch.setenv("AWS_PROFILE", "exported")
    assert "60 (0 common)" in shows_dataset()


def test_an_sso_profile_with_keys(bucket, scratch):
    """Programs that log in write the keys beside it."""
    bucket("AKFILE")
    (scratch / "config").write_text("[default]\nsso_session = work\n")
    (scratch / "credentials").write_text("[default]\naws_access_key_id=AKFILE\naws_secret_access_key=x\n")
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("busy", [0, 2])
def test_a_container(busy, bucket, provider, scratch, monkeypatch):
    bucket("AKCONTAINER")
    provider.busy = busy
    (scratch / "token").write_text("secret of the pod\n")
    provider.answers["GET", "/creds"] = lambda headers, _body: \
        keys("AKCONTAINER") if headers["Authorization"] == "secret of the pod" else None
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider.url + "/creds")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(scratch / "token"))
    assert "60 (0 common)" in shows_dataset()


def test_a_container_s_uri_on_another_host_must_be_https(bucket, monkeypatch):
    bucket("X")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1.example.com/creds")
    done = tools.run([tools.tool("mkshard"), "info", "s3://bucket/train"], check=False)
    assert "neither https:// nor on this host" in done.stderr


@pytest.mark.parametrize("busy", [0, 2])
def test_an_instance(busy, bucket, provider, monkeypatch):
    bucket("AKINSTANCE")
    provider.busy = busy
    role = "/latest/meta-data/iam/security-credentials/"

    def with_token(text):
        return lambda headers, _body: text if headers["X-aws-ec2-metadata-token"] == "T0KEN" else None

    provider.answers["PUT", "/latest/api/token"] = lambda headers, _body: \
        "T0KEN" if headers["X-aws-ec2-metadata-token-ttl-seconds"] else None
    provider.answers["GET", role] = with_token("trainer")
    provider.answers["GET", role + "trainer"] = with_token(keys("AKINSTANCE", 3600))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", provider.url)
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("busy", [0, 2])
def test_web_identity(busy, bucket, provider, scratch, monkeypatch):
    bucket("AKWEB")
    provider.busy = busy
    (scratch / "token").write_text("a+token/of the pod\n")

    def assume(_headers, body):
        assert "WebIdentityToken=a%2Btoken%2Fof%20the%20pod" in body and "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Ft" in body
        return ("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>T&amp;T"
                "</SessionToken><SecretAccessKey>S</SecretAccessKey><Expiration>2099-01-01T00:00:00Z</Expiration>"
                "<AccessKeyId>AKWEB</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>"
                "</AssumeRoleWithWebIdentityResponse>")
    provider.answers["POST", "/"] = assume
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(scratch / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/t")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", provider.url)
    assert "60 (0 common)" in shows_dataset()


def signature(secret_key, authorization, headers, body):
    """That of AWS Signature Version 4 for a POST of `body` to "/": what the Authorization header must say.
    docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html"""
    _key, *scope = re.search("Credential=([^,]+)", authorization)[1].split("/")
    names = re.search("SignedHeaders=([^,]+)", authorization)[1]
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in names.split(";"))
    request = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body.encode()).hexdigest()}"
    text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest()))
    key = b"AWS4" + secret_key.encode()
    for part in (*scope, text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


class Sts:
    """A fake AWS Security Token Service: which role somebody with these keys may assume, and the keys that he gets."""

    def __init__(self, roles):
        self.roles, self.forms, self.given, self.seconds = roles, [], [], 3600

    def __call__(self, headers, body):
        form = dict(urllib.parse.parse_qsl(body, strict_parsing=True))
        signed_by, day, *scope = headers["Authorization"].partition("Credential=")[2].partition(",")[0].split("/")
        assert form["Action"] == "AssumeRole" and len(day) == 8 and scope == ["eu-west-1", "sts", "aws4_request"]
        assert ("x-amz-security-token" in headers["Authorization"]) == (headers["x-amz-security-token"] is not None)
        assert {"host", "x-amz-date"} <= set(re.search("SignedHeaders=([^,]+)", headers["Authorization"])[1].split(";"))
        assert headers["x-amz-date"].startswith(f"{day}T")
        said = headers["Authorization"].partition("Signature=")[2]
        assert said in [signature(key, headers["Authorization"], headers, body) for key in SECRET_KEYS], "another signature"
        self.forms.append((signed_by, headers["x-amz-security-token"], form))
        if (signed_by, form["RoleArn"]) not in self.roles:
            return None
        found = json.loads(keys(self.roles[signed_by, form["RoleArn"]], self.seconds, f"TOKENof{form['RoleArn']}"))
        found["SessionToken"] = found.pop("Token")
        self.given.append(found["AccessKeyId"])
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in found.items())
        return f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{inner}</Credentials></AssumeRoleResult></AssumeRoleResponse>"


@pytest.fixture
def sts(provider, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", provider.url)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_PROFILE", "train")
    provider.answers["POST", "/"] = Sts({("AKBASE", "role/middle"): "AKMIDDLE", ("AKMIDDLE", "role/t"): "AKROLE",
                                         ("AKBASE", "role/t"): "AKROLE"})
    return provider.answers["POST", "/"]


BASE = "aws_access_key_id = AKBASE\naws_secret_access_key = x\n"


@pytest.mark.parametrize("config", [
    f"source_profile = my base\n[profile 'my base']\n{BASE}role_arn = not assumed\nsource_profile = train\n",
    f"source_profile = train\n{BASE}",
    f"source_profile = base\n[profile base]\ncredential_process = cat ANSWER\n",
    f"source_profile = middle\n[profile middle]\nrole_arn = role/middle\nsource_profile = base\n[profile base]\n{BASE}",
], ids=["keys", "its-own-keys", "program", "two-roles"])
def test_a_role_is_assumed(config, bucket, sts, scratch):
    bucket("AKROLE")
    (scratch / "answer").write_text(keys("AKBASE", name="SessionToken"))
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\n{config}".replace("ANSWER", f"{scratch}/answer"))
    assert "60 (0 common)" in shows_dataset()
    assert sts.forms[-1][2] == {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": "role/t",
                                "RoleSessionName": "ddpfs"}


def test_what_a_role_is_assumed_with(bucket, sts, scratch):
    """Each role with the token of the one before; its own name, time and ID."""
    bucket("AKROLE")
    (scratch / "config").write_text("[profile train]\nrole_arn = role/t\nsource_profile = middle\nduration_seconds = 900\n"
                                    "external_id = an id/of us\nrole_session_name = epoch-1\n"
                                    "[profile middle]\nrole_arn = role/middle\nsource_profile = base\n"
                                    "duration_seconds = long\n")
    (scratch / "credentials").write_text(f"[base]\n{BASE}aws_session_token = TOKENofBase\n")
    assert "60 (0 common)" in shows_dataset()
    middle, last = sts.forms[-2:]
    assert middle[:2] == ("AKBASE", "TOKENofBase") and "DurationSeconds" not in middle[2]
    assert last[:2] == ("AKMIDDLE", "TOKENofrole/middle")
    assert (last[2]["DurationSeconds"], last[2]["ExternalId"], last[2]["RoleSessionName"]) == ("900", "an id/of us", "epoch-1")


@pytest.mark.parametrize("source", ["Environment", "EcsContainer", "Ec2InstanceMetadata"])
def test_the_credential_source_of_a_role(source, bucket, provider, sts, scratch, monkeypatch):
    bucket("AKROLE")
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\ncredential_source = {source}\n")
    if source == "Environment":  # it counts, although s3_profile= says that variables do not count
        monkeypatch.setenv("DDPFS_S3_PROFILE", "train")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKBASE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    elif source == "EcsContainer":
        provider.answers["GET", "/creds"] = lambda _headers, _body: keys("AKBASE")
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider.url + "/creds")
    else:
        role = "/latest/meta-data/iam/security-credentials/"
        provider.answers["PUT", "/latest/api/token"] = lambda _headers, _body: "T0KEN"
        provider.answers["GET", role] = lambda _headers, _body: "trainer"
        provider.answers["GET", role + "trainer"] = lambda _headers, _body: keys("AKBASE", 3600)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", provider.url)
    assert "60 (0 common)" in shows_dataset()


@pytest.mark.parametrize("config, said", [
    ("source_profile = b\n[profile b]\nrole_arn = r\nsource_profile = train\n", "leads to profile 'train' a second time"),
    ("source_profile = train\n", "leads to profile 'train' a second time"),
    ("source_profile = gone\n", "profile 'gone': neither SCRATCH/credentials nor SCRATCH/config has it (source_profile)"),
    ("source_profile = b\n[profile b]\nregion = eu-west-1\n", "source_profile 'b' has no credentials"),
    ("source_profile = b\n[profile b]\nsso_session = work\n", "export-credentials --profile b --format process"),
    ("source_profile = b\ncredential_source = Environment\n", "both source_profile and credential_source"),
    ("", "neither source_profile nor credential_source"),
    ("credential_source = environment\n", "write Environment, EcsContainer or Ec2InstanceMetadata"),
    ("credential_source = Environment\n", "credential_source = Environment has no credentials"),
    ("source_profile = p0\n" + "".join(f"[profile p{i}]\nrole_arn = r\nsource_profile = p{i + 1}\n" for i in range(9)),
     "profile 'train': more than 8 profiles"),
    (f"source_profile = b\n[profile b]\n{BASE.replace('AKBASE', 'AKNOBODY')}", "an assumed role: STS refuses role 'role/t'"),
], ids=["loop", "itself", "gone", "empty", "sso", "both", "neither", "word", "no-keys", "long", "refused"])
def test_a_role_that_cannot_be_assumed_is_said(config, said, bucket, sts, scratch):
    bucket("AKROLE")
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\n{config}")
    assert said.replace("SCRATCH", str(scratch)) in refusal()


FORGED = "Denied\n\x1b[31mddpfs: all is well" + "!" * 3000


def test_the_code_of_sts_forges_no_line(bucket, provider, sts, scratch):
    provider.answers["POST", "/"] = lambda _headers, _body: (403, f"<Error><Code>{FORGED}</Code></Error>")
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\nsource_profile = train\n{BASE}")
    said = refusal()
    assert said.count("\n") == 1 and len(said) < 400
    assert r"STS refuses role 'role/t' (status 403, Denied\x0a\x1b[31mddpfs: all is well!" in said


def test_the_code_of_a_store_forges_no_line(bucket, monkeypatch):
    bucket("AKOTHER", code=FORGED)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    said = refusal()
    assert said.count("\n") == 1 and len(said) < 400 and r"(Denied\x0a\x1b[31mddpfs: all is well!" in said


def read_until(condition, path, files, names):
    """Reads files, some a second, until a condition holds.  A request after the due time begins the renewal."""
    while not condition():
        name = next(names)
        assert (path / name).read_bytes() == files[name]
        time.sleep(0.2)


def test_a_role_is_assumed_anew_under_a_mount(bucket, sts, scratch, mount, http_store):
    bucket("AKROLE AKSECOND")
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\nsource_profile = train\n{BASE}")
    sts.seconds = 4  # half of 4 s: due after 2 s
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    sts.seconds = 3600
    sts.roles["AKBASE", "role/t"] = "AKSECOND"
    names = iter(sorted(bucket.files))
    read_until(lambda: http_store.was_asked_with("AKSECOND"), m.path, bucket.files, names)
    bucket("AKSECOND")
    for name in names:
        assert (m.path / name).read_bytes() == bucket.files[name]
    assert sts.given[0] == "AKROLE" and sts.given[-1] == "AKSECOND"
    assert tools.stat_json(m.path)["store_retries"] == 0, "a request was refused"


@pytest.fixture
def unreadable_home(scratch, monkeypatch):
    """HOME of another user; what the test starts runs as somebody who may not read it."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    (scratch / "home" / ".aws").mkdir(parents=True)
    (scratch / "home" / ".aws" / "credentials").write_text("[default]\naws_access_key_id=NO\naws_secret_access_key=x\n")
    os.chmod(scratch / "home", 0o700)
    os.chmod(scratch, 0o755)
    (scratch / "nobody").mkdir()
    shutil.chown(scratch / "nobody", 65534, 65534)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(scratch / "home"))
    monkeypatch.setenv("DDPFS_INDEX_DIR", str(scratch / "nobody"))
    command = [*private.NOBODY.split(), tools.tool("mkshard"), "info", "s3://bucket/train"]
    if tools.run([*command[:-2], "--version"], check=False).returncode != 0:
        pytest.skip("the user nobody cannot start programs of the build folder")
    return lambda: tools.run(command, check=False)


@pytest.mark.parametrize("environment", [{"AWS_ACCESS_KEY_ID": "AKENV", "AWS_SECRET_ACCESS_KEY": "x"},
                                         {"DDPFS_S3_ANONYMOUS": "1"}], ids=["keys", "anonymous"])
def test_a_home_that_cannot_be_read_counts_as_empty(environment, bucket, unreadable_home, monkeypatch):
    bucket("AKENV" if "AWS_ACCESS_KEY_ID" in environment else "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = unreadable_home()
    assert done.returncode == 0 and "60 (0 common)" in done.stdout, done.stderr


@pytest.mark.parametrize("environment, said", [
    ({}, "no credentials for S3"),
    ({"AWS_PROFILE": "train"}, "neither ~/.aws/credentials nor ~/.aws/config has it (AWS_PROFILE)"),
], ids=["no-keys", "profile"])
def test_a_home_that_cannot_be_read_is_said_when_keys_lack(environment, said, bucket, unreadable_home, scratch, monkeypatch):
    bucket("AKENV")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = unreadable_home()
    assert done.returncode == 1 and said in done.stderr
    assert f"; '{scratch}/home/.aws/credentials' cannot be read: Permission denied" in done.stderr


@pytest.mark.parametrize("variable", ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "DDPFS_S3_CREDENTIALS"])
def test_a_file_that_is_named_must_be_readable(variable, bucket, unreadable_home, scratch, monkeypatch):
    bucket("AKENV")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv(variable, str(scratch / "home/.aws/credentials"))
    done = unreadable_home()
    assert done.returncode == 1 and "/home/.aws/credentials: cannot read it: Permission denied" in done.stderr


def set_relative(source, keys_of, scratch, provider, monkeypatch):
    """Sets the environment for a source of credentials, each with a path relative to `scratch`."""
    if source == "credentials":
        (scratch / "mine").write_text(f"[default]\n{keys_of}")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "mine")
    elif source == "config":
        (scratch / "mine").write_text(f"[default]\n{keys_of}")
        monkeypatch.setenv("AWS_CONFIG_FILE", "./mine")
    elif source == "program":
        (scratch / "answer").write_text(keys("AKFIRST", 3600))
        (scratch / "program").write_text("#!/bin/sh\nexec cat answer\n")
        (scratch / "program").chmod(0o700)
        (scratch / "config").write_text("[default]\ncredential_process = ./program\n")
    else:
        (scratch / "token").write_text("TOKEN\n")
        answer = ("<Credentials><AccessKeyId>AKFIRST</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t"
                  "</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>")
        provider.answers["POST", "/"] = lambda _headers, _body: answer
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "token")
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/t")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", provider.url)


@pytest.mark.parametrize("source", ["credentials", "config", "program", "token"])
def test_relative_paths_begin_where_the_command_was_started(source, bucket, provider, scratch, monkeypatch):
    """Also for the server of a mount, which works in another directory, and for the one that replaces it."""
    set_relative(source, "aws_access_key_id = AKFIRST\naws_secret_access_key = x\n", scratch, provider, monkeypatch)
    monkeypatch.chdir(scratch)
    monkeypatch.setenv("DDPFS_INDEX_DIR", "copies")
    bucket("AKFIRST")
    mountpoint, names = scratch / "mnt", sorted(bucket.files)
    mountpoint.mkdir()
    tools.ddpfs("mount", "-o", "view=all,layout=tree,memory=64M", "s3://bucket/train", mountpoint)
    try:
        assert (mountpoint / names[0]).read_bytes() == bucket.files[names[0]]
        tools.ddpfs("restart", mountpoint, cwd="/")
        if source == "program":  # which is asked again
            (scratch / "answer").write_text(keys("AKSECOND", 3600))
            bucket("AKSECOND")
        for name in names:
            assert (mountpoint / name).read_bytes() == bucket.files[name]
    finally:
        tools.ddpfs("umount", mountpoint)
    assert list((scratch / "copies").glob("*.index"))


@pytest.mark.parametrize("variable", ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "DDPFS_S3_CREDENTIALS"])
def test_a_tilde_is_the_home_directory(variable, bucket, scratch, monkeypatch):
    (scratch / "mine").write_text("[default]\naws_access_key_id = AKHOME\naws_secret_access_key = x\n")
    monkeypatch.setenv("HOME", str(scratch))
    monkeypatch.setenv(variable, "~/mine")
    bucket("AKHOME")
    assert "60 (0 common)" in shows_dataset()


def test_files_that_are_named_and_missing_are_said(bucket, scratch, monkeypatch):
    bucket("AKNONE")
    monkeypatch.chdir(scratch)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    monkeypatch.setenv("AWS_PROFILE", "train")
    (scratch / "config").write_text("[default]\nregion = eu-west-1\n")
    assert (f"profile 'train': neither {scratch}/none nor {scratch}/config has it (AWS_PROFILE); "
            f"there is no file '{scratch}/none'\n") in refusal()
    monkeypatch.delenv("AWS_PROFILE")
    said = refusal()
    assert "no credentials for S3" in said and said.endswith(f"; there is no file '{scratch}/none'\n"), said


def test_the_address_of_a_container_is_in_no_message(bucket, monkeypatch):
    """It can be all that is needed to ask for keys."""
    bucket("AKENV")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/creds/SECRETofTheAddress")
    said = refusal()
    assert "the container's endpoint: Connection refused" in said and "SECRET" not in said


def test_a_public_bucket_needs_none(bucket, http_store, monkeypatch):
    http_store.set()
    monkeypatch.setenv("DDPFS_S3_ANONYMOUS", "1")
    assert "60 (0 common)" in shows_dataset()


def test_credentials_that_expire_are_renewed_under_a_mount(bucket, scratch, mount):
    """By a credential_process too, although the server may start no program."""
    (scratch / "answer").write_text(keys("AKFIRST", 3600))
    (scratch / "config").write_text(f"[default]\ncredential_process = cat {scratch}/answer\n")
    bucket("AKFIRST")
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    names = sorted(bucket.files)
    assert (m.path / names[0]).read_bytes() == bucket.files[names[0]]
    (scratch / "answer").write_text(keys("AKSECOND", 3600))
    bucket("AKSECOND")  # the store refuses the first key from now on: ExpiredToken
    for name in names[1:]:
        assert (m.path / name).read_bytes() == bucket.files[name]


def test_credentials_are_renewed_before_they_expire(bucket, scratch, mount, http_store):
    (scratch / "answer").write_text(keys("AKFIRST", 4))  # half of 4 s: due after 2 s
    (scratch / "config").write_text(f"[default]\ncredential_process = cat {scratch}/answer\n")
    bucket("AKFIRST AKSECOND")
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    (scratch / "answer").write_text(keys("AKSECOND", 3600))
    names = iter(sorted(bucket.files))
    read_until(lambda: http_store.was_asked_with("AKSECOND"), m.path, bucket.files, names)
    bucket("AKSECOND")
    for name in names:
        assert (m.path / name).read_bytes() == bucket.files[name]
    assert tools.stat_json(m.path)["store_retries"] == 0, "a request was refused"


def test_why_a_renewal_fails_is_in_the_log(bucket, sts, scratch, mount):
    """Once, not at each try; and a read waits for the one that does not fail."""
    bucket("AKROLE")
    (scratch / "config").write_text(f"[profile train]\nrole_arn = role/t\nsource_profile = train\n{BASE}")
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    role = sts.roles.pop(("AKBASE", "role/t"))
    assert role == "AKROLE"
    bucket("AKSECOND")  # refuses the first key from now on: each refusal asks for a renewal
    name = max(bucket.files)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        read = pool.submit((m.path / name).read_bytes)
        tried = len(sts.forms)
        wait_until(lambda: len(sts.forms) >= tried + 3, "further tries")
        sts.roles["AKBASE", "role/t"] = "AKSECOND"
        assert read.result() == bucket.files[name]
    wait_until(lambda: "s3://bucket/train: the credentials are renewed" in m.log())
    why = "the credentials cannot be renewed: an assumed role: STS refuses role 'role/t' (status 404)"
    assert m.log().count(f"s3://bucket/train: {why}") == 1


def in_a_core(pid, words):
    """Which of these words stand in memory that a core of a process has, each with the names of the mappings."""
    found = {word: [] for word in words}
    mapping = re.compile(r"^(\w+)-(\w+) (\S+) \S+ \S+ \S+ *(.*)\n((?:[A-Z].*\n)+)", re.MULTILINE)
    text = Path(f"/proc/{pid}/smaps").read_text()
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for first, end, rights, name, rest in mapping.findall(text):
            if not rights.startswith("rw-p") or " dd" in rest:  # shared memory has bytes of files only
                continue
            memory.seek(int(first, 16))
            data = memory.read(int(end, 16) - int(first, 16))
            for word in words:
                found[word] += [name] * (word.encode() in data)
    return found


no_sanitizer = pytest.mark.skipif("-asan" in os.environ.get("DDPFS_BUILD", "") or "-tsan" in os.environ.get("DDPFS_BUILD", ""),
                                  reason="a sanitizer keeps the libraries' memory where it sees it")


@no_sanitizer
def test_secrets_of_the_environment_are_not_in_a_core(bucket, mount, monkeypatch):
    """Nor what libcurl keeps of the requests that carry them."""
    secret, token, other = "SECRETofTheEnvironment", "TOKENofTheEnvironment", "TOKENofTheContainer"
    proxy, address = "PASSWORDofTheProxy", "ADDRESSofTheContainer"
    bucket("AKENV")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", token + "x" * 900)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", other)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", f"/{address}")
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{proxy}@127.0.0.1:1")  # the store is http://
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    for name, data in bucket.files.items():
        assert (m.path / name).read_bytes() == data
    assert in_a_core(m.server_pid(), ["AKENV"])["AKENV"], "the search finds what is there"
    words = [secret, token, other, proxy, address, "Credential=AKENV", "x-amz-security-token: T"]
    server, supervisor = (in_a_core(pid, words) for pid in (m.server_pid(), m.process.pid))
    assert not any(server.values()), server
    assert not any(supervisor.values()), supervisor


@no_sanitizer
@pytest.mark.parametrize("source", ["program", "file", "container", "role", "instance"])
def test_what_a_provider_answers_is_not_in_a_core(source, bucket, provider, scratch, mount, monkeypatch):
    """Nor what it is asked with."""
    bucket("AKROLE")
    secret, token, asked = "SECRETofTheProvider", "TOKENofTheProvider" + "y" * 700, "TOKENtoAskWith"
    given = json.loads(keys("AKROLE", 3600, token, "SessionToken" if source == "program" else "Token"))
    given["SecretAccessKey"] = secret
    answer = json.dumps(given)
    (scratch / "token").write_text(asked + "z" * 700)
    if source == "program":
        (scratch / "answer").write_text(answer)
        (scratch / "config").write_text(f"[default]\ncredential_process = cat {scratch}/answer\n")
    elif source == "file":  # larger than what is read at once
        (scratch / "credentials").write_text(f"[default]\naws_access_key_id = AKROLE\naws_secret_access_key = {secret}\n"
                                             f"aws_session_token = {token}\n" + "# a comment\n" * 3000)
    elif source == "container":
        provider.answers["GET", "/creds"] = lambda _headers, _body: answer
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider.url + "/creds")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(scratch / "token"))
    elif source == "instance":
        role = "/latest/meta-data/iam/security-credentials/"
        provider.answers["PUT", "/latest/api/token"] = lambda _headers, _body: asked
        provider.answers["GET", role] = lambda _headers, _body: "trainer"
        provider.answers["GET", role + "trainer"] = lambda _headers, _body: answer
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", provider.url)
    else:
        provider.answers["POST", "/"] = lambda _headers, _body: (
            f"<Credentials><AccessKeyId>AKROLE</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}"
            "</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(scratch / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/t")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", provider.url)
    m = mount("s3://bucket/train", "view=all,layout=tree,memory=64M")
    for name, data in bucket.files.items():
        assert (m.path / name).read_bytes() == data
    words = [secret, token[:18], token[-20:], asked, "Credential=AKROLE"]
    server, supervisor = (in_a_core(pid, words) for pid in (m.server_pid(), m.process.pid))
    assert not any(server.values()), server
    assert not any(supervisor.values()), supervisor


def test_programs_that_are_started_find_secrets_of_the_environment(bucket, scratch, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET of the environment")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")
    (scratch / "answer").write_text(keys("AKPROCESS", name="SessionToken"))
    (scratch / "config").write_text("[default]\ncredential_process = test \"$AWS_SECRET_ACCESS_KEY\" = "
                                    f"'SECRET of the environment' && cat {scratch}/answer\n")
    bucket("AKPROCESS")
    assert "60 (0 common)" in shows_dataset()
