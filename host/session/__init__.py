"""One running measurement, from the first block to the last snapshot: timers, marks, scenario, live view."""
