"""Pure statistics: arrays in, numbers out. No files, no torch."""
