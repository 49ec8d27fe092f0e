"""Captions with visual attention: a decoder that chooses where to look for every word.

Shapes: B pictures with L locations, a grid of rows × columns, and D features at each; captions of
T words; H hidden features. As in Xu et al. 2015, "Show, Attend and Tell", `a` holds the features
of the locations, `e` their scores and `p` the attention weights.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def grid_features(maps: Float[Tensor, "B D rows columns"]) -> Float[Tensor, "B L D"]:
    """Turn the feature maps of a convolutional network into one vector for each location.

    a_l = maps[:, row, column]   with l = columns · row + column      (Xu et al. 2015, §3.1.1)

    Args:
        maps: D maps of some rows and columns.
    Returns:
        The features of the L = rows · columns locations, row by row from the upper left.
    """
    return maps.flatten(2).mT  # (B, D, L) → (B, L, D)


def soft_attention(
    e: Float[Tensor, "B L"], a: Float[Tensor, "B L D"]
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B L"]]:
    """Look at all locations at once, at each by as much as its weight says.

    p = softmax(e),   z = Σ_l p_l a_l: the expectation of what hard attention sees
    (Xu et al. 2015, §4.2)

    Args:
        e: the scores.
        a: the features.
    Returns:
        z, the context, and p, the weights, which sum to one over the locations; gradients reach e
        through both.
    """
    p = torch.softmax(e, dim=1)
    return (p[:, :, None] * a).sum(dim=1), p


def hard_attention(
    e: Float[Tensor, "B L"], a: Float[Tensor, "B L D"], sample: bool = True
) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B L"], Float[Tensor, "B"]]:
    """Look at one location of each picture.

    p = softmax(e),   s ~ p (or s = argmax p),   z = a_s      (Xu et al. 2015, §4.1)

    No gradient goes from z to e. It goes through log p_s, which `reinforce_loss` uses.

    Args:
        e: the scores.
        a: the features.
        sample: whether to draw s at random, from torch's global generator; if not, s is the
            location with the largest weight.
    Returns:
        z, the features of the chosen location; p, the weights of all; and log p_s, which stays
        finite however small p_s is.
    """
    log_p = torch.log_softmax(e, dim=1)  # (B, L)
    p = log_p.exp()
    if sample:
        s = torch.multinomial(p.detach(), num_samples=1)[:, 0]  # (B,)
    else:
        s = p.argmax(dim=1)
    pictures = torch.arange(len(s), device=s.device)
    return a[pictures, s], p, log_p[pictures, s]


class CaptionDecoder(nn.Module):
    """Write a caption word by word; look at the picture before each word.

    e_tl = v · tanh(W_a a_l + W_h h_{t-1} + b_h),   z_t from `soft_attention` or `hard_attention`,
    h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1}),   scores of y_t = W_o [h_t; z_t] + b_o
    (Xu et al. 2015, §3.1.2, with a simpler output layer)

    Args:
        words: size of the vocabulary.
        D: features of each location.
        H: features of the hidden state and of a word's embedding.
        A: size of the attention's hidden layer.
        hard: whether to look at one location, drawn at random while training and the best one
            otherwise; if not, it looks at all of them.
    """

    def __init__(self, words: int, D: int, H: int, A: int = 32, hard: bool = False):
        super().__init__()
        self.hard = hard
        self.embedding = nn.Embedding(words, H)  # E
        self.first_h, self.first_c = nn.Linear(D, H), nn.Linear(D, H)
        self.W_a, self.W_h = nn.Linear(D, A, bias=False), nn.Linear(H, A)
        self.v = nn.Linear(A, 1, bias=False)
        self.lstm = nn.LSTMCell(H + D, H)
        self.output = nn.Linear(H + D, words)  # W_o, b_o

    def start(self, a: Float[Tensor, "B L D"]) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
        """Compute h_0 and c_0 from the mean of the locations."""
        mean = a.mean(dim=1)
        return torch.tanh(self.first_h(mean)), torch.tanh(self.first_c(mean))

    def step(
        self,
        word: Int[Tensor, "B"],
        state: tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]],
        a: Float[Tensor, "B L D"],
    ) -> tuple[
        Float[Tensor, "B words"],
        tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]],
        Float[Tensor, "B L"],
        Float[Tensor, "B"],
    ]:
        """Look, then take one step.

        Args:
            word: the number of the last word, y_{t-1}.
            state: h_{t-1} and c_{t-1}.
            a: the features of the locations.
        Returns:
            The scores of all words for y_t (before the softmax), (h_t, c_t), the attention weights
            p_t, and log p of the location looked at; zero with soft attention, which draws none.
        """
        ### BEGIN SOLUTION
        h, c = state
        e = self.v(torch.tanh(self.W_a(a) + self.W_h(h)[:, None]))[:, :, 0]  # (B, L)
        if self.hard:
            z, p, log_p = hard_attention(e, a, sample=self.training)
        else:
            z, p = soft_attention(e, a)
            log_p = e.new_zeros(len(e))
        h, c = self.lstm(torch.cat([self.embedding(word), z], dim=1), (h, c))
        return self.output(torch.cat([h, z], dim=1)), (h, c), p, log_p
        ### END SOLUTION

    def forward(
        self, a: Float[Tensor, "B L D"], captions: Int[Tensor, "B T+1"]
    ) -> tuple[Float[Tensor, "B T words"], Float[Tensor, "B T L"], Float[Tensor, "B T"]]:
        """Predict each word of given captions from the true words before it.

        Args:
            a: the features of the locations.
            captions: y_0 … y_T, where y_0 is <start>.
        Returns:
            For t = 1 … T, after y_{t-1} was read: the scores of y_t, the attention weights p_t,
            and log p of the location looked at, all with their gradients.
        """
        ### BEGIN SOLUTION
        state = self.start(a)
        steps = []
        for word in captions[:, :-1].unbind(dim=1):
            scores, state, p, log_p = self.step(word, state, a)
            steps.append((scores, p, log_p))
        return tuple(torch.stack([step[part] for step in steps], dim=1) for part in range(3))
        ### END SOLUTION


def doubly_stochastic_penalty(
    p: Float[Tensor, "B T L"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Penalise captions that don't look at all locations equally.

    Σ_l (1 - Σ_t p_tl)²,   averaged over the pictures      (Xu et al. 2015, §4.2.1)

    Weights sum to one over the locations anyway; the penalty asks for the same over time.

    Args:
        p: the attention weights for each word.
        mask: which words count: True for words and <end>, False for padding.
    Returns:
        The penalty.
    """
    looked = (p * mask[:, :, None]).sum(dim=1)  # (B, L)
    return (1 - looked).square().sum(dim=1).mean()


