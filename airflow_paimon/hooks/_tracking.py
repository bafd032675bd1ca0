"""Where to look at a Spark application, from the lines of its log."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any

HISTORY_SERVER = "spark.yarn.historyServer.address"
"""Spark's own setting; here it counts on every master."""
_NAMED = re.compile(r"(?:tracking URL:|SparkUI\b.*started at|Web UI available at) *(https?://\S+)")
_UI_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
"""All that Spark 4 says of its UI; the driver that says it in our log runs on this machine."""
_APPLICATION = re.compile(r"\b(application_\d+_\d+|app-\d{14}-\d{4}|spark-[0-9a-f]{32}|local-\d{13})\b")


def tracking_url(line: str, settings: Mapping[str, Any]) -> str | None:
    """Return the address that a line tells, None when it tells none.

    With a history server in the settings it is that one's page of the application: it is there when the application is
    gone.
    """
    server = str(settings.get(HISTORY_SERVER) or "").rstrip("/")
    if server:
        found = _APPLICATION.search(line)
        return f"{server if '://' in server else 'http://' + server}/history/{found[1]}" if found else None
    if port := _UI_PORT.search(line):
        return f"http://{settings.get('spark.driver.host') or socket.gethostname()}:{port[1]}"
    named = _NAMED.search(line)
    return named[1].rstrip(".,") if named else None
