"""Runs: what is kept of each, and how they are found again."""
