"""An S3 server (moto) as a process of its own on a free port of the loopback, for whoever tests against object storage.

with s3_server() as endpoint:
    store = open_store(f"s3://{make_bucket(endpoint)}/warehouse", storage_options(endpoint))
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.loopback import end

_bucket_before: dict[str, str] = {}
KEY, SECRET, REGION = "test-access-key", "test-secret-value", "us-east-1"


def storage_options(endpoint: str) -> dict[str, Any]:
    """Give the options with which a store reaches the server."""
    return {"endpoint_url": endpoint, "key": KEY, "secret": SECRET, "region": REGION}


@contextmanager
def s3_server(page_size: int = 1000) -> Iterator[str]:
    """Run a server and give its endpoint URL. It ends with the block, and with this process too if that is killed.

    Args:
        page_size: How many keys an answer to a listing holds at most.
    """
    command = [sys.executable, "-m", __name__]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page_size)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            port = process.stdout.readline().strip()
            if not port.isdigit():
                raise RuntimeError(f"The S3 server did not start: exit code {process.wait()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


def make_bucket(endpoint: str, name: str | None = None, *, is_known: bool = True) -> str:
    """Make a bucket on the server and give its name.

    Args:
        is_known: Whether the store finds there what it found out about the server in the bucket made before.
    """
    bucket = name or f"bucket-{uuid.uuid4().hex[:12]}"
    with _client("s3", endpoint) as client:
        client.create_bucket(Bucket=bucket)
        if is_known and (before := _bucket_before.get(endpoint)):
            for entry in client.list_objects_v2(Bucket=before, Prefix="_airflow_paimon/").get("Contents", []):
                client.copy_object(Bucket=bucket, Key=entry["Key"], CopySource={"Bucket": before, "Key": entry["Key"]})
    _bucket_before[endpoint] = bucket
    return bucket


def make_user(endpoint: str, *actions: str) -> tuple[str, str]:
    """Make a user who may do these on everything, such as ``s3:*``; give its access key and secret key."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    with _client("iam", endpoint) as client:
        client.create_user(UserName=name)
        client.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=policy)
        made = client.create_access_key(UserName=name)["AccessKey"]
    return made["AccessKeyId"], made["SecretAccessKey"]


def require_keys(endpoint: str) -> None:
    """From now on the server knows no keys but those of `make_user`, and what they may do."""
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", data=b"0", headers=headers)
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()


@contextmanager
def _client(service: str, endpoint: str) -> Iterator[Any]:
    import boto3

    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
    client = boto3.client(service, endpoint_url=endpoint, **keys)
    try:
        yield client
    finally:
        client.close()


def _serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        # moto looks whether the key is there and then puts it, without a lock of its own; S3 does that atomically.
        with lock:
            return [b"".join(app(environ, start_response))]

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None: ...

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
    print(server.port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # ends when whoever started this ends
    os._exit(0)


if __name__ == "__main__":
    _serve()
