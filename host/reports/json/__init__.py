"""Report.json: types, writing, reading back; diff.json, fleet.json."""
