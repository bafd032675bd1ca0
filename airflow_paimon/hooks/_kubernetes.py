"""Drivers in pods of Kubernetes, by the client of Airflow's provider, and the label by which a retry finds one."""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.hooks._drivers import ENDED_STATES, GONE, AttemptDriver, operation_tag
from airflow_paimon.hooks._job_files import delete_job_files

log = logging.getLogger(__name__)

OPERATION_LABEL = "airflow-paimon-operation"
RESULT_ANNOTATION = "airflow-paimon-result"
FILES_ANNOTATION = "airflow-paimon-files"
UPLOAD_PATH = "spark.kubernetes.file.upload.path"
CONTEXT = "spark.kubernetes.context"
_TIMEOUT = (5.0, 20.0)
"""Seconds until there is a connection to the API server, and until it answers; a call that fails is made once more."""
_KEPT_SECONDS = 60
"""How long a login is used: it may cost a program that gives a token, and each has connections of its own."""
_LOG_LINES, _LOG_BYTES = 200, 64 * 1024
_STARTING = frozenset({None, "ContainerCreating", "PodInitializing"})
_UPLOADS = re.compile(r"airflow-paimon-[0-9a-f]{32}")
_DEPLOYED = re.compile(r"submission ID ([^\s:]+):(\S+) into Kubernetes")
_FORBIDDEN = re.compile(r'\S+ is forbidden: User ".*?" cannot [^.]*?in the namespace "[^"]+"')
_NAMESPACE = re.compile(r"^\s*spark\.kubernetes\.namespace[\s=:]+(\S+)", re.MULTILINE)


