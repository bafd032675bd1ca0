import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.Snapshot;
import org.apache.paimon.append.AppendCompactCoordinator;
import org.apache.paimon.append.AppendCompactTask;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.crosspartition.GlobalIndexAssigner;
import org.apache.paimon.crosspartition.IndexBootstrap;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.FileIO;
import org.apache.paimon.fs.FileIOLoader;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.SeekableInputStream;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.index.BucketAssigner;
import org.apache.paimon.index.HashBucketAssigner;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.manifest.BucketEntry;
import org.apache.paimon.manifest.ManifestCommittable;
import org.apache.paimon.operation.BaseAppendFileStoreWrite;
import org.apache.paimon.operation.CleanOrphanFilesResult;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.partition.actions.PartitionMarkDoneAction;
import org.apache.paimon.options.ConfigOption;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.schema.TableSchema;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.ExpireChangelogImpl;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.SpecialFields;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.RowPartitionKeyExtractor;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.table.source.StreamTableScan;
import org.apache.paimon.tag.Tag;
import org.apache.paimon.tag.TagTimeExpire;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.MultisetType;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.InternalRowPartitionComputer;
import org.apache.paimon.utils.JsonSerdeUtil;
import org.apache.paimon.utils.Pair;
import org.apache.paimon.utils.PartitionPathUtils;

/**
 * Oracle O3: Paimon's own Java engine behind JSON lines. One request a line on stdin, one answer a line on stdout; ends
 * when stdin ends. Everything that a library prints goes to stderr. drivers.py (class JavaOracle) is the other side and
 * documents the requests.
 */
public final class PaimonOracle {

    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    /** Catalogs that are kept between requests, with Paimon's caches on, as an engine's session keeps them. */
    private final Map<String, Catalog> sessions = new HashMap<>();

    private final Map<String, StreamWriter> writers = new HashMap<>();
    private final Map<String, StreamReader> readers = new HashMap<>();
    private final IOManager ioManager;

