"""Conditions, the resumable runner, and everything made from its outcomes."""
