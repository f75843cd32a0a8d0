"""Named datasets: the embedded benchmark, simulated users, public formats."""
