"""A submission of kv_cache with five mistakes, one of which another exercise would suffer from.

CachedWriter, which is a CachedGPT, is right with a right one, and gets its points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "CachedGPT": ("self.position.weight[past:N]", "self.position.weight[: N - past]"),
    "attention_operations": ("prompt**2 + line(last) - line(prompt)", "line(last)"),
    "kv_cache_bytes": ("2 * L * B", "L * B"),
    "mha_to_gqa": ("heads.mean(dim=-2)", "heads.sum(dim=-2)"),
    "LatentAttention": ("mask = causal_mask(T, past=N - T)", "mask = causal_mask(N)[:T]"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "CachedGPT": 1.67,
    "attention_operations": 2.22,
    "kv_cache_bytes": 0,
    "mha_to_gqa": 0.5,
    "LatentAttention": 4.91,
}