    private PaimonOracle(String scratch) {
        ioManager = IOManager.create(scratch);
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        PaimonOracle oracle = new PaimonOracle(Files.createTempDirectory("paimon-oracle").toString());
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode answer;
            try {
                answer = oracle.handle(MAPPER.readTree(line));
                answer.put("ok", true);
            } catch (Throwable error) {
                answer = failure(error);
            }
            answers.println(MAPPER.writeValueAsString(answer));
        }
        oracle.ioManager.close();
        System.exit(0);
    }

    private static ObjectNode failure(Throwable error) {
        ObjectNode answer = NODES.objectNode();
        List<String> messages = new ArrayList<>();
        for (Throwable cause = error; cause != null && messages.size() < 10; cause = cause.getCause()) {
            messages.add(cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        error.printStackTrace();
        answer.put("ok", false);
        answer.put("class", error.getClass().getName());
        answer.put("error", String.join(" <- ", messages));
        return answer;
    }

    private ObjectNode handle(JsonNode request) throws Exception {
        String op = request.path("op").asText();
        switch (op) {
            case "ping":
                return NODES.objectNode();
            case "options":
                return options(request);
            case "create_table":
                return createTable(request);
            case "alter_table":
                return alterTable(request);
            case "drop_table":
                return withCatalog(request, catalog -> {
                    catalog.dropTable(identifier(request, false), true);
                    return NODES.objectNode();
                });
            case "schema":
                return onTable(request, table -> describe(table.schema()));
            case "write":
                return onTable(request, table -> write(table, request));
            case "truncate":
                return onTable(request, table -> truncate(table, request));
            case "read":
            case "count":
                return withCatalog(request, catalog -> read(catalog.getTable(identifier(request, true)), request));
            case "plan":
                return onTable(request, table -> plan(table, request));
            case "compact":
                return onTable(request, table -> compact(table, request));
            case "list":
                return onTable(request, PaimonOracle::list);
            case "open_session":
                sessions.put(text(request, "session"), catalog(request, true));
                return NODES.objectNode();
            case "close_session":
                sessions.remove(text(request, "session")).close();
                return NODES.objectNode();
            default:
                return op.contains("stream")
                        ? streaming(op, request)
                        : onTable(request, table -> maintain(op, table, request));
        }
    }

    private ObjectNode streaming(String op, JsonNode request) throws Exception {
        switch (op) {
            case "open_stream_writer":
                return onTable(request, table -> {
                    StreamWriter writer = new StreamWriter(table, text(request, "commit_user"));
                    writers.put(text(request, "writer"), writer);
                    return NODES.objectNode();
                });
            case "stream_write":
                return writer(request).write(request);
            case "stream_prepare":
                return writer(request).prepare();
            case "stream_commit":
                return writer(request).commit(request);
            case "close_stream_writer":
                writers.remove(text(request, "writer")).close();
                return NODES.objectNode();
            case "open_stream_reader":
                return onTable(request, table -> {
                    readers.put(text(request, "reader"), new StreamReader(table));
                    return NODES.objectNode();
                });
            case "stream_read":
                return readers.get(text(request, "reader")).read();
            case "close_stream_reader":
                readers.remove(text(request, "reader"));
                return NODES.objectNode();
            default:
                throw new IllegalArgumentException("unknown op " + op);
        }
    }

    private StreamWriter writer(JsonNode request) {
        StreamWriter writer = writers.get(text(request, "writer"));
        if (writer == null) {
            throw new IllegalArgumentException("no open stream writer " + text(request, "writer"));
        }
        return writer;
    }

    // ---- catalogs and tables

    private interface OnCatalog {
        ObjectNode apply(Catalog catalog) throws Exception;
    }

    private interface OnTable {
        ObjectNode apply(FileStoreTable table) throws Exception;
    }

    private static Catalog catalog(JsonNode request, boolean cached) {
        Options options = new Options();
        String warehouse = text(request, "warehouse");
        // With a scheme Paimon takes the file system that it is given.
        options.set("warehouse", warehouse.startsWith("/") ? "file:" + warehouse : warehouse);
        options.set("cache-enabled", Boolean.toString(cached));
        strings(request.path("catalog_options")).forEach(options::set);
        return CatalogFactory.createCatalog(CatalogContext.create(options, new BufferedFiles.Loader(), null));
    }

    /**
     * Paimon's local files with a buffer before each that is read: Avro looks for the end of a manifest's header byte by
     * byte, and these are thousands of system calls for each manifest, half of the time that this program takes.
     */
    private static final class BufferedFiles extends LocalFileIO {

        @Override
        public SeekableInputStream newInputStream(Path path) throws IOException {
            return new Input(toFile(path));
        }

        private static final class Loader implements FileIOLoader {

            @Override
            public String getScheme() {
                return "file";
            }

            @Override
            public FileIO load(Path path) {
                return new BufferedFiles();
            }
        }

        private static final class Input extends LocalSeekableInputStream {

            private final byte[] buffer = new byte[1 << 14];
            /** Where the buffer ends in the file, how much of it there is, and how much of that was read. */
            private long end;
            private int limit;
            private int used;

            private Input(File file) throws IOException {
                super(file);
            }

            @Override
            public long getPos() {
                return end - limit + used;
            }

            @Override
            public void seek(long desired) throws IOException {
                if (desired >= end - limit && desired <= end) {
                    used = (int) (desired - (end - limit));
                    return;
                }
                limit = 0;
                used = 0;
                super.seek(desired); // does nothing where getPos() is there already, so that comes after it
                end = desired;
            }

            @Override
            public int read() throws IOException {
                return fill() ? buffer[used++] & 0xff : -1;
            }

            @Override
            public int read(byte[] target, int offset, int length) throws IOException {
                if (length == 0) {
                    return 0;
                }
                if (!fill()) {
                    return -1;
                }
                int count = Math.min(length, limit - used);
                System.arraycopy(buffer, used, target, offset, count);
                used += count;
                return count;
            }

            private boolean fill() throws IOException {
                if (used < limit) {
                    return true;
                }
                used = 0;
                limit = Math.max(0, super.read(buffer, 0, buffer.length));
                end += limit;
                return limit > 0;
            }
        }
    }

    private ObjectNode withCatalog(JsonNode request, OnCatalog action) throws Exception {
        if (request.hasNonNull("session")) {
            return action.apply(sessions.get(text(request, "session")));
        }
        try (Catalog catalog = catalog(request, false)) {
            return action.apply(catalog);
        }
    }

    private ObjectNode onTable(JsonNode request, OnTable action) throws Exception {
        return withCatalog(request, catalog -> {
            FileStoreTable table = (FileStoreTable) catalog.getTable(identifier(request, true));
            Map<String, String> options = strings(request.path("options"));
            return action.apply(options.isEmpty() ? table : table.copy(options));
        });
    }

    /** `table` is `db.name`, where the name may carry `$branch_b` or a system table itself. */
    private static Identifier identifier(JsonNode request, boolean withBranch) {
        String[] name = text(request, "table").split("\\.", 2);
        boolean branch = withBranch && request.hasNonNull("branch") && !"main".equals(text(request, "branch"));
        return Identifier.create(name[0], branch ? name[1] + "$branch_" + text(request, "branch") : name[1]);
    }

    /** The options of tables, with the types of their values, and which of `tried`, [option, value], can be parsed. */
    private static ObjectNode options(JsonNode request) throws Exception {
        ObjectNode answer = NODES.objectNode();
        ObjectNode types = answer.putObject("types");
        Map<String, ConfigOption<?>> known = new HashMap<>();
        Method type = ConfigOption.class.getDeclaredMethod("getClazz");
        type.setAccessible(true);
        for (ConfigOption<?> option : CoreOptions.getOptions()) {
            Class<?> values = (Class<?>) type.invoke(option);
            known.put(option.key(), option);
            ArrayNode found = types.putArray(option.key()).add(values.getSimpleName());
            if (values.isEnum()) {
                for (Object value : values.getEnumConstants()) {
                    found.add(value.toString().toLowerCase());
                }
            }
        }
        ArrayNode parsed = answer.putArray("parsed");
        for (JsonNode pair : request.path("tried")) {
            if (!known.containsKey(pair.get(0).asText())) {
                parsed.addNull();
                continue;
            }
            Options given = Options.fromMap(Map.of(pair.get(0).asText(), pair.get(1).asText()));
            try {
                given.get(known.get(pair.get(0).asText()));
                parsed.add(true);
            } catch (IllegalArgumentException refused) {
                parsed.add(false);
            }
        }
        return answer;
    }

    private ObjectNode createTable(JsonNode request) throws Exception {
        Schema.Builder schema = Schema.newBuilder();
        AtomicInteger fieldId = new AtomicInteger(-1);
        for (JsonNode column : request.path("columns")) {
            fieldId.incrementAndGet();
            DataType type = DataTypeJsonParser.parseDataType(column.path("type"), fieldId);
            schema.column(text(column, "name"), type, column.path("comment").asText(null));
        }
        schema.partitionKeys(list(request.path("partition_keys")));
        schema.primaryKey(list(request.path("primary_keys")));
        schema.options(strings(request.path("options")));
        schema.comment(request.path("comment").asText(null));
        return withCatalog(request, catalog -> {
            Identifier identifier = identifier(request, false);
            catalog.createDatabase(identifier.getDatabaseName(), true);
            catalog.createTable(identifier, schema.build(), false);
            return describe(((FileStoreTable) catalog.getTable(identifier)).schema());
        });
    }

    private ObjectNode alterTable(JsonNode request) throws Exception {
        List<SchemaChange> changes = new ArrayList<>();
        for (JsonNode change : request.path("changes")) {
            changes.add(schemaChange(change));
        }
        return withCatalog(request, catalog -> {
            catalog.alterTable(identifier(request, true), changes, false);
            return describe(((FileStoreTable) catalog.getTable(identifier(request, true))).schema());
        });
    }

    private static SchemaChange schemaChange(JsonNode change) {
        String[] path = change.path("name").isArray()
                ? list(change.path("name")).toArray(new String[0])
                : new String[] {change.path("name").asText()};
        DataType type = change.has("type")
                ? DataTypeJsonParser.parseDataType(change.path("type"), new AtomicInteger(0))
                : null;
        String value = change.path("value").asText(null);
        switch (text(change, "change")) {
            case "set_option":
                return SchemaChange.setOption(path[0], value);
            case "remove_option":
                return SchemaChange.removeOption(path[0]);
            case "update_comment":
                return SchemaChange.updateComment(value);
            case "add_column":
                return SchemaChange.addColumn(path, type, change.path("comment").asText(null), move(path, change));
            case "rename_column":
                return SchemaChange.renameColumn(path, value);
            case "drop_column":
                return SchemaChange.dropColumn(path);
            case "update_column_type":
                return SchemaChange.updateColumnType(path, type, change.path("keep_nullability").asBoolean(true));
            case "update_column_nullability":
                return SchemaChange.updateColumnNullability(path, change.path("nullable").asBoolean());
            case "update_column_comment":
                return SchemaChange.updateColumnComment(path, value);
            case "update_column_position":
                return SchemaChange.updateColumnPosition(move(path, change));
            default:
                throw new IllegalArgumentException("unknown schema change " + change);
        }
    }

    private static SchemaChange.Move move(String[] path, JsonNode change) {
        String name = path[path.length - 1];
        if (change.hasNonNull("after")) {
            return SchemaChange.Move.after(name, text(change, "after"));
        }
        return change.path("first").asBoolean() ? SchemaChange.Move.first(name) : null;
    }

    private static ObjectNode describe(TableSchema schema) throws Exception {
        ObjectNode answer = NODES.objectNode();
        answer.set("schema", MAPPER.readTree(JsonSerdeUtil.toJson(schema)));
        return answer;
    }

    // ---- writing

    private ObjectNode write(FileStoreTable table, JsonNode request) throws Exception {
        String mode = request.path("mode").asText("append");
        String user = request.path("commit_user").asText(UUID.randomUUID().toString());
        boolean overwrite = !"append".equals(mode);
        FileStoreTable target = overwrite
                ? table.copy(Map.of("dynamic-partition-overwrite", Boolean.toString("dynamic_overwrite".equals(mode))))
                : table;
        try (TableWriteImpl<?> write =
                        target.newWrite(user).withIOManager(ioManager).withIgnorePreviousFiles(overwrite);
                TableCommitImpl commit = target.newCommit(user)) {
            RowWriter writer = rowWriter(target, write, user, request.path("assigners").asInt(1));
            for (GenericRow row : rows(request, target.rowType())) {
                writer.write(row);
            }
            if (overwrite) {
                commit.withOverwrite(strings(request.path("partition")));
            }
            commit.ignoreEmptyCommit(request.path("ignore_empty").asBoolean(!overwrite));
            long identifier = request.path("commit_identifier").asLong(Long.MAX_VALUE);
            commit.commit(committable(identifier, write.prepareCommit(true, identifier), request));
        }
        return latest(table);
    }

    private interface RowWriter {
        void write(GenericRow row) throws Exception;
    }

    /**
     * A primary-key table with bucket = -1 keeps in index files which bucket a key lives in. A job of parallelism n has
     * n `assigners` of new buckets, each with buckets of its own.
     */
    private RowWriter rowWriter(FileStoreTable table, TableWriteImpl<?> write, String user, int assigners)
            throws Exception {
        if (table.bucketMode() == BucketMode.KEY_DYNAMIC) {
            return keyDynamic(table, write);
        }
        if (table.bucketMode() != BucketMode.HASH_DYNAMIC) {
            return write::write;
        }
        CoreOptions options = table.coreOptions();
        List<HashBucketAssigner> all = new ArrayList<>();
        for (int i = 0; i < assigners; i++) {
            all.add(new HashBucketAssigner(
                    table.snapshotManager(), user, table.store().newIndexFileHandler(), assigners, assigners, i,
                    options.dynamicBucketTargetRowNum(), options.dynamicBucketMaxBuckets()));
        }
        RowPartitionKeyExtractor keys = new RowPartitionKeyExtractor(table.schema());
        return row -> {
            BinaryRow partition = keys.partition(row).copy();
            int hash = keys.trimmedPrimaryKey(row).hashCode();
            int assigner = BucketAssigner.computeAssigner(partition.hashCode(), hash, assigners, assigners);
            write.write(row, all.get(assigner).assign(partition, hash));
        };
    }

    /** A key that does not tell its partition: the writer reads the keys of the whole table first, and fails on two. */
    private RowWriter keyDynamic(FileStoreTable table, TableWriteImpl<?> write) throws Exception {
        GlobalIndexAssigner assigner = new GlobalIndexAssigner(table);
        assigner.open(0, ioManager, 1, 0, (row, bucket) -> {
            try {
                write.write(row, bucket);
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
        });
        new IndexBootstrap(table).bootstrap(1, 0, key -> {
            try {
                assigner.bootstrapKey(key);
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
        });
        assigner.endBoostrap(true);
        return assigner::processInput;
    }

    private static ManifestCommittable committable(long identifier, List<CommitMessage> messages, JsonNode request) {
        Long watermark = request.hasNonNull("watermark") ? request.path("watermark").asLong() : null;
        ManifestCommittable committable = new ManifestCommittable(identifier, watermark);
        messages.forEach(committable::addFileCommittable);
        strings(request.path("properties")).forEach(committable::addProperty);
        return committable;
    }

    /**
     * Rows are arrays in the order of `columns` (default: the table's); `kinds` runs beside them. A column that is not
     * named is null.
     */
    private static List<GenericRow> rows(JsonNode request, RowType type) {
        List<String> columns = request.has("columns") ? list(request.path("columns")) : type.getFieldNames();
        int[] positions = columns.stream().mapToInt(type::getFieldIndex).toArray();
        for (int i = 0; i < positions.length; i++) {
            if (positions[i] < 0) {
                throw new IllegalArgumentException("no column " + columns.get(i));
            }
        }
        List<GenericRow> rows = new ArrayList<>();
        JsonNode kinds = request.path("kinds");
        for (JsonNode values : request.path("rows")) {
            GenericRow row = new GenericRow(type.getFieldCount());
            for (int i = 0; i < positions.length; i++) {
                row.setField(positions[i], fromJson(values.get(i), type.getTypeAt(positions[i])));
            }
            if (kinds.has(rows.size())) {
                row.setRowKind(RowKind.fromShortString(kinds.get(rows.size()).asText()));
            }
            rows.add(row);
        }
        return rows;
    }

    private ObjectNode truncate(FileStoreTable table, JsonNode request) throws Exception {
        List<Map<String, String>> partitions = new ArrayList<>();
        request.path("partitions").forEach(partition -> partitions.add(strings(partition)));
        try (TableCommitImpl commit = table.newCommit(UUID.randomUUID().toString())) {
            if (partitions.isEmpty()) {
                commit.truncateTable();
            } else {
                commit.truncatePartitions(partitions);
            }
        }
        return latest(table);
    }

    private static ObjectNode latest(FileStoreTable table) throws Exception {
        ObjectNode answer = NODES.objectNode();
        Snapshot snapshot = table.snapshotManager().latestSnapshotFromFileSystem();
        answer.set("snapshot", snapshot == null ? NODES.nullNode() : MAPPER.readTree(snapshot.toJson()));
        return answer;
    }

    /** A writer and committer that stay open over other people's commits, as a streaming job's do. */
    private final class StreamWriter {
        private final FileStoreTable table;
        private final TableWriteImpl<?> write;
        private final TableCommitImpl commit;
        private final Map<Long, List<CommitMessage>> prepared = new TreeMap<>();
        private long nextIdentifier = 1;

        StreamWriter(FileStoreTable table, String user) {
            this.table = table;
            this.write = table.newWrite(user).withIOManager(ioManager);
            this.commit = table.newCommit(user);
        }

        ObjectNode write(JsonNode request) throws Exception {
            for (GenericRow row : rows(request, table.rowType())) {
                write.write(row);
            }
            return NODES.objectNode();
        }

        ObjectNode prepare() throws Exception {
            long identifier = nextIdentifier++;
            prepared.put(identifier, write.prepareCommit(true, identifier));
            return NODES.objectNode().put("commit_identifier", identifier);
        }

        ObjectNode commit(JsonNode request) throws Exception {
            if (prepared.isEmpty()) {
                prepare();
            }
            for (Map.Entry<Long, List<CommitMessage>> one : prepared.entrySet()) {
                commit.commit(committable(one.getKey(), one.getValue(), request));
            }
            prepared.clear();
            return latest(table);
        }

        void close() throws Exception {
            write.close();
            commit.close();
        }
    }

    // ---- reading

    private ObjectNode read(Table stored, JsonNode request) throws Exception {
        Map<String, String> options = strings(request.path("options"));
        if (request.hasNonNull("snapshot")) {
            options.put(CoreOptions.SCAN_SNAPSHOT_ID.key(), request.path("snapshot").asText());
        }
        if (request.hasNonNull("tag")) {
            options.put(CoreOptions.SCAN_TAG_NAME.key(), text(request, "tag"));
        }
        Table table = options.isEmpty() ? stored : stored.copy(options);
        ReadBuilder builder = readBuilder(table, request);
        List<Split> splits = builder.newScan().plan().splits();
        boolean countOnly = "count".equals(text(request, "op"));
        ObjectNode answer = countOnly ? NODES.objectNode() : columns(builder.readType());
        ArrayNode rows = answer.putArray("rows");
        ArrayNode kinds = answer.putArray("kinds");
        RowEncoder encoder = new RowEncoder(builder.readType());
        long[] count = {0};
        boolean filtered = !request.path("filters").isEmpty();
        var tableRead = filtered ? builder.newRead().executeFilter() : builder.newRead();
        try (RecordReader<InternalRow> reader = tableRead.withIOManager(ioManager).createReader(splits)) {
            reader.forEachRemaining(row -> {
                count[0]++;
                if (!countOnly) {
                    rows.add(encoder.encode(row));
                    kinds.add(row.getRowKind().shortString());
                }
            });
        }
        return answer.put("count", count[0]).put("splits", splits.size());
    }

    private static ReadBuilder readBuilder(Table table, JsonNode request) {
        ReadBuilder builder = table.newReadBuilder();
        RowType type = table.rowType();
        if (request.hasNonNull("partition")) {
            builder.withPartitionFilter(strings(request.path("partition")));
        }
        for (JsonNode filter : request.path("filters")) {
            builder.withFilter(predicate(type, filter));
        }
        if (request.hasNonNull("columns")) {
            builder.withProjection(list(request.path("columns")).stream().mapToInt(type::getFieldIndex).toArray());
        }
        return builder;
    }

    /** A filter is [column, operator, value]; the value of `in` is an array. */
    private static Predicate predicate(RowType type, JsonNode filter) {
        PredicateBuilder builder = new PredicateBuilder(type);
        int field = type.getFieldIndex(filter.get(0).asText());
        DataType fieldType = type.getTypeAt(field);
        String operator = filter.get(1).asText();
        if ("in".equals(operator)) {
            List<Object> values = new ArrayList<>();
            filter.get(2).forEach(value -> values.add(fromJson(value, fieldType)));
            return builder.in(field, values);
        }
        Object value = filter.has(2) ? fromJson(filter.get(2), fieldType) : null;
        switch (operator) {
            case "=":
                return builder.equal(field, value);
            case "!=":
                return builder.notEqual(field, value);
            case "<":
                return builder.lessThan(field, value);
            case "<=":
                return builder.lessOrEqual(field, value);
            case ">":
                return builder.greaterThan(field, value);
            case ">=":
                return builder.greaterOrEqual(field, value);
            case "is null":
                return builder.isNull(field);
            case "is not null":
                return builder.isNotNull(field);
            default:
                throw new IllegalArgumentException("unknown operator " + operator);
        }
    }

    private static ObjectNode columns(RowType type) throws Exception {
        ObjectNode answer = NODES.objectNode();
        ArrayNode columns = answer.putArray("columns");
        for (DataField field : type.getFields()) {
            columns.add(MAPPER.readTree(JsonSerdeUtil.toFlatJson(field)));
        }
        return answer;
    }

    private ObjectNode plan(FileStoreTable stored, JsonNode request) {
        FileStoreTable table = stored;
        if (request.hasNonNull("snapshot")) {
            table = table.copy(Map.of(CoreOptions.SCAN_SNAPSHOT_ID.key(), request.path("snapshot").asText()));
        }
        if (request.hasNonNull("tag")) {
            table = table.copy(Map.of(CoreOptions.SCAN_TAG_NAME.key(), text(request, "tag")));
        }
        InternalRowPartitionComputer partitions = table.store().partitionComputer();
        ObjectNode answer = NODES.objectNode();
        ArrayNode splits = answer.putArray("splits");
        for (Split split : readBuilder(table, request).newScan().plan().splits()) {
            ObjectNode one = splits.addObject();
            one.put("kind", split.getClass().getSimpleName()).put("rows", split.rowCount());
            if (split instanceof DataSplit) {
                DataSplit data = (DataSplit) split;
                one.put("snapshot", data.snapshotId()).put("bucket", data.bucket());
                one.put("total_buckets", data.totalBuckets()).put("raw_convertible", data.rawConvertible());
                one.set("partition", MAPPER.valueToTree(partitions.generatePartValues(data.partition())));
                ArrayNode files = one.putArray("files");
                data.dataFiles().forEach(file -> files.add(describe(file)));
            }
        }
        return answer;
    }

    private static ObjectNode describe(DataFileMeta file) {
        ObjectNode answer = NODES.objectNode();
        answer.put("name", file.fileName()).put("size", file.fileSize()).put("rows", file.rowCount());
        answer.put("level", file.level());
        answer.put("min_sequence_number", file.minSequenceNumber());
        answer.put("max_sequence_number", file.maxSequenceNumber());
        answer.put("schema_id", file.schemaId()).put("deleted_rows", file.deleteRowCount().orElse(null));
        answer.put("first_row_id", file.firstRowId());
        return answer;
    }

    /** A streaming scan that goes on where its last plan ended. */
    private final class StreamReader {
        private final ReadBuilder builder;
        private final StreamTableScan scan;

        StreamReader(FileStoreTable table) {
            builder = table.newReadBuilder();
            scan = builder.newStreamScan();
        }

        /** A plan may have no splits and still move on: the first one, and one over a snapshot that is skipped. */
        private List<Split> nextSplits() {
            Long before;
            List<Split> splits;
            do {
                before = scan.checkpoint();
                splits = scan.plan().splits();
            } while (splits.isEmpty() && !Objects.equals(before, scan.checkpoint()));
            return splits;
        }

        ObjectNode read() throws Exception {
            ObjectNode answer = columns(builder.readType());
            ArrayNode rows = answer.putArray("rows");
            ArrayNode kinds = answer.putArray("kinds");
            RowEncoder encoder = new RowEncoder(builder.readType());
            List<Split> splits = nextSplits();
            try (RecordReader<InternalRow> reader = builder.newRead().withIOManager(ioManager).createReader(splits)) {
                reader.forEachRemaining(row -> {
                    rows.add(encoder.encode(row));
                    kinds.add(row.getRowKind().shortString());
                });
            }
            answer.put("next_snapshot", scan.checkpoint()).put("watermark", scan.watermark());
            return answer;
        }
    }

    // ---- maintenance

    private ObjectNode maintain(String op, FileStoreTable table, JsonNode request) throws Exception {
        Duration retained = request.hasNonNull("time_retained_ms")
                ? Duration.ofMillis(request.path("time_retained_ms").asLong())
                : null;
        ObjectNode answer = NODES.objectNode();
        switch (op) {
            case "create_branch":
                if (request.hasNonNull("tag")) {
                    table.createBranch(text(request, "name"), text(request, "tag"));
                } else {
                    table.createBranch(text(request, "name"));
                }
                return answer;
            case "delete_branch":
                table.deleteBranch(text(request, "name"));
                return answer;
            case "rename_branch":
                table.renameBranch(text(request, "name"), text(request, "to"));
                return answer;
            case "fast_forward":
                table.fastForward(text(request, "name"));
                return answer;
            case "create_tag":
                if (request.hasNonNull("snapshot")) {
                    table.createTag(text(request, "name"), request.path("snapshot").asLong(), retained);
                } else {
                    table.createTag(text(request, "name"), retained);
                }
                return answer;
            case "delete_tag":
                table.deleteTag(text(request, "name"));
                return answer;
            case "rollback":
                if (request.hasNonNull("tag")) {
                    table.rollbackTo(text(request, "tag"));
                } else {
                    table.rollbackTo(request.path("snapshot").asLong());
                }
                return latest(table);
            default:
                return clean(op, table, request);
        }
    }

    private static ObjectNode clean(String op, FileStoreTable table, JsonNode request) throws Exception {
        ObjectNode answer = NODES.objectNode();
        switch (op) {
            case "expire_snapshots":
                return answer.put("expired", table.newExpireSnapshots().config(expireConfig(request)).expire());
            case "expire_changelogs": // Flink's procedure
                ExpireChangelogImpl changelogs = (ExpireChangelogImpl) table.newExpireChangelog();
                if (request.path("delete_all").asBoolean()) {
                    changelogs.expireAll();
                    return answer;
                }
                return answer.put("expired", changelogs.config(changelogConfig(request)).expire());
            case "compact_manifest":
                try (BatchTableCommit commit = table.newBatchWriteBuilder().newCommit()) {
                    commit.compactManifests();
                }
                return latest(table);
            case "expire_tags":
                LocalDateTime olderThan = LocalDateTime.ofInstant(
                        Instant.ofEpochMilli(request.path("older_than_ms").asLong()), java.time.ZoneId.systemDefault());
                ArrayNode expired = answer.putArray("expired");
                TagTimeExpire expire = table.newTagAutoManager().getTagTimeExpire();
                expire.withOlderThanTime(olderThan).expire().forEach(expired::add);
                return answer;
            case "mark_partition_done":
                LinkedHashMap<String, String> spec = new LinkedHashMap<>();
                request.path("partition").fields().forEachRemaining(e -> spec.put(e.getKey(), e.getValue().asText()));
                for (PartitionMarkDoneAction action : PartitionMarkDoneAction.createActions(
                        PaimonOracle.class.getClassLoader(), table, table.coreOptions())) {
                    for (String path : PartitionPathUtils.generatePartitionPaths(
                            List.of(spec), table.store().partitionType())) {
                        action.markDone(path);
                    }
                }
                return answer;
            case "automatic_tags":
                table.newTagAutoManager().run();
                return answer;
            case "remove_orphans":
                CleanOrphanFilesResult result = new LocalOrphanFilesClean(
                                table, request.path("older_than_ms").asLong(), request.path("dry_run").asBoolean())
                        .clean();
                answer.put("deleted", result.getDeletedFileCount());
                ArrayNode paths = answer.putArray("paths");
                if (result.getDeletedFilesPath() != null) {
                    result.getDeletedFilesPath().forEach(path -> paths.add(path.toString()));
                }
                return answer;
            default:
                throw new IllegalArgumentException("unknown op " + op);
        }
    }

    private static ExpireConfig expireConfig(JsonNode request) {
        ExpireConfig.Builder config = ExpireConfig.builder();
        if (request.hasNonNull("retain_max")) {
            config.snapshotRetainMax(request.path("retain_max").asInt());
        }
        if (request.hasNonNull("retain_min")) {
            config.snapshotRetainMin(request.path("retain_min").asInt());
        }
        if (request.hasNonNull("older_than_ms")) {
            long age = Math.max(0, System.currentTimeMillis() - request.path("older_than_ms").asLong());
            config.snapshotTimeRetain(Duration.ofMillis(age));
        }
        if (request.hasNonNull("max_deletes")) {
            config.snapshotMaxDeletes(request.path("max_deletes").asInt());
        }
        return config.build();
    }

    private static ExpireConfig changelogConfig(JsonNode request) {
        ExpireConfig.Builder config = ExpireConfig.builder();
        if (request.hasNonNull("retain_max")) {
            config.changelogRetainMax(request.path("retain_max").asInt());
        }
        if (request.hasNonNull("retain_min")) {
            config.changelogRetainMin(request.path("retain_min").asInt());
        }
        if (request.hasNonNull("older_than_ms")) {
            long age = Math.max(0, System.currentTimeMillis() - request.path("older_than_ms").asLong());
            config.changelogTimeRetain(Duration.ofMillis(age));
        }
        if (request.hasNonNull("max_deletes")) {
            config.changelogMaxDeletes(request.path("max_deletes").asInt());
        }
        return config.build();
    }

    private ObjectNode compact(FileStoreTable stored, JsonNode request) throws Exception {
        FileStoreTable table = stored.copy(Map.of(CoreOptions.WRITE_ONLY.key(), "false"));
        String user = UUID.randomUUID().toString();
        List<CommitMessage> messages = new ArrayList<>();
        try (TableWriteImpl<?> write = table.newWrite(user).withIOManager(ioManager);
                TableCommitImpl commit = table.newCommit(user)) {
            if (table.bucketMode() == BucketMode.BUCKET_UNAWARE) {
                BaseAppendFileStoreWrite rewriter = (BaseAppendFileStoreWrite) (Object) table.store().newWrite(user);
                if (table.coreOptions().rowTrackingEnabled()) { // as sys.compact does
                    rewriter.withWriteType(SpecialFields.rowTypeWithRowTracking(table.rowType()));
                }
                AppendCompactCoordinator coordinator = new AppendCompactCoordinator(table, false);
                for (AppendCompactTask task : coordinator.run()) {
                    messages.add(task.doCompact(table, rewriter));
                }
                rewriter.close();
            } else {
                Set<Pair<BinaryRow, Integer>> buckets = new LinkedHashSet<>();
                for (BucketEntry entry : table.newSnapshotReader().bucketEntries()) {
                    buckets.add(Pair.of(entry.partition().copy(), entry.bucket()));
                }
                for (Pair<BinaryRow, Integer> one : buckets) {
                    write.compact(one.getLeft(), one.getRight(), request.path("full").asBoolean(true));
                }
                messages.addAll(write.prepareCommit(true, Long.MAX_VALUE));
            }
            commit.commit(Long.MAX_VALUE, messages);
        }
        return latest(table).put("messages", messages.size());
    }

    private static ObjectNode list(FileStoreTable table) throws Exception {
        ObjectNode answer = NODES.objectNode();
        ArrayNode snapshots = answer.putArray("snapshots");
        for (Snapshot snapshot : table.snapshotManager().safelyGetAllSnapshots().stream()
                .sorted((left, right) -> Long.compare(left.id(), right.id()))
                .collect(Collectors.toList())) {
            snapshots.add(MAPPER.readTree(snapshot.toJson()));
        }
        ArrayNode tags = answer.putArray("tags");
        for (Pair<Tag, String> tag : table.tagManager().tagObjects()) {
            ObjectNode one = tags.addObject().put("name", tag.getRight()).put("snapshot", tag.getLeft().id());
            one.put("create_time", String.valueOf(tag.getLeft().getTagCreateTime()));
            Duration retained = tag.getLeft().getTagTimeRetained();
            one.put("time_retained", retained == null ? null : retained.toString());
        }
        ArrayNode branches = answer.putArray("branches");
        table.branchManager().branches().forEach(branches::add);
        ArrayNode schemas = answer.putArray("schemas");
        for (TableSchema schema : table.schemaManager().listAll()) {
            schemas.add(MAPPER.readTree(JsonSerdeUtil.toJson(schema)));
        }
        return answer;
    }

    // ---- values

    private static Object fromJson(JsonNode value, DataType type) {
        if (value == null || value.isNull()) {
            return null;
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return value.booleanValue();
            case TINYINT:
                return (byte) value.intValue();
            case SMALLINT:
                return (short) value.intValue();
            case INTEGER:
                return value.intValue();
            case BIGINT:
                return value.longValue();
            case FLOAT:
                return Float.parseFloat(value.asText());
            case DOUBLE:
                return Double.parseDouble(value.asText());
            case DECIMAL:
                DecimalType decimal = (DecimalType) type;
                BigDecimal number = new BigDecimal(value.asText());
                return Decimal.fromBigDecimal(number, decimal.getPrecision(), decimal.getScale());
            case CHAR:
            case VARCHAR:
                return BinaryString.fromString(value.asText());
            case BINARY:
            case VARBINARY:
                return Base64.getDecoder().decode(value.asText());
            case DATE:
                return (int) LocalDate.parse(value.asText()).toEpochDay();
            case TIME_WITHOUT_TIME_ZONE:
                return (int) (LocalTime.parse(value.asText()).toNanoOfDay() / 1_000_000);
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return Timestamp.fromLocalDateTime(LocalDateTime.parse(value.asText()));
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                DateTimeFormatter format = DateTimeFormatter.ISO_OFFSET_DATE_TIME;
                return Timestamp.fromInstant(format.parse(value.asText(), Instant::from));
            default:
                return nestedFromJson(value, type);
        }
    }

    private static Object nestedFromJson(JsonNode value, DataType type) {
        switch (type.getTypeRoot()) {
            case ARRAY:
                List<Object> elements = new ArrayList<>();
                value.forEach(element -> elements.add(fromJson(element, ((ArrayType) type).getElementType())));
                return new GenericArray(elements.toArray());
            case MAP:
                Map<Object, Object> entries = new LinkedHashMap<>();
                MapType map = (MapType) type;
                for (JsonNode entry : value) {
                    entries.put(fromJson(entry.get(0), map.getKeyType()), fromJson(entry.get(1), map.getValueType()));
                }
                return new GenericMap(entries);
            case ROW:
                RowType row = (RowType) type;
                GenericRow nested = new GenericRow(row.getFieldCount());
                for (int i = 0; i < row.getFieldCount(); i++) {
                    nested.setField(i, fromJson(value.get(i), row.getTypeAt(i)));
                }
                return nested;
            default:
                throw new IllegalArgumentException("no values of type " + type);
        }
    }

    private static final class RowEncoder {
        private final RowType type;
        private final InternalRow.FieldGetter[] getters;

        RowEncoder(RowType type) {
            this.type = type;
            this.getters = new InternalRow.FieldGetter[type.getFieldCount()];
            for (int i = 0; i < getters.length; i++) {
                getters[i] = InternalRow.createFieldGetter(type.getTypeAt(i), i);
            }
        }

        ArrayNode encode(InternalRow row) {
            ArrayNode values = NODES.arrayNode();
            for (int i = 0; i < getters.length; i++) {
                values.add(toJson(getters[i].getFieldOrNull(row), type.getTypeAt(i)));
            }
            return values;
        }
    }

    private static JsonNode toJson(Object value, DataType type) {
        if (value == null) {
            return NODES.nullNode();
        }
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return NODES.booleanNode((Boolean) value);
            case TINYINT:
            case SMALLINT:
            case INTEGER:
            case BIGINT:
                return NODES.numberNode(((Number) value).longValue());
            case FLOAT:
            case DOUBLE:
                // Widening a float is exact, so the reader gets the very same bits back. Only finite numbers are JSON.
                double number = ((Number) value).doubleValue();
                return Double.isFinite(number) ? NODES.numberNode(number) : NODES.textNode(Double.toString(number));
            case DECIMAL:
                return NODES.textNode(((Decimal) value).toBigDecimal().toPlainString());
            case BINARY:
            case VARBINARY:
                return NODES.textNode(Base64.getEncoder().encodeToString((byte[]) value));
            case DATE:
                return NODES.textNode(LocalDate.ofEpochDay((Integer) value).toString());
            case TIME_WITHOUT_TIME_ZONE:
                return NODES.textNode(LocalTime.ofNanoOfDay((Integer) value * 1_000_000L).toString());
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return NODES.textNode(((Timestamp) value).toLocalDateTime().toString());
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return NODES.textNode(((Timestamp) value).toInstant().atOffset(ZoneOffset.UTC).toString());
            default:
                return nestedToJson(value, type);
        }
    }

    private static JsonNode nestedToJson(Object value, DataType type) {
        ArrayNode answer = NODES.arrayNode();
        switch (type.getTypeRoot()) {
            case ARRAY:
                elements((InternalArray) value, ((ArrayType) type).getElementType()).forEach(answer::add);
                return answer;
            case MAP:
            case MULTISET:
                boolean isMap = type instanceof MapType;
                DataType keyType = isMap ? ((MapType) type).getKeyType() : ((MultisetType) type).getElementType();
                DataType valueType = isMap ? ((MapType) type).getValueType() : DataTypes.INT();
                List<JsonNode> keys = elements(((InternalMap) value).keyArray(), keyType);
                List<JsonNode> values = elements(((InternalMap) value).valueArray(), valueType);
                for (int i = 0; i < keys.size(); i++) {
                    answer.addArray().add(keys.get(i)).add(values.get(i));
                }
                return answer;
            case ROW:
                return new RowEncoder((RowType) type).encode((InternalRow) value);
            default:
                return NODES.textNode(value.toString());
        }
    }

    private static List<JsonNode> elements(InternalArray array, DataType type) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        List<JsonNode> answer = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            answer.add(toJson(getter.getElementOrNull(array, i), type));
        }
        return answer;
    }

    // ---- requests

    private static String text(JsonNode node, String field) {
        if (!node.hasNonNull(field)) {
            throw new IllegalArgumentException("the request lacks " + field);
        }
        return node.path(field).asText();
    }

    private static List<String> list(JsonNode node) {
        List<String> answer = new ArrayList<>();
        node.forEach(value -> answer.add(value.asText()));
        return answer;
    }

    private static Map<String, String> strings(JsonNode node) {
        Map<String, String> answer = new LinkedHashMap<>();
        node.fields().forEachRemaining(field -> answer.put(field.getKey(), field.getValue().asText()));
        return answer;
    }
}
