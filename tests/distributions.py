"""``python -m tests.distributions FOLDER``: build wheel and sdist of HEAD twice, compare, check.

The first build is of the committed files in a new folder, the second one of the first one's sdist in another folder.
Both take their times from the commit (SOURCE_DATE_EPOCH), so anybody who builds the same commit with the locked
hatchling (`constraints.txt`) gets the same bytes. Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_bytes
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from packaging.metadata import Metadata

from tests.archives import unpack

ROOT = Path(__file__).parents[1]
TWINE = "twine==6.2.0"
REQUIRED = ("summary", "author", "license_expression", "license_files", "requires_python", "classifiers", "keywords")
"""What an index would take without; a package of ours has it."""


def main(target: Path) -> int:
    """Build into ``target`` and check; print a digest for each file. 0, or 1 with what is wrong."""
    if _git("status", "--porcelain"):
        sys.exit("dist: there are uncommitted changes; the distributions are built from the commit HEAD alone")
    epoch = _git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-dist-") as scratch:
        first = build(committed(Path(scratch) / "committed"), Path(scratch) / "first", epoch)
        second = build(unpacked(first[0], Path(scratch) / "unpacked"), Path(scratch) / "second", epoch)
        wrong = [f"{path.name} differs in a second build" for path in differing(first, second)]
        wrong += [line for path in first for line in findings(path)]
        twine = [shutil.which("uv") or "uv", "tool", "run", "--from", TWINE, "twine", "check", "--strict"]
        if subprocess.run([*twine, *map(str, first)], check=False).returncode:
            wrong.append(f"{TWINE} finds fault, see above")
        if not wrong:
            _copy_to(target, first)
    print("\n".join(f"dist: {line}" for line in wrong), file=sys.stderr)
    return 1 if wrong else 0


def committed(folder: Path) -> Path:
    """Write the files of HEAD into a new folder, and nothing that merely lies beside them."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def build(source: Path, target: Path, epoch: str) -> list[Path]:
    """Build sdist and wheel, in this order, of a source folder; ``epoch``: what their times say, in seconds."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"building {source} failed: {done.stderr or done.stdout}")
    return [next(target.glob("*.tar.gz")), next(target.glob("*.whl"))]


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist into a new folder and return its only folder."""
    unpack(sdist, folder)
    return next(folder.iterdir())


def differing(first: Sequence[Path], second: Sequence[Path]) -> list[Path]:
    """Return those of two builds' files, in the same order, that are not the same bytes under the same name."""
    return [a for a, b in zip(first, second, strict=True) if a.name != b.name or a.read_bytes() != b.read_bytes()]


def findings(distribution: Path) -> list[str]:
    """Return what is wrong with a wheel's or sdist's metadata and description, one line each."""
    raw = _metadata(distribution)
    metadata = Metadata.from_email(raw, validate=True)
    found = [f"{distribution.name}: no {field}" for field in REQUIRED if not getattr(metadata, field)]
    described = MarkdownIt("commonmark").enable("table").parse(str(message_from_bytes(raw).get_payload()))
    dead = sorted(link for link in set(_links(described)) if "://" not in link)
    return found + [f"{distribution.name}: the description has a link that leads nowhere, {link}" for link in dead]


def _links(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        yield from (str(value) for name, value in token.attrs.items() if name in ("href", "src"))
        yield from _links(token.children or ())


def _metadata(distribution: Path) -> bytes:
    if distribution.suffix == ".whl":
        with zipfile.ZipFile(distribution) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            return archive.read(name)
    with tarfile.open(distribution) as archive:
        name = next(n for n in archive.getnames() if n.count("/") == 1 and n.endswith("/PKG-INFO"))
        member = archive.extractfile(name)
        assert member is not None
        return member.read()


def _copy_to(target: Path, built: Sequence[Path]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in built:
        shutil.copyfile(path, target / path.name)
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {target / path.name}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.distributions FOLDER")
    sys.exit(main(Path(sys.argv[1])))
