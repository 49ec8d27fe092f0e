"""A submission of gpt with four mistakes, from two of which other exercises suffer."""

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
    "GPT": round(5 * 3 / 10, 2),  # it uses GPTBlock
    "language_model_loss": 0.5,
    "token_probabilities": 2,
    "Writer": round(4 * 12 / 13, 2),  # it uses token_probabilities
    "load_gpt2": 0,
}
