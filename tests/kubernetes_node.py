"""A stand-in for a node of Kubernetes: runs the pods that the scheduler gives it as processes of this machine.

A pod has mount, process and host name namespaces of its own: it sees this machine's files read-only under its own
changes, an empty ``/tmp``, its volumes, and Spark at ``/opt/spark`` as Spark's image has it. Its network is this
machine's, with an address of the loopback for itself; services are names in its ``/etc/hosts``. Volumes are empty
folders, config maps, host paths, and projected tokens. Started by ``tests/kubernetes_cluster.py``; ends, and its pods
with it, when its input ends.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import requests

NODE = "node-1"
_PAUSE_SECONDS = 0.2

ENTRYPOINT = """
import os, sys
role, *arguments = sys.argv[1:]
env = os.environ
if role == "driver":
    address = env["SPARK_DRIVER_BIND_ADDRESS"]
    command = ["/opt/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=" + address,
               "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=" + address, "--deploy-mode", "client", *arguments]
elif role == "executor":
    options = [env[k] for k in sorted((k for k in env if k.startswith("SPARK_JAVA_OPT_")),
                                      key=lambda name: int(name.rpartition("_")[2]))]
    memory = env["SPARK_EXECUTOR_MEMORY"]
    command = [env["JAVA_HOME"] + "/bin/java", *options, "-Xms" + memory, "-Xmx" + memory,
               "-cp", "/opt/spark/conf::/opt/spark/jars/*:/opt/spark/work-dir",
               "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
               "--driver-url", env["SPARK_DRIVER_URL"], "--executor-id", env["SPARK_EXECUTOR_ID"],
               "--cores", env["SPARK_EXECUTOR_CORES"], "--app-id", env["SPARK_APPLICATION_ID"],
               "--hostname", env["SPARK_EXECUTOR_POD_IP"], "--resourceProfileId", env["SPARK_RESOURCE_PROFILE_ID"],
               "--podName", env["SPARK_EXECUTOR_POD_NAME"]]
else:
    command = [role, *arguments]
os.execvp(command[0], command)
"""
"""What the entry point of Spark's image does with a driver and with an executor."""


class NotYetError(Exception):
    """What a pod needs isn't there yet; holds the reason that a kubelet gives, and a message."""


class Server:
    """The API server."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._url = settings["url"]
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {settings['token']}"
        self._session.verify = settings["certificate"]
        self._session.trust_env = False  # else a variable of this machine names other certificates
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any] | None:
        """Return the answer, None when what was asked for isn't there."""
        with self._lock:
            answer = self._session.request(
                method, self._url + path, timeout=30, headers={"Content-Type": kind},
                data=None if body is None else json.dumps(body),
            )  # fmt: skip
        if answer.status_code in (404, 409):
            return None
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str) -> dict[str, Any]:
        found = self.ask("GET", path)
        if found is None:
            raise NotYetError("ContainerCreating", f"{path} is not there")
        return found


