"""Other libraries' spellings: their arguments are translated to a run of evopipe's own, and nothing else happens
here."""
