"""The action ``http-report``: a request that tells a server of a complete partition, as Paimon sends it."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from airflow_paimon.core.catalogs.rest_client import NoRedirects
from airflow_paimon.core.errors import InvalidInputError, StorageError

URL, PARAMS = "partition.mark-done-action.http.url", "partition.mark-done-action.http.params"
_TIMEOUT_S = 60.0
_SUCCESS = "success"
_LONGEST = 2**20


_OPENER = urllib.request.build_opener(NoRedirects)  # the table's option names the server


def check_url(url: str, table: str) -> str:
    """Check the option.

    Raises:
        InvalidInputError: it is missing, or not the address of a web server.
    """
    at = urlsplit(url)
    if at.scheme not in ("http", "https") or not at.hostname:
        raise InvalidInputError(
            f"{table}: partition.mark-done-action has http-report, so the table option {URL} must be the address of a "
            f"web server, such as https://host:8080/done"
        )
    return url


def report(url: str, table: str, location: str, partition: str, params: str | None) -> None:
    """Report one partition: ``partition`` is its folder with a slash behind it, as Java reports it.

    Raises:
        StorageError: the server doesn't answer within a minute, or not ``{"result": "SUCCESS"}``. It may have
            understood all the same: a retry reports again.
    """
    body = json.dumps({"partition": partition, "table": table, "path": location, "params": params}, ensure_ascii=False)
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    request = urllib.request.Request(url, body.encode(), headers, method="POST")
    host = urlsplit(url).hostname
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            found = json.loads(answer.read(_LONGEST))
    except urllib.error.HTTPError as error:
        error.close()
        raise StorageError(f"{table}: {host} answers {error.code} to the report of partition {partition}") from None
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise StorageError(f"{table}: partition {partition} could not be reported to {host} ({why})") from None
    except ValueError:
        raise StorageError(f"{table}: {host} answers no JSON to the report of partition {partition}") from None
    result = found.get("result") if isinstance(found, dict) else None
    if not isinstance(result, str) or result.lower() != _SUCCESS:
        raise StorageError(
            f"{table}: {host} answers the result {result!r} to the report of partition {partition}, not SUCCESS"
        )
