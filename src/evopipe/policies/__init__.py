"""Policies, which are trained members on their own: acting, values, saving, loading, playing and filming."""
