"""Rules of functions that acquire and release. In: TOML files, shipped sets (*.toml) or the user's. Out: families of rules."""
