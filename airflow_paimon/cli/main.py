"""Parses the command line, runs the command or the job, prints; errors are one line, exit codes those of the jobs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_paimon import __version__
from airflow_paimon.bundled import job_names, job_path, job_summaries
from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsupportedError, error_to_json
from airflow_paimon.core.garbage import collect_seldom
from airflow_paimon.core.requests.arguments import StrictParser, add_flag
from airflow_paimon.core.requests.printed import printable
from airflow_paimon.core.requests.requests import PlanCorrection

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

_PROGRAM = "python -m airflow_paimon"
_DEFAULT_LIMIT = 50
_EPILOG = (
    "exit codes: 0 done; 2 wrong request, or it does not exist; 1 anything else. A job has its own, which its --help "
    "lists.\ndocs: docs/runbook.md and docs/reference/jobs.md, also in Airflow: Paimon, Documentation"
)
_EXAMPLES = {
    "head": "--where \"dt = '2026-11-18'\"",
    "plan": "--sql \"UPDATE branch SET amount = 0 WHERE dt = '2026-11-18'\"",
    "audit": "--from 2026-11-01",
}
_HELP = "--help lists the commands and flags"
JOB = "job"
CALL = "call"
DATABASES = {
    "create-database": ("make an empty database", "--if-exists", "what to do if it exists"),
    "drop-database": ("drop an empty database", "--if-missing", "what to do if it does not exist"),
}
_FIRST_ROWS = 10
_OF_ROWS = ("head", "count")
"""Commands that read rows."""
_OF_A_VERSION = ("schema", "partitions", "files", *_OF_ROWS)
"""Commands that show a table as of a version."""
_OF_PLAN = [
    f for f in dataclasses.fields(PlanCorrection) if f.name in ("sql", "function", "view", "partitions", "mode")
]
"""The fields of the request that ``plan`` takes."""
_OVERVIEW = """\
usage: python -m airflow_paimon COMMAND [FLAG ...]

Inspects Paimon tables, or runs one of the jobs on them. COMMAND --help lists its flags, --version prints the version.

commands:
{commands}

{epilog}"""
_JOB_HELP = """\
usage: python -m airflow_paimon job NAME [FLAG ...]
       python -m airflow_paimon job --path NAME

Runs a job in this Python; NAME --help lists its flags. Jobs that read or write many rows start a local Spark, unless
the settings name a master. --path prints the script, for spark-submit "$(python -m airflow_paimon job --path NAME)" ...

jobs:
{jobs}"""
LOOKUPS = {
    "tables": "tables of the warehouse",
    "databases": "databases of the warehouse, empty ones too",
    "sets": "table sets of the warehouse: their newest versions; with --name the versions of one",
    "schema": "columns of a branch: types and keys",
    "head": "some rows of a branch, as a reader sees them; masked columns are hidden",
    "count": "number of rows of a branch, as a reader sees them",
    "options": "options that are set on a branch, with their defaults; unknown ones are marked",
    "branches": "branches of a table, main included",
    "tags": "tags of a branch",
    "snapshots": "snapshots of a branch, newest first",
    "partitions": "partitions of a branch: stored rows, files, bytes",
    "plan": "cost and effect of a correction before it runs",
    "chain": "a chain table: its groups, and what each partition is read from",
    "files": "data files of a branch",
    "audit": "publishes, undos and corrections: who asked, why, by what, who approved; without --table of all tables",
    "storage": "bytes that each branch, tag and range of snapshots keeps, and what its deletion would free",
    "health": "health of a table, with reasons; without --table all tables, the worst first",
}
COMMANDS = {
    JOB: "run a bundled job, e.g. job create_branch --help; job --help lists them",
    CALL: "run a job by Paimon's name",
    **LOOKUPS,
    **{name: text for name, (text, *_) in DATABASES.items()},
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command or one job as a program."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    collect_seldom()
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader (head, less) has seen enough; keep the interpreter from flushing into the closed pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run it and give its exit code: 0, 2 for wrong input or for what does not exist, 1 for anything else.

    Raises:
        SystemExit: a job ends the process itself, with its own exit code.
    """
    as_json = "--json" in argv or list(argv[:1]) == [CALL]  # as jobs do, whose output a CALL has
    try:
        if list(argv[:1]) == [JOB]:
            return _job(argv[1:])
        if list(argv[:1]) in (["-h"], ["--help"], ["--version"]):
            overview = _OVERVIEW.format(commands=_listed(COMMANDS), epilog=_EPILOG)
            print(f"airflow-paimon {__version__}" if argv[0] == "--version" else overview)
            return 0
        options = parse(argv)
        if options.what == CALL:
            return _call(options)
        if options.what in DATABASES:
            return _database(options)
        view = _look_up(options)
        print(printable(json.dumps(view.to_json(), indent=2, ensure_ascii=False) if options.json else view.to_text()))
    except PaimonError as error:
        _report(error, as_json)
        return error.exit_code
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _report(error, as_json)
        return 1
    return 0


