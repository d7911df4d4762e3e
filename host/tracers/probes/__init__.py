"""Where a uprobe goes: which functions are an allocator, where a probe costs least, what the CPU allows."""
