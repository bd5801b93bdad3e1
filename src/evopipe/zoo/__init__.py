"""The zoo: pipelines that were trained with several seeds on committed code, their scores, and an elite of each.

A row is a folder of `pipelines/`, whose parameters it has, and `zoo/ROW.json`, what its seeds came to; the elite of its
best seed is `zoo/ROW.safetensors`. Both belong to the repository: an installed package holds none of them.

- `load("ppo-cartpole")` returns that elite as a policy;
- `rows()` returns all rows with their results.
"""

from evopipe.zoo.row import ZooRow, load, rows

__all__ = ["ZooRow", "load", "rows"]
