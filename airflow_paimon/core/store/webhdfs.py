"""HDFS through WebHDFS: the same renames as by its own protocol, one HTTP request each."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError
from airflow_paimon.core.store import webhdfs_client
from airflow_paimon.core.store.base import join, object_name
from airflow_paimon.core.store.failures import Output
from airflow_paimon.core.store.hdfs import FAILURES, HdfsStore
from airflow_paimon.core.store.http_client import require_packages


class WebHdfsStore(HdfsStore):
    """Files below ``webhdfs://name-node:9870/folder`` or, by HTTPS, ``swebhdfs://gateway:8443/folder``.

    A data file is held on this machine until it is closed, and then sent.

    Options: ``user`` (without it ``HADOOP_USER_NAME`` or the process's user); with ``password`` they log in at a
    gateway (HTTP's basic authentication, ``swebhdfs`` only); ``delegation_token``; ``path``, where a gateway has the
    files below another one than ``/webhdfs/v1``.
    """

    __slots__ = ()

    def _checked(self, options: Mapping[str, Any] | None) -> str:
        require_packages(self._scheme, "hdfs", "requests")
        given = {name: value for name, value in (options or {}).items() if value is not None}
        known = webhdfs_client.OPTIONS
        if unknown := sorted(set(given) - known):
            raise InvalidInputError(
                f"Unknown storage option for {self._scheme}://: {', '.join(unknown)}; known are "
                f"{', '.join(sorted(known))}"
            )
        if wrong := sorted(name for name, value in given.items() if not isinstance(value, str)):
            raise InvalidInputError(f"Storage options for {self._scheme}:// must be strings: {', '.join(wrong)}")
        if not self._authority:
            raise InvalidInputError(
                f"{self._scheme}:// needs a host and its HTTP port: {self._scheme}://host:9870/path"
            )
        if given.get("password") and (self._scheme == "webhdfs" or not given.get("user")):
            raise InvalidInputError("The storage option password needs user, and goes by swebhdfs:// only")
        return json.dumps(given, sort_keys=True)

    def open_output(self, path: str) -> BinaryIO:
        """Open a new file, whose name is taken when it is closed. ``AlreadyExistsError`` if it exists."""
        key = self._key(object_name(path))
        if self._status(path, key) is not None:
            raise AlreadyExistsError(f"{join(self.uri, path)} exists already")
        writer = self._client.create(key)
        return Output(  # type: ignore[return-value]
            writer,  # type: ignore[arg-type]
            fail=lambda error: self.failed(error, "writing", path),
            finish=writer.close,
            discard=writer.discard,
            errors=FAILURES,
        )

    def _new_file(self, key: str) -> Any:
        return self._client.create(key)

    @property
    def _client(self) -> webhdfs_client.WebHdfsClient:
        given = tuple(sorted(json.loads(self._options).items()))
        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        return webhdfs_client.client(os.getpid(), self._scheme, self._authority, given, user)
