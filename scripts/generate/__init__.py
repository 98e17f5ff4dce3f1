"""Programs that write files which are checked in: from the code, from `protos/`, or from a package registry."""
