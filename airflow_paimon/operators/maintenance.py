"""Operators that look after a table: check it, repair it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator

__all__ = ["CheckTableOperator", "RepairTableOperator"]


class CheckTableOperator(PaimonOperator):
    """
    Find half-made branches, lost protective tags, missing files and stuck journals; the findings are in ``details``.

    :param verify_files: also look whether every referenced data file exists (templated)
    """

    operation = "check_table"
    template_fields: Sequence[str] = (*PaimonOperator.template_fields, "verify_files")

    def __init__(self, *, verify_files: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verify_files = verify_files


class RepairTableOperator(PaimonOperator):
    """
    Mend what :class:`CheckTableOperator` found.

    :param finding: only these finding ids; all that are safe to mend when left out (templated)
    """

    operation = "repair_table"
    template_fields: Sequence[str] = (*PaimonOperator.template_fields, "finding")

    def __init__(self, *, finding: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.finding = finding
