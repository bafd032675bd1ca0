"""What a trigger form may ask for: whoever may trigger a DAG must not thereby run commands where Spark runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.rules.rules import is_module

__all__ = ["FIELDS", "FormPolicy", "parse_policy"]

FIELDS = ("sql", "function", "engine", "spark_conn_id", "spark_conf", "spark_options", "checkpoint")
"""The fields of a form that decide what runs, and where. A connection can lock each of them."""

_UNSET: Mapping[str, Collection[Any]] = {"engine": ("embedded",)}
"""What a locked field may say besides nothing: its default."""

_COUNT, _SIZE = re.compile(r"[1-9]\d{0,5}"), re.compile(r"[1-9]\d{0,11}[bkmgtBKMGT]?[bB]?")
_OPTIONS = {
    "driver_memory": _SIZE,
    "executor_memory": _SIZE,
    "executor_cores": _COUNT,
    "num_executors": _COUNT,
    "total_executor_cores": _COUNT,
}
"""Arguments of a submission that only say how much, with the form of their values."""

_VALUE = re.compile(r"-?[A-Za-z0-9.]{1,32}")
"""A number, a size, a duration, true or false: no ``${...}``, which Spark would replace, and no second line."""
_CONF = frozenset(
    f"spark.{name}"
    for name in (
        "cores.max", "default.parallelism", "driver.cores", "driver.maxResultSize", "driver.memory",
        "driver.memoryOverhead", "driver.memoryOverheadFactor", "dynamicAllocation.enabled",
        "dynamicAllocation.executorIdleTimeout", "dynamicAllocation.initialExecutors", "dynamicAllocation.maxExecutors",
        "dynamicAllocation.minExecutors", "executor.cores", "executor.heartbeatInterval", "executor.instances",
        "executor.memory", "executor.memoryOverhead", "executor.memoryOverheadFactor", "executor.pyspark.memory",
        "memory.fraction", "memory.offHeap.enabled", "memory.offHeap.size", "memory.storageFraction", "network.timeout",
        "speculation", "sql.adaptive.advisoryPartitionSizeInBytes", "sql.adaptive.coalescePartitions.enabled",
        "sql.adaptive.enabled", "sql.adaptive.skewJoin.enabled", "sql.autoBroadcastJoinThreshold",
        "sql.broadcastTimeout", "sql.files.maxPartitionBytes", "sql.shuffle.partitions", "task.cpus",
        "task.maxFailures",
    )
)  # fmt: skip
"""Spark settings that only say how much, and how often."""

_KEYS = ("locked", "spark_options", "spark_conf", "functions", "folders", "sql")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPolicy:
    """What the forms of a Paimon connection may ask for; without arguments: only what does no harm.

    ``locked``: fields that no form fills in. ``spark_options``, ``spark_conf``: further names; a setting may end in
    ``*``. ``functions``: modules whose functions a form may name; ``rules.*``: and those below ``rules``. ``folders``:
    where checkpoints of streams may be besides the warehouse. ``any_sql``: SQL isn't limited to the tables.
    """

    connection: str
    warehouse: str = ""
    locked: frozenset[str] = frozenset()
    spark_options: tuple[str, ...] = ()
    spark_conf: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    any_sql: bool = False

    def check(self, values: Mapping[str, Any]) -> None:
        """Check values of ``FIELDS`` that came with a form; what is empty is not asked for.

        Raises:
            UnsafeOperationError: names the field, and what has to be set where.
        """
        given = {n: value for n, value in values.items() if n in FIELDS and value not in (None, "", {}, "None")}
        for name, value in given.items():
            if name in self.locked and value not in _UNSET.get(name, ()):
                raise UnsafeOperationError(
                    f"{name}: connection {self.connection!r} locks this field (its extra forms, locked); leave it empty"
                )
        self._check_options(given.get("spark_options") or {})
        self._check_conf(given.get("spark_conf") or {})
        if (function := given.get("function")) is not None:
            self._check_function(str(function))
        if (checkpoint := given.get("checkpoint")) is not None:
            self._check_folder(str(checkpoint))

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name in self.spark_options:
                continue
            pattern = _OPTIONS.get(name)
            if pattern is None:
                raise self._refusal(f"spark_options {name}", sorted(_OPTIONS), "spark_options", name)
            _check_value(f"spark_options {name}", value, pattern)

    def _check_conf(self, conf: Mapping[str, Any]) -> None:
        for name, value in conf.items():
            if any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in self.spark_conf):
                continue
            if name not in _CONF:
                known = ["memory, cores, executors, parallelism and shuffle partitions"]
                raise self._refusal(f"spark_conf {name}", known, "spark_conf", name)
            _check_value(f"spark_conf {name}", value, _VALUE)

    def _check_function(self, function: str) -> None:
        module = function.partition(":")[0]
        if not _MODULE.fullmatch(module) or not is_module(module, self.functions):
            known = list(self.functions) or ["none"]
            raise self._refusal(f"function {function!r}", known, "functions", module, "modules")

    def _check_folder(self, folder: str) -> None:
        allowed = [one.rstrip("/") for one in (self.warehouse, *self.folders) if one.strip("/")]
        inside = any(folder == one or folder.startswith(f"{one}/") for one in allowed)
        path = folder.partition("://")[2] or folder
        if not inside or ".." in path.split("/") or normpath(path) != path.rstrip("/"):
            raise self._refusal(f"checkpoint {folder!r}", allowed, "folders", folder, "folders")

    def _refusal(
        self, what: str, known: Collection[str], extra: str, name: str, kind: str = ""
    ) -> UnsafeOperationError:
        return UnsafeOperationError(
            f"{what} can't come from a form: allowed {kind or 'there'} are {', '.join(known)}. To open it to every "
            f"user who may trigger the DAG, add {name!r} to {extra} in the extra forms of connection "
            f"{self.connection!r}; or write it into the DAG's own code"
        )


def parse_policy(connection: str, warehouse: str, extra: Mapping[str, Any]) -> FormPolicy:
    """Read the extra ``forms`` of a Paimon connection.

    Raises:
        InvalidInputError: an unknown key, an unknown field, or something else than lists of texts.
    """
    where = f"Connection {connection!r}: forms"
    if unknown := sorted(set(extra) - set(_KEYS)):
        raise InvalidInputError(f"{where} has no {', '.join(unknown)}; there are: {', '.join(_KEYS)}")
    if (sql := extra.get("sql", "tables")) not in ("tables", "any"):
        raise InvalidInputError(f"{where}: sql must be tables or any; it is {sql!r}")
    lists = {name: _texts(f"{where}: {name}", extra.get(name, [])) for name in _KEYS if name != "sql"}
    locked = lists.pop("locked")
    if strange := sorted(set(locked) - set(FIELDS)):
        raise InvalidInputError(f"{where}: locked has no field {', '.join(strange)}; there are: {', '.join(FIELDS)}")
    return FormPolicy(
        connection=connection, warehouse=warehouse, locked=frozenset(locked), any_sql=sql == "any", **lists
    )


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise InvalidInputError(f"{where} must be a list of strings, got {value!r}")
    return tuple(value)


def _check_value(what: str, value: Any, pattern: re.Pattern[str]) -> None:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not isinstance(value, str | int | float) or not pattern.fullmatch(text):
        raise UnsafeOperationError(f"{what} can't be {value!r} in a form: give a plain number or size, such as 8 or 4g")
