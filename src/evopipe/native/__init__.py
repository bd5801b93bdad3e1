"""The CPU's own kernels: `build` compiles and loads them, `dense` runs perceptrons through them."""
