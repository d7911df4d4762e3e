"""Text reports: of a Profile, Comparison, FleetProfile or samples, and the interval print."""
