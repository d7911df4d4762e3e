"""What acquires and what releases, as data: the schema and the shipped sets (*.toml)."""
