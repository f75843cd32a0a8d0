"""One file per page of the site: each turns the inputs into the data files that the page's script reads."""
