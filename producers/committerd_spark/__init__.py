"""Write Spark DataFrames and streams into a Lance table through committerd."""
