"""Device/wire.h mirrored: bytes <-> record arrays, and the encodings of a stack inside evidence."""
