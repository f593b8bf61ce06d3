"""x86-64: decoding, relocation, detour buffers."""
