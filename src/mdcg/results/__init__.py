"""Results: finished runs gathered into settings, with statistics, beside the paper's numbers."""
