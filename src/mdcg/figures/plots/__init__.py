"""The figures, one file for each or for a kind of them."""
