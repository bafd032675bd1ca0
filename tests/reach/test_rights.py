"""Operations of somebody who may not list, or not write, or not delete: each refusal is told as what may be tried
again, changes no row, and the retry of somebody who may do it finishes what was begun."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import execution
from airflow_paimon.core.errors import OutcomeUnknownError, PaimonError, StorageError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.store import object_client
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from tests.places import Place, Servers
from tests.reach.local_copies import assert_readable
from tests.s3_proxy import Answer, Proxy, Request, s3_proxy

COLUMNS = [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING")]
EXPIRED: dict[str, Any] = {
    "older_than": "0 s", "retain_min": 1, "retain_max": 1, "grace": "0 s", "retry_window": "0 s",
    "writers_stopped": True, "keep_undo": False,
}  # fmt: skip
_XML = {"content-type": "application/xml"}


def _xml(code: str, message: str) -> Answer:
    body = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return 403, {**_XML, "x-ms-error-code": code}, body.encode()


def _google(message: str) -> Answer:
    told = {
        "code": 403,
        "message": message,
        "errors": [{"message": message, "domain": "global", "reason": "forbidden"}],
    }
    return 403, {"content-type": "application/json"}, json.dumps({"error": told}).encode()


@dataclass(frozen=True)
class Service:
    """How a service is asked, and how it refuses."""

    refusal: Answer
    lists: Callable[[Request], bool]
    writes: Callable[[Request], bool]
    deletes: Callable[[Request], bool]

    def concerns(self, right: str) -> Callable[[Request], bool]:
        return {"list": self.lists, "write": self.writes, "delete": self.deletes}[right]


def _is_delete(request: Request) -> bool:
    return request.method == "DELETE" or (
        request.method == "POST" and re.search(r"[?&]delete\b", request.path) is not None
    )


SERVICES = {
    "s3": Service(
        _xml("AccessDenied", "User: arn:aws:iam::1:user/x is not authorized to perform: s3:Everything"),
        lambda r: r.is_listing, lambda r: r.method == "PUT" or "uploads" in r.path, _is_delete,
    ),
    "gs": Service(
        _google("x@y.iam.gserviceaccount.com does not have storage.objects access to the Google Cloud Storage object."),
        lambda r: r.method == "GET" and r.path.partition("?")[0].endswith("/o"), lambda r: "/upload/" in r.path,
        _is_delete,
    ),
    "abfss": Service(
        _xml("AuthorizationPermissionMismatch", "This request is not authorized to perform this operation using this "
             "permission."),
        lambda r: "comp=list" in r.path, lambda r: r.method == "PUT", _is_delete,
    ),
    "oss": Service(
        _xml("AccessDenied", "You have no right to access this object because of bucket acl."),
        lambda r: r.is_listing, lambda r: r.method == "PUT" or "uploads" in r.path, _is_delete,
    ),
}  # fmt: skip


@contextmanager
def behind_proxy(place: Place) -> Iterator[tuple[Place, Proxy]]:
    endpoint = place.storage["endpoint_url"]
    host, _, account = endpoint.removeprefix("http://").partition("/")
    with s3_proxy(f"http://{host}") as proxy:
        proxy.always, proxy.refusal = "refused", SERVICES[place.name].refusal
        address = f"{proxy.endpoint}/{account}" if account else proxy.endpoint
        yield replace(place, storage={**place.storage, "endpoint_url": address}), proxy


def run(place: Place, operation: str, **values: Any) -> Any:
    request = build_request(operation, place.request("t", **{"operation_id": operation, **values}))
    context = open_context(request)
    if isinstance(request, Compact):
        return compact(context, request)
    return execution.perform(context, request)


def write(place: Place, branch: str, *rows: tuple[str, int, str]) -> None:
    dt, k, v = map(list, zip(*rows, strict=True))
    write_arrow(place.open("t", branch), pa.table({"dt": dt, "k": pa.array(k, pa.int32()), "v": v}))


def seen(place: Place, branch: str = "main") -> list[tuple[str, int, str]]:
    return sorted((r["dt"], r["k"], r["v"]) for r in read_arrow(place.open("t", branch)).to_pylist())


STEPS: dict[str, Callable[[Place], Any]] = {
    "create_branch": lambda p: run(p, "create_branch", branch="fix", snapshot=1),
    "write": lambda p: write(p, "fix", ("a", 1, "fixed")),
    "create_tag": lambda p: run(p, "create_tag", tag="before"),
    "merge_branch": lambda p: run(p, "merge_branch", branch="fix", writers_stopped=True),
    "compact": lambda p: run(p, "compact"),
    "delete_tag": lambda p: run(p, "delete_tag", tag="before"),
    "delete_branch": lambda p: run(p, "delete_branch", branch="fix", force=True),
    "expire_snapshots": lambda p: run(p, "expire_snapshots", **EXPIRED),
}
"""What a correction and a night of maintenance do."""
PUTS_ONLY = {"create_branch", "write", "create_tag"}
"""What needs no right to delete."""


def make_table(place: Place) -> None:
    options = {"bucket": "1", "num-sorted-run.compaction-trigger": "2"}
    place.create("t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], options=options)
    write(place, "main", ("a", 1, "x"), ("b", 1, "x"))


def run_steps(place: Place, denied: Place, without: Callable[[], AbstractContextManager[Any]], says: str) -> set[str]:
    """Take each step without the right, then, if it was refused, with it; name those that were."""
    refused = set()
    for step, action in STEPS.items():
        before = seen(place)
        try:
            with without():
                action(denied)
        except PaimonError as error:
            refused.add(step)
            assert isinstance(error, StorageError | OutcomeUnknownError), error
            assert re.search(says, error.message), error
            if isinstance(error, StorageError) or step != "merge_branch":
                assert seen(place) == before, step
            else:
                assert "was committed" in error.message, error
            assert_readable(place.open("t"))
            action(place)
        assert_readable(place.open("t"))
    assert seen(place) == [("a", 1, "fixed"), ("b", 1, "x")]
    assert place.open("t").branch_names() == []
    assert len(place.open("t").snapshot_ids()) == 1
    assert run(place, "check_table").details["errors"] == 0
    return refused


def check_refused(right: str, refused: set[str]) -> None:
    assert refused >= (STEPS.keys() - PUTS_ONLY if right == "delete" else STEPS.keys()) - {"compact"}
    assert not (right == "delete" and refused & PUTS_ONLY)


@pytest.mark.parametrize("right", ["list", "write", "delete"])
@pytest.mark.parametrize("name", SERVICES)
def test_without_a_right(servers: Servers, name: str, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    place = servers.place(name)
    make_table(place)
    with behind_proxy(place) as (denied, proxy):
        proxy.concerns = SERVICES[name].concerns(right)
        told = SERVICES[name].refusal[2].decode()
        reason = re.escape(re.findall(r"<Message>(.*)</|\"message\": \"([^\"]*)\"", told)[0][name == "gs"][:40])
        says = rf"Access denied for [\w ]+ {place.warehouse.partition(':')[0]}://.*{reason}.*give .* the right"
        check_refused(right, run_steps(place, denied, nullcontext, says))


MODES = {"list": 0o711, "write": 0o755, "delete": 0o1777}
"""What the folders of another user let others do. With the sticky bit they may add files, and delete only theirs."""


@pytest.mark.parametrize("right", MODES)
def test_without_a_right_on_hdfs(servers: Servers, right: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the sticky bit only the deletion of others' files is refused: expiry, as the branch is the stranger's."""
    import hdfs_native

    place = servers.place("hdfs")
    make_table(place)
    client = hdfs_native.Client(place.warehouse[: place.warehouse.index("/", 8)], {})
    folder = "/" + place.warehouse.partition("://")[2].partition("/")[2]

    @contextmanager
    def as_stranger() -> Iterator[None]:
        for entry in [folder, *(e.path for e in client.list_status(folder, recursive=True) if e.isdir)]:
            client.set_permission(entry, MODES[right])
        with monkeypatch.context() as patch:
            patch.setenv("HADOOP_USER_NAME", "a-stranger")
            yield

    says = r"Permission denied for [\w ]+ hdfs://.*a-stranger.*give this user the right"
    refused = run_steps(place, place, as_stranger, says)
    if right == "delete":
        assert refused == {"expire_snapshots"}
    else:
        check_refused(right, refused)


