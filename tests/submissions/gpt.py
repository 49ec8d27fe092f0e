"""A submission of gpt with four mistakes, from two of which other exercises would suffer.

GPT, which uses GPTBlock, and Writer, which uses token_probabilities too, are right with right ones,
and get their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "GPTBlock": ('approximate="tanh"', 'approximate="none"'),
    "language_model_loss": ("tokens[:, 1:], reduction", "tokens[:, :-1], reduction"),
    "token_probabilities": ("p * (before < top_p)", "p * (before + p < top_p)"),
    "load_gpt2": ("value.T if is_linear else value", "value"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "GPTBlock": 0.57,
    "language_model_loss": 0.5,
    "token_probabilities": 2,
    "load_gpt2": 0,
}
