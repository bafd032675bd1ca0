"""The Avro codec of metadata files: container files, and record readers and writers generated for a schema."""
