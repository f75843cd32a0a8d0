"""Conditions, the resumable runner, and the summary made from its outcomes."""
