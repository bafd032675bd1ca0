"""The documentation inside Airflow: the wheel's Markdown pages as HTML; needs no network, and is of this version.

Sphinx makes the site from the same files. What only Sphinx can do (signatures, the reference of jobs) is replaced by
the command that prints it.
"""

from __future__ import annotations

import html
import posixpath
import re
from dataclasses import dataclass, replace
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from airflow_paimon.bundled import docs_folder
from airflow_paimon.core.errors import NotFoundError

_NAME = re.compile(r"[a-z0-9-]+(/[a-z0-9-]+)?")
_NOTEBOOK = re.compile(r"[a-z0-9-]+/[a-z0-9-]+\.ipynb")
_TARGET = re.compile(r"(?P<path>[^:#?]*)(?P<rest>#.*)?")
_DESCRIBED = re.compile(r"^\.\. auto\w+:: (\S+)$", re.MULTILINE)
_JOBS = (
    "<p><code>python -m airflow_paimon job --help</code> lists the jobs, "
    "<code>python -m airflow_paimon job create_tag --help</code> the flags of one.</p>\n"
)


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its first heading, and its body as HTML. Links are absolute paths below where the page is mounted."""

    title: str
    body: str


def render(name: str, root: str) -> Document:
    """Render the page ``runbook`` or ``howto/sql``. ``root``: the path at which the pages are served.

    Raises:
        NotFoundError: there is no such page.
    """
    text = _read(name)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    _number_headings(tokens)
    for token in tokens:
        if token.children:
            token.children = [shown for child in token.children for shown in _in_both_themes(child, name)]
        for child in token.children or ():
            _point(child, name, root)
        if token.type == "fence" and token.info.startswith("{"):
            token.type, token.content = "html_block", _directive(token)
    return Document(_title(text), str(parser.renderer.render(tokens, parser.options, {})))


def notebook(name: str) -> bytes:
    """Return a notebook such as ``tutorials/notebook.ipynb``, to be downloaded.

    Raises:
        NotFoundError: there is no such notebook.
    """
    path = docs_folder() / name
    if not _NOTEBOOK.fullmatch(name) or not path.is_file():
        raise NotFoundError(f"The documentation has no notebook {name!r}")
    return path.read_bytes()


def _read(name: str) -> str:
    path = docs_folder() / f"{name}.md"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise NotFoundError(f"The documentation has no page {name!r}")
    return path.read_text(encoding="utf-8")


def _title(text: str) -> str:
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "Documentation")


def _number_headings(tokens: list[Token]) -> None:
    """Give each heading the id by which other pages point to it, as GitHub and Sphinx do."""
    for opening, content in pairwise(tokens):
        if opening.type == "heading_open":
            words = re.sub(r"[^\w\- ]", "", content.content.lower())
            opening.attrSet("id", words.strip().replace(" ", "-"))


def _in_both_themes(token: Token, name: str) -> list[Token]:
    """Return a picture ``x.png`` with ``x-dark.png`` after it, where that exists; the style sheet shows one of them."""
    dark = str(token.attrs.get("src", "")).replace(".png", "-dark.png")
    if token.type != "image" or not dark or not (docs_folder() / name).parent.joinpath(dark).is_file():
        return [token]
    light = {**token.attrs, "class": "only-light"}
    return [replace(token, attrs=light), replace(token, attrs={**light, "class": "only-dark", "src": dark})]


def _point(token: Token, name: str, root: str) -> None:
    """Let a relative link or picture lead to where it is served."""
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    if attribute is None:
        return
    found = _TARGET.fullmatch(str(token.attrs.get(attribute, "")))
    if found and found["path"]:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found["path"]))
        token.attrs[attribute] = f"{root}/{path.removesuffix('.md')}{found['rest'] or ''}"


def _directive(token: Token) -> str:
    if token.info == "{toctree}":  # the navigation of the site; the page itself has links
        return ""
    if token.info == "{job-reference}":
        return _JOBS
    commands = [f"python -m pydoc {thing}" for thing in _DESCRIBED.findall(token.content)]
    return "".join(f"<p>Parameters: <code>{html.escape(command)}</code></p>\n" for command in commands)
