"""Tables and pages. Knows how results look, not how they were made."""
