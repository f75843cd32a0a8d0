"""Planners, one file each."""
