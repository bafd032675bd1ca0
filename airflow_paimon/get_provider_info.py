"""What Airflow is told about this provider. Keep it within Airflow's runtime schema: a mistake stops every `airflow` command."""

from typing import Any

from airflow_paimon import __version__


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-paimon",
        "name": "Apache Paimon",
        "description": "Data correction, publishing and maintenance of Apache Paimon tables.",
        "versions": [__version__],
    }
