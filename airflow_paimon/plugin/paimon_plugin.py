"""The Airflow plugin: a navigation entry and the app behind it, and the macros.

Every component of Airflow imports this module. The app itself, and all that it needs, is imported by the API server
at the page's first request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_paimon.plugin.macros import MACROS
from airflow_paimon.shown.urls import URL_PREFIX

_Message = MutableMapping[str, Any]
_App = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]  # fmt: skip


class PaimonPage:
    """An ASGI app that builds the real one when it is asked for something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: _App | None = None

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        app = self._app
        if app is None:  # it imports for a second: other requests go on meanwhile
            app = await asyncio.to_thread(self._built)
        await app(scope, receive, send)

    def _built(self) -> _App:
        with self._lock:
            if self._app is None:
                from airflow_paimon.plugin.app import build_app

                self._app = build_app()
            return self._app


class PaimonPlugin(AirflowPlugin):
    """The page *Paimon* under Browse, served by the API server at ``/paimon``; in templates ``macros.paimon``."""

    name = "paimon"  # templates say it
    macros = list(MACROS)  # noqa: RUF012
    fastapi_apps = [{"app": PaimonPage(), "url_prefix": URL_PREFIX, "name": "Paimon"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Paimon",
            "href": f"{URL_PREFIX}/".lstrip("/"),  # below Airflow's base URL, wherever that is
            "destination": "nav",
            "category": "browse",
            "url_route": "paimon",
        }
    ]
