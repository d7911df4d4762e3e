"""The compiled engine: call frame instructions → rows, samples and step plans → frames. Python does the same, slower."""
