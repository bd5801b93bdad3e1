"""The former place of `evopipe.compat.agilerl`, for scripts that name it."""
