"""Survivors -> Profile: sites, sums, growth, peak and churn, reachability, what is missing."""
