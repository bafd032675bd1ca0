"""The engine ``connector`` where no connector is needed to see it: settings, names, refusals."""

import pytest

from airflow_paimon.spark.jobs.correct_by_connector import CATALOG, EXTENSIONS, artifact, configured, with_extensions


@pytest.mark.parametrize(
    ("known", "wanted"),
    [(None, EXTENSIONS), ("", EXTENSIONS), ("a.B", f"a.B,{EXTENSIONS}"), (f"{EXTENSIONS}, a.B", f"{EXTENSIONS},a.B")],
)
def test_the_session_keeps_the_extensions_that_it_had(known: str | None, wanted: str) -> None:
    assert with_extensions(known) == wanted


def test_the_catalog_of_the_warehouse_is_found_among_the_settings() -> None:
    settings = {
        "spark.sql.catalog.other": "org.example.Catalog",
        "spark.sql.catalog.other.warehouse": "s3://b/w",
        "spark.sql.catalog.hive": CATALOG,
        "spark.sql.catalog.hive.warehouse": "s3://b/w",
        "spark.sql.catalog.hive.metastore": "hive",
        "spark.sql.catalog.mine": CATALOG,
        "spark.sql.catalog.mine.warehouse": "s3a://b/w/",
        "spark.sql.catalog.local": CATALOG,
        "spark.sql.catalog.local.warehouse": "file:///w/h",
    }
    found = [configured(settings, w) for w in ("s3://b/w", "s3a://b/w", "/w/h", "file:/w/h/", "/w")]
    assert found == ["mine", "mine", "local", "local", None]


def test_the_artifact_is_that_of_the_session_s_spark() -> None:
    assert artifact("3.5.9").startswith("org.apache.paimon:paimon-spark-3.5_2.12 ")
    assert artifact("4.1.3") == "org.apache.paimon:paimon-spark-4.1_2.13"
