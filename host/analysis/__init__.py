"""Survivors → Profile. In: a capture and its survivors. Out: sites, sums, growth, peak, leaks, and what is missing."""