EXPIRY = {
    "s3": (400, _XML, b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"),
    "gs": (401, {"content-type": "application/json"}, b'{"error": {"code": 401, "message": "Invalid Credentials"}}'),
    "abfss": (
        403, {**_XML, "x-ms-error-code": "AuthenticationFailed"},
        b"<Error><Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request.</Message>"
        b"<AuthenticationErrorDetail>Signature not valid in the specified time frame</AuthenticationErrorDetail>"
        b"</Error>",
    ),
    "oss": (
        403, _XML,
        b"<Error><Code>SecurityTokenExpired</Code><Message>The security token you provided has expired.</Message>"
        b"</Error>",
    ),
}  # fmt: skip
"""What the services answer when a token has expired."""


@pytest.mark.parametrize("name", EXPIRY)
def test_a_token_that_expires_in_the_middle(servers: Servers, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each request of a compaction, of which every eighth is tried, from some point on all are refused."""
    monkeypatch.setattr(object_client, "_PAUSE", 0.01)
    place = servers.place(name)
    make_table(place)
    with behind_proxy(place) as (old, proxy):
        proxy.refusal = EXPIRY[name]
        kinds = set()
        for passed in range(1, 300, 8):
            write(place, "main", ("a", 1, f"v{passed}"))
            write(place, "main", ("b", 1, f"v{passed}"))
            rows = seen(place)
            proxy.requests.clear()
            proxy.concerns = lambda request, passed=passed: len(proxy.requests) > passed  # type: ignore[misc]
            try:
                run(old, "compact", operation_id=f"compact-{passed}")
            except PaimonError as error:
                kinds.add(type(error))
                assert isinstance(error, StorageError | OutcomeUnknownError), error
                assert re.search("expire|Invalid Credentials|time frame", error.message), error
            else:
                break
            assert seen(place) == rows
            run(place, "compact", operation_id=f"compact-{passed}")
            assert seen(place) == rows
            assert_readable(place.open("t"))
        else:
            pytest.fail("it never ended")
        assert passed > 16
        assert StorageError in kinds
    ids = place.open("t").snapshot_ids()
    assert ids == list(range(1, ids[-1] + 1))
    assert run(place, "check_table").details["errors"] == 0
