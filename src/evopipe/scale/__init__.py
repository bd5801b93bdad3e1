"""A population in shards, and the engines that hold them: this process, Ray's actors, Accelerate's ranks."""
