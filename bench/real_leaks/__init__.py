"""Leaks that users reported of released packages: the faulty and the mended version of each, installed and run, and what we and the peers say."""
