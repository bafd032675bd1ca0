"""The one reader of SQL text outside Spark: tokens, conditions, statements on rows, CALL and SHOW."""
