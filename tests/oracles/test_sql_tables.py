"""Tables that ``sql`` creates and alters, read and written on by Paimon's own engines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.spark import sql
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.oracle

CREATE = """CREATE TABLE d.t PARTITIONED BY (dt) COMMENT 'made by SQL'
    TBLPROPERTIES ('primary-key' = 'dt,k', 'bucket' = '2') AS
    SELECT CAST(id AS INT) AS k, concat('v', id) AS v, CAST(id AS DECIMAL(9, 2)) AS d, DATE '2026-01-01' AS day,
        TIMESTAMP '2026-01-01 00:00:00.123456' AS ltz, TIMESTAMP_NTZ '2026-01-01 00:00:00.123456' AS ntz,
        array(id, NULL) AS a, struct(id AS x, 'y' AS y) AS s, if(id < 2, 'a', 'b') AS dt FROM range(4)"""


def test_engines_of_paimon_read_and_write_on(
    spark: SparkSession, java_oracle: JavaOracle, pypaimon_oracle: PypaimonOracle, tmp_path: Path
) -> None:
    warehouse = str(tmp_path)
    sql(spark, warehouse, CREATE)
    sql(spark, warehouse, "ALTER TABLE d.t ADD COLUMN note STRING COMMENT 'new' AFTER v")
    sql(spark, warehouse, "ALTER TABLE d.t SET TBLPROPERTIES ('comment' = 'altered', 'write-buffer-size' = '64 mb')")
    table = open_table(warehouse, "d.t")
    ours = canonical_rows(read_arrow(table))
    assert len(ours) == 4
    assert canonical_rows(java_oracle.read(tmp_path, "d.t")) == ours
    assert canonical_rows(pypaimon_oracle.read(tmp_path, "d.t")) == ours
    rows = read_arrow(table).slice(0, 1)
    changed = rows.set_column(rows.schema.get_field_index("note"), "note", pa.array(["by Java"]))
    java_oracle.write(tmp_path, "d.t", changed)
    assert sql(spark, warehouse, "SELECT note FROM d.t WHERE note IS NOT NULL").collect()[0][0] == "by Java"