class PendingError(RuntimeError):
    """The driver has not started, and what it waits for may never come."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one namespace.

    All methods raise ``RuntimeError`` when the API server gives no answer, and ``PaimonError`` when it refuses one.

    :param master: Spark's name of the cluster, ``k8s://https://host:port``: another cluster is never asked
    :param context: the context of the kubeconfig, where that is used
    """

    master: str
    namespace: str
    context: str | None = None

    def state(self, driver: str) -> str:
        """Return the pod's phase, after its end with what the pod tells of that; ``GONE`` when there is no such pod.

        Raises ``PendingError`` when the pod can't start, as its image can't be had, say.
        """
        if (pod := self._read(driver)) is None:
            return GONE
        if pod.status.phase == "Pending" and (why := _why_pending(pod.status)):
            raise PendingError(f"pod {driver} in namespace {self.namespace} can't start: {why}")
        phase = str(pod.status.phase)
        return ": ".join(filter(None, [phase, _why_ended(pod.status) if phase in ENDED_STATES else ""]))

    def log(self, driver: str) -> list[str]:
        """Return the last lines that the pod has printed."""
        last = {"tail_lines": _LOG_LINES, "_preload_content": False}
        text: bytes = self._ask("get pods/log", "read_namespaced_pod_log", driver, self.namespace, **last) or b""
        return text[-_LOG_BYTES:].decode(errors="replace").splitlines()

    def kill(self, driver: str) -> None:
        """Delete the pod, which ends the driver and its executors. Nothing happens when there is none."""
        self._ask("delete pods", "delete_namespaced_pod", driver, self.namespace)

    def drivers_of(self, request_key: str) -> list[AttemptDriver]:
        """Return the drivers that try one request of an operation, the newest first, but none that is being deleted."""
        selector = f"{OPERATION_LABEL}={operation_tag(request_key)},spark-role=driver"
        found = self._ask("list pods", "list_namespaced_pod", self.namespace, label_selector=selector)
        pods = [] if found is None else [pod for pod in found.items if pod.metadata.deletion_timestamp is None]
        pods.sort(key=lambda pod: pod.metadata.creation_timestamp, reverse=True)
        return [found for pod in pods if (found := _driver_pod(pod)) is not None]

    def _read(self, name: str) -> Any:
        return self._ask("get pods", "read_namespaced_pod", name, self.namespace)

    def _ask(self, what: str, method: str, *arguments: str, **more: Any) -> Any:
        """Return what a method of the client returns, None when there is no such pod."""
        from kubernetes.client.rest import ApiException
        from urllib3.exceptions import HTTPError

        try:
            minute = int(time.monotonic() // _KEPT_SECONDS)
            api = _api(os.getpid(), minute, self.master, self.context, os.environ.get("KUBECONFIG"))
            answer = getattr(api, method)(*arguments, _request_timeout=_TIMEOUT, **more)
            return answer if more.get("_preload_content", True) else answer.data  # which is read from the server now
        except ApiException as error:
            if error.status == 404:
                return None
            status = f"{error.status} {error.reason}"
            if error.status == 401:  # a token that was renewed or withdrawn meanwhile
                _api.cache_clear()
            if error.status in (401, 403):
                raise PaimonError(
                    f"Kubernetes at {self.master} refuses to {what} in namespace {self.namespace} ({status}): give the "
                    f"user or service account of this worker or triggerer a role with that right"
                ) from None
            raise RuntimeError(f"Kubernetes at {self.master} gives no answer: {status}") from error
        except HTTPError as error:
            raise RuntimeError(f"Kubernetes at {self.master} gives no answer: {error}") from error


@lru_cache(maxsize=16)
def _api(pid: int, minute: int, master: str, context: str | None, config: str | None) -> Any:
    """Log in as Airflow's Kubernetes provider is configured to, else by the kubeconfig, as spark-submit does.

    :param pid: connections of before a fork are of no use after it
    :param minute: until when the login is kept
    :param config: the path of the kubeconfig
    """
    from airflow.providers.cncf.kubernetes.kube_client import get_kube_client
    from kubernetes.config import ConfigException
    from urllib3 import Retry

    try:
        try:
            api = get_kube_client()
        except ConfigException:  # the default is the service account of a pod, and this may not run in one
            api = get_kube_client(in_cluster=False, cluster_context=context, config_file=config)
    except ConfigException as error:
        raise InvalidInputError(
            f"There is no login for Kubernetes at {master}: run in a pod with a service account, or name a kubeconfig "
            f"by KUBECONFIG ({error})"
        ) from None
    _ask_only(master, api.api_client.configuration)
    # Else it is ten, each with the whole timeout, and as long as the server wants between them.
    again = Retry(1, respect_retry_after_header=False)
    api.api_client.rest_client.pool_manager.connection_pool_kw["retries"] = again
    return api


def _ask_only(master: str, configuration: Any) -> None:
    """Set the address to ask, which a login would set anew each time that it looks whether its token is fresh."""
    address, refresh = master.removeprefix("k8s://"), configuration.refresh_api_key_hook
    host = (address if "://" in address else f"https://{address}").rstrip("/")

    def refreshed(used: Any) -> None:
        if refresh is not None:
            refresh(used)
        used.host, used.refresh_api_key_hook = host, refreshed

    configuration.host, configuration.refresh_api_key_hook = host, refreshed


def require_client() -> None:
    """Raise ``InvalidInputError`` unless the provider that talks to Kubernetes is installed."""
    try:
        import_module("airflow.providers.cncf.kubernetes.kube_client")
        import_module("kubernetes")
    except ImportError:
        raise InvalidInputError(
            "To run Spark on Kubernetes install apache-airflow-providers-cncf-kubernetes on the workers and triggerers"
        ) from None


def settings_of(request_key: str, result_name: str, files: str | None) -> dict[str, str]:
    """Return the Spark settings by which this try's driver is found, and by which its uploads can be deleted."""
    driver = "spark.kubernetes.driver"
    settings = {
        f"{driver}.label.{OPERATION_LABEL}": operation_tag(request_key),
        f"{driver}.annotation.{RESULT_ANNOTATION}": result_name,
    }
    if files is not None:
        settings |= {UPLOAD_PATH: files, f"{driver}.annotation.{FILES_ANNOTATION}": files}
    return settings


class KubernetesSubmission:
    """A driver in a pod, found by its label.

    :param upload_path: where Spark's settings put uploads; each try has a folder below it, as Spark deletes none
    """

    poll_seconds = 5.0
    variables = "spark.kubernetes.driverEnv."

    def __init__(self, pods: Pods, upload_path: str | None) -> None:
        self.driver: str | None = None
        self.place: Mapping[str, str | None] = {"namespace": pods.namespace, "context": pods.context}
        self.drivers, self._upload_path = pods, upload_path
        self._refusal: str | None = None
        self._own: AttemptDriver | None = None
        self._request_key = ""
        self._storage_options: Mapping[str, Any] | None = None

    def begin(self, request_key: str | None, result_name: str, storage_options: Mapping[str, Any] | None) -> None:
        """Begin a try. Without an operation id no retry looks for the driver, but this try does."""
        self._own = AttemptDriver("", "", result_name, files=upload_folder(self._upload_path))
        self._request_key, self._storage_options = request_key or result_name, storage_options
        self.driver = self._refusal = None

    def settings(self, conf: Mapping[str, Any]) -> dict[str, str]:
        """Return the Spark settings of this try, by which its driver is found, and its uploads can be deleted."""
        assert self._own is not None
        waits = {"spark.kubernetes.submission.waitAppCompletion": "false"}
        return settings_of(self._request_key, self._own.result_name, self._own.files) | waits

    def notice(self, line: str) -> None:
        """Notice the driver's pod, and what is said of a right that is missing."""
        self.driver = deployed_pod(line) or self.driver
        self._refusal = self._refusal or refusal(line)

    def submitted(self, request: Request, *, failed: bool) -> AttemptDriver | None:
        """Return the driver that ``spark-submit``, which has ended, has created; None if there is none.

        Spark names it at the level INFO only, and doesn't know it where the answer to its creation got lost.

        Raises ``PaimonError`` when Kubernetes refuses it, ``OutcomeUnknownError`` when Kubernetes doesn't tell.
        """
        assert self._own is not None
        what = f"{request.operation} on {request.table}"
        if self.driver is None and not creates_no_pod(self._refusal):
            try:
                self.driver = self._find_created(failed=failed)
            except (RuntimeError, PaimonError) as error:
                log.warning("Whether a driver was created isn't known: %s", error)
                if self._refusal is None:
                    raise OutcomeUnknownError(
                        f"{what}: spark-submit named no driver, and Kubernetes doesn't report whether one exists "
                        f"({error}); a retry of this task checks again"
                    ) from error
                raise PaimonError(f"{what}: Kubernetes refuses it: {self._refusal}") from error
        if self.driver is not None:
            return replace(self._own, id=self.driver)
        self._delete_uploads()
        if self._refusal is not None:
            raise PaimonError(f"{what}: Kubernetes refuses it: {self._refusal}")
        return None

    def _find_created(self, *, failed: bool) -> str | None:
        pod = self._created()
        if pod is not None and failed and pod.state == "Pending":
            # Its settings come after it, so it may wait for them for ever.
            self.drivers.kill(pod.id)
            return None
        return None if pod is None else pod.id

    def _created(self) -> AttemptDriver | None:
        """Return the newest driver that writes the result of this try."""
        assert self._own is not None
        found = self.drivers.drivers_of(self._request_key)
        return next((pod for pod in found if pod.result_name == self._own.result_name), None)

    def earlier(self, request_key: str, result_name: str) -> list[AttemptDriver]:
        """Return the drivers of all tries, those at work first."""
        return sorted(self.drivers.drivers_of(request_key), key=lambda one: one.state in ENDED_STATES)

    def adopt(
        self, earlier: AttemptDriver, request_key: str, storage_options: Mapping[str, Any] | None
    ) -> AttemptDriver:
        """Take the driver of an earlier try for the own one; return it without files that are no uploads of ours."""
        files = earlier.files if earlier.files and is_upload_folder(earlier.files, self._upload_path) else None
        if earlier.files != files:
            log.warning("%s is not below %s, and stays", earlier.files, self._upload_path)
        self._own = replace(earlier, files=files)
        self._request_key, self._storage_options, self.driver = request_key, storage_options, earlier.id
        return self._own

    def kill(self) -> str | None:
        """Delete the driver, also one that spark-submit, killed now, has not named; and then what was uploaded."""
        if self._own is None:
            return None
        if self.driver is None and (found := self._created()) is not None:
            self.driver = found.id
        if self.driver is not None:
            self.drivers.kill(self.driver)
        self._delete_uploads()
        return self.driver

    def _delete_uploads(self) -> None:
        """Delete what was uploaded, with the secrets in it."""
        if self._own is not None and self._own.files is not None:
            delete_job_files(self._own.files, self._storage_options)


def upload_folder(path: str | None) -> str | None:
    """Return a folder for the uploads of one submission."""
    return None if path is None else f"{path.rstrip('/')}/airflow-paimon-{uuid.uuid4().hex}"


def is_upload_folder(folder: str, path: str | None) -> bool:
    """Say whether a folder that a pod names is one that :func:`upload_folder` may have given for this path.

    Who may create pods must not decide what a task deletes with the rights of its connection.
    """
    above, _, name = folder.rpartition("/")
    return path is not None and above == path.rstrip("/") and _UPLOADS.fullmatch(name) is not None


def default_namespace(settings: Path | None) -> str:
    """Return the namespace that Spark takes where the connection names none."""
    text = settings.read_text() if settings is not None and settings.is_file() else ""
    found = _NAMESPACE.findall(text)
    return found[-1] if found else "default"


def deployed_pod(line: str) -> str | None:
    """Return the driver's pod where a line of ``spark-submit`` names it."""
    found = _DEPLOYED.search(line)
    return found[2] if found else None


def refusal(line: str) -> str | None:
    """Return what a line of ``spark-submit`` says of a right that is missing: who may not do what, and where."""
    found = _FORBIDDEN.search(line)
    return found[0] if found else None


def creates_no_pod(refused: str | None) -> bool:
    """Say whether a refusal means that there is certainly no driver."""
    return refused is not None and 'cannot create resource "pods"' in refused


def _driver_pod(pod: Any) -> AttemptDriver | None:
    notes, said = pod.metadata.annotations or {}, str(pod.status.phase)
    if RESULT_ANNOTATION not in notes:
        return None
    return AttemptDriver(pod.metadata.name, said, notes[RESULT_ANNOTATION], files=notes.get(FILES_ANNOTATION))


def _why_ended(status: Any) -> str:
    said = [status.reason, status.message]
    for container in status.container_statuses or []:
        if ended := container.state.terminated:
            said += [ended.reason, f"exit code {ended.exit_code}", ended.message]
    return ", ".join(str(each) for each in said if each)


def _why_pending(status: Any) -> str | None:
    for container in status.container_statuses or []:
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _STARTING:
            return f"{waiting.reason}: {waiting.message}"
    for condition in status.conditions or []:
        if condition.reason == "Unschedulable":
            return f"Unschedulable: {condition.message}"
    return None
