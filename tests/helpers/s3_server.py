# SPDX-License-Identifier: Apache-2.0
"""moto's S3 server as a process, with a user whose requests it checks (signatures too)."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

REGION = "eu-west-1"


class S3Server:
    """`url`, `access_key`, `secret_key`, and `client()`: a boto3 client with these."""

    def __init__(self, scratch):
        log = Path(scratch) / "moto.log"
        # Unsigned requests are allowed until the user is there: one to make him, one for his rights, one for his key.
        environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3", "AWS_ACCESS_KEY_ID": "none",
                       "AWS_SECRET_ACCESS_KEY": "none"}
        with open(log, "w") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
                                            stdout=out, stderr=out, env=environment)
        deadline = time.monotonic() + 120
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        self.url = f"http://127.0.0.1:{found[1]}"
        iam = self._boto("iam", "none", "none")
        iam.create_user(UserName="trainer")
        allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=json.dumps(allow))
        key = iam.create_access_key(UserName="trainer")["AccessKey"]
        self.access_key, self.secret_key = key["AccessKeyId"], key["SecretAccessKey"]

    def _boto(self, service, access_key, secret_key):
        import boto3

        return boto3.client(service, endpoint_url=self.url, region_name=REGION, aws_access_key_id=access_key,
                            aws_secret_access_key=secret_key)

    def client(self, service="s3"):
        return self._boto(service, self.access_key, self.secret_key)

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key,
                "AWS_ENDPOINT_URL_S3": self.url, "AWS_REGION": REGION}

    def reset(self):
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()

    def close(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.close()
