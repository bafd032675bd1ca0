"""A mistake in the provider's metadata stops every `airflow` command, so Airflow itself judges it here."""

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from airflow_paimon import settings
from airflow_paimon.assets import paimon_asset, paimon_asset_uri, sanitize_uri
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.get_provider_info import SETTINGS, get_provider_info
from airflow_paimon.hooks.paimon import EXTRAS


def test_metadata_is_within_airflows_runtime_schema() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_package_name_is_the_canonical_name_of_the_distribution() -> None:
    name = metadata.distribution("airflow-paimon").metadata["Name"]
    assert get_provider_info()["package-name"] == name == "airflow-paimon"


def test_entry_point_leads_to_it() -> None:
    points = metadata.distribution("airflow-paimon").entry_points.select(group="apache_airflow_provider")
    assert [point.load() for point in points] == [get_provider_info]


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, str) and value.startswith("airflow_paimon."):
        yield value


def test_every_path_imports() -> None:
    paths = list(_paths(get_provider_info()))
    assert len(paths) >= 7
    for path in paths:
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            module, _, name = path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), path


def test_every_public_module_is_named() -> None:
    package = Path(importlib.import_module("airflow_paimon").__file__ or "").parent
    modules = {
        f"airflow_paimon.{layer}.{file.stem}"
        for layer in ("operators", "sensors", "hooks", "triggers")
        for file in (package / layer).glob("*.py")
        if not file.name.startswith("_") and re.search(rf"^class \w+{layer[:-1].title()}\b", file.read_text(), re.M)
    }
    assert len(modules) > 5 and modules <= set(_paths(get_provider_info()))


def test_the_connection_form_requires_the_warehouse() -> None:
    connection_type, _ = get_provider_info()["connection-types"]
    name, field = next(iter(connection_type["conn-fields"].items()))
    assert (name, field["schema"]["type"]) == ("warehouse", "string")


def test_every_extra_is_a_field_of_the_form_with_a_help_text_and_documented() -> None:
    paimon, flink = (one["conn-fields"] for one in get_provider_info()["connection-types"])
    fields = paimon | flink
    assert all(field["label"] and field["description"] for field in fields.values())
    page = (Path(__file__).parents[2] / "docs/reference/connection.md").read_text()
    assert [name for name in flink if f"`{name}`" not in page] == []
    assert [name for name in EXTRAS if f"`{name}`" not in page] == []
    assert [field["label"] for field in fields.values() if field["label"] not in page] == []


