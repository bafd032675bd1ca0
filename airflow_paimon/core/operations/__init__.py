"""Operations: gather (reads) -> plan (pure) -> execute (the one committer) -> receipt, one per job."""
