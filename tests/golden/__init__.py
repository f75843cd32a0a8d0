"""Frozen behavior of the command line: what every verb writes and prints on small inputs.

`expected/*.json` hold the results, `python -m tests.golden.write` rewrites them, `tests/test_golden.py` compares.
Everything goes through `prb.cli.run`, files on disk and names exported by `prb`, so that modules can move freely.
"""
