"""Deletes what was written for a commit that did not land."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.scan import bucket_folder
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.data.files.write import delete_unused
from airflow_paimon.data.write import TableWrite


def discard_files(write: TableWrite, messages: Iterable[CommitMessage]) -> None:
    """Delete data and index files that certainly no snapshot refers to: see ``delete_unused``."""
    values = StoredPartitions(write.schema).values
    for message in messages:
        folder = bucket_folder(write.schema, values(message.partition), message.bucket)
        indexes = [] if message.index is None else [f"{INDEX_DIR}/{message.index.file_name}"]
        files = (*message.new_files, *(message.changelog or ()))
        delete_unused(write.store, [*(f"{folder}/{file.file_name}" for file in files), *indexes])
