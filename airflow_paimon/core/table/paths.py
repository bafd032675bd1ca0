"""Paths in a table folder; no other module spells ``snapshot-``, ``tag-``, ``branch/branch-``, ``LATEST``.

Paths are relative to the table root. Under ``branch/branch-<b>/`` are only schema, snapshot, tag, changelog, consumer;
manifests, index files, statistics and data of every branch lie in the table root (docs/contributing/format.md,
Folders).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from airflow_paimon.core.errors import FormatError, InvalidInputError

MAIN = "main"
PRIVATE_DIR = "_airflow_paimon"
"""This package's own metadata in a table; Paimon's orphan cleaning doesn't touch it (measured)."""
MANIFEST_DIR = "manifest"
INDEX_DIR = "index"
STATISTICS_DIR = "statistics"
BRANCH_DIR = "branch"
BRANCH_PREFIX = "branch-"
SNAPSHOT_PREFIX = "snapshot-"
SCHEMA_PREFIX = "schema-"
TAG_PREFIX = "tag-"
CHANGELOG_PREFIX = "changelog-"
CONSUMER_PREFIX = "consumer-"
POSTPONED_BUCKET = -2
PROTECTIVE_TAG_PREFIX = "airflow-paimon-branch-"
UNDO_TAG_PREFIX = "airflow-paimon-undo-"
"""Of the tag on the snapshot before a publish or rollback."""
PUBLISH_TAG_PREFIX = "airflow-paimon-publish-"
"""Of the tag on a publish or rollback itself, which lives as long: the undo compares the two."""
KEEP_TAG_PREFIX = "airflow-paimon-keep-"
STAGED_TAG_PREFIX = "airflow-paimon-hold-"
STAGING_BRANCH_PREFIX = "airflow-paimon-staging-"
RESERVED_TAG_PREFIX = "airflow-paimon-"
RUN_TAG_PREFIX = "before_correction_"
"""Of the tag on the snapshot that a correction starts from."""
_RUN_TAG = re.compile(rf"{RUN_TAG_PREFIX}[0-9a-f]{{8}}")
LONGEST_NAME = 255
"""Longest name of a file or folder on file systems, in bytes; object stores allow more, but a table may move."""
LATEST = "LATEST"
EARLIEST = "EARLIEST"

_BRANCH_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TAG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@:-]*")
_PROTECTIVE = re.compile(
    rf"{PROTECTIVE_TAG_PREFIX}(?P<branch>[^.]+)(?:[.](?P<number>[0-9]{{1,19}})(?:-[0-9a-f]+)?)?", re.DOTALL
)
_PART = re.compile(r"[^/\\$.\s]+")


def publish_tag(undo_tag: str) -> str:
    """Return the name of the tag on the publish that an undo tag belongs to."""
    return PUBLISH_TAG_PREFIX + undo_tag.removeprefix(UNDO_TAG_PREFIX)


def is_for_undo(tag: str) -> bool:
    """Whether a tag is one of the two that keep a publish undoable."""
    return tag.startswith((UNDO_TAG_PREFIX, PUBLISH_TAG_PREFIX))


@dataclass(frozen=True, slots=True)
class BranchPaths:
    """The paths that depend on the branch."""

    branch: str = MAIN

    @property
    def root(self) -> str:
        """Folder that holds the branch's metadata, with a trailing slash; empty for main."""
        return "" if self.branch == MAIN else f"{BRANCH_DIR}/{BRANCH_PREFIX}{self.branch}/"

    @property
    def snapshot_dir(self) -> str:
        return f"{self.root}snapshot"

    @property
    def schema_dir(self) -> str:
        return f"{self.root}schema"

    @property
    def tag_dir(self) -> str:
        return f"{self.root}tag"

    @property
    def consumer_dir(self) -> str:
        return f"{self.root}consumer"

    @property
    def changelog_dir(self) -> str:
        return f"{self.root}changelog"

    @property
    def latest_hint(self) -> str:
        return f"{self.root}snapshot/{LATEST}"

    @property
    def earliest_hint(self) -> str:
        return f"{self.root}snapshot/{EARLIEST}"

    def snapshot(self, snapshot_id: int) -> str:
        return f"{self.root}snapshot/{SNAPSHOT_PREFIX}{snapshot_id}"

    def changelog(self, snapshot_id: int) -> str:
        return f"{self.root}changelog/{CHANGELOG_PREFIX}{snapshot_id}"

    def schema(self, schema_id: int) -> str:
        return f"{self.root}schema/{SCHEMA_PREFIX}{schema_id}"

    def tag(self, name: str) -> str:
        return f"{self.root}tag/{TAG_PREFIX}{name}"


def manifest_path(name: str) -> str:
    """Path of a manifest, manifest list or index manifest.

    Raises:
        FormatError: the name leads out of its folder.
    """
    return f"{MANIFEST_DIR}/{checked_name(name)}"


def is_file_name(name: str) -> bool:
    """Whether a name stays in its folder."""
    return "/" not in name and name not in ("", ".", "..")


def checked_name(name: str) -> str:
    """Check the name of a file that metadata names.

    Raises:
        FormatError: it leads out of its folder.
    """
    if not is_file_name(name):
        raise FormatError(f"Metadata names the file {name!r}, which is not a file name; run check_table")
    return name


def is_outside(path: str) -> bool:
    """Whether the path of a data file leads out of the table's folder.

    Java writes an external path as ``s3://bucket/x``, on a local disk as ``file:/x``. No folder within a table has a
    name with a colon: Paimon escapes it in the values of partitions.
    """
    return ":/" in path or path.startswith("/")


