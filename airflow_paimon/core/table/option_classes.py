"""What this package does with each table option of Paimon: acts on it, refuses the table, or has no need of it: data.

A test holds that each option of ``known_options`` has a class, that those that are handled occur in the code, and that
those that are refused are refused for the operations that are named. ``make options FILE=...`` adds what a newer Paimon
has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class OptionClass(Enum):
    """``HANDLED``: it has Paimon's effect here, or the effect that the text names. ``REFUSED``: the named operations
    refuse a table that has it. ``NO_EFFECT``: rows, files and metadata of ours are right without it.
    """

    HANDLED = "handled"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options with the same answer. ``names`` may have ``*`` for any characters; a name without it comes first.

    ``operations``: those that are refused: ``read``, ``write`` (statements, corrections, appends), ``compact``,
    ``replace_main``.
    """

    kind: OptionClass
    why: str
    names: tuple[str, ...]
    operations: tuple[str, ...] = ()


def class_of(name: str) -> OptionGroup | None:
    """Return what is done with an option of a table; None: it is not known. Of several patterns the longest counts."""
    return _EXACT.get(name) or next((group for pattern, group in _PATTERNS if fnmatchcase(name, pattern)), None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _handled(why: str, names: str) -> OptionGroup:
    return OptionGroup(OptionClass.HANDLED, why, _words(names))


def _refused(why: str, names: str, operations: str) -> OptionGroup:
    return OptionGroup(OptionClass.REFUSED, why, _words(names), _words(operations))


def _no_effect(why: str, names: str) -> OptionGroup:
    return OptionGroup(OptionClass.NO_EFFECT, why, _words(names))


GROUPS: tuple[OptionGroup, ...] = (
    _handled(
        "how rows are merged",
        "merge-engine sequence.field sequence.field.sort-order rowkind.field ignore-delete ignore-update-before "
        "first-row.ignore-delete deduplicate.ignore-delete partial-update.ignore-delete "
        "partial-update.remove-record-on-delete partial-update.remove-record-on-sequence-group "
        "aggregation.remove-record-on-delete fields.default-aggregate-function record-level.expire-time "
        "record-level.time-field table-read.sequence-number.enabled force-lookup "
        "fields.*.aggregate-function fields.*.sequence-group fields.*.ignore-retract fields.*.distinct "
        "fields.*.list-agg-delimiter fields.*.nested-key fields.*.nested-key-null-strategy fields.*.count-limit "
        "fields.*.nested-sequence-field fields.*.ts-field",
    ),
    _handled(
        "where rows lie",
        "bucket bucket-key bucket-function.type bucket-append-ordered dynamic-bucket.assigner-parallelism "
        "dynamic-bucket.initial-buckets dynamic-bucket.max-buckets dynamic-bucket.target-row-num "
        "partition.default-name partition.legacy-name data-file.path-directory data-file.prefix changelog-file.prefix "
        "partition primary-key",
    ),
    _handled(
        "how files are written",
        "file.format file.compression file.compression.zstd-level target-file-size data-file.thin-mode "
        "metadata.stats-mode metadata.stats-dense-store metadata.stats-keep-first-n-columns fields.*.stats-mode "
        "orc.timestamp-ltz.legacy.type num-levels num-sorted-run.compaction-trigger "
        "manifest.target-file-size manifest.merge-min-count row-tracking.enabled "
        "row-tracking.partition-group-on-commit deletion-vectors.enabled deletion-vectors.modifiable",
    ),
    _handled(
        "what streaming readers get",
        "changelog-producer changelog-producer.row-deduplicate changelog-producer.row-deduplicate-ignore-fields "
        "changelog-producer.ignore-update-before changelog-producer.ignore-delete streaming-read-overwrite "
        "streaming-read-append-overwrite consumer-id consumer.ignore-progress",
    ),
    _handled(
        "branches that are read together",
        "scan.fallback-branch scan.primary-branch scan.fallback-snapshot-branch scan.fallback-delta-branch "
        "chain-table.enabled chain-table.chain-partition-keys",
    ),
    _handled(
        "what expires",
        "snapshot.num-retained.min snapshot.num-retained.max snapshot.time-retained changelog.num-retained.min "
        "changelog.num-retained.max changelog.time-retained consumer.expiration-time",
    ),
    _handled(
        "which partitions expire: dropped by expire_partitions, table_maintenance and nightly_chain_maintenance, and "
        "not by commits as in Paimon",
        "partition.expiration-time partition.expiration-strategy partition.expiration-max-num "
        "partition.timestamp-pattern partition.timestamp-formatter",
    ),
    _handled(
        "marks of complete partitions: set by mark_partition_done and not by commits; custom is refused there",
        "partition.mark-done-action partition.mark-done-action.http.url partition.mark-done-action.http.params",
    ),
    _handled(
        "automatic tags: set and expired by trigger_tag_automatic_creation and not by commits",
        "tag.automatic-creation tag.creation-period tag.creation-period-duration tag.creation-delay "
        "tag.period-formatter tag.num-retained-max tag.default-time-retained tag.automatic-completion "
        "tag.batch.customized-name tag.time-expire-enabled tag.create-success-file sink.process-time-zone "
        "sink.watermark-time-zone",
    ),
    _handled(
        "automatic actions of engines, which branches and stagings switch off",
        "write-only write.compaction-skip lookup-wait changelog-producer.lookup-wait",
    ),
    _handled("a read from the latest snapshot; other modes are refused", "scan.mode log.scan"),
    _handled(
        "metadata of other systems: a change of columns that would break them is refused",
        "metadata.iceberg.storage metastore.partitioned-table metastore.tag-to-partition",
    ),
    _handled("checked when the table is created or altered", "blob-field vector-field full-compaction.delta-commits"),
    _handled(
        "files that Paimon keeps in order: a compaction refuses the table, and a night leaves it out",
        "clustering.columns sink.clustering.by-columns clustering.incremental",
    ),
    _handled("options of this package", "airflow-paimon.*"),
    _refused(
        "the reader would have to ask the server which rows may be shown", "query-auth.enabled", "read write compact"
    ),
    _refused("rows that wait for a bucket are shown as well", "postpone.merge-on-read", "read write compact"),
    _refused("encrypted files", "parquet.crypto.factory.class", "read write compact"),
    _refused("keys with nulls", "primary-key.nullable", "read write compact"),
    _refused("maps that lie in columns of their own", "fields.*.map.storage-layout", "read write compact"),
    _refused("defaults by option, as old releases had them", "fields.*.default-value", "read write compact"),
    _refused("another kind of table", "type", "read write compact"),
    _refused("the name of another branch in the table's own options", "branch", "read write compact"),
    _refused("manifests that are no Avro files", "manifest.format", "write compact"),
    _refused(
        "a starting point of reads in the table's own options",
        "scan.snapshot-id scan.tag-name scan.version scan.timestamp scan.timestamp-millis log.scan.timestamp-millis "
        "scan.watermark scan.file-creation-time-millis scan.creation-time-millis incremental-between "
        "incremental-between-timestamp incremental-to-auto-tag scan.bucket",
        "read",
    ),
    _refused("files ordered otherwise than by key", "pk-clustering-override", "write compact"),
    _refused("versions ordered by snapshot", "sequence.snapshot-ordering", "write compact"),
    _refused("deletion vectors that are merged by the reader", "deletion-vectors.merge-on-read", "write compact"),
    _refused("columns in files of their own", "data-evolution.enabled", "write"),
    _refused("files outside the table folder", "data-file.external-paths", "write compact"),
    _refused("rows whose bucket is found later", "postpone.batch-write-fixed-bucket", "write"),
    _refused("numbers of rows that begin elsewhere", "write.sequence-number-init-mode", "write"),
    _refused("indexes of dynamic buckets in another folder", "index-file-in-data-file-dir", "write"),
    _no_effect(
        "columns of a type that is refused",
        "blob-* blob.* variant.* parquet.variant.shreddingSchema vector.* video-frame-field mosaic.*",
    ),
    _no_effect(
        "part of an option that is refused, or nothing without it",
        "data-evolution.* data-file.external-paths.* postpone.* fields.*.map.* incremental-between-* upsert-key "
        "write.data-evolution.*",
    ),
    _no_effect(
        "an index only speeds up a scan; what a commit of ours changes is taken out of it",
        "global-index.* full-text-index.* scalar-index.* vector-index.* vector-search.* sorted-index.* btree-index.* "
        "bitmap-index.* multivalue-index.* lumina.* pk-*.index.columns file-index.*",
    ),
    _no_effect(
        "Flink's sources, sinks and look-up joins",
        "sink.* lookup.* source.* scan.infer-parallelism* scan.parallelism scan.partitions scan.bounded* "
        "scan.watermark.* scan.remove-normalize log.scan.remove-normalize scan.split-enumerator.* "
        "scan.max-splits-per-task scan.dedicated-split-generation scan.max-snapshot.count "
        "continuous.discovery-interval streaming-read.* streaming.read.* unaware-bucket.* precommit-compact "
        "changelog.precommit-compact* local-merge-buffer-size end-input.* log.* cross-partition-upsert.* "
        "filesystem.job-level-settings.enabled materialized-table.* consumer.mode snapshot.watermark-idle-timeout "
        "commit.force-create-snapshot read.shuffle-bucket-with-partition read.parallelism auto-create "
        "local-kv-db.* rocksdb.*",
    ),
    _no_effect(
        "the sessions of Paimon's Spark connector",
        "read.allow.fullScan read.changelog read.stream.* read.native.enabled scan.native-plan.enabled "
        "commit.native.enabled write.native.enabled requiredSparkConfsCheck.enabled write.merge-schema* "
        "write.hive-style-dynamic-partition.enabled write.use-v2-write source.split.* zorder.* "
        "sort-compaction.* compaction.force-rewrite-all-files",
    ),
    _no_effect(
        "memory, threads and caches of a Java process",
        "async-file-write file-reader-async-threshold file-operation.thread-num delete-file.thread-num "
        "scan.manifest.parallelism cache-page-size page-size local-cache.* local-sort.* sort-engine sort-spill-* "
        "spill-compression* write-buffer-* write-max-writers-to-spill write.batch-memory write.batch-size "
        "orc.write.batch-size read.batch-size",
    ),
    _no_effect(
        "formats of tables that hold no Paimon metadata",
        "csv.* json.* text.* format-table.* field-delimiter seq delimiter lineSep quote escape header nullvalue mode",
    ),
    _no_effect(
        "sizes and encodings: every reader takes files by what they say themselves",
        "file.block-size file.compression.per.level file.format.per.level file.suffix.include.compression "
        "changelog-file.compression changelog-file.format changelog-file.stats-mode metadata.stats-mode.per.level "
        "target-file-row-num parquet.* orc.* avro.* manifest.compression manifest.delete-file-drop-stats "
        "manifest.full-compaction-threshold-size manifest.merge-optimize.enabled manifest.sidecar.enabled "
        "manifest-sort.* deletion-vectors.bitmap64 deletion-vector.index-file.target-size",
    ),
    _no_effect(
        "when Paimon's writers compact by themselves; here the caller decides",
        "compaction.* lookup-compact lookup-compact.max-interval num-sorted-run.stop-trigger commit.force-compact "
        "changelog-producer.compaction-interval overwrite-upgrade clustering.* visibility-callback.*",
    ),
    _no_effect(
        "when Paimon's committers retry or expire by themselves; expiry has jobs of its own here",
        "commit.* snapshot.clean-empty-directories snapshot.expire.* snapshot.ignore-empty-commit "
        "partition.expiration-batch-size partition.expiration-check-interval consumer.changelog-only "
        "metastore.tag-to-partition.preview scan.plan-auto-tag-for-read.time-retained",
    ),
    _no_effect(
        "Java classes and marks that Paimon's committers call or leave",
        "commit.callback* commit.custom-listeners tag.callback* partition.mark-done* partition.end-input-to-done "
        "partition.idle-time-to-done partition.idle-time-to-report-statistic partition.time-interval "
        "partition.sink-strategy commit.user-prefix",
    ),
    _no_effect(
        "Iceberg's copy of the metadata: Paimon brings it up to date with its next commit", "metadata.iceberg.*"
    ),
    _no_effect(
        "how the columns of a table are given or changed",
        "add-column-before-partition alter-column-null-to-not-null.disabled disable-explicit-type-casting "
        "legacy-timestamp-mapping.enabled path",
    ),
    _no_effect(
        "what a reader does with damaged, old or many files; here a damaged file is an error",
        "scan.ignore-corrupt-files scan.ignore-lost-files scan.fallback-branch.read-fail-fast "
        "scan.plan-sort-partition batch-scan-mode stream-scan-mode chain-table.split.key-range-enabled "
        "chain-table.streaming.merge-snapshot key-value.sequence_number.enabled",
    ),
    _no_effect("what an overwrite replaces: here the statement or the caller says it", "dynamic-partition-overwrite"),
    _no_effect(
        "changes that a DELETE tells streaming readers: here it tells them always", "delete.force-produce-changelog"
    ),
    _no_effect("a check by Paimon's writers of new partition values", "partition.timestamp-format.strict"),
    _no_effect(
        "for a file system or an engine, which gets it as it is",
        "flink.* fs.* hadoop.* hive.* kafka.* oss.* s3.* spark.* comment connector location owner provider",
    ),
)


def _exact(groups: Iterable[OptionGroup]) -> dict[str, OptionGroup]:
    return {name: group for group in groups for name in group.names if "*" not in name}


_EXACT = _exact(GROUPS)
_PATTERNS = sorted(
    ((name, group) for group in GROUPS for name in group.names if "*" in name), key=lambda pair: -len(pair[0])
)
