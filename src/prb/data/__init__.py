"""Rows in, pairs out: load, validate, convert, retrieve; the embedded benchmark."""
