"""Execution: from specs to finished runs, here or on a cluster."""
