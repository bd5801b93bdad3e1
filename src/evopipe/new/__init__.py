"""A project of one's own: the files that `evopipe new` writes."""
