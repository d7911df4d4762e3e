"""For people: the report, its parts, diff, fleet, interval print."""
