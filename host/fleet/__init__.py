"""Many recordings, one answer: lists sources, processes each recording in a worker, merges sites by id into a FleetProfile."""
