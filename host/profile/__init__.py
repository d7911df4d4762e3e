"""The result as plain data: Profile, sites and their identity, comparison, verdict."""
