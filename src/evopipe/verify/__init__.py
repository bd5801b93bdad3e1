"""Whether a computation gives the same again: a pipeline in another clone, an algorithm on another device."""
