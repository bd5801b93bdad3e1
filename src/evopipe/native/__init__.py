"""The CPU's own kernels, in C: `build` compiles and loads them, `header` packs what they read, `update` takes whole
updates; `dense` runs perceptrons through them, `policy` those of PPO, `replay` draws batches."""
