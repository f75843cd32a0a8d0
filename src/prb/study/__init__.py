"""Human evaluation: people check pairs (`validate`) or give preferences of their own (`collect`) in a browser."""
