"""Templates to HTML: everything is escaped, and addresses follow from where Airflow has mounted the app."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_paimon import __version__
from airflow_paimon.shown.urls import URL_PREFIX


class Pages:
    """The templates of a folder."""

    def __init__(self, folder: Path) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True
        )  # fmt: skip
        self._environment.filters["segment"] = lambda part: quote(str(part), safe="")

    def render(self, request: Request, template: str, **values: Any) -> str:
        """Render one page."""
        root = str(request.scope.get("root_path", ""))
        more = {"root": root, "airflow": self.airflow_address(request), "version": __version__}
        shown = {"pending": False, "trail": (), **more, **values}
        return self._environment.get_template(template).render(shown)

    @staticmethod
    def airflow_address(request: Request) -> str:
        """Give the path under which Airflow itself is served, without a slash at the end."""
        return str(request.scope.get("root_path", "")).rstrip("/").removesuffix(URL_PREFIX)
