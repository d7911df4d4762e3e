"""Evidence -> unwound stacks: samples, address spaces, modules, stacks as columns."""
