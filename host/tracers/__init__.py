"""Tracers in rooms: the start on this machine or a device, probes, hooks, pairs, and the talk with the agent."""
