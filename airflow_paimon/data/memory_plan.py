"""How much memory it takes to work on data files in one process, by what manifests say of them (pure).

A file of ``b`` bytes with ``r`` rows of a table with the columns ``c`` counts as

    OPEN + b * expansion of its format + r * (width of each c)

where a column of fixed width counts with that, rounded up to 8 bytes, one of variable width with 32 bytes besides the
bytes that are in the file, and OPEN is what reading a file holds whatever is in it. Merging, sorting and comparing hold
rows twice at most: the expansion has that in it. Text that compresses far better than usual can take more; so this is
an estimate for a process of its own, whose end harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType
from airflow_paimon.core.requests.local_execution import MEMORY_BYTES

DEFAULT_BYTES = MEMORY_BYTES
"""What a connection and a job that say nothing else let plain Python take."""
OPEN_BYTES = 2 << 20
_EXPANSION = {"parquet": 6, "orc": 6, "avro": 4}
_OTHER_EXPANSION = 8
_VARIABLE_BYTES = 32
_WIDE = {"DECIMAL": 16}


def fits(files: Iterable[DataFile], schema: TableSchema, memory_bytes: int) -> bool:
    """Whether work on these files, of a table with these columns, takes no more memory; with 0 nothing fits."""
    return memory_bytes > 0 and memory_of(files, schema) <= memory_bytes


def memory_of(files: Iterable[DataFile], schema: TableSchema) -> int:
    """Return how many bytes of memory work on these files takes, by the rule that the module's text says."""
    width = sum(_width(field.type) for field in schema.fields)
    return sum(
        OPEN_BYTES + f.file_size * _EXPANSION.get(f.file_name.rpartition(".")[2], _OTHER_EXPANSION)
        + f.row_count * width
        for f in files
    )  # fmt: skip


def _width(data_type: DataType) -> int:
    if isinstance(data_type, RowType):
        return 8 + sum(_width(field.type) for field in data_type.fields)
    if isinstance(data_type, MapType):
        return _VARIABLE_BYTES + _width(data_type.key) + _width(data_type.value)
    if isinstance(data_type, ArrayType):
        return _VARIABLE_BYTES + _width(data_type.element)
    return _WIDE.get(data_type.root, _VARIABLE_BYTES if data_type.root in _VARIABLE else 8)


_VARIABLE = frozenset({"CHAR", "VARCHAR", "STRING", "BINARY", "VARBINARY", "BYTES", "VARIANT", "BLOB"})
