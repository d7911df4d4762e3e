"""JSON by one schema: report.json written and read back, diff.json and fleet.json written."""
