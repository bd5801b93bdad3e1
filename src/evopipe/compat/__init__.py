"""Other libraries' spellings: their arguments become a run of evopipe's own, and nothing else happens here."""
