"""This provider's metadata for Airflow. It must fit Airflow's runtime schema: a mistake breaks every command."""

from typing import Any

from airflow_paimon import __version__
from airflow_paimon.operators import MODULES as OPERATORS
from airflow_paimon.sensors import MODULES as SENSORS

_NAME = "Apache Paimon"
SETTINGS: dict[str, dict[str, Any]] = {
    name: {"description": text, "type": kind, "default": default, "example": example, "version_added": "0.1.0"}
    for name, kind, default, example, text in (
        ("conn_id", "string", "paimon_default", "lake", "Connection of operators, sensors, forms that name none."),
        (
            "spark_conn_id",
            "string",
            "spark_default",
            "spark_on_yarn",
            "Connection where jobs are submitted if neither the operator nor the Paimon connection names one.",
        ),
        (
            "local_execution",
            "string",
            "reads",
            "none",
            "What small work on rows runs in plain Python instead of in Spark, unless the Paimon connection overrides "
            "it: none, reads (diffs and row limits of checks) or all (compactions and rescales, too).",
        ),
        (
            "deferrable",
            "boolean",
            "",
            "True",
            "Whether operators and sensors of this package wait in the triggerer. Empty: as set by [operators] "
            "default_deferrable.",
        ),
        ("poll_interval", "float", "10", "30", "Seconds between two checks of the triggerer on a job in a cluster."),
        ("poke_interval", "float", "60", "300", "Seconds between two checks of a table that is waited for."),
        (
            "lineage_conn_id",
            "string",
            "",
            "marquez",
            "Connection of type http to an OpenLineage backend with Marquez' API, which plans ask what is made from a "
            "table. Empty: none is asked.",
        ),
        (
            "manifest_cache_mb",
            "integer",
            "256",
            "1024",
            "MiB of manifests that the API server and the triggerer keep, each; 0 keeps none.",
        ),
        ("sample", "integer", "5", "0", "Rows that diffs and checks show; 0 keeps data out of logs and XComs."),
    )
}
"""The options of the section [paimon] of Airflow's configuration; `airflow_paimon.settings` reads them."""
_LINKS = ("ApprovalLink", "AssetLink", "FlinkLink", "SparkLink", "TableLink", "UndoLink")


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; imports neither Airflow nor what it names."""
    return {
        "package-name": "airflow-paimon",
        "name": _NAME,
        "description": "Data correction, publishing and maintenance of Apache Paimon tables.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://paimon.apache.org/",
                "tags": ["apache"],
            }
        ],
        "operators": [_modules("operators", *OPERATORS)],
        "sensors": [_modules("sensors", *SENSORS)],
        "hooks": [_modules("hooks", "paimon", "spark_job", "spark_connect_job", "local_job", "sql", "flink")],
        "triggers": [_modules("triggers", "snapshot", "spark_job", "waits", "flink")],
        "task-decorators": [
            {"name": name, "class-name": f"airflow_paimon.decorators.{name}_task"}
            for name in ("paimon_correct", "paimon_sql")
        ],
        "extra-links": [f"airflow_paimon.links.{name}" for name in _LINKS],
        "connection-types": [_connection_type(), _flink_connection_type()],
        "config": {
            "paimon": {
                "description": "Defaults of the operators, sensors, triggers and forms for Apache Paimon tables.",
                "options": SETTINGS,
            }
        },
        "asset-uris": [
            {
                "schemes": ["paimon"],
                "handler": "airflow_paimon.assets.sanitize_uri",
                "to_openlineage_converter": "airflow_paimon.assets.convert_to_openlineage",
            }
        ],
    }


def _modules(folder: str, *names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"airflow_paimon.{folder}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "paimon",
        "hook-class-name": "airflow_paimon.hooks.sql.PaimonSqlHook",
        "hook-name": _NAME,
        "ui-field-behaviour": {
            "hidden-fields": ["host", "port", "schema", "extra"],
            "relabeling": {"login": "Access key", "password": "Secret key"},
            "placeholders": {
                "login": "S3 and OSS; empty = the machine's own credentials (environment, instance profile)",
                "password": "S3 and OSS; belongs to the access key",
            },
        },
        "conn-fields": connection_fields(),
    }


def _flink_connection_type() -> dict[str, Any]:
    return {
        "connection-type": "paimon_flink",
        "hook-class-name": "airflow_paimon.hooks.flink.FlinkHook",
        "hook-name": "Apache Flink (REST)",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "extra"],
            "relabeling": {"host": "JobManager", "port": "REST port"},
            "placeholders": {
                "host": "flink-jobmanager.example; optionally with https:// before it",
                "port": "8081",
                "login": "Where a proxy asks for one",
            },
        },
        "conn-fields": {
            "gateway": _field("SQL gateway", "Its address, such as http://flink-gateway.example:8083; empty = port "
                              "8083 of the JobManager's host"),
            "any_sql": _field("Any SQL", "true: the SQL of tasks may come from trigger forms; empty = false"),
        },
    }  # fmt: skip


def connection_fields() -> dict[str, Any]:
    """Return the fields of a connection of type ``paimon``: its extras, but for those that a field of Airflow's is."""
    return {**_storage_fields(), **_job_fields()}


