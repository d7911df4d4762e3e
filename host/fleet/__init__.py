"""Many recordings, one answer: listed where they lie, worked on one by one, merged by what their sites are."""
