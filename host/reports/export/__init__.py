"""Other tools' formats: pprof, perfetto, heaptrack, speedscope, folded, SARIF, JUnit, GitHub."""
