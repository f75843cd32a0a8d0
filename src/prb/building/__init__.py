"""People's records in, verified pairs out: rubric, negative rubric, answers, gates."""
