"""Just-in-time compilation of layers: cache keys, the store on disk, and the compiler of `CompiledLayer`."""
