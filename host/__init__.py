"""The host driver of memleak-android: commands, tracers, analysis and reports, in rooms with floors (docs/architecture.md)."""
