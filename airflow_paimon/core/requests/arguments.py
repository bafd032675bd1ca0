"""Builds and checks requests: from plain values, as operators have them, and from command-line flags. The flags go both
ways: what operators submit is what jobs parse.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.local_execution import LOCAL_EXECUTION, READS
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.requests import CheckBranchData, Request, flag_name
from airflow_paimon.core.table.options import parse_boolean
from airflow_paimon.core.table.paths import BRANCH_PREFIX, LONGEST_NAME, MAIN, TAG_PREFIX, is_pattern, parse_identifier

_BRANCHES = frozenset({"branch", "to_branch", "from_branch", "against", "snapshot_branch", "delta_branch"})
_BRANCH_MARK = "$branch_"
SESSION_IS_READY = "The Spark session is ready"
"""A job logs it before any code of a user runs: whatever it prints later is no word of Spark's."""
_NUMBER = re.compile(r"-?[0-9]+")
_HEAD = re.compile(r"[0-9]+:\S+")
_SAME_THING = (("retention", "retained"), ("limit", "number", "count"))
"""Words by which flags of one kind are called in different operations."""


def build_request(operation: str, values: Mapping[str, Any]) -> Request:
    """Build and check a request from plain values (an operator's arguments).

    Raises:
        InvalidInputError: the operation or a key is unknown, a required value is missing, a choice is not offered.
    """
    cls = operation_of(operation).request
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidInputError(f"{operation} has no option {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
    given = {k: _coerce(operation, known[k], v) for k, v in values.items() if v is not None}
    given = with_branch_of_table(cls, given)
    request = cls(**{k: v for k, v in given.items() if v is not None})
    _check(request)
    return request


def with_branch_of_table(cls: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the branch that the table's name carries, ``db.t$branch_b``, into the field that says where the operation
    works: what a branch is made from, or the branch.

    Raises:
        InvalidInputError: there is no such field, or it names another branch.
    """
    text = values.get("table")
    if not isinstance(text, str) or (cls.takes_patterns and is_pattern(text)) or _BRANCH_MARK not in text:
        return dict(values)
    found, names = parse_identifier(text), {f.name: f.default for f in dataclasses.fields(cls)}
    if found.branch == MAIN or found.system_table is not None:
        return dict(values)
    table = f"{found.database}.{found.table}"
    at = next((name for name in ("from_branch", "branch") if name in names), None)
    if at is None:
        raise InvalidInputError(
            f"{cls.operation} works on the whole table: name it {table}, without {_BRANCH_MARK}{found.branch}"
        )
    given = values.get(at)
    if given not in (None, names[at], found.branch):
        raise InvalidInputError(
            f"{cls.operation}: the table's name has branch {found.branch!r}, and {at} ({flag_name(at)}) is {given!r}: "
            f"name the table {table}, or leave {at} out"
        )
    return {**values, "table": table, at: found.branch}


def _coerce(operation: str, spec: dataclasses.Field[Any], value: Any) -> Any:
    if spec.metadata.get("repeat"):
        if not isinstance(value, Iterable):
            raise InvalidInputError(f"{_named(operation, spec)} must be a list of strings, got {value!r}")
        items = (value,) if isinstance(value, str) else tuple(value)
        for item in items:
            _refuse_nothing(operation, spec, item)
        return items
    if isinstance(value, str):
        if _is_nothing(value) and spec.metadata.get("may_be_blank"):
            return None
        _refuse_nothing(operation, spec, value)
        value = value.strip()
    annotation = str(spec.type)
    if annotation.startswith("int"):
        if "str" in annotation and _HEAD.fullmatch(str(value)):
            return str(value)
        if isinstance(value, bool) or not _NUMBER.fullmatch(str(value)):
            raise InvalidInputError(f"{_named(operation, spec)} must be a whole number, got {value!r}")
        return int(value)
    if annotation == "bool":
        return parse_boolean(value, _named(operation, spec))
    return _coerce_text(_named(operation, spec), value) if annotation.startswith("str") else value


def _named(operation: str, spec: dataclasses.Field[Any]) -> str:
    """Name an argument and its flag, for a message about its value."""
    return f"{operation}: {spec.name} ({flag_name(spec.name)})"


def _is_nothing(value: Any) -> bool:
    return isinstance(value, str) and value.strip() in ("", "None")


def _refuse_nothing(operation: str, spec: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a blank value, as left by an empty template or shell variable: it would silently switch off a check."""
    if not _is_nothing(value):
        return
    if spec.default == "":
        raise InvalidInputError(_needed(operation, spec))
    raise InvalidInputError(
        f"{_named(operation, spec)} is {value!r}, so a template or a variable in it was empty. "
        f"Leave it out if it should not apply"
    )


def _needed(operation: str, spec: dataclasses.Field[Any]) -> str:
    return f"{operation} needs {spec.name} ({flag_name(spec.name)}): {spec.metadata['help']}"


def _coerce_text(name: str, value: Any) -> str:
    """Take a text; whole numbers and times, as the code of a DAG may give them, become texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInputError(f"{name} must be a string, got {value!r}: put it in quotes")


def check_argument(operation: str, name: str, value: Any) -> None:
    """Check the value of one field, as ``build_request`` does, before the others are known.

    Raises:
        InvalidInputError: it is of another type, too long or too small, or a choice is not offered.
    """
    (spec,) = (f for f in dataclasses.fields(operation_of(operation).request) if f.name == name)
    _check_value(operation, spec, _coerce(operation, spec, value))


def _check(request: Request) -> None:
    for spec in dataclasses.fields(request):
        value = getattr(request, spec.name)
        if spec.default == "" and not value:
            raise InvalidInputError(_needed(request.operation, spec))
        _check_value(request.operation, spec, value)


def _check_value(operation: str, spec: dataclasses.Field[Any], value: Any) -> None:
    _check_length(operation, spec, value)
    choices = spec.metadata.get("choices")
    if choices and value is not None and value not in choices:
        raise InvalidInputError(f"{_named(operation, spec)} must be one of {', '.join(choices)}; got {value!r}")
    minimum = spec.metadata.get("minimum")
    if minimum is not None and value is not None and value < minimum:
        raise InvalidInputError(f"{_named(operation, spec)} must be at least {minimum}; got {value}")


def _check_length(operation: str, spec: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a name that is too long for a file or folder of the storage."""
    prefix = TAG_PREFIX if spec.name == "tag" else BRANCH_PREFIX if spec.name in _BRANCHES else None
    if prefix is None or not isinstance(value, str):
        return
    size, most = len(value.encode()), LONGEST_NAME - len(prefix)
    if size > most:
        raise InvalidInputError(
            f"{_named(operation, spec)} is {size} bytes long; names of branches and tags have "
            f"at most {most}, new ones at most 200"
        )


_SHOWN = 20
RESULT_URI = "result_uri"
"""The flag for a second place of the result; it belongs to the launcher, not to the request."""
STORAGE_OPTIONS = "storage_options"
STORAGE_OPTIONS_ONCE = "storage_options_once"
"""Like ``storage_options``, but the file is deleted once read: so an operator passes secrets to a local driver."""


LOCAL = "local_execution"
WITHOUT_SPARK = "without_spark"
NEEDS_SPARK = 6
"""The exit code of a job that was asked to do without Spark and can't; it has changed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """A job's command line: the request, and what belongs to the launcher.

    ``result_uri``: where the result goes besides stdout. ``local_execution``: what work on rows may do in the job's own
    process without a Spark session, one of ``LOCAL_EXECUTION``. ``without_spark``: rather end than start a session.
    """

    request: Request
    result_uri: str | None = None
    local_execution: str = READS
    without_spark: bool = False


def parse_arguments(operation: str, argv: Sequence[str]) -> JobArguments:
    """Parse a job's flags, strictly: an unknown, abbreviated, repeated or malformed flag is an error.

    ``--help`` prints the usage and raises ``SystemExit(0)``.

    Raises:
        InvalidInputError: the flags are wrong, or the file with storage options is missing or is not a JSON object.
    """
    for word in argv:
        if word.startswith("--") and word.partition("=")[2] == "--":  # argparse drops it, and gives an empty list
            raise InvalidInputError(f"{word.partition('=')[0]}: '--' is not a value")
    values = {k: v for k, v in vars(_parser(operation).parse_args(list(argv))).items() if v is not None}
    result_uri = values.pop(RESULT_URI, None)
    once = values.pop(STORAGE_OPTIONS_ONCE, None)
    local = values.pop(LOCAL, READS)
    without_spark = values.pop(WITHOUT_SPARK, False)
    if once is not None and STORAGE_OPTIONS in values:
        raise InvalidInputError("Give --storage-options or --storage-options-once, not both")
    path = once or values.get(STORAGE_OPTIONS)
    if path is not None:
        values[STORAGE_OPTIONS] = read_storage_options(path)
    if once is not None:
        Path(once).unlink(missing_ok=True)
    return JobArguments(
        request=build_request(operation, values),
        result_uri=result_uri,
        local_execution=local,
        without_spark=without_spark,
    )


def to_arguments(request: Request) -> list[str]:
    """Return the flags that ``parse_arguments`` parses into the same request, except for the storage options.

    Those may hold secrets: pass them in a file. Every flag is one word (``--flag=value``), so that a value that
    starts with a dash stays a value.
    """
    arguments: list[str] = []
    for spec in dataclasses.fields(request):
        value = getattr(request, spec.name)
        if spec.name == STORAGE_OPTIONS or value == spec.default:
            continue
        if isinstance(value, bool):
            arguments.append(flag_name(spec.name) if value else f"--no-{flag_name(spec.name)[2:]}")
        elif spec.metadata.get("repeat"):
            arguments += [f"{flag_name(spec.name)}={item}" for item in value]
        else:
            arguments.append(f"{flag_name(spec.name)}={value}")
    return arguments


def peek(argv: Sequence[str], name: str) -> str | None:
    """Find the value of one flag in arguments that may otherwise be malformed, for use in the error report."""
    wanted = flag_name(name)
    for position, word in enumerate(argv):
        if word.startswith(f"{wanted}="):
            return word[len(wanted) + 1 :]
        if word == wanted and position + 1 < len(argv):
            return argv[position + 1]
    return None


def read_storage_options(path: str) -> dict[str, Any]:
    """Read a file with fsspec storage options.

    Raises:
        InvalidInputError: missing, unreadable, or not a JSON object. The message never shows the content.
    """
    try:
        is_file = Path(path).is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file and not path.endswith(".json"):
        raise InvalidInputError(
            "--storage-options must be the path of a file with one JSON object; what was given is not, and isn't "
            "shown, as it may contain secrets. Write the options into a file that only you can read"
        )
    try:
        options = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InvalidInputError(f"The storage options file {path} can't be read: {error.strerror}") from None
    except ValueError:
        raise InvalidInputError(f"The storage options file {path} is not JSON") from None
    if not isinstance(options, dict):
        raise InvalidInputError(f"The storage options file {path} must contain one JSON object")
    return options


def _plain_message(message: str) -> str:
    """Reword argparse's message about a switch that is given a value."""
    return re.sub(r"argument (\S+): ignored explicit argument '.*'", r"\1 is a switch and takes no value", message)


class StrictParser(argparse.ArgumentParser):
    """Raises instead of exiting, so that wrong flags produce a result too. Never prints an unknown flag's value."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._check_flags(args or ())
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"{len(unknown)} unexpected arguments, the first is {unknown[0][:_SHOWN]!r}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise InvalidInputError(f"{self.prog}: {_plain_message(message)}; --help lists the flags", code="wrong-flag")

    def _check_flags(self, argv: Sequence[str]) -> None:
        """Name an unknown flag before argparse complains about a required one that was misspelled."""
        known = [name for action in self._actions for name in action.option_strings]
        words = [word for word in argv if word.partition("=")[0] not in known]
        if {"-h", "--help"} & set(argv):
            return
        for word in words:
            flag = word.partition("=")[0]
            # a word with a space is a value, as argparse reads it; so is a negative number
            if not re.match("--?[A-Za-z]", flag) or " " in flag:
                continue
            begun = [name for name in known if len(flag) > 4 and name.startswith(flag)]
            near = begun if len(begun) == 1 else get_close_matches(flag, known, 1, 0.75)
            if not near:  # the one with the same meaning
                group = next((words for words in _SAME_THING if any(word in flag for word in words)), ())
                alike = [name for name in known if any(word in name for word in group)]
                near = alike if len(alike) == 1 else []
            self.error(f"there is no flag {flag}" + (f"; did you mean {near[0]}?" if near else ""))


class _Once(argparse.Action):
    """Stores one value; a second one is an error, where argparse would silently take the last."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice")
        setattr(namespace, self.dest, values)


_EXIT_CODES = (
    "exit codes: 0 done, or nothing to do; 2 wrong request; 3 conflict with another writer; 4 refused for safety;\n"
    "            5 outcome unknown, a retry checks first; 1 anything else. The last line on stdout is the result."
)
_VALUES = {
    "warehouse": "s3://bucket/warehouse",
    "table": "sales.orders",
    "branch": "fix",
    "to_branch": "fix2",
    "tag": "november",
    "to_tag": "november-2026",
    "table_set": "daily",
    "consumer": "invoices",
    "where": '"customer = 7"',
}
_SQL = """--sql "UPDATE branch SET amount = 0 WHERE dt = '2026-11-18'\""""
_EXAMPLES = {
    "alter_branch": "--retention '30 d'",
    "replace_tag": "--snapshot 7",
    "create_table_set": "--member sales.customers",
    "reset_consumer": "--next-snapshot 7",
    "clear_consumers": "--idle-for '7 d'",
    "alter_table": "--change 'add column note STRING'",
    "rollback_to": "--timestamp 2026-11-18T06:00Z",
    "check_branch_data": "--rules rules.json",
    "correct_branch": _SQL,
    "plan_correction": _SQL,
    "replay_branch": "--source raw=sales.raw --function jobs.daily:refresh",
    "rescale": "--bucket-num 8",
    "expire_branches": "--idle-for '30 d'",
    "export_audit": "--uri audit.csv --format csv",
    "repair_table": "--finding hash-index:main",
    "create_chain_table": "--timestamp-pattern '$dt' --timestamp-formatter yyyyMMdd",
    "alter_chain_table": "--change 'add column note STRING'",
    "compact_chain_table": "--partition dt=20261118",
    "expire_partitions": "--expiration-time '400 d'",
    "mark_partition_done": "--partitions dt=2026-11-18",
    "expire_snapshots": "--retain-max 100",
    "expire_tags": "--older-than '90 d'",
}
"""What the example of a job has in addition to its required flags."""
_COMMON = tuple(spec.name for spec in dataclasses.fields(Request) if spec.default != "")


def _parser(operation: str) -> StrictParser:
    """Make the parser: required flags first, then the operation's own, then those of every job."""
    cls, summary = operation_of(operation).request, operation_of(operation).summary
    specs = dataclasses.fields(cls)
    required = [spec for spec in specs if spec.default == "" and not spec.metadata.get("repeat")]
    needed = " ".join(f"{flag_name(spec.name)} {spec.name.upper()}" for spec in required)
    given = [f"{flag_name(spec.name)} {_VALUES[spec.name]}" for spec in required]
    example = " ".join([f"python -m airflow_paimon job {operation}", *given, _EXAMPLES.get(operation, "")]).rstrip()
    parser = StrictParser(
        prog=operation,
        usage=f"python -m airflow_paimon job {operation} {needed} [option ...]",
        description=summary,
        epilog=f"example: {example}\n{_EXIT_CODES}\n"
        "docs: docs/reference/jobs.md, also in Airflow: Paimon, Documentation\n"
        "python -m airflow_paimon --help lists the commands that only read",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    own = [spec for spec in specs if spec not in required and spec.name not in _COMMON]
    for title, members in (("required", required), (f"options of {operation}", own)):
        group = parser.add_argument_group(title)
        for spec in members:
            add_flag(group, spec)
    group = parser.add_argument_group("options of every job")
    for spec in specs:
        if spec.name in _COMMON:
            add_flag(group, spec)
    group.add_argument(
        flag_name(STORAGE_OPTIONS_ONCE),
        action=_Once,
        metavar="FILE.json",
        help="As --storage-options; the file is deleted once read",
    )
    group.add_argument(flag_name(RESULT_URI), action=_Once, metavar="URI", help="Write the result's JSON here as well")
    if operation_of(operation).in_python or operation == CheckBranchData.operation:
        _add_local_flags(group)
    return parser


def _add_local_flags(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        flag_name(LOCAL),
        action=_Once,
        choices=LOCAL_EXECUTION,
        help=f"What may run in plain Python if it is small: none; reads: diffs and limits of checks; all: compactions "
        f"and rescales, too. A job that spark-submit runs always uses Spark; default {READS}",
    )
    parser.add_argument(
        flag_name(WITHOUT_SPARK),
        action="store_true",
        default=None,
        help=f"Start no Spark: where the work needs it, end with exit code {NEEDS_SPARK} and change nothing",
    )


def add_flag(parser: argparse._ArgumentGroup, spec: dataclasses.Field[Any]) -> None:
    """Add the flag of a request's field."""
    text = str(spec.metadata["help"]).replace("%", "%%")
    name, dest = flag_name(spec.name), spec.name
    if spec.default is True:
        shown = f"{text} (the default); --no-{name[2:]} leaves that out"
        parser.add_argument(name, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=shown)
    elif spec.default is False:
        parser.add_argument(name, dest=dest, action="store_true", default=None, help=text)
    elif spec.metadata.get("repeat"):
        parser.add_argument(name, dest=dest, action="append", help=text)
    else:
        choices: Iterable[str] | None = spec.metadata.get("choices")
        shown = f"{text}; default {spec.default}" if spec.default not in (None, "") else text
        required = spec.default == "" and spec.name != "branch"  # which the table's name may carry
        parser.add_argument(name, dest=dest, action=_Once, required=required, choices=choices, help=shown)
