"""Where tables lie: the port, `open`, and a module or more for each kind of store."""
