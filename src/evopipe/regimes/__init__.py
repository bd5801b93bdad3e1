"""The regimes: training loops, one for each kind of data that members learn from. Each follows the protocol in
`run.regime`."""
