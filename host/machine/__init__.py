"""What is asked of a machine, be it this one or a device: the Target protocol, /proc texts, device binaries."""
