"""Datasets with a name of their own, one file each."""
