"""`make bench`: what measuring costs, in paired rounds against other tools and against the floor."""
