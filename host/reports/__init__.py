"""Writes results: a Profile, Comparison or FleetProfile comes in, text, JSON, a web page or another tool's format goes out."""
