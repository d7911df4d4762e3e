"""Tracers on a device. In: an app, process or command. Out: an agent session by the best route, and pulled files."""
