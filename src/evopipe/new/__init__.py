"""Projects of users' own: the files that `evopipe new` writes."""
