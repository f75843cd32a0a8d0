"""Build a personalized benchmark: users' records → rubrics → answers → verified pairs."""
