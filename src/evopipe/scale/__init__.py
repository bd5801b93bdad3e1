"""Populations in shards, and the engines that run them: this process, Ray's actors, Accelerate's ranks."""
