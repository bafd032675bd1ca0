"""An S3 server (moto) to try things out with: in memory, one request at a time, with one bucket.

moto looks whether a key is there and puts it then, without a lock; S3 does that in one step, and commits depend on it.
So this answers one request after the other.
"""

from __future__ import annotations

import argparse
import threading
import urllib.request
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--bucket", required=True)
    arguments = parser.parse_args()
    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with lock:
            return [b"".join(app(environ, start_response))]

    server = make_server(arguments.host, arguments.port, one_at_a_time, threaded=True, request_handler=_Quiet)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    put = urllib.request.Request(f"http://127.0.0.1:{server.port}/{arguments.bucket}", method="PUT")
    with urllib.request.urlopen(put, timeout=30):
        print(f"Bucket {arguments.bucket} at port {server.port}", flush=True)
    serving.join()


if __name__ == "__main__":
    main()
