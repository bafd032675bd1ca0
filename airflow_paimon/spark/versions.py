"""Which Spark is too old. Imports no pyspark: a job that needs no session asks for none."""

from __future__ import annotations

from airflow_paimon.core.errors import UnsupportedFeatureError

_OLDEST = (3, 5)


def require_spark() -> None:
    """Refuse a Spark that is too old for any of this.

    Raises:
        UnsupportedFeatureError: names the version and the way out.
    """
    import pyspark

    found = pyspark.__version__
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise UnsupportedFeatureError(
            f"This is Spark {found}, and airflow-paimon needs {'.'.join(map(str, _OLDEST))} or newer: submit with "
            f"the spark-submit of a newer one (the connection's spark-binary), or install a newer pyspark"
        )
