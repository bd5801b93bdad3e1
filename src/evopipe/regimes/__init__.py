"""The regimes, which are what members learn from. Each follows the protocol in `run.regime`."""
