from tests.oracles.fixtures import java_oracle

__all__ = ["java_oracle"]
