"""Pair families and a target's loaded files in; the functions that they mean, and the agent's lines for each route, out."""
