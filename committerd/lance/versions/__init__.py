"""The parts of a version (fragments, indices, row ids, schema, base paths, MemWAL), and the draft of the next one."""