def reinforce_loss(
    log_y: Float[Tensor, "B T"],
    log_p: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    baseline: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B"]]:
    """Compute a loss whose gradient is the REINFORCE estimate for hard attention.

    R = Σ_t log P(y_t), the reward;   loss = -(R + (R - b) Σ_t log p_t), averaged over the pictures,
    where R - b is a number without a gradient (Williams 1992; Xu et al. 2015, §4.1)

    The first term trains what follows the chosen locations. The second makes those choices more
    likely that brought more than the baseline b.

    Args:
        log_y: log P(y_t), the log-probabilities of the true words.
        log_p: log-probabilities of the locations that were chosen.
        mask: which words count: True for words and <end>, False for padding.
        baseline: b, the reward to expect.
    Returns:
        The loss, and R of each picture, without a gradient.
    """
    R = (log_y * mask).sum(dim=1)  # (B,)
    chosen = (log_p * mask).sum(dim=1)
    reward = R.detach()
    return -(R + (reward - baseline) * chosen).mean(), reward


def update_baseline(baseline: float | None, R: Float[Tensor, "B"], decay: float = 0.9) -> float:
    """Move the baseline towards the mean reward of a batch.

    b ← decay · b + (1 - decay) · mean(R)      (Xu et al. 2015, §4.1)

    Args:
        baseline: b before this batch; None when this is the first batch, whose mean is then b.
        R: the rewards of the batch.
        decay: how much of the old value stays, from 0 to 1.
    Returns:
        The new b, a Python number.
    """
    mean = R.mean().item()
    return mean if baseline is None else decay * baseline + (1 - decay) * mean


def doubly_stochastic_penalty_fault() -> tuple[
    str, tuple[Float[Tensor, "B T L"], Bool[Tensor, "B T"]]
]:
    """Say what is wrong with the black box of `doubly_stochastic_penalty`, and how to see it.

    Returns:
        The letter of its mistake, and arguments for which it does not return what
        `doubly_stochastic_penalty` does.
    """
    p, mask = torch.ones(1, 2, 1), torch.ones(1, 2, dtype=torch.bool)
    return "C", (p, mask)  # two looks at one location: (1 - 2)² is 1, the box gives (2/1 - 2)² = 0
