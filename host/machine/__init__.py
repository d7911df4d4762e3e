"""A machine, this one or a device. In: requests of the Target protocol. Out: files, /proc texts, processes, channels to an agent."""
