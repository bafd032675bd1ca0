from tests.oracles.fixtures import connector_oracle, flink, flink120, golden, java_oracle, pypaimon_oracle, rust_oracle

__all__ = ["connector_oracle", "flink", "flink120", "golden", "java_oracle", "pypaimon_oracle", "rust_oracle"]
