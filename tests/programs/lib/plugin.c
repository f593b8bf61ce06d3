/* A library that programs load and unload. */

__attribute__((noipa)) long plugin_work(long value) { return value * 4 + 1; }
