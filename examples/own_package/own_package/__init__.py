"""What a package of one's own adds to evopipe: see pyproject.toml for the names."""
