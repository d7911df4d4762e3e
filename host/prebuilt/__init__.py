"""Device binaries by ABI, put here by ndk-build and shipped in the wheel."""
