"""A Kubernetes on the loopback: etcd, its API server, scheduler and controllers, and a node that is a stand-in.

with kubernetes_cluster(folder, python) as cluster:
    monkeypatch.setenv("KUBECONFIG", str(cluster.login("nobody")))

No kubelet and no container engine: ``tests/kubernetes_node.py`` runs pods as processes in namespaces of their own.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.conftest import require
from tests.loopback import free_port
from tests.oracles import layout

IMAGE = "stand-in.invalid/spark:tests"
"""The one image that the node has."""
_START_SECONDS = 120
_STOP_SECONDS = 20
_CONTROLLERS = (
    "serviceaccount-controller,serviceaccount-token-controller,root-ca-certificate-publisher-controller,"
    "garbage-collector-controller,pod-garbage-collector-controller"
)


@dataclass(frozen=True)
class KubernetesCluster:
    """``url`` is the API server's address; ``tokens`` are those of the users ``admin`` and ``nobody``."""

    url: str
    folder: Path
    tokens: Mapping[str, str]
    _session: requests.Session = field(default_factory=requests.Session)

    @property
    def master(self) -> str:
        """What a Spark connection names as its host."""
        return f"k8s://{self.url}"

    def login_account(self, namespace: str, name: str) -> Path:
        """Make a service account, and give a kubeconfig of it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.ask("POST", path, {"metadata": {"name": name}})
        made = self.ask("POST", f"{path}/{name}/token", {"spec": {"audiences": [], "expirationSeconds": 7200}})
        return self.login(name, made["status"]["token"])

    def login(self, user: str, token: str | None = None) -> Path:
        """Give a kubeconfig of a user."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "tls.crt")}
        values = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
        }
        path.write_text(yaml.safe_dump(values))
        return path

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Ask the API server as its administrator."""
        headers = {"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": kind}
        answer = self._session.request(
            method, f"{self.url}{path}", headers=headers, timeout=30, verify=str(self.folder / "tls.crt"),
            data=None if body is None else json.dumps(body),
        )  # fmt: skip
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:1000]}"
        return answer.json() if "json" in answer.headers.get("Content-Type", "") else answer.text

    def pods(self, namespace: str, role: str = "driver") -> dict[str, dict[str, Any]]:
        """Give the pods of drivers or executors, by name."""
        found = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=spark-role%3D{role}")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}


@contextmanager
def kubernetes_cluster(folder: Path, python: Path) -> Iterator[KubernetesCluster]:
    """Run a cluster whose only image has the project's PySpark and the environment of ``python``."""
    built = all((layout.KUBERNETES / name).is_file() for name in layout.KUBERNETES_PROGRAMS)
    require(built, "no Kubernetes to start: run `python tests/oracles/prepare.py --only kubernetes`")
    namespaces = ["unshare", "-mupf", "--kill-child", "true"]
    require(not subprocess.call(namespaces, stderr=subprocess.DEVNULL), "pods need namespaces, as root makes them")
    users = {name: secrets.token_hex(16) for name in ("admin", "nobody")}
    _write_secrets(folder, users)
    etcd_port, peers, port, scheduler, controllers = (free_port() for _ in range(5))
    cluster = KubernetesCluster(f"https://127.0.0.1:{port}", folder, users)
    with ExitStack() as stack:
        etcd_url, peers_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peers}"
        etcd_options = {
            "data-dir": folder / "etcd", "listen-client-urls": etcd_url, "advertise-client-urls": etcd_url,
            "listen-peer-urls": peers_url, "initial-advertise-peer-urls": peers_url,
            "initial-cluster": f"default={peers_url}",
        }  # fmt: skip
        stack.enter_context(_daemon(folder, "etcd", [*_options(etcd_options), "--unsafe-no-fsync"]))
        stack.enter_context(_daemon(folder, "kube-apiserver", _options(_server_options(folder, etcd_url, port))))
        _wait_until_ready(cluster)
        login = cluster.login("admin")
        common: dict[str, Any] = {"kubeconfig": login, "leader-elect": "false", "bind-address": "127.0.0.1"}
        more = {"secure-port": scheduler}
        stack.enter_context(_daemon(folder, "kube-scheduler", _options(common | more)))
        more = {
            "secure-port": controllers, "root-ca-file": folder / "tls.crt", "controllers": _CONTROLLERS,
            "service-account-private-key-file": folder / "tls.key", "use-service-account-credentials": "false",
        }  # fmt: skip
        stack.enter_context(_daemon(folder, "kube-controller-manager", _options(common | more)))
        stack.enter_context(_node(cluster, folder / "node", python))
        yield cluster


def _server_options(folder: Path, etcd: str, port: int) -> dict[str, Any]:
    return {
        "etcd-servers": etcd, "bind-address": "127.0.0.1", "advertise-address": "127.0.0.1", "secure-port": port,
        "tls-cert-file": folder / "tls.crt", "tls-private-key-file": folder / "tls.key",
        "token-auth-file": folder / "tokens.csv", "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/24", "endpoint-reconciler-type": "none",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": folder / "tls.key", "service-account-key-file": folder / "tls.key",
        "feature-gates": "AllAlpha=false",
    }  # fmt: skip


def _options(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def _write_secrets(folder: Path, tokens: Mapping[str, str]) -> None:
    """Make the server's key and certificate, with which it signs tokens, too, and the tokens of users."""
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=tests"]
    command += ["-addext", names, "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    groups = {"admin": "system:masters"}
    lines = [f"{token},{name},{name},{groups.get(name, name)}" for name, token in tokens.items()]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")


@contextmanager
def _daemon(folder: Path, name: str, options: list[str]) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        command = [str(layout.KUBERNETES / name), *options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        _stop(process)


@contextmanager
def _node(cluster: KubernetesCluster, folder: Path, python: Path) -> Iterator[None]:
    """Run the node's agent, which ends its pods and itself when its input ends."""
    folder.mkdir()
    spark = next(path for path in map(Path, sys.path) if (path / "pyspark" / "jars").is_dir()) / "pyspark"
    java = layout.java_executable()
    require(java, "no Java for Spark")
    assert java
    settings = {
        "url": cluster.url, "token": cluster.tokens["admin"], "certificate": str(cluster.folder / "tls.crt"),
        "key": str(cluster.folder / "tls.key"), "folder": str(folder), "image": IMAGE, "spark": str(spark),
        "python": str(python.parent.parent), "java_home": str(java.parent.parent),
    }  # fmt: skip
    with (cluster.folder / "node.log").open("wb") as log:
        command = [sys.executable, str(Path(__file__).with_name("kubernetes_node.py")), json.dumps(settings)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    assert process.stdin
    try:
        yield
    finally:
        process.stdin.close()
        _stop(process, asks=False)


def _stop(process: subprocess.Popen[bytes], *, asks: bool = True) -> None:
    if asks:
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_SECONDS)


def _wait_until_ready(cluster: KubernetesCluster) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            if cluster.ask("GET", "/readyz") == "ok":
                return
        except (requests.RequestException, AssertionError):
            log = (cluster.folder / "kube-apiserver.log").read_text(errors="replace")
            assert time.monotonic() < until, f"Kubernetes didn't start: {log[-3000:]}"
        time.sleep(0.2)


def apply(cluster: KubernetesCluster, text: str) -> None:
    """Create what a YAML text describes, as ``kubectl create -f`` does."""
    for each in yaml.safe_load_all(text):
        group = each["apiVersion"]
        base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        place = f"/namespaces/{each['metadata']['namespace']}"
        cluster.ask("POST", f"{base}{place}/{each['kind'].lower()}s", each)
