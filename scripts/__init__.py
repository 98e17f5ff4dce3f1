"""Programs for people who work on committerd: set up, test, measure, generate. None of them is installed."""
