"""A DAG file pays for what importing an operator imports, in every parse."""

import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module

import pytest

from airflow_paimon import operators, sensors

PROBE = """
import sys
from airflow.sdk import DAG
before = set(sys.modules)
from airflow_paimon.operators import ChainCompactOperator, CreateBranchOperator, PartitionExpireOperator
from airflow_paimon.sensors import SnapshotCatchUpSensor
import airflow_paimon.assets
new = set(sys.modules) - before
heavy = ("pyspark", "pyarrow", "numpy", "fastavro", "fsspec", "s3fs", "botocore", "requests",
         "airflow.providers.apache.spark", "airflow_paimon.core.table.table", "airflow_paimon.core.store")
print(sorted(m for m in new if m.startswith(heavy)))
"""


def test_importing_the_operators_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_operator_and_sensor_is_imported_from_its_package_and_loads_only_its_own_module() -> None:
    for package, ending in ((operators, "Operator"), (sensors, "Sensor")):
        there = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
        assert set(package.MODULES) == there, "a module whose names the package doesn't give"
        for module, names in package.MODULES.items():
            found = import_module(f"{package.__name__}.{module}")
            assert {name for name in found.__all__ if name.endswith(ending)} == set(names)
            assert all(getattr(package, name) is getattr(found, name) for name in names)
        assert dir(package) == sorted(name for names in package.MODULES.values() for name in names)
        typed = re.findall(rf"from {package.__name__}\.(\w+) import \*", inspect.getsource(package))
        assert typed == sorted(package.MODULES), "a type checker sees other names"
        with pytest.raises(AttributeError, match="no attribute 'Nope'"):
            package.Nope  # noqa: B018
    code = "import sys, airflow_paimon.operators, airflow_paimon.sensors"
    loaded = "print([m for m in sys.modules if m.startswith('airflow_paimon.operators.')], 'airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}; {loaded}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False"
