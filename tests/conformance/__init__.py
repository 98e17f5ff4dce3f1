"""What pylance itself did with staged transactions, and whether we do the same."""
