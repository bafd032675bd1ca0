"""A stand-in for YARN: its REST interface, and a ``spark-submit`` whose applications are processes of this machine.

The jobs are the real ones, with a Spark of their own where they need one. ``tests/reach/test_yarn.py`` has a real YARN.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.airflow.processes import running

_SUBMIT = """#!{python}
import os, shutil, subprocess, sys, tempfile

argv = sys.argv[1:]
options = dict(zip(argv, argv[1:]))
assert options["--deploy-mode"] == "cluster" and options["--master"] == "yarn"
folder = tempfile.mkdtemp(prefix="container-", dir={folder!r})
shipped = [*options.get("--files", "").split(","), *options["--py-files"].split(",")]
paths = [folder, *(shutil.copy(name, folder) for name in shipped if name)]
script = next(i for i, name in enumerate(argv) if "spark_jobs" in name)
env = {{**os.environ, "PYTHONPATH": os.pathsep.join(paths)}}
with open(os.path.join(folder, "log"), "w") as log:
    driver = subprocess.Popen([sys.executable, *argv[script:]], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                              stdout=log, stderr=log, start_new_session=True)
print(f"INFO YarnClientImpl: Submitted application application_1_{{driver.pid}}", flush=True)
if "spark.yarn.submit.waitAppCompletion=false" not in argv:
    sys.exit(1 if driver.wait() else 0)
"""


@dataclass
class YarnStandIn:
    """``submits``: the ``spark_options`` of an operator. ``refuses``: the status by which it refuses all requests."""

    folder: Path
    url: str
    killed: set[str] = field(default_factory=set)
    refuses: int | None = None

    @property
    def submits(self) -> dict[str, str]:
        return {"deploy_mode": "cluster", "spark_binary": str(self.folder / "spark-submit")}

    @property
    def connection(self) -> dict[str, object]:
        return {"host": "yarn", "extra": {"yarn_resourcemanager_webapp_address": self.url}}

    def state(self, application: str) -> str | None:
        """The state of an application; its number is the driver's process."""
        pid = int(application.rpartition("_")[2])
        if pid in running("spark_jobs"):
            return "RUNNING"
        return "KILLED" if application in self.killed else "FINISHED" if pid else None

    def kill(self, application: str) -> None:
        self.killed.add(application)
        with suppress(ProcessLookupError):
            os.killpg(int(application.rpartition("_")[2]), signal.SIGKILL)


@contextmanager
def yarn_stand_in(folder: Path) -> Iterator[YarnStandIn]:
    """Answer for the applications that the folder's ``spark-submit`` starts."""
    submit = folder / "spark-submit"
    submit.write_text(_SUBMIT.format(python=sys.executable, folder=str(folder)))
    submit.chmod(0o755)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            application = self.path.partition("/apps/")[2]
            state = yarn.state(application) if application else None
            if application and state is None:
                self.answer({"exception": "NotFoundException"}, 404)
            else:
                self.answer({"app": {"state": state}} if application else {"apps": {}})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            yarn.kill(self.path.split("/")[-2])
            self.answer({"state": "KILLED"})

        def answer(self, body: object, status: int = 200) -> None:
            self.send_response(yarn.refuses or status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        yarn = YarnStandIn(folder, f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield yarn
        finally:
            server.shutdown()
