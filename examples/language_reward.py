"""A language model with a reward of one's own: letters are worth something, digits nothing."""

import json
from pathlib import Path

import evopipe


def letters(completion, row):
    """How many of six characters are letters, as a share."""
    return sum(character in "abcdef" for character in completion) / 6.0


if __name__ == "__main__":
    rows = [{"prompt": f"{number}:", "answer": ""} for number in range(100)]
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    params = {
        "language": {
            "model": "tiny",  # random weights, made here; or a folder of `save_pretrained`, without `full`
            "full": True,
            "tiny": {"characters": "0123456789:abcdef"},
            "reward": "language_reward:letters",
            "max_prompt": 4,
            "max_completion": 6,
        },
        "fetch": {"source": "jsonl", "jsonl": {"path": "prompts.jsonl"}},
        "population": {"size": 2},
        "train": {"algo": "grpo", "max_steps": 60, "evo_steps": 20},
        "algos": {"grpo": {"rows": 128, "group_size": 16, "batch_size": 128, "lr": 3e-3, "beta": 0.0}},
    }
    result = evopipe.train(params)
    print(f"mean reward {result.evaluation['elite']['mean']:.2f}: {result.policy.generate(['7:', '42:'])}")
