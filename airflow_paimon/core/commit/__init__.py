"""The committer, which publishes drafts as snapshots by compare-and-swap, and the idempotency of retries."""
