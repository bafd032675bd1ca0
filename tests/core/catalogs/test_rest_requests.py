"""What is sent to the server of a REST catalog: signatures, paths, changes of a schema, options of the storage."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.catalogs import open_catalog, rest_client
from airflow_paimon.core.catalogs.options import catalog_options
from airflow_paimon.core.catalogs.rest_auth import DlfKey, Request, auth_of, dlf_headers
from airflow_paimon.core.catalogs.rest_changes import schema_changes
from airflow_paimon.core.catalogs.rest_client import RestClient
from airflow_paimon.core.catalogs.rest_data_tokens import storage_options
from airflow_paimon.core.errors import InvalidInputError, OutcomeUnknownError, StorageError, UnsupportedCatalogError
from airflow_paimon.core.schema.schema_plan import new_schema
from tests.loopback import free_port

DLF = {"metastore": "rest", "uri": "http://cn-hangzhou-vpc.dlf.aliyuncs.com", "token.provider": "dlf"}
BEAR = {"metastore": "rest", "uri": "http://host:1", "token.provider": "bear", "token": "a-secret-token"}


def test_the_signature_is_that_of_paimons_own_test() -> None:
    """``DLFAuthSignatureTest.testGetAuthorization`` of release 2.0.0."""
    body = '{"name":"database","options":{"a":"b"}}'
    request = Request("POST", "/v1/paimon/databases", {"k1": "v1", "k2": "v2"}, body)
    now = datetime(2023, 12, 3, 12, 12, 12, tzinfo=UTC)
    headers = dlf_headers(request, DlfKey("access-key-id", "access-key-secret", "securityToken"), "cn-hangzhou", now)
    assert headers["Authorization"] == (
        "DLF4-HMAC-SHA256 Credential=access-key-id/20231203/cn-hangzhou/DlfNext/aliyun_v4_request,"
        "Signature=c72caf1d40b55b1905d891ee3e3de48a2f8bebefa7e39e4f277acc93c269c5e3"
    )
    assert headers["x-dlf-security-token"] == "securityToken"


def test_a_key_of_dlf_comes_from_options_or_from_a_file_that_is_renewed(tmp_path: Path) -> None:
    key = {"dlf.access-key-id": "an-id", "dlf.access-key-secret": "a-long-secret"}
    auth = auth_of(catalog_options({**DLF, **key}))
    assert "/cn-hangzhou/" in auth.headers(Request("GET", "/v1/config"))["Authorization"]
    assert "a-long-secret" not in repr(auth)
    file = tmp_path / "token.json"
    renewed = auth_of(catalog_options({**DLF, "dlf.token-path": str(file)}))
    with pytest.raises(StorageError, match="contains no DLF key"):
        renewed.headers(Request("GET", "/v1/config"))
    for name in ("first", "second"):
        file.write_text(json.dumps({"AccessKeyId": name, "AccessKeySecret": "s", "SecurityToken": "t"}))
        assert f"Credential={name}/" in renewed.headers(Request("GET", "/v1/config"))["Authorization"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({**BEAR, "token": ""}, InvalidInputError, "needs the option token"),
        ({**BEAR, "token.provider": "other"}, UnsupportedCatalogError, "bear or dlf"),
        ({**BEAR, "uri": "http://user:pass@host"}, InvalidInputError, "credentials are the options"),
        ({**BEAR, "uri": "ftp://host"}, InvalidInputError, "address of its server"),
        (DLF, InvalidInputError, "dlf.access-key-id"),
        ({**DLF, "dlf.signing-algorithm": "openapi"}, UnsupportedCatalogError, "openapi is not supported"),
        ({**DLF, "dlf.token-loader": "ecs"}, UnsupportedCatalogError, "dlf.token-path"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        open_catalog("lake", options)


def test_of_what_a_server_tells_only_what_the_storage_knows_is_taken() -> None:
    told = {"fs.oss.accessKeyId": "id", "fs.oss.securityToken": "t", "fs.oss.endpoint": "oss.host", "prefix": "x"}
    assert storage_options("oss://bucket/t", {**BEAR, "timeout": 5}, told) == {
        "timeout": 5, "fs.oss.accessKeyId": "id", "fs.oss.securityToken": "t", "fs.oss.endpoint": "oss.host",
    }  # fmt: skip
    told = {"fs.s3a.access.key": "id", "other": "x"}
    assert storage_options("s3://bucket/t", {**BEAR, "s3.access-key": "old", "key": "older"}, told) == {
        "fs.s3a.access.key": "id"
    }
    assert storage_options("gs://bucket/t", BEAR, {"fs.gs.project.id": "p", "akId": "x"}) == {"fs.gs.project.id": "p"}
    assert storage_options("/data/t", BEAR, {"akId": "x"}) == {}


def _schema(*columns: tuple[str, str], **more: Any) -> Any:
    return new_schema(columns, partition_keys=(), primary_keys=(), options=more, comment=None, comments=None, now_ms=1)


def test_a_schema_becomes_the_changes_that_make_it() -> None:
    old = _schema(("a", "INT"), ("b", "STRING NOT NULL"), ("c", "INT"), old="1", same="2")
    a, b, _ = old.fields
    new_type = _schema(("a", "BIGINT")).fields[0].type
    added = replace(a, id=3, name="new", description="said")
    b = replace(b, name="renamed", type=replace(b.type, nullable=True))
    new = replace(
        old, id=1, fields=(added, replace(a, type=new_type), b), options={"same": "2", "new": "3"}, comment="x"
    )
    assert schema_changes(old, new) == [
        {"action": "dropColumn", "fieldNames": ["c"]},
        {"action": "renameColumn", "fieldNames": ["b"], "newName": "renamed"},
        {"action": "updateColumnType", "fieldNames": ["a"], "newDataType": "BIGINT", "keepNullability": False},
        {"action": "updateColumnNullability", "fieldNames": ["renamed"], "newNullability": True},
        {"action": "addColumn", "fieldNames": ["new"], "dataType": "INT", "comment": "said", "move": None},
        {
            "action": "updateColumnPosition",
            "move": {"fieldName": "new", "referenceFieldName": None, "type": "FIRST"},
        },
        {"action": "setOption", "key": "new", "value": "3"},
        {"action": "removeOption", "key": "old"},
        {"action": "updateComment", "comment": "x"},
    ]
    assert old.means_same(replace(old, id=9, time_millis=5))
    assert not old.means_same(new)


def test_what_no_change_can_make_is_refused() -> None:
    old = _schema(("a", "INT"), ("b", "ROW<x INT>"))
    a, b = old.fields
    with pytest.raises(UnsupportedCatalogError, match="keys"):
        schema_changes(old, replace(old, primary_keys=("a",)))
    with pytest.raises(UnsupportedCatalogError, match="swap names"):
        schema_changes(old, replace(old, fields=(replace(a, name="b"), replace(b, name="a"))))
    with pytest.raises(UnsupportedCatalogError, match="Column b: changes inside of ROW"):
        schema_changes(old, replace(old, fields=(a, replace(b, type=_schema(("b", "ROW<y INT>")).fields[0].type))))


def _client(port: int) -> RestClient:
    return RestClient(f"http://127.0.0.1:{port}", auth_of(catalog_options(BEAR)), "the catalog")


def _close(connection: socket.socket) -> None:
    connection.recv(65536)


def _reset(connection: socket.socket) -> None:
    connection.recv(1)  # else it may be reset before it is made
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("end", [_close, _reset])
@pytest.mark.parametrize("size", [10, 50_000_000])
def test_a_change_whose_connection_broke_may_have_been_made(end: Callable[[socket.socket], None], size: int) -> None:
    """Whatever breaks after a connection was made, also while a large body is sent: the committer must look first."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                end(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OutcomeUnknownError, match="cannot determine whether POST"):
            _client(server.getsockname()[1]).post(["databases"], {"name": "x" * size})
        thread.join()


