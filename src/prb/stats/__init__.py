"""Pure statistics: arrays in, named estimates out. No files, no torch, no models."""
