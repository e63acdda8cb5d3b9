"""Recipes: what a person asks for, and the runs that it means."""
