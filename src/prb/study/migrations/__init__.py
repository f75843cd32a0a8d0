"""Numbered steps of the schema; `prb study` takes them when it opens a database."""
