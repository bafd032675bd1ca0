"""Encodes and decodes index manifests. An index manifest is a full list, not a delta.

See docs/format.md, Deletion vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.avro.decoder import RecordForm, decode_records
from airflow_paimon.core.format.avro.encoder import encode_records
from airflow_paimon.core.format.avro.types import avro_schema, avro_text
from airflow_paimon.core.format.manifest import DeletionVectorRange, GlobalIndex, IndexEntry

FORMAT_VERSION: Final = 1

INDEX_SCHEMA: Final = avro_schema([
    "_VERSION int", "_KIND int", "_PARTITION bytes", "_BUCKET int", "_INDEX_TYPE string", "_FILE_NAME string",
    "_FILE_SIZE long", "_ROW_COUNT long",
    ("_DELETIONS_VECTORS_RANGES ?[?record]", ["f0 string", "f1 int", "f2 int", "_CARDINALITY ?long"]),
    "_EXTERNAL_PATH ?string",
    ("_GLOBAL_INDEX ?record", [
        "_ROW_RANGE_START long", "_ROW_RANGE_END long", "_INDEX_FIELD_ID int", "_EXTRA_FIELD_IDS ?[int]",
        "_INDEX_META ?bytes", "_SOURCE_META ?bytes",
    ]),
])  # fmt: skip

_FORM = RecordForm(
    avro_text(INDEX_SCHEMA),
    {"record": IndexEntry, "record__DELETIONS_VECTORS_RANGES": DeletionVectorRange,
     "record__GLOBAL_INDEX": GlobalIndex},
    {"_VERSION": (FORMAT_VERSION,), "_KIND": (0, 1)},
    report_unknown=True,
)  # fmt: skip


def read_index_manifest(data: bytes, *, name: str | None = None) -> list[IndexEntry]:
    """Decode an index manifest.

    Raises:
        FormatError: truncated or corrupt; the message starts with ``name``.
        UnsupportedFeatureError: a later version of the format.
    """
    return decode_records(data, _FORM, name)


def write_index_manifest(entries: Iterable[IndexEntry]) -> bytes:
    """Encode an index manifest.

    Raises:
        UnsupportedFeatureError: an entry came with fields that we don't know and would lose.
    """
    rows = list(entries)
    lost = sorted({name for entry in rows for name in entry.unknown})
    if lost:
        raise UnsupportedFeatureError(
            f"The index manifest has fields of a later Paimon release ({', '.join(lost)}) that rewriting would "
            f"lose; change this table with that release"
        )
    return encode_records(rows, _FORM)
