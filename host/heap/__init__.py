"""The ledger: what a stream has told, which evidence speaks for which block, what survives."""
