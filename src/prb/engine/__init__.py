"""Torch scoring that never computes the same token twice: shared prefixes, batches by token budget."""
