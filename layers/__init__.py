"""Bundled layer repositories in source form, one folder each."""