def test_every_setting_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
    written = dict(re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`|empty) \|", page, re.MULTILINE))
    assert written == {name: option["default"] for name, option in SETTINGS.items()}


@pytest.mark.airflow
def test_settings_are_the_defaults_of_operators_sensors_triggers_and_forms(airflow_home: Path) -> None:
    chosen = {
        "conn_id": "lake",
        "spark_conn_id": "yarn",
        "local_execution": "none",
        "deferrable": "True",
        "poll_interval": "3",
        "poke_interval": "7.5",
        "sample": "0",
        "lineage_conn_id": "marquez",
        "manifest_cache_mb": "64",
    }
    assert set(chosen) == set(SETTINGS)
    code = """
        import contextlib, io, json
        from airflow.cli import cli_parser
        from airflow_paimon import settings
        from airflow_paimon.hooks.paimon import PaimonHook
        from airflow_paimon.operators.branch import DiffBranchesOperator
        from airflow_paimon.operators.check import CheckBranchOperator
        from airflow_paimon.runbooks.fields import shared
        from airflow_paimon.sensors.snapshot import SnapshotCatchUpSensor
        from airflow_paimon.triggers.snapshot import PaimonSnapshotTrigger

        diff = DiffBranchesOperator(task_id="diff", table="d.t", branch="b")
        check = CheckBranchOperator(task_id="check", table="d.t", branch="b")
        sensor = SnapshotCatchUpSensor(task_id="wait", table="d.t")
        inherited = SnapshotCatchUpSensor(task_id="own", table="d.t", default_args={"poke_interval": 9})
        trigger = PaimonSnapshotTrigger(table="d.t")
        form = shared("paimon_conn_id", "sample_rows")
        with contextlib.redirect_stdout(io.StringIO()) as listed:
            parser = cli_parser.get_parser()
            for command in (["list", "--section", "paimon"], ["get-value", "paimon", "spark_conn_id"]):
                arguments = parser.parse_args(["config", *command])
                arguments.func(arguments)
        print(json.dumps({
            "conn_id": [diff.paimon_conn_id, sensor.paimon_conn_id, trigger.paimon_conn_id,
                        PaimonHook.default_conn_name, form["paimon_conn_id"].value],
            "spark_conn_id": [settings.SPARK_CONN_ID],
            "local_execution": [settings.LOCAL_EXECUTION],
            "deferrable": [diff.deferrable, sensor.deferrable],
            "poll_interval": [diff.poll_interval],
            "poke_interval": [sensor.poke_interval, trigger.poke_interval, inherited.poke_interval],
            "lineage_conn_id": [settings.LINEAGE_CONN_ID],
            "manifest_cache_mb": [settings.MANIFEST_CACHE_MB],
            "sample": [diff.sample, check.sample, form["sample_rows"].value],
            "listed": listed.getvalue(),
        }))
    """
    environment = {f"AIRFLOW__PAIMON__{name.upper()}": value for name, value in chosen.items()}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    listed = found.pop("listed")
    assert found == {
        "conn_id": ["lake"] * 5,
        "spark_conn_id": ["yarn"],
        "local_execution": ["none"],
        "deferrable": [True, True],
        "poll_interval": [3.0],
        "poke_interval": [7.5, 7.5, 9],
        "sample": [0, 0, 0],
        "lineage_conn_id": ["marquez"],
        "manifest_cache_mb": [64],
    }
    section, *options, value = [line for line in listed.splitlines() if line.strip()]
    assert section == "[paimon]"
    assert [line.lstrip("# ").split(" = ")[0] for line in options] == list(SETTINGS)
    assert value == "yarn"


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("local_execution", "some", "none or reads or all, not 'some'"),
        ("poll_interval", "often", "a number of seconds above 0, not 'often'"),
        ("poke_interval", "nan", "a number of seconds above 0, not 'nan'"),
        ("sample", "-1", "a number of rows from 0 on, not '-1'"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(
    airflow_home: Path, name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW__PAIMON__{name.upper()}", value)
    with pytest.raises(InvalidInputError, match=re.escape(f"[paimon] {name} is {said}")):
        runpy.run_path(settings.__file__)


@pytest.mark.airflow
def test_an_empty_setting_is_not_set(airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(f"AIRFLOW__PAIMON__{name.upper()}", " ")
    found = runpy.run_path(settings.__file__)
    values = ("paimon_default", "spark_default", 10, 60, 5)
    names = ("CONN_ID", "SPARK_CONN_ID", "POLL_INTERVAL", "POKE_INTERVAL", "SAMPLE")
    assert tuple(found[name] for name in names) == values


@pytest.mark.airflow
def test_airflow_registers_the_provider_and_its_connection_type(airflow_home: Path) -> None:
    got = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "get", "airflow-paimon", "--full", "--output", "json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert got.returncode == 0, got.stderr
    assert "PaimonSqlHook" in got.stdout
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as Manager
    except ImportError:  # Airflow 3.1
        from airflow.providers_manager import ProvidersManager as Manager

    hook = Manager().hooks["paimon"]
    assert hook is not None
    assert hook.hook_class_name == "airflow_paimon.hooks.sql.PaimonSqlHook"
    assert hook.connection_testable


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("paimon://wh/db/orders", "paimon://wh/db/orders"),
        ("paimon://wh/db/orders/", "paimon://wh/db/orders"),
        ("paimon://wh/db/orders/main", "paimon://wh/db/orders"),
        ("paimon://wh/db/orders/fix", "paimon://wh/db/orders/fix"),
        ("paimon://wh", "paimon://wh/"),
        ("paimon://wh/a/b/c/d/e?x=1", "paimon://wh/a/b/c/d/e?x=1"),
    ],
)
def test_an_asset_uri_is_normalised_and_never_refused(airflow_home: Path, written: str, meant: str) -> None:
    from airflow.sdk import Asset

    assert Asset(written).uri == meant
    assert sanitize_uri(urlsplit(meant)).geturl() == meant


@pytest.mark.airflow
def test_asset_of_a_table(airflow_home: Path) -> None:
    assert paimon_asset("wh", "db.orders").uri == "paimon://wh/db/orders"
    assert paimon_asset("wh", "db.orders", "fix").uri == paimon_asset_uri("wh", "db.orders$branch_fix")
    with pytest.raises(InvalidInputError):
        paimon_asset_uri("wh", "orders")
