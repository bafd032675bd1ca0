"""Requests as command-line flags, both ways: what operators submit is what jobs parse."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.build import build_request
from airflow_paimon.core.requests.operations import operation_of
from airflow_paimon.core.requests.requests import Request, flag_name

_SHOWN = 20
RESULT_URI = "result_uri"
"""The flag for a second place of the result; it belongs to the launcher, not to the request."""
STORAGE_OPTIONS = "storage_options"
STORAGE_OPTIONS_ONCE = "storage_options_once"
"""Like ``storage_options``, but the file is deleted once read: so an operator passes secrets to a local driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """A job's command line: the request, and where its result goes besides stdout."""

    request: Request
    result_uri: str | None = None


def parse_arguments(operation: str, argv: Sequence[str]) -> JobArguments:
    """Parse a job's flags, strictly: an unknown, abbreviated, repeated or malformed flag is an error.

    ``--help`` prints the usage and raises ``SystemExit(0)``.

    Raises:
        InvalidInputError: the flags are wrong, or the file with storage options is missing or is not a JSON object.
    """
    values = {k: v for k, v in vars(_parser(operation).parse_args(list(argv))).items() if v is not None}
    result_uri = values.pop(RESULT_URI, None)
    once = values.pop(STORAGE_OPTIONS_ONCE, None)
    if once is not None and STORAGE_OPTIONS in values:
        raise InvalidInputError("Give --storage-options or --storage-options-once, not both")
    path = once or values.get(STORAGE_OPTIONS)
    if path is not None:
        values[STORAGE_OPTIONS] = read_storage_options(path)
    if once is not None:
        Path(once).unlink(missing_ok=True)
    return JobArguments(request=build_request(operation, values), result_uri=result_uri)


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
            "--storage-options takes the path of a file with one JSON object, and what was given is not the path of a "
            "file (it is not shown here: it may hold secrets). Write the options into a file that only you can read"
        )
    try:
        options = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InvalidInputError(f"The storage options file {path} can't be read: {error.strerror}") from None
    except ValueError:
        raise InvalidInputError(f"The storage options file {path} is not JSON") from None
    if not isinstance(options, dict):
        raise InvalidInputError(f"The storage options file {path} must hold one JSON object")
    return options


def plain_message(message: str) -> str:
    """Reword argparse's message about a switch that is given a value."""
    return re.sub(r"argument (\S+): ignored explicit argument '.*'", r"\1 is a switch and takes no value", message)


class _StrictParser(argparse.ArgumentParser):
    """Raises instead of exiting, so that wrong flags produce a result too. Never prints an unknown flag's value."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._check_flags(args or ())
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"{len(unknown)} unexpected arguments, the first is {unknown[0][:_SHOWN]!r}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise InvalidInputError(f"{self.prog}: {plain_message(message)}; --help lists the flags")

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
            near = get_close_matches(flag, known, 1)
            self.error(f"there is no flag {flag}" + (f"; did you mean {near[0]}?" if near else ""))


class _Once(argparse.Action):
    """Stores one value; a second one is an error, where argparse would silently take the last."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option} is given twice")
        setattr(namespace, self.dest, values)


def _parser(operation: str) -> _StrictParser:
    cls = operation_of(operation).request
    parser = _StrictParser(prog=operation, description=operation_of(operation).summary, allow_abbrev=False)
    for spec in dataclasses.fields(cls):
        _add_flag(parser, spec)
    parser.add_argument(
        flag_name(STORAGE_OPTIONS_ONCE),
        action=_Once,
        metavar="FILE.json",
        help="As --storage-options; the file is deleted once read",
    )
    parser.add_argument(flag_name(RESULT_URI), action=_Once, metavar="URI", help="Write the result's JSON here as well")
    return parser


def _add_flag(parser: argparse.ArgumentParser, spec: dataclasses.Field[Any]) -> None:
    text = str(spec.metadata["help"]).replace("%", "%%")
    name, dest = flag_name(spec.name), spec.name
    if spec.default is True:
        parser.add_argument(name, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=text)
    elif spec.default is False:
        parser.add_argument(name, dest=dest, action="store_true", default=None, help=text)
    elif spec.metadata.get("repeat"):
        parser.add_argument(name, dest=dest, action="append", help=text)
    else:
        choices: Iterable[str] | None = spec.metadata.get("choices")
        shown = f"{text}; default {spec.default}" if spec.default not in (None, "") else text
        required = spec.default == ""
        parser.add_argument(name, dest=dest, action=_Once, required=required, choices=choices, help=shown)
