"""Memory of a stopped process. In: a pid and addresses of blocks. Out: the words that may refer to a block."""
