"""Personalized reward models: heads on frozen features (`run.train`) or whole models (`full.finetune`)."""
