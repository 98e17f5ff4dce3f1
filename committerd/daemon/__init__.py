"""The process: signals, probes, metrics over HTTP, threads for heavy work, log lines."""
