"""A stack captured into a folder: registers, memory, maps and files in, frames out."""
