"""The data files of each page of the site, made from the inputs; the page's script reads them."""
