"""The files of one submission: what goes to the driver, and where its result comes from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError
from airflow_paimon.core.requests.arguments import RESULT_URI, STORAGE_OPTIONS, STORAGE_OPTIONS_ONCE, to_arguments
from airflow_paimon.core.requests.requests import Request, flag_name

log = logging.getLogger(__name__)

RESULT_LINE = '{"operation": "'
"""What the line begins with by which a job prints its result: who runs the job logs the result."""
_PREFIX = "airflow-paimon-job-"
_TRY = re.compile(r"\btry\d+")
# Containers may share a folder for temporary files, and a process id means nothing in another one.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One result file. ``uri`` is the address that the job gets."""

    uri: str
    store: Any
    name: str

    def exists(self) -> bool:
        """Say whether the job has left its result."""
        return bool(self.store.exists(self.name))

    def take(self) -> dict[str, Any] | None:
        """Read and delete the result, None when the job wrote none."""
        try:
            data = self.store.read(self.name)
        except NotFoundError:
            return None
        try:
            result = json.loads(data)
        except ValueError:
            raise FormatError(f"The result file {self.uri} is not JSON") from None
        try:
            self.store.delete(self.name)
        except PaimonError as error:  # the job is over: what it says counts more than a file that stays behind
            log.warning("The result file %s can't be deleted: %s", self.uri, error.message)
        return result if isinstance(result, dict) else None


class JobFolder:
    """A private temporary folder (mode 0700, files 0600), deleted at the end of ``with``.

    Entering also deletes those of workers on this host that were killed: their names hold host and process id.
    """

    def __init__(self) -> None:
        self.path = Path()
        self.written: list[Path] = []

    def __enter__(self) -> JobFolder:
        _delete_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_HOST}-{os.getpid()}-"))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, text: str) -> Path:
        """Write a file that only this user can read, and note it as one that the driver needs."""
        path = self.path / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        self.written.append(path)
        return path

    def result(self) -> ResultFile:
        """Return the result file of a driver that runs on this machine."""
        from airflow_paimon.core.store import open_store

        return ResultFile(str(self.path / "result.json"), open_store(str(self.path)), "result.json")


def job_arguments(
    folder: JobFolder, request: Request, texts: Mapping[str, str], result_uri: str, *, shipped: bool = False
) -> list[str]:
    """Write the files that a job needs, and return its arguments.

    ``texts``: fields of the request that name a file, with the file's content. ``shipped``: the driver has the files in
    its working folder, as ``--files`` puts them there.
    """

    def named(path: Path) -> str:
        return path.name if shipped else str(path)

    files: dict[str, Any] = {name: named(folder.write(f"{name}.sql", text)) for name, text in texts.items()}
    arguments = [*to_arguments(dataclasses.replace(request, **files)), f"{flag_name(RESULT_URI)}={result_uri}"]
    if request.storage_options:
        path = folder.write("storage-options.json", json.dumps(dict(request.storage_options)))
        # A driver that reads it in place deletes it; elsewhere Spark's staging folder goes with the application.
        arguments.append(f"{flag_name(STORAGE_OPTIONS if shipped else STORAGE_OPTIONS_ONCE)}={named(path)}")
    return arguments


def result_in(results_folder: str, name: str, storage_options: Mapping[str, Any] | None) -> ResultFile:
    """Return the result file of a driver that runs in a cluster."""
    from airflow_paimon.core.catalogs import storage_only
    from airflow_paimon.core.store import open_store

    folder = results_folder.rstrip("/")
    return ResultFile(f"{folder}/{name}", open_store(folder, storage_only(storage_options)), name)


def is_of_same_task(result_name: str, own: str) -> bool:
    """Say whether a result is one that a try of this task writes; ``own``: the result of this try.

    What a cluster says of another try isn't taken on trust: the file is read, and deleted.
    """
    folder, _, name = result_name.rpartition("/")
    own_folder, _, own_name = own.rpartition("/")
    return folder == own_folder and _TRY.sub("try", name) == _TRY.sub("try", own_name)


def delete_job_files(folder: str, storage_options: Mapping[str, Any] | None) -> None:
    """Delete a folder of a submission, given as a path or a URI; it may be gone already. A failure is logged."""
    from airflow_paimon.core.catalogs import storage_only
    from airflow_paimon.core.store import open_store

    if folder.startswith("/"):
        shutil.rmtree(folder, ignore_errors=True)
        return
    parent, _, name = folder.rstrip("/").rpartition("/")
    try:
        store = open_store(parent, storage_only(storage_options))
        for path in store.walk(name):
            store.delete(path)
        store.delete_empty(name)
    except PaimonError as error:
        log.warning("The job's files in %s can't be deleted, among them its storage options: %s", folder, error.message)


def _delete_abandoned(parent: Path) -> None:
    prefix = f"{_PREFIX}{_HOST}-"
    for folder in parent.glob(f"{prefix}*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        try:
            if owner.isdigit() and folder.stat().st_uid == os.getuid() and not _is_alive(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
        except FileNotFoundError:
            continue  # another worker was faster


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
