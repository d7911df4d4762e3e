"""The result as plain data: Profile, its sites and their ids. Profiles are compared and judged against limits here."""
