"""A submission of vilbert with four mistakes, none of which another exercise suffers from."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "alignment_score": ("caption * picture", "caption + picture"),
    "alignment_loss": (
        "functional.softplus(torch.where(match, -scores, scores))",
        "-torch.sigmoid(torch.where(match, scores, -scores)).log()",
    ),
    "masked_multimodal_loss": ("chosen & match[:, None]", "chosen.clone()"),
    "retrieve": ("(scores >= own).sum(dim=1) - 1", "(scores > own).sum(dim=1)"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "alignment_score": 0,  # zeros, too, look at no other word and region
    "alignment_loss": round(2 * 5 / 6, 2),  # right where no score is large
    "masked_multimodal_loss": round(4 * 10 / 14, 2),  # right where all pairs match
    "retrieve": round(3 * 5 / 7, 2),  # right where there are no ties
}