def test_a_change_that_reached_no_server_was_not_made() -> None:
    with pytest.raises(StorageError, match="POST databases failed"):
        _client(free_port()).post(["databases"], {"name": "x"})


def test_a_change_that_found_no_connection_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is too busy to take it: those that wait to be taken are as many as it lets wait."""
    monkeypatch.setattr(rest_client, "_CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as waiting:
        for _ in range(4):
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(server.getsockname())
        client = _client(server.getsockname()[1])
        with pytest.raises(StorageError, match=r"POST databases failed \(no connection in 0\.3 s\)"):
            client.post(["databases"], {"name": "x"})


def test_a_change_that_found_no_tls_was_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "_CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = replace(_client(1), uri=f"https://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"POST databases failed \(no connection in 0\.3 s\)"):
            client.post(["databases"], {"name": "x"})


def test_a_server_that_takes_its_time_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_client, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = _client(server.getsockname()[1])
        with pytest.raises(StorageError, match=r"GET databases failed \(no answer in 0\.2 s\)"):
            client.get(["databases"])
        with pytest.raises(OutcomeUnknownError, match="cannot determine whether POST databases was made"):
            client.post(["databases"], {"name": "x"})
        server.settimeout(5)
        for _ in range(2):
            server.accept()[0].close()
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