def path_of(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Pod:
    """A pod on this node. ``process`` is the one that made its namespaces."""

    spec: dict[str, Any]
    folder: Path
    ip: str
    process: subprocess.Popen[bytes] | None = None
    started: str = ""
    reported: str = ""
    killed_at: float | None = None
    hosts: str = ""
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def signal(self, number: int) -> None:
        """Signal the first process within the pod."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            for child in children.read_text().split():
                os.kill(int(child), number)
        except OSError:
            return


class Node:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings, self.server = settings, Server(settings)
        self.folder = Path(settings["folder"])
        self.pods: dict[str, Pod] = {}
        self.stopped = threading.Event()

    def register(self, port: int) -> None:
        amounts = {"cpu": "16", "memory": "32Gi", "pods": "50", "ephemeral-storage": "100Gi"}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "stand-in"}],
        }
        self.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        kind = "application/merge-patch+json"
        self.server.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, kind)
        taints: dict[str, Any] = {"spec": {"taints": None}}
        self.server.ask("PATCH", f"/api/v1/nodes/{NODE}", taints, kind)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._look()
            except requests.RequestException as error:
                print(f"the API server gives no answer: {error}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE_SECONDS)
        for pod in self.pods.values():
            if pod.process is not None:
                pod.process.kill()
                pod.process.wait()

    def _look(self) -> None:
        listed = self.server.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}")["items"]
        here = {pod["metadata"]["uid"]: pod for pod in listed}
        for uid in self.pods.keys() - here.keys():
            self._forget(uid)
        for uid, spec in here.items():
            if uid not in self.pods:
                folder = self.folder / uid
                folder.mkdir()
                ip = f"127.{random.randint(1, 254)}.{random.randint(0, 254)}.{random.randint(1, 254)}"
                self.pods[uid] = Pod(spec, folder, ip)
            self.pods[uid].spec = spec
            self._look_after(self.pods[uid])
        self._write_hosts()

    def _forget(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait()
        shutil.rmtree(pod.folder, ignore_errors=True)

    def _look_after(self, pod: Pod) -> None:
        ended = pod.process is None or pod.process.poll() is not None
        if pod.spec["metadata"].get("deletionTimestamp"):
            if ended:
                self._report_end(pod)
                self.server.ask("DELETE", path_of(pod.spec), {"gracePeriodSeconds": 0})
            elif pod.killed_at is None:
                pod.killed_at = time.monotonic() + pod.spec["metadata"].get("deletionGracePeriodSeconds", 30)
                pod.signal(signal.SIGTERM)
            elif time.monotonic() > pod.killed_at:
                pod.signal(signal.SIGKILL)
        elif pod.process is None:
            self._start(pod)
        elif ended:
            self._report_end(pod)

    def _report_end(self, pod: Pod) -> None:
        if pod.process is None or pod.reported == "ended":
            return
        code = pod.process.returncode if pod.process.returncode >= 0 else 128 - pod.process.returncode
        state = {"exitCode": code, "startedAt": pod.started, "finishedAt": now()}
        state |= {"reason": "Error" if code else "Completed"}
        self._report(pod, "Failed" if code else "Succeeded", {"terminated": state})
        pod.reported = "ended"

    def _report(self, pod: Pod, phase: str, state: dict[str, Any]) -> None:
        container = pod.spec["spec"]["containers"][0]
        status = {
            "phase": phase, "podIP": pod.ip, "podIPs": [{"ip": pod.ip}], "hostIP": "127.0.0.1",
            "startTime": pod.started or now(),
            "conditions": [{"type": "Ready", "status": "True" if phase == "Running" else "False"}],
            "containerStatuses": [{
                "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                "ready": phase == "Running", "started": phase == "Running", "state": state,
            }],
        }  # fmt: skip
        self.server.ask("PATCH", path_of(pod.spec) + "/status", {"status": status}, "application/merge-patch+json")

    def _start(self, pod: Pod) -> None:
        try:
            container = pod.spec["spec"]["containers"][0]
            if container["image"] != self.settings["image"]:
                raise NotYetError("ImagePullBackOff", f'Back-off pulling image "{container["image"]}"')
            mounts = self._volumes(pod, container)
            command = self._command(pod, container, mounts)
        except NotYetError as reason:
            if pod.reported != reason.args[1]:
                self._report(pod, "Pending", {"waiting": {"reason": reason.args[0], "message": reason.args[1]}})
                pod.reported = reason.args[1]
            return
        with pod.log.open("wb") as log:
            pod.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={})
        pod.started = now()
        self._report(pod, "Running", {"running": {"startedAt": pod.started}})

    def _volumes(self, pod: Pod, container: Mapping[str, Any]) -> dict[str, Path]:
        """Fill the pod's volumes; give where in the pod each is seen."""
        made = {volume["name"]: self._volume(pod, volume) for volume in pod.spec["spec"].get("volumes", [])}
        found = {}
        for mount in container.get("volumeMounts", []):
            place = made[mount["name"]]
            found[mount["mountPath"]] = place / mount["subPath"] if "subPath" in mount else place
        return found

    def _volume(self, pod: Pod, volume: Mapping[str, Any]) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder = pod.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            self._config_map(pod, folder, volume["configMap"])
        for source in volume.get("projected", {}).get("sources", []):
            if "configMap" in source:
                self._config_map(pod, folder, source["configMap"])
            elif "serviceAccountToken" in source:
                (folder / source["serviceAccountToken"]["path"]).write_text(self._token(pod))
            elif "downwardAPI" in source:
                for item in source["downwardAPI"]["items"]:
                    (folder / item["path"]).write_text(self._field(pod, item["fieldRef"]["fieldPath"]))
        return folder

    def _config_map(self, pod: Pod, folder: Path, source: Mapping[str, Any]) -> None:
        namespace = pod.spec["metadata"]["namespace"]
        data = self.server.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}").get("data", {})
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            if item["key"] not in data:
                raise NotYetError("ContainerCreating", f"config map {source['name']} has no {item['key']}")
            (folder / item["path"]).write_text(data[item["key"]])

    def _token(self, pod: Pod) -> str:
        """Ask for a token of the pod's service account, bound to the pod."""
        namespace, account = pod.spec["metadata"]["namespace"], pod.spec["spec"]["serviceAccountName"]
        if not pod.tokens:
            bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.spec["metadata"]["name"]}
            body = {"spec": {"audiences": [], "expirationSeconds": 3607, "boundObjectRef": bound}}
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
            answer = self.server.ask("POST", path, body)
            if answer is None:
                raise NotYetError("ContainerCreating", f"there is no service account {account}")
            pod.tokens["token"] = answer["status"]["token"]
        return pod.tokens["token"]

    def _field(self, pod: Pod, path: str) -> str:
        if path == "status.podIP":
            return pod.ip
        found: Any = pod.spec
        for name in path.split("."):
            found = found[name]
        return str(found)

    def _command(self, pod: Pod, container: Mapping[str, Any], mounts: Mapping[str, Path]) -> list[str]:
        server = urlsplit(self.settings["url"])
        env = {
            "PATH": "/opt/env/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "SPARK_HOME": "/opt/spark",
            "JAVA_HOME": self.settings["java_home"], "PYSPARK_PYTHON": "/opt/env/bin/python",
            "KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port),
        }  # fmt: skip
        for each in container.get("env", []):
            source = each.get("valueFrom", {}).get("fieldRef")
            env[each["name"]] = self._field(pod, source["fieldPath"]) if source else each.get("value", "")
        arguments = container.get("args", [])
        given = container.get("command") or ["/opt/env/bin/python", "-I", "/opt/entrypoint.py"]
        (pod.folder / "entrypoint.py").write_text(ENTRYPOINT)
        (pod.folder / "hosts").touch()
        script = self._script(pod, mounts)
        (pod.folder / "start.sh").write_text(script)
        listed = [f"{name}={value}" for name, value in env.items()]
        words = ["/usr/bin/env", "-i", *listed, *given, *arguments]
        namespaces = ["/usr/bin/unshare", "-mupf", "--kill-child"]
        return [*namespaces, "/bin/sh", str(pod.folder / "start.sh"), *words]

    def _script(self, pod: Pod, mounts: Mapping[str, Path]) -> str:
        here, root = pod.folder, pod.folder / "root"
        lines = [
            "set -e",
            "export PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            f"hostname {pod.spec['metadata']['name'][:63]}",
            "mount --make-rprivate /",
            f"mkdir -p {here}/layer {root}",
            f"mount -t tmpfs tmpfs {here}/layer",
            f"mkdir {here}/layer/upper {here}/layer/work",
            f"mount -t overlay overlay -o lowerdir=/,upperdir={here}/layer/upper,workdir={here}/layer/work {root}",
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
            f"mount -t tmpfs tmpfs {root}/opt",
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
            f"mkdir -p {root}/opt/spark/work-dir {root}/opt/spark/conf {root}/opt/env",
            f"cp {here}/entrypoint.py {root}/opt/entrypoint.py",
            f"mount --bind {self.settings['python']} {root}/opt/env",
            f"mount --bind {here}/hosts {root}/etc/hosts",
        ]
        for name in ("bin", "jars", "python"):
            lines += [f"mkdir {root}/opt/spark/{name}"]
            if Path(self.settings["spark"], name).is_dir():
                lines += [f"mount --bind {self.settings['spark']}/{name} {root}/opt/spark/{name}"]
        for place, source in mounts.items():
            # Within the root, as links such as /var/run lead out of it.
            if source.is_file():
                lines += [f"chroot {root} mkdir -p {Path(place).parent}", f"chroot {root} touch {place}"]
            else:
                lines += [f"chroot {root} mkdir -p {place}"]
            lines += [f"mount --bind {source} {root}$(chroot {root} realpath {place})"]
        lines += [f"""exec chroot {root} /bin/sh -c 'cd /opt/spark/work-dir; exec "$@"' sh "$@" """]
        return "\n".join(lines) + "\n"

    def _write_hosts(self) -> None:
        """Names of services, which lead to the pods that they select, in every pod's hosts file."""
        services = self.server.get("/api/v1/services")["items"]
        lines = ["127.0.0.1 localhost"]
        for service in services:
            selector, place = service["spec"].get("selector"), service["metadata"]
            for pod in self.pods.values():
                labels, here = pod.spec["metadata"].get("labels", {}), pod.spec["metadata"]["namespace"]
                if selector and here == place["namespace"] and selector.items() <= labels.items():
                    lines.append(f"{pod.ip} {place['name']}.{place['namespace']}.svc")
        for pod in self.pods.values():
            text = "\n".join([*lines, f"{pod.ip} {pod.spec['metadata']['name'][:63]}"]) + "\n"
            if text != pod.hosts:
                (pod.folder / "hosts").write_text(text)  # in place: it is mounted
                pod.hosts = text


def log_server(node: Node, settings: Mapping[str, str]) -> ThreadingHTTPServer:
    """What the API server asks for the logs of pods."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            _, _, namespace, name, _ = (asked.path.rstrip("/") + "////").split("/")[:5]
            found = [
                p for p in list(node.pods.values()) if path_of(p.spec) == f"/api/v1/namespaces/{namespace}/pods/{name}"
            ]
            data = found[0].log.read_bytes() if found and found[0].log.is_file() else b""
            if tail := parse_qs(asked.query).get("tailLines"):
                data = b"".join(data.splitlines(keepends=True)[-int(tail[0]) :])
            if limit := parse_qs(asked.query).get("limitBytes"):
                data = data[: int(limit[0])]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings["certificate"], settings["key"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server


def main() -> None:
    settings = json.loads(sys.argv[1])
    node = Node(settings)
    server = log_server(node, settings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    node.register(server.server_address[1])

    def wait_for_the_end() -> None:
        sys.stdin.read()
        node.stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    node.run()


if __name__ == "__main__":
    main()
