"""Known wrong solutions of attention."""

import math

import torch
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.attention import (
    AttentionLayer,
    MultiHeadAttention,
    SelfAttention,
    attention_cost,
    attention_matrix,
    basic_self_attention,
    causal_mask,
    dot_attention,
    masked_softmax,
    merge_heads,
    padding_mask,
    scaled_dot_attention,
    soft_lookup,
    split_heads,
)


def blend(e, X):
    """Average the rows of X by the softmax of e."""
    weights = torch.softmax(e, dim=-1)
    return weights @ X, weights


def distances(q, X):
    return (q - X).pow(2).sum(-1)


def refuse(temperature):
    if temperature <= 0:
        raise ValueError("the temperature is too low")


@bug(soft_lookup, "the minus sign is missing, so that the farthest row counts most")
def farthest(q, X, temperature=1.0):
    refuse(temperature)
    return blend(distances(q, X) / (2 * temperature), X)


@bug(
    soft_lookup,
    "the distance is a root, squared again: its gradient is NaN where it is zero",
    told_by="yours is nan (",
)
def root_squared(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-(distances(q, X).sqrt() ** 2) / (2 * temperature), X)


@bug(soft_lookup, "the distance is not squared")
def not_squared(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X).sqrt() / (2 * temperature), X)


@bug(soft_lookup, "the factor 1/2 is missing")
def no_half(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X) / temperature, X)


@bug(soft_lookup, "the distance is multiplied by the temperature instead of divided")
def multiplied(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X) / 2 * temperature, X)


@bug(soft_lookup, "the temperature is ignored")
def no_temperature(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X) / 2, X)


@bug(soft_lookup, "the temperature is squared, as a standard deviation would be")
def standard_deviation(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X) / (2 * temperature**2), X)


@bug(soft_lookup, "the temperature is ½ where none is given, and not 1")
def another_default(q, X, temperature=0.5):
    return soft_lookup(q, X, temperature)


@bug(soft_lookup, "the squares are averaged over the features instead of summed")
def averaged(q, X, temperature=1.0):
    refuse(temperature)
    return blend(-distances(q, X) / len(q) / (2 * temperature), X)


@bug(soft_lookup, "each weight goes through σ, and nothing makes them sum to one")
def sigmoids(q, X, temperature=1.0):
    refuse(temperature)
    weights = torch.sigmoid(-distances(q, X) / (2 * temperature))
    return weights @ X, weights


@bug(soft_lookup, "only the nearest row is returned, whatever the temperature is")
def hard(q, X, temperature=1.0):
    refuse(temperature)
    weights = F.one_hot(distances(q, X).argmin(), len(X)).to(X)
    return weights @ X, weights


@bug(soft_lookup, "the scores are returned in place of the weights")
def scores_returned(q, X, temperature=1.0):
    refuse(temperature)
    e = -distances(q, X) / (2 * temperature)
    return blend(e, X)[0], e


@bug(soft_lookup, "a is returned before y")
def returned_in_wrong_order(q, X, temperature=1.0):
    return soft_lookup(q, X, temperature)[::-1]


@bug(soft_lookup, "all exponentials become 0, and 0/0 is NaN", told_by="yours is nan", classic=True)
def underflow(q, X, temperature=1.0):
    refuse(temperature)
    e = (-distances(q, X) / (2 * temperature)).exp()
    return e / e.sum() @ X, e / e.sum()


@bug(
    soft_lookup,
    "a temperature of zero gives NaN instead of an error",
    told_by="should raise ValueError when the temperature is 0",
)
def no_error(q, X, temperature=1.0):
    return blend(-distances(q, X) / (2 * temperature), X)


@bug(dot_attention, "distances are used in place of dot products")
def by_distance(q, X):
    return blend(-distances(q, X) / 2, X)


@bug(dot_attention, "the scores are already divided by √D_Q")
def scaled(q, X):
    return blend(X @ q / math.sqrt(len(q)), X)


@bug(dot_attention, "query and rows are scaled to length one: cosines in place of dot products")
def cosines(q, X):
    return blend(F.cosine_similarity(X, q[None]), X)


@bug(dot_attention, "the scores have the wrong sign")
def opposite(q, X):
    return blend(-(X @ q), X)


@bug(dot_attention, "each score goes through σ, and nothing makes the weights sum to one")
def sigmoids(q, X):
    weights = torch.sigmoid(X @ q)
    return weights @ X, weights


@bug(dot_attention, "the scores are divided by their sum, without the exponential", classic=True)
def no_exponential(q, X):
    weights = X @ q / (X @ q).sum()
    return weights @ X, weights


@bug(dot_attention, "only the best row is returned")
def hard(q, X):
    weights = F.one_hot((X @ q).argmax(), len(X)).to(X)
    return weights @ X, weights


@bug(dot_attention, "the scores are returned in place of the weights")
def scores_returned(q, X):
    return blend(X @ q, X)[0], X @ q


@bug(dot_attention, "the rows are averaged by the scores themselves, not by their softmax")
def weighed_by_scores(q, X):
    return X @ q @ X, torch.softmax(X @ q, dim=0)


@bug(dot_attention, "the weighted rows are returned, not their sum")
def not_summed(q, X):
    weights = dot_attention(q, X)[1]
    return weights[:, None] * X, weights


