"""The reward server: concurrent requests become batches of one model. `prb serve --model SPEC`."""
