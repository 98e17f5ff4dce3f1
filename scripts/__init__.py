"""Programs for developers of committerd: set up, test, measure, generate. None of them is installed."""
