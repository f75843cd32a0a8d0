"""Personalization-aware reward models, trained on frozen features (`run.train`) or whole (`full.finetune`)."""