@bug(dot_attention, "the weighted sum is divided by N_X once more")
def divided_again(q, X):
    y, weights = dot_attention(q, X)
    return y / len(X), weights


@bug(dot_attention, "a is returned before y")
def returned_in_wrong_order(q, X):
    return dot_attention(q, X)[::-1]


@bug(dot_attention, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
def overflow(q, X):
    e = torch.exp(X @ q)
    return e / e.sum() @ X, e / e.sum()


@bug(dot_attention, "no gradient passes through the weights")
def detached(q, X):
    weights = torch.softmax(X @ q, dim=0)
    return (weights.detach() + 0 * weights) @ X, weights


def same_size(q, X):
    if len(q) != X.shape[-1]:
        raise ValueError("q and X differ")


@bug(scaled_dot_attention, "the scores are not divided by √D_Q")
def unscaled(q, X):
    same_size(q, X)
    return blend(X @ q, X)


@bug(scaled_dot_attention, "the scores are divided by D_Q instead of √D_Q", classic=True)
def too_much(q, X):
    same_size(q, X)
    return blend(X @ q / len(q), X)


@bug(scaled_dot_attention, "the scores are divided by √N_X instead of √D_Q", classic=True)
def by_rows(q, X):
    same_size(q, X)
    return blend(X @ q / math.sqrt(len(X)), X)


@bug(scaled_dot_attention, "the scores are multiplied by √D_Q")
def multiplied(q, X):
    same_size(q, X)
    return blend(X @ q * math.sqrt(len(q)), X)


@bug(scaled_dot_attention, "the weights are divided by √D_Q, after the softmax", classic=True)
def after_the_softmax(q, X):
    same_size(q, X)
    weights = blend(X @ q, X)[1] / math.sqrt(len(q))
    return weights @ X, weights


@bug(scaled_dot_attention, "the output is divided by √D_Q, and the scores are not")
def output_scaled(q, X):
    same_size(q, X)
    y, weights = blend(X @ q, X)
    return y / math.sqrt(len(q)), weights


@bug(scaled_dot_attention, "query and rows are scaled to length one: cosines in place of scores")
def cosines(q, X):
    same_size(q, X)
    return blend(F.cosine_similarity(X, q[None]), X)


@bug(scaled_dot_attention, "the scores are divided by the length of q instead of √D_Q")
def by_norm(q, X):
    same_size(q, X)
    return blend(X @ q / q.norm(), X)


@bug(scaled_dot_attention, "each score goes through σ, and nothing makes the weights sum to one")
def sigmoids(q, X):
    same_size(q, X)
    weights = torch.sigmoid(X @ q / math.sqrt(len(q)))
    return weights @ X, weights


@bug(scaled_dot_attention, "a is returned before y")
def returned_in_wrong_order(q, X):
    return scaled_dot_attention(q, X)[::-1]


@bug(scaled_dot_attention, "q is scaled in place")
def in_place(q, X):
    same_size(q, X)
    with torch.no_grad():
        q /= math.sqrt(len(q))
    return blend(X @ q, X)


@bug(scaled_dot_attention, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
def overflow(q, X):
    same_size(q, X)
    e = torch.exp(X @ q / math.sqrt(len(q)))
    return e / e.sum() @ X, e / e.sum()


@bug(
    scaled_dot_attention,
    "a query of one feature is stretched by broadcasting instead of refused",
    told_by="should raise ValueError when q has 1 feature",
)
def no_error(q, X):
    if len(q) > X.shape[1]:
        raise ValueError("q is too long")
    return blend((X * q).sum(1) / math.sqrt(len(q)), X)


def many(Q, X, scale, dim=-1):
    weights = torch.softmax(Q @ X.mT * scale, dim=dim)
    return weights @ X, weights


@bug(attention_matrix, "the softmax runs over the queries instead of the keys", classic=True)
def over_queries(Q, X):
    return many(Q, X, Q.shape[-1] ** -0.5, dim=-2)


@bug(attention_matrix, "the scores are not divided by √D_Q")
def unscaled(Q, X):
    return many(Q, X, 1)


@bug(attention_matrix, "the scores are divided by D_Q instead of √D_Q")
def too_much(Q, X):
    return many(Q, X, 1 / Q.shape[-1])


@bug(attention_matrix, "the scores are divided by √N_X instead of √D_Q")
def by_rows(Q, X):
    return many(Q, X, X.shape[-2] ** -0.5)


@bug(attention_matrix, "the scores are divided by √N_Q instead of √D_Q")
def by_queries(Q, X):
    return many(Q, X, Q.shape[-2] ** -0.5)


@bug(attention_matrix, "one softmax runs over all queries and keys together")
def one_softmax(Q, X):
    E = Q @ X.mT / math.sqrt(Q.shape[-1])
    weights = torch.softmax(E.flatten(-2), dim=-1).view_as(E)
    return weights @ X, weights


@bug(attention_matrix, "all queries get the weights of the first one")
def first_query(Q, X):
    return attention_matrix(Q[..., :1, :].expand_as(Q), X)


@bug(attention_matrix, "all queries are replaced by their mean")
def mean_query(Q, X):
    return attention_matrix(Q.mean(dim=-2, keepdim=True).expand_as(Q), X)


@bug(attention_matrix, "every member of the batch looks things up in the first one's table")
def first_table(Q, X):
    return attention_matrix(Q, X if X.dim() == 2 else X[:1].expand_as(X))


@bug(attention_matrix, "A is returned transposed")
def transposed(Q, X):
    Y, weights = attention_matrix(Q, X)
    return Y, weights.mT


@bug(attention_matrix, "A is returned before Y")
def returned_in_wrong_order(Q, X):
    return attention_matrix(Q, X)[::-1]


@bug(attention_matrix, "each score goes through σ, and nothing makes the rows sum to one")
def sigmoids(Q, X):
    weights = torch.sigmoid(Q @ X.mT / math.sqrt(Q.shape[-1]))
    return weights @ X, weights


@bug(attention_matrix, "Q is scaled in place")
def in_place(Q, X):
    with torch.no_grad():
        Q /= math.sqrt(Q.shape[-1])
    return many(Q, X, 1)


@bug(attention_matrix, "X.T reverses all axes of a batch", told_by="raised RuntimeError: ")
def all_axes(Q, X):
    return blend(Q @ X.permute(*reversed(range(X.dim()))) / math.sqrt(Q.shape[-1]), X)


def layer(Q, K, V, scale=None, dim=-1):
    """Attend from Q to K and V, with the scale and the softmax's axis open to mistakes."""
    scale = Q.shape[-1] ** -0.5 if scale is None else scale
    weights = torch.softmax(Q @ K.mT * scale, dim=dim)
    return weights @ V, weights


def by_hand(Q, K, V, scale):
    """Attend with exponentials that nothing keeps from overflowing."""
    weights = torch.exp(Q @ K.mT * scale)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights @ V, weights


@bug(AttentionLayer, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
class OverflowingLayer(AttentionLayer):
    def forward(self, Q, X):
        return by_hand(Q, X @ self.W_K, X @ self.W_V, Q.shape[-1] ** -0.5)


@bug(basic_self_attention, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
def overflowing(X):
    return by_hand(X, X, X, 1)


@bug(SelfAttention, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
class OverflowingSelf(SelfAttention):
    def forward(self, X):
        Q, K = X @ self.W_Q, X @ self.W_K
        return by_hand(Q, K, X @ self.W_V, Q.shape[-1] ** -0.5)


@bug(attention_matrix, "exponentials overflow, and ∞/∞ is NaN", told_by="yours is nan")
def overflowing_matrix(Q, X):
    return by_hand(Q, X, X, Q.shape[-1] ** -0.5)


@bug(AttentionLayer, "the values are the inputs themselves: W_V is not used")
class ValuesNotProjected(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X)


@bug(AttentionLayer, "the keys are returned: Y = A K instead of A V")
class KeysReturned(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X @ self.W_K)


@bug(AttentionLayer, "the scores are not divided by √D_Q")
class Unscaled(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X @ self.W_V, scale=1)


@bug(AttentionLayer, "the scores are divided by √D_X instead of √D_Q", classic=True)
class ScaledByInput(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X @ self.W_V, scale=X.shape[-1] ** -0.5)


@bug(AttentionLayer, "the scores are divided by √D_V instead of √D_Q", classic=True)
class ScaledByValue(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X @ self.W_V, scale=self.W_V.shape[1] ** -0.5)


@bug(AttentionLayer, "the softmax runs over the queries instead of the keys")
class OverQueries(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, X @ self.W_V, dim=-2)


@bug(AttentionLayer, "each score goes through σ, and nothing makes the rows sum to one")
class Sigmoids(AttentionLayer):
    def forward(self, Q, X):
        weights = torch.sigmoid(Q @ (X @ self.W_K).mT / math.sqrt(Q.shape[-1]))
        return weights @ (X @ self.W_V), weights


@bug(AttentionLayer, "the values go through a ReLU")
class ValuesRectified(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K, torch.relu(X @ self.W_V))


@bug(AttentionLayer, "the keys go through a tanh")
class KeysSquashed(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, torch.tanh(X @ self.W_K), X @ self.W_V)


@bug(AttentionLayer, "the softmax is left out: Y is an average by raw scores")
class NoSoftmax(AttentionLayer):
    def forward(self, Q, X):
        E = Q @ (X @ self.W_K).mT / math.sqrt(Q.shape[-1])
        return E @ (X @ self.W_V), E


@bug(AttentionLayer, "no gradient passes to W_K", told_by="No gradient reaches W_K")
class KeysDetached(AttentionLayer):
    def forward(self, Q, X):
        return layer(Q, X @ self.W_K.detach(), X @ self.W_V)


@bug(AttentionLayer, "A is returned before Y")
class WrongOrder(AttentionLayer):
    def forward(self, Q, X):
        return super().forward(Q, X)[::-1]


@bug(basic_self_attention, "the scores are divided by √D_X, although this bare form has no scale")
def scaled(X):
    return layer(X, X, X)


@bug(
    basic_self_attention,
    "the softmax runs over the first of the two axes of E, so columns sum to 1",
)
def over_queries(X):
    return layer(X, X, X, scale=1, dim=-2)


@bug(basic_self_attention, "features attend to features: Xᵀ X in place of X Xᵀ", classic=True)
def features(X):
    weights = torch.softmax(X.mT @ X, dim=-1)
    return X @ weights.mT, weights


@bug(basic_self_attention, "a vector does not attend to itself")
def others_only(X):
    E = X @ X.mT
    if X.shape[-2] > 1:
        E = E.masked_fill(torch.eye(X.shape[-2], dtype=torch.bool), -torch.inf)
    return blend(E, X)


@bug(basic_self_attention, "a vector attends only to itself and what comes before it")
def causal(X):
    E = X @ X.mT
    return blend(E.masked_fill(torch.ones_like(E).triu(1).bool(), -torch.inf), X)


@bug(basic_self_attention, "all vectors are scaled to length one before they are compared")
def cosines(X):
    unit = F.normalize(X, dim=-1)
    return blend(unit @ unit.mT, X)


@bug(basic_self_attention, "the input is added to the output")
def residual(X):
    Y, weights = basic_self_attention(X)
    return Y + X, weights


@bug(basic_self_attention, "each score goes through σ, and nothing makes the rows sum to one")
def sigmoids(X):
    weights = torch.sigmoid(X @ X.mT)
    return weights @ X, weights


@bug(basic_self_attention, "positions are added to the vectors, so that order matters")
def with_positions(X):
    return basic_self_attention(X + 0.1 * torch.arange(X.shape[-2]).to(X)[:, None])


@bug(basic_self_attention, "every member of the batch attends to the first one's vectors")
def first_member(X):
    first = X if X.dim() == 2 else X[:1].expand_as(X)
    return layer(X, first, first, scale=1)


@bug(basic_self_attention, "A is returned before Y")
def returned_in_wrong_order(X):
    return basic_self_attention(X)[::-1]


@bug(basic_self_attention, "no gradient passes through the weights")
def detached(X):
    weights = torch.softmax(X @ X.mT, dim=-1)
    return weights.detach() @ X, weights


@bug(SelfAttention, "the keys are the queries: W_K is not used")
class KeysAreQueries(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_Q, X @ self.W_Q, X @ self.W_V)


@bug(SelfAttention, "the queries are the keys: W_Q is not used")
class QueriesAreKeys(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_K, X @ self.W_K, X @ self.W_V)


@bug(SelfAttention, "W_Q and W_K are mixed up", classic=True)
class Swapped(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_K, X @ self.W_Q, X @ self.W_V)


@bug(SelfAttention, "the values are the inputs themselves: W_V is not used")
class ValuesNotProjected(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_Q, X @ self.W_K, X)


@bug(SelfAttention, "the weights come from X Xᵀ: W_Q and W_K are not used")
class NothingAsked(SelfAttention):
    def forward(self, X):
        return layer(X, X, X @ self.W_V)


@bug(SelfAttention, "the scores are not divided by √D_Q")
class Unscaled(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_Q, X @ self.W_K, X @ self.W_V, scale=1)


@bug(SelfAttention, "the scores are divided by √D_X instead of √D_Q")
class ScaledByInput(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_Q, X @ self.W_K, X @ self.W_V, scale=X.shape[-1] ** -0.5)


@bug(SelfAttention, "the scores are divided by √D_V instead of √D_Q")
class ScaledByValue(SelfAttention):
    def forward(self, X):
        scale = self.W_V.shape[1] ** -0.5
        return layer(X @ self.W_Q, X @ self.W_K, X @ self.W_V, scale=scale)


@bug(SelfAttention, "the softmax runs over the queries instead of the keys")
class OverQueries(SelfAttention):
    def forward(self, X):
        return layer(X @ self.W_Q, X @ self.W_K, X @ self.W_V, dim=-2)


@bug(SelfAttention, "a vector attends only to itself and what comes before it")
class Causal(SelfAttention):
    def forward(self, X):
        E = X @ self.W_Q @ (X @ self.W_K).mT / math.sqrt(self.W_Q.shape[1])
        later = torch.ones_like(E).triu(1).bool()
        return blend(E.masked_fill(later, -torch.inf), X @ self.W_V)


@bug(SelfAttention, "every member of the batch attends to the first one's vectors")
class FirstMember(SelfAttention):
    def forward(self, X):
        first = X if X.dim() == 2 else X[:1].expand_as(X)
        return layer(X @ self.W_Q, first @ self.W_K, first @ self.W_V)


@bug(SelfAttention, "A is returned before Y")
class WrongOrder(SelfAttention):
    def forward(self, X):
        return super().forward(X)[::-1]


@bug(causal_mask, "the mask is the wrong way round: each position sees what comes after it")
def future(T, past=0):
    return torch.ones(T, past + T, dtype=torch.bool).triu(past)


@bug(causal_mask, "a position does not see itself", classic=True)
def not_itself(T, past=0):
    return torch.ones(T, past + T, dtype=torch.bool).tril(past - 1)


@bug(causal_mask, "a position also sees the next one")
def one_ahead(T, past=0):
    return torch.ones(T, past + T, dtype=torch.bool).tril(past + 1)


@bug(causal_mask, "True means forbidden: here True = may attend")
def inverted(T, past=0):
    return ~causal_mask(T, past)


@bug(causal_mask, "it holds ones and zeros instead of truth values")
def numbers(T, past=0):
    return torch.ones(T, past + T).tril(past)


@bug(causal_mask, "it holds 0 and -∞, to be added to the scores, instead of truth values")
def added(T, past=0):
    return torch.full((T, past + T), -torch.inf).triu(past + 1)


@bug(causal_mask, "the columns of the past are missing")
def no_past(T, past=0):
    return torch.ones(T, T, dtype=torch.bool).tril()


@bug(causal_mask, "the past has its columns, but the triangle starts at the first of them")
def past_forbidden(T, past=0):
    return torch.ones(T, past + T, dtype=torch.bool).tril()


@bug(causal_mask, "the columns of the past come after those of the T positions")
def past_last(T, past=0):
    now = torch.ones(T, T, dtype=torch.bool).tril()
    return torch.cat([now, torch.ones(T, past, dtype=torch.bool)], dim=1)


@bug(causal_mask, "the positions of the past also ask: there are past + T rows")
def past_asks(T, past=0):
    return torch.ones(past + T, past + T, dtype=torch.bool).tril()


def positions(lengths, T):
    return torch.arange(T) < lengths[:, None]


@bug(padding_mask, "True means padding: here True = may attend")
def inverted(lengths, T):
    return ~positions(lengths, T)[:, None]


@bug(padding_mask, "the first position of the padding is allowed too")
def one_too_many(lengths, T):
    return (torch.arange(T) <= lengths[:, None])[:, None]


@bug(padding_mask, "the last real position is forbidden")
def one_too_few(lengths, T):
    return (torch.arange(T) < lengths[:, None] - 1)[:, None]


@bug(padding_mask, "the axis of the queries is missing")
def two_axes(lengths, T):
    return positions(lengths, T)


@bug(padding_mask, "the axes of queries and keys are exchanged: queries are masked", classic=True)
def queries_masked(lengths, T):
    return positions(lengths, T)[:, :, None]


@bug(padding_mask, "the padding is taken to come before the real positions")
def at_the_start(lengths, T):
    return positions(lengths, T).flip(1)[:, None]


@bug(padding_mask, "the longest sequence decides how many positions there are, not T")
def own_T(lengths, T):
    return positions(lengths, int(lengths.max()))[:, None]


@bug(padding_mask, "every sequence gets the mask of the first")
def first_for_all(lengths, T):
    return positions(lengths[:1].expand(len(lengths)), T)[:, None]


@bug(padding_mask, "lengths are sorted, so that masks no longer belong to their sequences")
def sorted_by_length(lengths, T):
    return positions(lengths.sort(descending=True).values, T)[:, None]


@bug(padding_mask, "it holds ones and zeros instead of truth values")
def numbers(lengths, T):
    return positions(lengths, T)[:, None].float()


def fill(E, mask, value):
    return E if mask is None else E.masked_fill(~mask, value)


@bug(masked_softmax, "the mask is ignored")
def ignored(E, mask=None):
    return torch.softmax(E, dim=-1)


@bug(masked_softmax, "the mask is inverted: allowed keys are forbidden", classic=True)
def inverted(E, mask=None):
    return masked_softmax(E, None if mask is None else ~mask)


@bug(masked_softmax, "forbidden scores are set to 0, whose exponential is 1")
def zero_scores(E, mask=None):
    return torch.softmax(fill(E, mask, 0), dim=-1)


@bug(masked_softmax, "forbidden weights are set to zero after the softmax, and rows sum to less")
def after_the_softmax(E, mask=None):
    return fill(torch.softmax(E, dim=-1), mask, 0)


@bug(
    masked_softmax,
    "the mask picks entries of E by indexing, which does not broadcast",
    told_by="masked_softmax raised IndexError",
)
def indexed(E, mask=None):
    if mask is None:
        return torch.softmax(E, dim=-1)
    E = E.clone()
    E[~mask] = torch.finfo(E.dtype).min
    weights = torch.softmax(E, dim=-1).clone()
    weights[~mask] = 0
    return weights


@bug(masked_softmax, "a row without an allowed key is NaN: 0/0 from a softmax over -∞ alone")
def nan_rows(E, mask=None):
    return torch.softmax(fill(E, mask, -torch.inf), dim=-1)


@bug(masked_softmax, "a row without an allowed key gets equal weights instead of zeros")
def even_rows(E, mask=None):
    return torch.softmax(fill(E, mask, torch.finfo(E.dtype).min), dim=-1)


@bug(
    masked_softmax, "-∞ is added to forbidden scores, and NaN replaced later, but not in gradients"
)
def nan_gradient(E, mask=None):
    added = 0 if mask is None else torch.where(mask, 0, -torch.inf)
    weights = torch.softmax(E + added, dim=-1)
    return torch.where(weights.isnan(), 0, weights)


@bug(
    masked_softmax,
    "forbidden scores are set to -1e9, which allowed ones may lie below",
    told_by="A of shifted scores",
)
def minus_a_billion(E, mask=None):
    return fill(torch.softmax(fill(E, mask, -1e9), dim=-1), mask, 0)


@bug(masked_softmax, "the softmax runs over the queries")
def over_queries(E, mask=None):
    weights = torch.softmax(fill(E, mask, torch.finfo(E.dtype).min), dim=-2)
    return fill(weights, mask, 0)


@bug(masked_softmax, "one query's softmax runs over all queries' keys")
def over_everything(E, mask=None):
    flat = fill(E, mask, torch.finfo(E.dtype).min).flatten(-2)
    return fill(torch.softmax(flat, dim=-1).view_as(E), mask, 0)


@bug(masked_softmax, "forbidden scores get -10 added, which is not low enough")
def only_lowered(E, mask=None):
    return torch.softmax(E if mask is None else E - 10.0 * ~mask, dim=-1)


@bug(
    masked_softmax,
    "forbidden scores are set to -100 instead of the lowest number there is",
    classic=True,
)
def not_low_enough(E, mask=None):
    return fill(torch.softmax(fill(E, mask, -100.0), dim=-1), mask, 0)


@bug(masked_softmax, "E is changed in place", classic=True)
def in_place(E, mask=None):
    with torch.no_grad():
        E.copy_(fill(E, mask, -1e9))
    return masked_softmax(E, mask)


def even_split(X, H):
    if X.shape[2] % H:
        raise ValueError("H does not divide D")
    return X.shape[2] // H


@bug(
    split_heads,
    "a view cuts the memory into heads without a transpose: positions are mixed",
    classic=True,
)
def view_only(X, H):
    B, T, _ = X.shape
    return X.reshape(B, H, T, even_split(X, H))


@bug(split_heads, "the heads' axis stays after the positions': (B, T, H, D_h)")
def not_transposed(X, H):
    B, T, _ = X.shape
    return X.reshape(B, T, H, even_split(X, H))


@bug(split_heads, "features are dealt out like cards: head h gets features h, h + H, …")
def dealt_out(X, H):
    B, T, _ = X.shape
    return X.reshape(B, T, even_split(X, H), H).permute(0, 3, 1, 2)


@bug(split_heads, "positions and features are exchanged: (B, H, D_h, T)")
def features_first(X, H):
    B, T, _ = X.shape
    return X.reshape(B, T, H, even_split(X, H)).permute(0, 2, 3, 1)


@bug(split_heads, "the heads' axis comes first: (H, B, T, D_h)")
def heads_first(X, H):
    even_split(X, H)
    return torch.stack(X.chunk(H, dim=2))


@bug(split_heads, "H is taken for the size of a head")
def H_as_size(X, H):
    B, T, _ = X.shape
    return X.reshape(B, T, even_split(X, H), H).transpose(1, 2)


@bug(split_heads, "every head gets the first features")
def first_for_all(X, H):
    return X[:, None, :, : even_split(X, H)].expand(-1, H, -1, -1)


@bug(split_heads, "the heads are in reverse order")
def reversed_heads(X, H):
    return split_heads(X, H).flip(1)


@bug(split_heads, "every head gets all features")
def everything(X, H):
    even_split(X, H)
    return X[:, None].expand(-1, H, -1, -1)


@bug(
    split_heads,
    "features that are left over are silently dropped",
    told_by="should raise ValueError when",
)
def dropped(X, H):
    return split_heads(X[:, :, : X.shape[2] // H * H], H)


@bug(merge_heads, "a view joins what lies side by side in memory: heads and positions are mixed")
def view_only(X):
    B, H, T, D_h = X.shape
    return X.reshape(B, T, H * D_h)


@bug(merge_heads, "the heads' features are interleaved")
def interleaved(X):
    return X.permute(0, 2, 3, 1).flatten(2)


@bug(merge_heads, "the heads are added up")
def summed(X):
    return X.sum(dim=1)


@bug(merge_heads, "the heads are averaged")
def averaged(X):
    return X.mean(dim=1)


@bug(merge_heads, "the heads are joined one after the other along the positions")
def along_positions(X):
    return X.flatten(1, 2)


@bug(merge_heads, "only the first head is returned")
def first_head(X):
    return X[:, 0]


@bug(merge_heads, "the heads are joined in reverse order")
def reversed_heads(X):
    return merge_heads(X.flip(1))


@bug(merge_heads, "features come before positions: (B, H D_h, T)")
def features_first(X):
    return merge_heads(X).mT


@bug(
    merge_heads,
    "the heads are copied into a tensor of single precision, whatever X has",
    told_by="merged should be torch.float16 as X is",
)
def in_single_precision(X):
    B, H, T, D_h = X.shape
    Y = torch.zeros(B, T, H * D_h, device=X.device, dtype=torch.promote_types(X.dtype, torch.float))
    for h in range(H):
        Y[:, :, h * D_h : (h + 1) * D_h] = X[:, h]
    return Y


@bug(merge_heads, "the axes are in order, but heads and features are not joined")
def not_joined(X):
    return X.transpose(1, 2)


class Pieces(MultiHeadAttention):
    """Multi-head attention in small steps, which the bugs below vary."""

    def forward(self, X, memory=None, mask=None, return_weights=False):
        memory = X if memory is None else memory
        Q, K, V = self.project(X, memory)
        weights = self.weights(self.scores(self.split(Q), self.split(K)), mask)
        Y = self.output(self.merge(weights @ self.split(V)))
        return (Y, self.shown(weights)) if return_weights else Y

    def project(self, X, memory):
        Q = X @ self.W_Q + self.b_Q
        return Q, memory @ self.W_K + self.b_K, memory @ self.W_V + self.b_V

    def split(self, X):
        return split_heads(X, self.H)

    def scores(self, Q, K):
        return Q @ K.mT * Q.shape[-1] ** -0.5

    def weights(self, E, mask):
        return masked_softmax(E, None if mask is None else mask.unsqueeze(-3))

    def merge(self, X):
        return merge_heads(X)

    def output(self, Y):
        return Y @ self.W_O + self.b_O

    def shown(self, weights):
        return weights


@bug(MultiHeadAttention, "the scores are divided by √D instead of √D_h", classic=True)
class ScaledByD(Pieces):
    def scores(self, Q, K):
        return Q @ K.mT * (self.H * Q.shape[-1]) ** -0.5


@bug(MultiHeadAttention, "the scores are not divided by √D_h")
class Unscaled(Pieces):
    def scores(self, Q, K):
        return Q @ K.mT


@bug(MultiHeadAttention, "W_O is not used")
class NoOutput(Pieces):
    def output(self, Y):
        return Y + self.b_O


@bug(MultiHeadAttention, "b_O is not added")
class NoOutputBias(Pieces):
    def output(self, Y):
        return Y @ self.W_O


@bug(MultiHeadAttention, "the values come from X where it has the memory's shape")
class OwnValues(Pieces):
    def project(self, X, memory):
        Q, K, V = super().project(X, memory)
        return Q, K, super().project(X, X)[2] if X.shape == memory.shape else V


@bug(MultiHeadAttention, "b_Q is not added")
class NoQueryBias(Pieces):
    def project(self, X, memory):
        _, K, V = super().project(X, memory)
        return X @ self.W_Q, K, V


@bug(MultiHeadAttention, "b_V is not added")
class NoValueBias(Pieces):
    def project(self, X, memory):
        Q, K, _ = super().project(X, memory)
        return Q, K, memory @ self.W_V


@bug(MultiHeadAttention, "the mask is ignored")
class MaskIgnored(Pieces):
    def weights(self, E, mask):
        return super().weights(E, None)


@bug(MultiHeadAttention, "the mask is inverted: True is taken for forbidden")
class MaskInverted(Pieces):
    def weights(self, E, mask):
        return super().weights(E, None if mask is None else ~mask)


@bug(MultiHeadAttention, "forbidden weights are set to zero after the softmax")
class MaskedAfter(Pieces):
    def weights(self, E, mask):
        A = torch.softmax(E, dim=-1)
        return A if mask is None else A * mask.unsqueeze(-3)


@bug(MultiHeadAttention, "a query that may attend to nothing gets NaN", told_by="yours is nan")
class NaNRows(Pieces):
    def weights(self, E, mask):
        return torch.softmax(E if mask is None else fill(E, mask.unsqueeze(-3), -torch.inf), -1)


@bug(
    MultiHeadAttention,
    "the weights of a row without a key are replaced, its gradients stay NaN",
    told_by="The gradient of X should be finite",
)
class NaNGradients(Pieces):
    def weights(self, E, mask):
        if mask is None:
            return torch.softmax(E, dim=-1)
        added = torch.where(mask.unsqueeze(-3), 0, -torch.inf)
        return torch.softmax(E + added, dim=-1).nan_to_num(0)


@bug(MultiHeadAttention, "the softmax runs over the queries instead of the keys")
class OverQueries(Pieces):
    def weights(self, E, mask):
        return super().weights(E, mask) if mask is not None else torch.softmax(E, dim=-2)


@bug(MultiHeadAttention, "the softmax runs over the heads instead of the keys")
class OverHeads(Pieces):
    def weights(self, E, mask):
        return super().weights(E, mask) if mask is not None else torch.softmax(E, dim=1)


@bug(MultiHeadAttention, "heads are cut out of memory by a view without a transpose")
class ViewOnly(Pieces):
    def split(self, X):
        B, T, D = X.shape
        return X.reshape(B, self.H, T, D // self.H)

    def merge(self, X):
        return X.reshape(len(X), -1, self.H * X.shape[-1])


@bug(MultiHeadAttention, "heads are merged by a view without a transpose")
class MergedByView(Pieces):
    def merge(self, X):
        return X.reshape(len(X), -1, self.H * X.shape[-1])


@bug(MultiHeadAttention, "features are dealt out to the heads like cards")
class DealtOut(Pieces):
    def split(self, X):
        B, T, D = X.shape
        return X.reshape(B, T, D // self.H, self.H).permute(0, 3, 1, 2)


@bug(MultiHeadAttention, "there is one head: Q, K and V are not split")
class OneHead(Pieces):
    def split(self, X):
        return X[:, None]

    def shown(self, weights):
        return weights.expand(-1, self.H, -1, -1)


@bug(MultiHeadAttention, "Q and K are mixed up")
class Swapped(Pieces):
    def project(self, X, memory):
        if X is not memory:
            return super().project(X, memory)
        return X @ self.W_K + self.b_K, X @ self.W_Q + self.b_Q, X @ self.W_V + self.b_V


@bug(MultiHeadAttention, "the values are the keys: W_V is not used")
class ValuesAreKeys(Pieces):
    def project(self, X, memory):
        Q, K, _ = super().project(X, memory)
        return Q, K, K


@bug(MultiHeadAttention, "the weights are averaged over the heads")
class Averaged(Pieces):
    def shown(self, weights):
        return weights.mean(dim=1)


@bug(
    MultiHeadAttention,
    "the weights are returned even when not asked for",
    told_by="Y should be a tensor of shape",
)
class AlwaysWeights(Pieces):
    def forward(self, X, memory=None, mask=None, return_weights=False):
        return super().forward(X, memory, mask, return_weights=True)


@bug(
    MultiHeadAttention,
    "the memory is ignored: X attends to itself",
    told_by="raised RuntimeError: ",
)
class MemoryIgnored(Pieces):
    def forward(self, X, memory=None, mask=None, return_weights=False):
        return super().forward(X, None, mask, return_weights)


def costs(T, D, k=3, **changes):
    """The right counts, with those of one layer changed."""
    found = attention_cost(T, D, k)
    for layer, counts in changes.items():
        found[layer.replace("_", "-")].update(counts)
    return found


@bug(attention_cost, "multiplications and additions are counted separately: twice as many")
def twice(T, D, k=3):
    found = attention_cost(T, D, k)
    for counts in found.values():
        counts["multiply_adds"] *= 2
    return found


@bug(attention_cost, "the RNN's product W_h h is left out")
def no_recurrence(T, D, k=3):
    return costs(T, D, k, rnn={"multiply_adds": T * D**2})


@bug(
    attention_cost,
    "the RNN's path counts as one application, as if its T steps were one",
    told_by="path_length of rnn for T, D, k = 5, 3, 3 at [0] should be 5, yours is 1 ",
)
def short_rnn(T, D, k=3):
    return costs(T, D, k, rnn={"path_length": 1})


@bug(attention_cost, "the RNN's path starts at h_1: the step that reads x_1 is left out")
def one_step_less(T, D, k=3):
    return costs(T, D, k, rnn={"path_length": T - 1})


@bug(attention_cost, "the convolution's width k is left out")
def no_width(T, D, k=3):
    return costs(T, D, k, convolution={"multiply_adds": T * D**2})


@bug(attention_cost, "the convolution treats every feature separately: k T D")
def depthwise(T, D, k=3):
    return costs(T, D, k, convolution={"multiply_adds": k * T * D})


@bug(attention_cost, "the convolution does not pad: only T - k + 1 windows")
def unpadded(T, D, k=3):
    return costs(T, D, k, convolution={"multiply_adds": k * max(T - k + 1, 0) * D**2})


@bug(attention_cost, "a convolution is taken to reach k positions to each side")
def too_wide(T, D, k=3):
    return costs(T, D, k, convolution={"path_length": math.ceil((T - 1) / k)})


@bug(attention_cost, "a convolution is taken to reach k - 1 positions to each side")
def twice_as_wide(T, D, k=3):
    return costs(T, D, k, convolution={"path_length": math.ceil((T - 1) / (k - 1))})


@bug(attention_cost, "the convolution's path length is rounded down")
def rounded_down(T, D, k=3):
    return costs(T, D, k, convolution={"path_length": (T - 1) // (k // 2)})


@bug(
    attention_cost, "the three projections are left out of self-attention's products", classic=True
)
def no_projections(T, D, k=3):
    return costs(T, D, k, self_attention={"multiply_adds": 2 * T**2 * D})


@bug(attention_cost, "the product A V is not counted")
def scores_only(T, D, k=3):
    return costs(T, D, k, self_attention={"multiply_adds": 3 * T * D**2 + T**2 * D})


@bug(attention_cost, "the weights A are not counted as memory", classic=True)
def no_weights(T, D, k=3):
    return costs(T, D, k, self_attention={"memory": 4 * T * D})


@bug(attention_cost, "self-attention's memory holds A alone, without Q, K, V and Y")
def weights_alone(T, D, k=3):
    return costs(T, D, k, self_attention={"memory": T**2})


@bug(attention_cost, "T and D are mixed up")
def mixed_up(T, D, k=3):
    return attention_cost(D, T, k)


@bug(attention_cost, "memory is counted in bytes of float32 instead of entries")
def in_bytes(T, D, k=3):
    found = attention_cost(T, D, k)
    for counts in found.values():
        counts["memory"] *= 4
    return found


@bug(
    attention_cost,
    "an even width is accepted",
    told_by="should raise ValueError when k is 4",
)
def even_width(T, D, k=3):
    return attention_cost(T, D, k | 1)


same_axes = "axes 1 and 2 are exchanged either way"
reshaped = "return X.reshape(B, T, H, D // H)"
equivalent(split_heads, f"{reshaped}.transpose(1, 2) → {reshaped}.transpose(2, 1)", same_axes)
equivalent(
    split_heads,
    f"{reshaped}.transpose(1, 2) → {reshaped.replace('reshape', 'view')}.transpose(1, 2)",
    "an axis can be cut in two however it lies in memory",
)
equivalent(
    merge_heads,
    "return X.transpose(1, 2).flatten(2) → return X.transpose(2, 1).flatten(2)",
    same_axes,
)
equivalent(
    padding_mask,
    "return (torch.arange(T, device=lengths.device) < lengths[:, None])[:, None] → "
    "return (torch.arange(T) < lengths[:, None])[:, None]",
    "the checks run on a CPU, where both are the same",
)
equivalent(
    MultiHeadAttention,
    "K = split_heads(memory @ self.W_K + self.b_K, self.H) → "
    "K = split_heads(memory @ self.W_K - self.b_K, self.H)",
    "b_K adds the same number to all scores of a query, which the softmax removes again",
)