def _storage_fields() -> dict[str, Any]:
    """Where the tables are, and how to get there."""
    return {
        # The form opens the section of this name, and no other; a field that takes no null is required there.
        "warehouse": {
            "label": "Warehouse",
            "description": "Folder or URI above the databases, such as s3://bucket/warehouse",
            "schema": {"type": "string", "minLength": 1, "section": "standardFields"},
        },
        "catalog_type": _field(
            "Catalog type",
            "Who knows the tables: the warehouse itself (filesystem) or a server; then fill in Catalog options",
            default="filesystem",
            enum=["filesystem", "hive", "jdbc", "rest"],
        ),
        "catalog_options": _field(
            "Catalog options",
            "Options of the catalog by Paimon's names, such as uri; a JSON object",
            format="password",
        ),
        "endpoint": _field("Endpoint", "S3, when it is not AWS: http:// or https://, host and port; OSS"),
        "region": _field("Region", "S3 or OSS: the bucket's region, such as eu-central-1"),
        "addressing_style": _field(
            "Path-style access",
            "S3: the bucket in the path or in the host name; auto = path with an endpoint, virtual on AWS",
            default="auto",
            enum=["auto", "path", "virtual"],
        ),
        "token": _field("Session token", "S3 or OSS, with a temporary access key", format="password"),
        "storage_conn_id": _field(
            "Storage connection", "A connection of Amazon's, Google's, Microsoft's or Alibaba's provider to log in with"
        ),
        "storage_options": _field(
            "Storage options",
            "The object that --storage-options takes as a file: options of storage and catalog, JSON",
            format="password",
        ),
    }


def _job_fields() -> dict[str, Any]:
    """How jobs run, and who decides what."""
    return {
        "spark_conn_id": _field(
            "Spark connection", "Where operators submit jobs unless they name another one; empty = spark_default"
        ),
        "spark_conf": _object(
            "Spark settings", 'For every job, such as {"spark.executor.cores": "4"}; operators add their own'
        ),
        "spark_options": _object(
            "Spark options",
            'Arguments of spark-submit for every job, such as {"packages": "group:name:1.0", "driver_memory": "4g"}',
        ),
        "local_execution": _field(
            "Local execution",
            "What runs in a local process instead of in Spark, if it is small: none; reads: diffs and "
            "row limits of checks; all: compactions and rescales, too; empty = reads",
            enum=["none", "reads", "all", None],
        ),
        "results_folder": _field(
            "Results folder",
            "Where jobs in cluster deploy mode leave results; empty = _airflow_paimon_results in the warehouse",
        ),
        "approvers": _field("Approvers", "Ids of users who may answer approvals, with commas; empty = all users"),
        "notify": _field("Notify", "Notifiers of approvals by name, one JSON object", format="password"),
        "four_eyes": _field(
            "Four-eyes rule", "true: a second person must approve publishes, rollbacks and undos; empty = false"
        ),
        "forms": _object(
            "Trigger forms",
            'What they may request, such as {"locked": ["engine"], "functions": ["rules.*"]}; empty = what is safe',
        ),
        "masked_columns": _object(
            "Masked columns", 'Columns whose values no sample shows, by table, such as {"hr.*": ["name", "phone"]}'
        ),
        "remind_before": _field(
            "Remind before",
            "How long before an approval times out they are notified again, such as 6 h; never; empty = a quarter",
        ),
    }


def _field(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def _object(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["object", "null"]}}
