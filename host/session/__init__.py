"""A running measurement. In: a tracer and typed options. Out: snapshots, marks, a recording and a Profile; observers take part."""