def hint_number(text: bytes | str) -> int | None:
    """Return the snapshot id that a hint holds; None if it holds none."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def numbered(names: list[str], prefix: str) -> list[int]:
    """Return the sorted numbers of files such as ``snapshot-7``; like Paimon, ignore other files.

    Raises:
        FormatError: one is beyond 64 bits.
    """
    ids = (name[len(prefix) :] for name in names if name.startswith(prefix))
    found = sorted(int(text) for text in ids if text.isascii() and text.isdigit() and len(text) < 1000)
    if found and found[-1] >= 2**63 - 1:
        raise FormatError(f"There is a file {prefix}{found[-1]}, whose number has more than 64 bits; delete the file")
    return found


def bucket_dir(bucket: int) -> str:
    return "bucket-postpone" if bucket == POSTPONED_BUCKET else f"bucket-{max(bucket, 0)}"


def before_dot(branch: str) -> str:
    """Spell a branch's name without a dot, for a name that goes on with one: other engines make branches ``a.b``."""
    return branch.replace("%", "%25").replace(".", "%2E")


def protective_tag(branch: str) -> str:
    """Name of the tag that retains the files shared with a branch."""
    return f"{PROTECTIVE_TAG_PREFIX}{before_dot(branch)}"


def published_tag(branch: str, snapshot_id: int) -> str:
    """Name of the tag on main that retains the files shared with a branch since it was published as that snapshot."""
    return f"{protective_tag(branch)}.{snapshot_id}"


@dataclass(frozen=True, slots=True)
class Protective:
    """What the name of a protective tag says. ``published``: as which snapshot its branch was published, if it was."""

    branch: str
    published: int | None


def parse_protective(tag: str) -> Protective | None:
    """Read the name of a protective tag; None for other tags.

    One of a publish that found its name taken ends with that try's name.
    """
    found = _PROTECTIVE.fullmatch(tag)
    if found is None:
        return None
    branch, number = found["branch"].replace("%2E", ".").replace("%25", "%"), found["number"]
    if before_dot(branch) != found["branch"]:
        return None
    return Protective(branch, None if number is None else int(number))


def protects(tag: str) -> str | None:
    """The branch that a protective tag belongs to, None for other tags."""
    found = parse_protective(tag)
    return None if found is None else found.branch


def is_run_tag(name: str) -> bool:
    """Whether a tag is one on which a correction starts; somebody's own may begin with the same words."""
    return _RUN_TAG.fullmatch(name) is not None


def check_branch_name(name: str) -> str:
    """Check a name for a *new* branch.

    Stricter than Paimon on purpose (docs/contributing/format.md, Folders): names that Paimon accepts and then mistakes
    for another branch, hides from its listing or can't address are refused.
    """
    if name.lower() == MAIN or not _BRANCH_NAME.fullmatch(name) or name.isdigit() or len(name) > 200:
        raise InvalidInputError(
            f"Branch name {name!r} is not allowed: use letters, digits, '_' and '-', not only digits, "
            f"not 'main' in any case, at most 200 characters"
        )
    return name


def check_tag_name(name: str) -> str:
    """Check a name for a *new* tag: digits alone would read as a snapshot id in VERSION AS OF."""
    if not _TAG_NAME.fullmatch(name) or name.isdigit() or len(name) > 200:
        raise InvalidInputError(
            f"Tag name {name!r} is not allowed: start with a letter, digit or '_', continue with these or '.+=@:-', "
            "not only digits, at most 200 characters"
        )
    return name


@dataclass(frozen=True, slots=True)
class Identifier:
    """``db.t``, ``db.t$branch_b``, ``db.t$snapshots`` or ``db.t$branch_b$snapshots``."""

    database: str
    table: str
    branch: str = MAIN
    system_table: str | None = None

    def __str__(self) -> str:
        branch = "" if self.branch == MAIN else f"$branch_{self.branch}"
        system = f"${self.system_table}" if self.system_table else ""
        return f"{self.database}.{self.table}{branch}{system}"

    @property
    def folder(self) -> str:
        """The table's folder below the warehouse."""
        return f"{self.database}.db/{self.table}"


def without_system_table(name: str) -> tuple[str, str | None]:
    """Divide ``db.t$branch_b$audit_log`` into the table's name and the system table, None without one."""
    found = parse_identifier(name)
    return str(replace(found, system_table=None)), found.system_table


def parse_identifier(text: str) -> Identifier:
    """Parse a table name by Paimon's grammar.

    Raises:
        InvalidInputError: not ``database.table`` with at most a branch and a system table.
    """
    plain = text.strip().replace("`", "")
    database, dot, name = plain.partition(".")
    parts = name.split("$")
    ok = bool(dot) and _PART.fullmatch(database) and _PART.fullmatch(parts[0]) and all(parts) and len(parts) <= 3
    if not ok or (len(parts) == 3 and not parts[1].startswith("branch_")):
        raise InvalidInputError(
            f"Table name {text!r} is not of the form db.table, or db.table$branch_name for a branch of it"
        )
    for folder in (f"{database}.db", parts[0]):
        if len(folder.encode()) > LONGEST_NAME:
            raise InvalidInputError(
                f"Table name {text[:80]!r}... is too long: the folders of database and table have at most "
                f"{LONGEST_NAME} bytes each"
            )
    branch, system = MAIN, None
    for part in parts[1:]:
        if part.startswith("branch_") and branch == MAIN and system is None:
            branch = part[len("branch_") :]
        else:
            system = part
    if not branch:
        raise InvalidInputError(f"Table name {text!r} names an empty branch")
    return Identifier(database, parts[0], branch, system)


_SEVERAL = "*?[,"


def is_pattern(name: str) -> bool:
    """Whether a name means several tables: a pattern of a shell, or a list with commas."""
    return any(sign in name for sign in _SEVERAL)
