"""A device behind adb. In: a device's serial and requests of the Target protocol. Out: streams, files, processes and apps of it."""
