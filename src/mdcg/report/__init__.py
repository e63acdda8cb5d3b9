"""The report: tables and pages. It knows how results look, not how they were made."""