def _report(error: Exception, as_json: bool) -> None:
    said = error_to_json(error)
    if as_json:
        print(printable(json.dumps({"error": said}, ensure_ascii=False)))
    code = f" ({said['code']})" if "code" in said else ""
    print(printable(f"{said['kind']}{code}: {' '.join(str(said['message']).split())}"), file=sys.stderr)


def _job(argv: Sequence[str]) -> int:
    """Run a bundled job in this process; its script is the one that ``spark-submit`` gets."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_JOB_HELP.format(jobs=_listed(job_summaries())))
        return 0
    if argv[0] == "--path":
        print(job_path(" ".join(argv[1:])))
        return 0
    script = job_path(argv[0])
    sys.argv = [str(script), *argv[1:]]
    runpy.run_path(str(script), run_name="__main__")
    return 0


def _call(options: argparse.Namespace) -> int:
    """Run the job that a CALL means; it prints its result and ends the process as every job does."""
    from airflow_paimon.core.requests.arguments import read_storage_options, to_arguments
    from airflow_paimon.core.requests.call import read_call

    file = options.storage_options
    found = read_call(
        options.statement,
        options.warehouse,
        operation_id=options.operation_id,
        storage_options=read_storage_options(file) if file else None,
    )
    for note in found.notes:
        print(printable(f"{found.procedure}: {note}"), file=sys.stderr)
    flags = to_arguments(found.request) + ([f"--storage-options={file}"] if file else [])
    return _job([found.request.operation, *flags])


def _database(options: argparse.Namespace) -> int:
    from airflow_paimon.core.requests.arguments import read_storage_options
    from airflow_paimon.core.schema.databases import create_database, drop_database

    file = options.storage_options
    given = {"storage_options": read_storage_options(file) if file else None}
    if options.what == "create-database":
        done = create_database(options.warehouse, options.name, if_exists=options.otherwise, **given)
        print(f"Database {options.name} {'created' if done else 'exists'}")
        return 0
    done = drop_database(options.warehouse, options.name, if_missing=options.otherwise, **given)
    print(f"Database {options.name} {'dropped' if done else 'does not exist'}")
    return 0


def _listed(texts: Mapping[str, str]) -> str:
    width = max(map(len, texts)) + 2
    return "\n".join(f"  {name:<{width}}{text}" for name, text in texts.items())


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command and its flags, as those of jobs are read.

    Raises:
        InvalidInputError: there is no such command or flag, or a value is wrong.
    """
    name = argv[0] if argv else ""
    _check_command(name)
    options = argparse.Namespace(what=name)
    _parser(name).parse_args(list(argv[1:]), options)
    return options


