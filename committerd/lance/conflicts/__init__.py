"""May our transaction pass one that was committed since its read version? `grid` has a cell for each pair."""
