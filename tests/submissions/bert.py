"""A submission of bert with four mistakes, none of which another exercise suffers from."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "tf_idf": ("counts * idf", "(counts > 0) * idf"),
    "next_sentence_pairs": ("draw(len(documents) - 1)", "draw(len(documents))"),
    "pretraining_loss": ("words / chosen", "words / mlm_targets.numel()"),
    "load_bert": ("value.t()", "value"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "tf_idf": round(3 * 1 / 7, 2),  # rows have length 1
    "next_sentence_pairs": round(4 * 6 / 12, 2),  # half of the pairs, what is drawn, the generator
    "pretraining_loss": round(3 * 2 / 8, 2),  # right where no word is chosen
    "load_bert": 0,  # refuses what it should, as who refuses everything does
}
