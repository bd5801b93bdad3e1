"""The native kernels for CPUs, in C.

`build` compiles and loads them, `header` packs the structs that they read, and `update` makes whole updates. `dense`
runs perceptrons, `policy` acts and learns for PPO, and `replay` draws minibatches.
"""
