"""What a reward model does when it is used: best-of-N sampling and PPO, graded against the rubric."""
