"""What every operator shares: arguments into a request, run it here or submit it, errors into Airflow's terms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

from airflow_paimon import settings
from airflow_paimon._compat import (
    AirflowRuntimeError,
    AirflowTaskTimeout,
    Asset,
    AssetAlias,
    BaseOperator,
    mask_secret,
)
from airflow_paimon.arguments import StrictTemplates, as_dict, as_list, is_blank, is_literal, is_rendered
from airflow_paimon.arguments import keeps_arguments as keeps_arguments
from airflow_paimon.core.errors import InvalidInputError, PaimonError, error_to_json
from airflow_paimon.core.requests.arguments import build_request, check_argument, with_branch_of_table
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import (
    Approved,
    CheckBranchData,
    DiffBranches,
    ExpirePartitions,
    Publish,
    Request,
    RollbackTo,
    argument_name,
)
from airflow_paimon.core.table.paths import parse_identifier
from airflow_paimon.forms.origin import from_outside
from airflow_paimon.forms.policy import FIELDS
from airflow_paimon.lineage.branches import branches_to_read, branches_to_write, branches_written
from airflow_paimon.links import AssetLink, SparkLink, TableLink, UndoLink, store_links
from airflow_paimon.metrics import send_failure, send_success
from airflow_paimon.operators._arguments import text_of_operator
from airflow_paimon.operators._dry_run import shortened
from airflow_paimon.operators._log_lines import log_lines
from airflow_paimon.task_run import (
    PROGRESS_KEY,
    RAN_ON_KEY,
    deadline_of,
    in_airflows_terms,
    operation_id,
    result_name,
    triggering_user,
)

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_paimon.hooks.local_job import LocalJobHook
    from airflow_paimon.hooks.paimon import PaimonHook
    from airflow_paimon.hooks.spark_connect_job import SparkConnectJobHook
    from airflow_paimon.hooks.spark_job import SparkJobHook

RUN_ON = ("spark", "worker")
_NOT_FROM_ARGUMENTS = frozenset({"warehouse", "storage_options", "operation_id"})


class PaimonOperator(StrictTemplates, BaseOperator):
    """
    Base of the operators; each runs one operation of the core on one table and returns its result dict.

    The result is ``{"operation", "table", "branch", "changed", "dry_run", "plan_id", "snapshot_before",
    "snapshot_after", "details", "duration_s", "ran_on", "version"}``; ``ran_on`` is ``spark`` or ``worker``.
    A retry is the same operation and gives the first try's result; Clear makes a new one. Wrong input and refusals for
    safety fail the task at once, conflicts and storage failures are retried; the error object is in XCom
    ``paimon_error``.

    When rows or columns of a branch have changed, its asset ``paimon://<connection>/<database>/<table>[/<branch>]``
    gets an event with the result as ``extra``; no ``outlets`` are needed. Tags, deletions, checks, repairs and dry runs
    give none. Each ``AssetAlias`` among ``outlets`` gets the same event; an ``Asset`` there gets one from Airflow
    whenever the task succeeds, with the result as ``extra``.

    :param table: the table, ``db.table``; where an operation works on a branch also ``db.table$branch_b`` (templated)
    :param paimon_conn_id: connection of type ``paimon`` (templated)
    :param spark_conn_id: connection of type ``spark`` or ``spark_connect``; left out, the one that the Paimon
        connection names, or ``spark_default`` (templated)
    :param run_on: left out, an operation that is metadata only runs in the worker, in milliseconds, and what writes
        rows is submitted to Spark. A diff, or a check of row limits, that takes no more than 1 GiB of memory runs in a
        process beside the task; the connection's ``local_execution`` allows more or less. ``spark`` submits in any
        case (templated)
    :param dry_run: plan, change nothing; the plan is in ``details.plan``. Of lists with more than 100 entries the
        first 100 are kept, and ``details.left_out`` says how many are missing; the job prints all (templated)
    :param now: the time to take as now, ISO with an offset (templated)
    :param spark_conf: Spark settings, added to the Paimon connection's; secret ones travel in a private file
        (templated)
    :param spark_options: further arguments of Airflow's ``SparkSubmitHook``, such as ``driver_memory``, ``jars``,
        ``packages``, ``py_files``, ``num_executors``, ``deploy_mode``, added to the Paimon connection's (templated).
        These, ``spark_conf``, ``function`` and ``sql`` may say anything where the DAG's code spells them out; where a
        template or a function gives them, only what the connection's extra ``forms`` allows
    :param deferrable: while a job runs in a cluster (deploy mode ``cluster``), wait in the triggerer instead of a
        worker; in client mode an error says why not. Left out, it is ``[paimon] deferrable``, or else ``[operators]
        default_deferrable``, and the task
        waits in the worker where it can't be deferred
    :param poll_interval: seconds between two polls of the triggerer
    """

    operation: ClassVar[str] = ""
    template_fields: Sequence[str] = (
        "table",
        "paimon_conn_id",
        "spark_conn_id",
        "run_on",
        "dry_run",
        "now",
        "spark_conf",
        "spark_options",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"spark_conf": "json", "spark_options": "json"}
    operator_extra_links: tuple[BaseOperatorLink, ...] = (TableLink(), AssetLink(), SparkLink())
    ui_color = "#e8f0fe"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make every argument that comes from the request a template field, and say what it means; a publish has a
        button for its undo.
        """
        super().__init_subclass__(**kwargs)
        if "operation" in cls.__dict__:
            cls.__doc__ = text_of_operator(OPERATIONS[cls.operation].request)
            names = map(argument_name, _argument_fields(cls.operation).values())
            cls.template_fields = tuple(dict.fromkeys((*PaimonOperator.template_fields, *names)))
            if issubclass(OPERATIONS[cls.operation].request, Publish):
                cls.operator_extra_links = (*PaimonOperator.operator_extra_links, UndoLink())

    def __init__(
        self,
        *,
        table: str,
        paimon_conn_id: str = settings.CONN_ID,
        spark_conn_id: str | None = None,
        run_on: str | None = None,
        dry_run: bool | str = False,
        now: str | None = None,
        spark_conf: Mapping[str, Any] | None = None,
        spark_options: Mapping[str, Any] | None = None,
        deferrable: bool | None = None,
        poll_interval: float = settings.POLL_INTERVAL,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.paimon_conn_id = paimon_conn_id
        self.spark_conn_id = spark_conn_id
        self.run_on = run_on
        self.dry_run = dry_run  # type: ignore[assignment,method-assign]  # Airflow's method of this name is unused
        self.now = now
        self.spark_conf = spark_conf
        self.spark_options = spark_options
        self.deferrable = settings.DEFERRABLE if deferrable is None else deferrable
        self._must_defer = bool(deferrable)
        self.poll_interval = poll_interval
        self._spark_hook: SparkJobHook | SparkConnectJobHook | None = None
        self._local_hook: LocalJobHook | None = None
        self.spark_url: str | None = None
        self._result: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._own_aliases: list[Any] = []
        self._told: frozenset[str] = frozenset()
        self._check_run_on()
        if table and is_literal(table) and not (self.operation and OPERATIONS[self.operation].request.takes_patterns):
            parse_identifier(table)

    def execute(self, context: Context) -> Any:
        """Run the operation and return its result."""
        store_links(self, context)
        with self._airflow_errors(context):
            result = self._perform(context)
        return self._done(context, result)

    def _perform(self, context: Context) -> dict[str, Any]:
        """Run the operation, here or as a job."""
        from airflow_paimon.hooks.paimon import PaimonHook

        self._check_run_on()
        for name, value in self._with_branch_of_table().items():
            setattr(self, name, value)
        hook = PaimonHook(self.paimon_conn_id)
        request = self._restricted_request(hook, context)
        self._prepare(hook, request, context)
        submits = OPERATIONS[self.operation].needs_spark if self._run_on is None else self._run_on == "spark"
        return self._submit(hook, request, context) if submits else self._run_here(request)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Come back from the triggerer: return the result of the job that was submitted."""
        from airflow_paimon.hooks.cluster_job import Submission
        from airflow_paimon.hooks.job_result import error_from_json
        from airflow_paimon.hooks.paimon import PaimonHook

        job = Submission(**event["job"])
        self.spark_url = job.spark_url
        with self._airflow_errors(context):
            if "error" in event:
                raise error_from_json(event["error"])
            hook = PaimonHook(self.paimon_conn_id)
            if event.get("timed_out"):
                job.delete_files(hook.storage_options)
                raise AirflowTaskTimeout(
                    f"{job.operation} on {job.table} took longer than execution_timeout; driver {job.driver_id} was "
                    f"killed"
                )
            file = job.result_file(hook.results_folder, hook.storage_options)
            result = job.collect(file, str(event["state"]), hook.storage_options)
        return self._done(context, result)

    @contextmanager
    def _airflow_errors(self, context: Context) -> Iterator[None]:
        with in_airflows_terms(context):
            try:
                yield
            except PaimonError as error:
                self._error = error_to_json(error)
                self._count_failure(context, error)
                raise

    def _count_failure(self, context: Context, error: PaimonError) -> None:
        """Count a failed operation; of one job on several tables each that failed, and report those that are done."""
        is_job = bool(self.operation) and OPERATIONS[self.operation].needs_spark
        of_each = error.details.get("tables") if is_job else None
        for one in of_each or [{"table": self.table, "error": self._error}]:
            if "error" in one:
                send_failure(self.paimon_conn_id, one["table"], self.operation or self.task_type, one["error"]["kind"])
            else:
                self._done(context, one)

    def _done(self, context: Context, result: dict[str, Any], of: PaimonOperator | None = None) -> dict[str, Any]:
        """Log a result, count it and emit its events; of one job on several tables, those of each.

        ``of``: the operator of the table, where one operator after the other is run.
        """
        if OPERATIONS[self.operation].needs_spark and "tables" in result["details"]:
            for one in result["details"]["tables"]:
                self._done(context, one)
            return result
        of = of or self
        for level, line in log_lines(result):
            self.log.log(level, "%s", line)
        result = shortened(result)
        with suppress(Exception):  # the page then doesn't say it
            context["ti"].xcom_push(key=RAN_ON_KEY, value=result["ran_on"])
        self.log.info("Ran on: %s. Result: %s", result.get("ran_on"), json.dumps(result))
        of._result = result
        send_success(of.paimon_conn_id, result, try_number=context["ti"].try_number)
        self._emit_asset_events(context, result, of.paimon_conn_id)
        return result

    def on_kill(self) -> None:
        """Kill the job, within 5 seconds."""
        for hook in (self._spark_hook, self._local_hook):  # in this order: nothing is submitted any more
            if hook is not None:
                hook.on_kill()

    # -- assets --------------------------------------------------------------------------------------------------------

    # Aliases, not assets: a task fails when an asset that it declares is inactive, and the asset of this URI is when
    # some DAG gives the URI another name.

    @property
    def inlets(self) -> list[Any]:
        """What the DAG declares, and an alias for each branch that is read, where the arguments name it."""
        return [*self._inlets, *self._aliases(branches_to_read)]

    @inlets.setter
    def inlets(self, declared: list[Any]) -> None:
        self._inlets = declared

    @property
    def outlets(self) -> list[Any]:
        """What the DAG declares, and an alias for each branch that may be written, where the arguments name it."""
        return [*self._outlets, *self._aliases(branches_to_write)]

    @outlets.setter
    def outlets(self, declared: list[Any]) -> None:
        self._outlets = declared

    def _aliases(self, branches: Callable[[str, Mapping[str, Any]], list[Any]]) -> list[AssetAlias]:
        from airflow_paimon.assets import paimon_asset_uri

        arguments = vars(self)
        with suppress(InvalidInputError):  # execute says it
            arguments = {**arguments, **self._with_branch_of_table()}
        connection, table = arguments.get("paimon_conn_id"), arguments.get("table")
        if not (is_rendered(connection) and is_rendered(table)):
            return []
        names = filter(is_rendered, branches(self.operation, arguments))
        with suppress(InvalidInputError):  # of the table's name: execute says it
            return [AssetAlias(paimon_asset_uri(str(connection), str(table), name)) for name in names]
        return []

    def _emit_asset_events(self, context: Context, result: Mapping[str, Any], paimon_conn_id: str) -> None:
        from airflow_paimon.assets import paimon_asset_uri

        events, extra = context["outlet_events"], dict(result)
        aliases = [o for o in self._outlets if isinstance(o, AssetAlias) and o not in self._own_aliases]
        written = {paimon_asset_uri(paimon_conn_id, result["table"], b) for b in branches_written(result)}
        # By an alias the asset gets an event as well, so Airflow's own one would be the second of one commit.
        twice = written if aliases else set()
        self._outlets = [o for o in self._outlets if not (isinstance(o, Asset) and o.uri in twice)]
        declared = {outlet.uri: outlet for outlet in self._outlets if isinstance(outlet, Asset)}
        for uri, asset in declared.items():
            if uri in written or uri not in self._told:  # of several tables each asset gets the result of its own
                events[asset].extra = extra
        self._told = self._told | written
        for branch in branches_written(result):
            uri = paimon_asset_uri(paimon_conn_id, result["table"], branch)
            own = [] if uri in declared else [AssetAlias(uri)]
            # Each has events of its own branch alone: this operator may go on to another table, or be called again.
            self._own_aliases = [*self._own_aliases, *own]
            self._outlets = [*self._outlets, *own]
            for alias in (*aliases, *own):
                _add_event(events[alias], uri, extra)
        if branches_written(result):
            from airflow_paimon.operators._partition_events import announce_partitions

            outlet = announce_partitions(paimon_conn_id, events, result)
            self._outlets = [*self._outlets, *([] if outlet is None else [outlet])]

    def _with_branch_of_table(self) -> dict[str, Any]:
        """Return the arguments ``table`` and ``branch``, where the table is given as ``db.table$branch_b``."""
        names = {"table", "branch", "from_branch"} & vars(self).keys()
        request = OPERATIONS[self.operation].request if self.operation else Request
        return with_branch_of_table(request, {name: getattr(self, name) for name in names})

    # -- OpenLineage ---------------------------------------------------------------------------------------------------

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Say what was read and written; called only where Airflow's OpenLineage provider is installed."""
        from airflow_paimon.lineage.openlineage import lineage_of

        return lineage_of(self, self._result, self._error)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Say what was read, and the error."""
        return self.get_openlineage_facets_on_complete(task_instance)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _texts(self) -> dict[str, str]:
        """Return the request fields that name a file, with what the operator holds as text instead."""
        return {}

    def _prepare(self, hook: PaimonHook, request: Request, context: Context) -> None:
        """Do what must be done before the operation; for subclasses."""

    def _check_arguments(self, given: Mapping[str, Any]) -> None:
        """Check arguments that the DAG's code spells out, so that a wrong one is an error of the DAG's file."""
        specs = {argument_name(spec): spec for spec in _argument_fields(self.operation).values()}
        for name, value in given.items():
            if name in specs and is_literal(value) and not is_blank(value):
                check_argument(self.operation, specs[name].name, value)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Iterable[str], context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        """Render; Airflow masks a value that may name a person in logs and in the task's rendered fields.

        Airflow calls this for mapped tasks as well, other than ``render_template_fields``.
        """
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        for spec in _argument_fields(self.operation).values():
            value = getattr(self, argument_name(spec), None)
            if spec.metadata["private"] and isinstance(value, str) and value.strip():
                mask_secret(value)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        values = {name: self._value(spec) for name, spec in _argument_fields(self.operation).items()}
        values.update(
            warehouse=hook.warehouse, storage_options=hook.storage_options, operation_id=operation_id(context)
        )
        request = build_request(self.operation, values)
        if isinstance(request, CheckBranchData | DiffBranches):
            request = dataclasses.replace(request, mask=(*request.mask, *hook.masks))
        return self._with_requester(request, hook, context) if isinstance(request, Approved) else request

    def _with_requester(self, request: Approved, hook: PaimonHook, context: Context) -> Approved:
        """Take the user who triggered the run as the one who asked for it, even if the argument names another; ask for
        four eyes where the connection does.
        """
        four_eyes = request.four_eyes
        if hook.four_eyes and not four_eyes:
            from airflow_paimon.core.publish.approval import changes_readers_rows  # not for every DAG that is parsed

            branch = request.branch if isinstance(request, RollbackTo | ExpirePartitions) else "main"
            four_eyes = changes_readers_rows(request, hook.get_table(request.table, branch))
        user = triggering_user(context)
        by = request.requested_by if user is None else user
        return dataclasses.replace(request, four_eyes=four_eyes, requested_by=by)

    def _restricted_request(self, hook: PaimonHook, context: Context) -> Request:
        """Return the request, after a look at what came from outside the DAG's code, such as a trigger form.

        Raises:
            UnsafeOperationError: the connection doesn't allow it in a form.
        """
        outside, policy = self._from_outside(context), hook.form_policy
        values = {name: getattr(self, name, None) for name in FIELDS if name in outside}
        policy.check(values | {n: as_dict(n, values[n]) for n in ("spark_conf", "spark_options") if n in values})
        request = self._request(hook, context)
        decided = getattr(self, "restricted_sql", None) is not None and "restricted_sql" not in outside
        if decided or policy.any_sql or "sql" not in outside:
            return request
        return dataclasses.replace(request, restricted_sql=True)  # type: ignore[call-arg]

    def _from_outside(self, context: Context) -> frozenset[str]:
        """Return which of the arguments that decide what runs, and where, are not literals of the DAG's code."""
        return from_outside(self, {*FIELDS, "restricted_sql"} & set(self.template_fields), context)

    def _value(self, spec: dataclasses.Field[Any]) -> Any:
        value = getattr(self, argument_name(spec))
        return as_list(spec.name, value) if spec.metadata.get("repeat") else value

    def _result_name(self, context: Context) -> str:
        return result_name(context)

    def _run_here(self, request: Request) -> dict[str, Any]:
        from airflow_paimon.execution import run_operation

        with TemporaryDirectory() as folder:
            files: dict[str, Any] = {name: f"{folder}/{name}.sql" for name in self._texts()}
            for name, text in self._texts().items():
                Path(files[name]).write_text(text, encoding="utf-8")
            return run_operation(dataclasses.replace(request, **files)).to_json()

    def _submit(self, hook: PaimonHook, request: Request, context: Context) -> dict[str, Any]:
        from airflow_paimon.hooks.spark_connect_job import open_job_hook

        def on_tracking_url(url: str) -> None:
            self.spark_url = url
            store_links(self, context)

        def on_progress(text: str) -> None:
            with suppress(Exception):  # the job goes on, whatever becomes of what is said about it
                context["ti"].xcom_push(key=PROGRESS_KEY, value=text)

        spark = hook.spark_settings(
            self.spark_conn_id, as_dict("spark_conf", self.spark_conf), as_dict("spark_options", self.spark_options)
        )
        self._spark_hook = open_job_hook(
            spark.conn_id,
            conf=spark.conf,
            options=spark.options,
            on_tracking_url=on_tracking_url,
            on_progress=on_progress,
        )
        if self._must_defer:
            self._spark_hook.require_cluster_driver()
        if (done := self._run_locally(hook, request)) is not None:
            return done
        where: dict[str, Any] = {"result_name": self._result_name(context), "results_folder": hook.results_folder}
        self.log.info("Submitting to Spark (connection %s)", spark.conn_id)
        on_progress("submitted to Spark")
        if self._defers(self._spark_hook):
            from airflow_paimon.triggers.spark_job import SparkJobTrigger

            job = self._spark_hook.submit_job(request, texts=self._texts(), **where)
            trigger = SparkJobTrigger(
                job=dataclasses.asdict(job),
                paimon_conn_id=self.paimon_conn_id,
                spark_conn_id=spark.conn_id,
                poll_interval=float(self.poll_interval),
                deadline=deadline_of(self, context),
            )
            self.defer(trigger=trigger, method_name="execute_complete")
        return self._spark_hook.run_job(request, texts=self._texts(), **where)

    def _run_locally(self, hook: PaimonHook, request: Request) -> dict[str, Any] | None:
        """Run small work on rows in a process beside this one, if it may; None = it is Spark's."""
        from airflow_paimon.core.requests.local_execution import may_run_locally

        local = hook.local_execution
        if self._run_on is not None or not may_run_locally(request, local):
            return None
        from airflow_paimon.hooks.local_job import LocalJobHook

        self.log.info("Trying it in a local process, without Spark (local_execution is %s)", local)
        self._local_hook = LocalJobHook()
        return self._local_hook.run_job(request, texts=self._texts())

    def _defers(self, spark: SparkJobHook | SparkConnectJobHook) -> TypeGuard[SparkJobHook]:
        if self.deferrable and not (self._must_defer or spark.is_cluster):
            self.log.info("Not deferred: this job runs in the worker (deploy mode client or Spark Connect)")
            return False
        return self.deferrable

    @property
    def _run_on(self) -> str | None:
        """Return the argument ``run_on``; None if it was left out, or a template rendered to nothing."""
        return None if is_blank(self.run_on) else str(self.run_on).strip()

    def _check_run_on(self) -> None:
        run_on = self._run_on
        if run_on is None or "{{" in run_on:
            return
        if run_on not in RUN_ON:
            raise InvalidInputError(f"run_on must be one of {', '.join(RUN_ON)}, or left out; got {self.run_on!r}")
        if run_on == "worker" and OPERATIONS[self.operation].needs_spark:
            raise InvalidInputError(f"{self.operation} reads or writes rows and needs Spark: leave run_on out")


def _add_event(accessor: Any, uri: str, extra: dict[str, Any]) -> None:
    """Give an alias an event of the asset that has this URI, whatever its name."""
    try:
        accessor.add(Asset.ref(uri=uri), extra=extra)
    except AirflowRuntimeError:  # there is none yet
        accessor.add(Asset(uri=uri), extra=extra)


def _argument_fields(operation: str) -> dict[str, dataclasses.Field[Any]]:
    """Return the request's fields that are operator arguments; none of a class that is only a base."""
    request = OPERATIONS[operation].request if operation else Request
    return {f.name: f for f in dataclasses.fields(request) if f.name not in _NOT_FROM_ARGUMENTS}
