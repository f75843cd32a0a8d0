"""Texts: tokens, personal data, near-duplicates, reading level, sentence encoders."""
