"""Rows in, pairs out: load, validate, convert, retrieve; named datasets and the embedded benchmark."""
