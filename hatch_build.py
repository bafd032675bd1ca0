"""What a package index shows of this project: the README, whose links into the checkout lead nowhere from there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)(docs/)?([^)#\s]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r"^(?:!\[[^\]]*\]\((?![a-z]+:)[^)]+\)|<picture>(?s:.*?)</picture>)\n\n", re.MULTILINE)


class ReadmeHook(MetadataHookInterface):
    """Set the README without relative links as the description in the package's metadata."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add ``readme`` to the metadata. Where ``[project.urls]`` has ``Documentation``, links lead there."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        site = metadata.get("urls", {}).get("Documentation")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text, site)}


def standalone(readme: str, site: str | None) -> str:
    """Return a README that needs no repository.

    Links to pages of the documentation lead to ``site``. Other relative links, and all without a site, become text.
    Paragraphs that are a picture of the repository are left out.
    """

    def replaced(link: re.Match[str]) -> str:
        text, documentation, page, heading = link.groups()
        if site is None or not documentation:
            return text
        return f"[{text}]({site.rstrip('/')}/{re.sub(r'[.]md$', '.html', page)}{heading or ''})"

    return _RELATIVE_LINK.sub(replaced, _PICTURE.sub("", readme))
