"""The documentation site: docs/ and the notebooks as pages, and a reference that is generated from the code."""
