"""Human evaluation in a browser: annotators check pairs (`validate`) or participants give preferences (`collect`)."""
