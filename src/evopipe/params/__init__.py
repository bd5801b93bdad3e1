"""All of `params.yaml`: the blocks of `schema`, those of algorithms and strategies, and the rules between them."""
