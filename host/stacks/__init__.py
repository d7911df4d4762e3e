"""Evidence records → unwound stacks. In: references, mappings, module files. Out: a table of traces and frames."""
