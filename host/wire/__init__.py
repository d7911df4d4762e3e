"""The wire format of device/wire.h: payload bytes in, typed records out, and back."""
