"""A mistake in the provider's metadata stops every `airflow` command, so Airflow itself judges it here."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest

from airflow_paimon.assets import paimon_asset, paimon_asset_uri, sanitize_uri
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.get_provider_info import get_provider_info
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
    (connection_type,) = get_provider_info()["connection-types"]
    name, field = next(iter(connection_type["conn-fields"].items()))
    assert (name, field["schema"]["type"]) == ("warehouse", "string")


def test_every_extra_is_a_field_of_the_form_with_a_help_text_and_documented() -> None:
    (connection_type,) = get_provider_info()["connection-types"]
    fields = connection_type["conn-fields"]
    assert set(fields) == EXTRAS - {"key", "secret"}  # for them the form has login and password
    assert all(field["label"] and field["description"] for field in fields.values())
    page = (Path(__file__).parents[2] / "docs/reference/connection.md").read_text()
    assert [name for name in EXTRAS if f"`{name}`" not in page] == []
    assert [field["label"] for field in fields.values() if field["label"] not in page] == []


@pytest.mark.airflow
def test_airflow_registers_the_provider_and_its_connection_type(airflow_home: Path) -> None:
    got = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "get", "airflow-paimon", "--full", "--output", "json"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert got.returncode == 0, got.stderr
    assert "PaimonHook" in got.stdout
    try:
        from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime as Manager
    except ImportError:  # Airflow 3.1
        from airflow.providers_manager import ProvidersManager as Manager

    hook = Manager().hooks["paimon"]
    assert hook is not None
    assert hook.hook_class_name == "airflow_paimon.hooks.paimon.PaimonHook"
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
