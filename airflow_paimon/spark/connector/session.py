"""Sets up a Spark session for Paimon's own connector: its jar, its SQL extensions, a catalog for the warehouse."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_paimon.core.catalogs.options import CATALOGS, catalog_options
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.requests import Request

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS_CONF = "spark.sql.extensions"
EXTENSIONS = "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions"
CATALOG = "org.apache.paimon.spark.SparkCatalog"

_CATALOG_CONF = re.compile(r"spark\.sql\.catalog\.([A-Za-z0-9_]+)")
_OWN_NAME = "airflow_paimon"
_MISSING_CLASS = re.compile(r"Cannot find catalog plugin class|CATALOG_PLUGIN_CLASS_NOT_FOUND|NoClassDefFoundError")


def with_extensions(known: str | None) -> str:
    """Return the value of ``spark.sql.extensions`` that a session must start with; it can't be set later."""
    names = [n.strip() for n in (known or "").split(",") if n.strip()]
    return ",".join(names if EXTENSIONS in names else [*names, EXTENSIONS])


def paimon_catalog(spark: SparkSession, request: Request) -> str:
    """Find the session's Paimon catalog of the request's warehouse, or set one up, and return its name.

    Raises:
        UnsupportedFeatureError: the connector's jar is not on the class path, or its extensions are not switched on.
        InvalidInputError: the warehouse is on an object store, and no catalog says how to reach it.
    """
    settings = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    _check_catalog(request)
    name = configured(settings, request.warehouse) or _set_up(spark, settings, request)
    _require_connector(spark, name, settings, request)
    return name


def _check_catalog(request: Request) -> None:
    metastore = catalog_options(request.storage_options).kind
    if metastore != CATALOGS[0]:
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector works on tables of filesystem catalogs, and this one is in a "
            f"{metastore} catalog; leave the engine out"
        )


def configured(settings: Mapping[str, str], warehouse: str) -> str | None:
    """Find the filesystem catalog of a warehouse among a session's settings."""
    for key, value in sorted(settings.items()):
        found = _CATALOG_CONF.fullmatch(key)
        if found is None or value != CATALOG or settings.get(f"{key}.metastore", "filesystem") != "filesystem":
            continue
        if _plain(settings.get(f"{key}.warehouse", "")) == _plain(warehouse):
            return found[1]
    return None


def _plain(warehouse: str) -> str:
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:/*", "/", warehouse)).rstrip("/")


def _set_up(spark: SparkSession, settings: dict[str, str], request: Request) -> str:
    path = _plain(request.warehouse)
    if "://" in path:
        raise InvalidInputError(
            f"{request.table}: engine=connector needs a catalog of the session for {path}, which says how Spark gets "
            f"there; set spark.sql.catalog.paimon={CATALOG}, spark.sql.catalog.paimon.warehouse={path} and the "
            f"storage's own settings (spark.sql.catalog.paimon.s3.endpoint, ...), and add its jar (paimon-s3, ...)"
        )
    name = f"{_OWN_NAME}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spark.conf.set(f"spark.sql.catalog.{name}", CATALOG)
    spark.conf.set(f"spark.sql.catalog.{name}.warehouse", f"file:{path}")
    # it would create a missing database "default"
    spark.conf.set(f"spark.sql.catalog.{name}.defaultDatabase", request.table.partition(".")[0])
    # commits of the core must be visible at once
    spark.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "false")
    return name


def _require_connector(spark: SparkSession, name: str, settings: dict[str, str], request: Request) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        spark.sql(f"SHOW NAMESPACES IN `{name}`").collect()
    except (Py4JJavaError, PySparkException) as error:
        if not _MISSING_CLASS.search(str(error)):
            raise
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector needs Apache Paimon's Spark connector, and its classes are not on this "
            f"session's class path. Add the Maven artifact {artifact(spark.version)} with --packages or --jars "
            f"(operators: spark_options={{'packages': ...}} or {{'jars': ...}}), or use engine=embedded"
        ) from None
    if EXTENSIONS not in settings.get(EXTENSIONS_CONF, ""):
        raise UnsupportedFeatureError(
            f"{request.table}: engine=connector needs {EXTENSIONS_CONF}={EXTENSIONS}, set before the Spark session "
            f"starts"
        )


def artifact(spark_version: str) -> str:
    """Return the connector's Maven artifact for a version of Spark."""
    line = ".".join(spark_version.split(".")[:2])
    if line.startswith("3."):
        return f"org.apache.paimon:paimon-spark-{line}_2.12 (before Paimon 1.1 org.apache.paimon:paimon-spark-{line})"
    return f"org.apache.paimon:paimon-spark-{line}_2.13"
