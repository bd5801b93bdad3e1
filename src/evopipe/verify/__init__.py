"""Checks that a computation can be repeated: a pipeline in another clone, an algorithm on another device."""