def _parser(name: str) -> StrictParser:
    """Make the parser of a command: required flags first."""
    text = COMMANDS[name]
    value = "STATEMENT " if name == CALL else "NAME " if name in DATABASES else ""
    parser = StrictParser(
        prog=name,
        usage=f"{_PROGRAM} {name} {value}FLAG ...",
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {_PROGRAM} {name} --warehouse s3://bucket/warehouse {_example(name)}".rstrip()
        + f"\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    required = parser.add_argument_group("required")
    required.add_argument("--warehouse", required=True, help="warehouse folder or URI, e.g. s3://bucket/warehouse")
    others = parser.add_argument_group(f"options of {name}")
    others.add_argument(
        "--storage-options",
        metavar="FILE",
        help="JSON file with options of storage and catalog, as Storage options of the connection",
    )
    if name == CALL:
        required.add_argument("statement", help="CALL sys.procedure(name => value, ...)")
        others.add_argument("--operation-id", metavar="ID", help="a retry with the same id does not do the work twice")
    elif name in DATABASES:
        _, flag, meaning = DATABASES[name]
        others.add_argument(flag, dest="otherwise", choices=("fail", "skip"), default="fail", help=meaning)
        required.add_argument("name", help="the database")
    else:
        _add_flags_of(name, required, others)
    return parser


def _example(name: str) -> str:
    if name == CALL:
        return "\"CALL sys.compact(table => 'sales.orders')\""
    if name in DATABASES:
        return "sales"
    return "" if name in ("databases", "tables", "sets") else f"--table sales.orders {_EXAMPLES.get(name, '')}"


def _add_flags_of(name: str, required: argparse._ArgumentGroup, command: argparse._ArgumentGroup) -> None:
    """Add the flags of a command that shows something."""
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    default = str(_FIRST_ROWS) if name == "head" else f"{_DEFAULT_LIMIT}, or all with --json"
    if name != "count":
        command.add_argument("--limit", type=_limit, help=f"rows to show, 0 for all; default {default}")
    if name == "sets":
        command.add_argument("--name", metavar="SET", help="only the versions of this set, newest first")
    elif name not in ("databases", "tables"):
        known = ", or either with @VERSION: tag, snapshot id, branch.tag, branch.snapshot"
        text = "table as db.table, or db.table$branch_name" + (known if name in _OF_A_VERSION else "")
        text += "; several as sales.* or with commas" if name == "audit" else ""
        metavar = "db.table[@VERSION]" if name in _OF_A_VERSION else "db.table"
        is_needed = name not in ("audit", "health")
        (required if is_needed else command).add_argument("--table", required=is_needed, metavar=metavar, help=text)
    if name in ("schema", "options", "tags", "snapshots", "partitions", "files", "plan", *_OF_ROWS):
        command.add_argument("--branch", help="branch; default main")
    if name == "head":
        command.add_argument("--columns", metavar="NAME,...", help="only these columns; default all")
    if name in _OF_ROWS:
        command.add_argument("--where", metavar="CONDITION", help="only rows like \"dt = '2026-11-18' AND id > 3\"")
    for spec in _OF_PLAN if name == "plan" else ():
        add_flag(command, spec)
    if name == "audit":
        command.add_argument("--from", dest="since", help="only from this date or ISO time with an offset on")
        command.add_argument("--to", dest="until", help="only before this date or ISO time with an offset")
        command.add_argument("--format", choices=("json", "csv", "markdown"), help="print a document")


def _check_command(word: str) -> None:
    """Name a command that does not exist, and the one that was meant."""
    if word in COMMANDS:
        return
    if not word or word.startswith("-"):
        raise InvalidInputError(f"The command comes first, one of {', '.join(COMMANDS)} ({_HELP})")
    if word in job_names():
        raise InvalidInputError(f"{word} is a job: python -m airflow_paimon job {word} --help lists its flags")
    near = get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
    raise InvalidInputError(f"There is no command {word!r}; {hint} ({_HELP})")


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 on, got {text!r}")
    return int(text)


def _check_values(options: argparse.Namespace) -> None:
    if not options.warehouse.strip():
        raise InvalidInputError(
            f"{options.what}: --warehouse is empty; give a path or a URI such as s3://bucket/folder"
        )
    table = getattr(options, "table", None)
    if table is not None and not table.strip():
        raise InvalidInputError(f"{options.what}: --table is empty; give it as db.table")
    form = getattr(options, "format", None)
    if options.json and form not in (None, "json"):
        raise InvalidInputError(f"{options.what}: --json and --format {form} ask for two forms; give one of them")


def _look_up(options: argparse.Namespace) -> Any:
    # Imported here: --help and mistakes need no Arrow.
    from airflow_paimon.core.requests.arguments import read_storage_options
    from airflow_paimon.core.table.paths import MAIN
    from airflow_paimon.core.table.table import resolve_version
    from airflow_paimon.shown import lookups

    _check_values(options)
    storage = read_storage_options(options.storage_options) if options.storage_options else None
    given = getattr(options, "limit", None)
    limit = given if given is not None else 0 if options.json else _DEFAULT_LIMIT
    if options.what == "sets":
        return lookups.sets(options.warehouse, storage, limit, options.name)
    if options.what == "audit":
        name, _ = _table_name(options)
        return lookups.audit(options.warehouse, storage, name, limit, options.since, options.until, options.format)
    if getattr(options, "table", None) is None:
        of_all = {"databases": lookups.databases, "tables": lookups.tables, "health": lookups.healths}
        return of_all[options.what](options.warehouse, storage, limit)
    table, version = _open_table(options, storage)
    if options.what == "plan":
        from airflow_paimon.shown.correction import plan

        values = {spec.name: getattr(options, spec.name) for spec in _OF_PLAN}
        values["branch"] = table.branch_name if table.branch_name != MAIN else None
        return plan({"warehouse": options.warehouse, "storage_options": storage}, table.name, values)
    if options.what == "chain":
        from airflow_paimon.shown.chain import chain

        return chain(table.branch(MAIN), limit)
    if options.what in _OF_ROWS:
        return _look_at_rows(table, options, version)
    if version is not None:
        view, snapshot = resolve_version(table, version)
        assert snapshot is not None  # or it was not found
        return lookups.OF_A_VERSION[options.what](view, limit, snapshot)
    return lookups.OF_A_TABLE[options.what](table, limit)


def _table_name(options: argparse.Namespace) -> tuple[str, int | str | None]:
    """Return the table as it is named, all of them where none is, and the version."""
    from airflow_paimon.core.table.table import split_version

    name, version = split_version(options.table) if options.table is not None else ("*", None)
    if version is not None and options.what not in _OF_A_VERSION:
        raise InvalidInputError(
            f"--table {options.table}: {options.what} takes no version; these do: {', '.join(_OF_A_VERSION)}"
        )
    return name, version


def _open_table(options: argparse.Namespace, storage: Mapping[str, Any] | None) -> tuple[Table, int | str | None]:
    """Return the branch that is asked about, which is there, and a version."""
    from airflow_paimon.core.table.paths import MAIN
    from airflow_paimon.core.table.table import open_table

    name, version = _table_name(options)
    table = open_table(options.warehouse, name, storage_options=storage)
    branch = getattr(options, "branch", None)
    if branch is not None and not branch.strip():
        raise InvalidInputError(f"{table.name}: --branch is empty; leave it out for main")
    if branch is not None and table.branch_name not in (MAIN, branch):
        raise InvalidInputError(
            f"--table {options.table} and --branch {branch} name two different branches; give {table.name} with one of "
            f"them"
        )
    table = table.branch(branch or table.branch_name)
    (table.branch(MAIN) if options.what == "plan" else table).require()
    return table, version


def _look_at_rows(table: Any, options: argparse.Namespace, version: int | str | None) -> Any:
    try:
        from airflow_paimon.cli import rows
    except ImportError as error:
        raise UnsupportedError(
            f"{options.what} reads data files, which needs pyarrow: pip install pyarrow ({error})"
        ) from error
    if options.what == "count":
        return rows.count(table, version, options.where)
    names = None if options.columns is None else [name.strip() for name in options.columns.split(",")]
    return rows.head(
        table, _FIRST_ROWS if options.limit is None else options.limit, version, columns=names, where=options.where
    )
