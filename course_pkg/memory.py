"""Memory that a network reads and writes by attention, and glimpses of an image.

Shapes: B sequences, T steps, D input features, H hidden features; a memory of N rows of M numbers,
one row a place. w holds the weights over the rows, positive and summing to one.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


def ntm_write(
    memory: Float[Tensor, "B N M"],
    w: Float[Tensor, "B N"],
    erase: Float[Tensor, "B M"],
    add: Float[Tensor, "B M"],
) -> Float[Tensor, "B N M"]:
    """Erase, then add, in each row by as much as its weight says.

    M'(i) = M(i) ⊙ (1 - w(i) e) + w(i) a      (Graves et al. 2014, §3.2)

    Args:
        memory: M, the rows; it is not changed in place.
        w: the weights of the write head.
        erase: e, how much to erase of each column, in [0, 1].
        add: a, what to add.
    Returns:
        M', the new memory.
    """
    kept = 1 - w[:, :, None] * erase[:, None]  # (B, N, M)
    return memory * kept + w[:, :, None] * add[:, None]


def content_addressing(
    memory: Float[Tensor, "B N M"], key: Float[Tensor, "B M"], beta: Float[Tensor, "B"]
) -> Float[Tensor, "B N"]:
    """Find the rows of the memory that look like a key.

    w(i) = softmax_i(β K(k, M(i))),   K(u, v) = u · v / (‖u‖ ‖v‖)      (Graves et al. 2014, §3.3.1)

    Args:
        memory: M, the rows; one that is all zero is similar to nothing: K = 0.
        key: k, what to look for.
        beta: β ≥ 0, how sharply to look.
    Returns:
        w, the weights of the rows. Gradients are finite, also where a row or the key is all zero.
    """
    similarity = functional.cosine_similarity(memory, key[:, None], dim=2)  # (B, N)
    return torch.softmax(beta[:, None] * similarity, dim=1)


def location_addressing(
    w_content: Float[Tensor, "B N"],
    w_before: Float[Tensor, "B N"],
    g: Float[Tensor, "B"],
    s: Float[Tensor, "B S"],
    gamma: Float[Tensor, "B"],
) -> Float[Tensor, "B N"]:
    """Move a head along the rows: through a gate, by a shift, and sharpened.

    w_g(i) = g w_content(i) + (1 - g) w_before(i)
    w_s(i) = Σ_j w_g(j) s(i - j), indices modulo N
    w(i) = w_s(i)^γ / Σ_j w_s(j)^γ      (Graves et al. 2014, §3.3.2, equations 7 to 9)

    Args:
        w_content: the weights found by content.
        w_before: the head's weights at the previous step.
        g: the gate in [0, 1]; 1 takes the content's weights alone.
        s: how much to move by each of S shifts, from -(S-1)/2 to (S-1)/2; positive shifts move
            towards higher rows, and from row N-1 to row 0.
        gamma: γ ≥ 1; 1 leaves the weights as they are. However large it is, the result is finite.
    Returns:
        w, which sums to one. Its gradients are finite, also where weights are zero.
    Raises:
        ValueError: S is even, so that no shift stands in the middle.
    """
    S = s.shape[1]
    if S % 2 == 0:
        raise ValueError(f"the number of shifts must be odd, got {S}")
    w = g[:, None] * w_content + (1 - g[:, None]) * w_before
    moved = [w.roll(k - S // 2, dims=1) for k in range(S)]  # (B, N) each
    w = torch.einsum("bs,sbn->bn", s, torch.stack(moved))
    # A common factor cancels. With the largest weight at one, not all powers can become zero.
    power = (w / w.amax(dim=1, keepdim=True).detach()) ** gamma[:, None]
    return power / power.sum(dim=1, keepdim=True)


class NTM(nn.Module):
    """A Neural Turing Machine with one write head, one read head and a feed-forward controller.

    The controller keeps nothing from one step to the next: what is to be remembered has to be in
    the memory, or in where the heads are. A step, given x_t (Graves et al. 2014, §3):

    h = tanh(controller([x_t; r_{t-1}]))
    write head: w_write by `address`, then `ntm_write` with e = σ(erase(h)) and a = tanh(add(h))
    read head: w_read by `address`, in the new memory, then r_t = Σ_i w_read(i) M(i)
    y_t = output([h; r_t])

    Args:
        D: input features.
        D_Y: output features.
        H: hidden features of the controller.
        N, M: rows of the memory, and numbers in each.
    """

    SHIFTS = 3  # -1, 0 and 1

    def __init__(self, D: int, D_Y: int, H: int, N: int, M: int):
        super().__init__()
        self.N, self.M = N, M
        self.controller = nn.Linear(D + M, H)
        self.write_head = nn.Linear(H, M + 3 + self.SHIFTS)
        self.read_head = nn.Linear(H, M + 3 + self.SHIFTS)
        self.erase, self.add = nn.Linear(H, M), nn.Linear(H, M)
        self.output = nn.Linear(H + M, D_Y)

    def start(self, B: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Make the first state: an almost empty memory, nothing read, both heads on row 0."""
        memory = self.output.weight.new_full((B, self.N, self.M), 1e-6)
        w = memory.new_zeros(B, self.N)
        w[:, 0] = 1
        return memory, memory.new_zeros(B, self.M), w, w

    def address(
        self,
        raw: Float[Tensor, "B M+3+S"],
        memory: Float[Tensor, "B N M"],
        w: Float[Tensor, "B N"],
    ) -> Float[Tensor, "B N"]:
        """Move a head: by `content_addressing`, then by `location_addressing`.

        Args:
            raw: what a head's linear layer gives: the key k (M numbers), then one number each for
                β = softplus, g = σ and γ = 1 + softplus, then s = softmax (S numbers).
            memory: the memory.
            w: the head's weights at the previous step.
        Returns:
            The head's new weights.
        """
        ### BEGIN SOLUTION
        key, beta, g, gamma, s = raw.split([self.M, 1, 1, 1, self.SHIFTS], dim=1)
        w_content = content_addressing(memory, key, functional.softplus(beta[:, 0]))
        g, gamma = torch.sigmoid(g[:, 0]), 1 + functional.softplus(gamma[:, 0])
        return location_addressing(w_content, w, g, torch.softmax(s, dim=1), gamma)
        ### END SOLUTION

    def step(
        self, x: Float[Tensor, "B D"], state: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Float[Tensor, "B D_Y"], tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Take one step: write, then read.

        Args:
            x: the input x_t.
            state: the memory (B, N, M), what was read, r_{t-1} (B, M), and the weights of the
                write head and of the read head (B, N each), as `start` gives them.
        Returns:
            y_t, and the new state.
        """
        ### BEGIN SOLUTION
        memory, r, w_write, w_read = state
        h = torch.tanh(self.controller(torch.cat([x, r], dim=1)))  # (B, H)
        w_write = self.address(self.write_head(h), memory, w_write)
        memory = ntm_write(memory, w_write, torch.sigmoid(self.erase(h)), torch.tanh(self.add(h)))
        w_read = self.address(self.read_head(h), memory, w_read)
        r = torch.einsum("bn,bnm->bm", w_read, memory)
        return self.output(torch.cat([h, r], dim=1)), (memory, r, w_write, w_read)
        ### END SOLUTION

    def forward(
        self,
        X: Float[Tensor, "B T D"],
        state: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "B T D_Y"], tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Apply `step` from t = 1 to T.

        Args:
            X: the inputs, batch first.
            state: where to start; `start` when None.
        Returns:
            The outputs y_1 … y_T, and the state after the last step.
        """
        ### BEGIN SOLUTION
        state = self.start(len(X)) if state is None else state
        outputs = []
        for x in X.unbind(dim=1):
            y, state = self.step(x, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1), state
        ### END SOLUTION


def dnc_usage(
    usage: Float[Tensor, "B N"],
    w_write: Float[Tensor, "B N"],
    w_read: Float[Tensor, "B R N"],
    free: Float[Tensor, "B R"],
) -> Float[Tensor, "B N"]:
    """Update how far each row of the memory is in use.

    u_t = (u + w_write - u ⊙ w_write) ⊙ ψ,   ψ = Π_r (1 - f_r w_read_r)
    (Graves et al. 2016, Methods, "Dynamic memory allocation")

    What was written is in use; what was read by a head whose free gate is open no longer is.

    Args:
        usage: u_{t-1}, from 0 (free) to 1 (in use); it is not changed.
        w_write: the write head's weights at the previous step.
        w_read: the weights of the R read heads at the previous step.
        free: f, the free gates of the read heads, in [0, 1].
    Returns:
        u_t. Gradients are finite, also where a row is freed entirely.
    """
    retained = (1 - free[:, :, None] * w_read).prod(dim=1)  # ψ (B, N)
    return (usage + w_write - usage * w_write) * retained


def dnc_allocation(usage: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Point a write head at the row that is used least.

    With φ the rows in ascending order of usage:
    a(φ_j) = (1 - u(φ_j)) Π_{i<j} u(φ_i)      (Graves et al. 2016, Methods)

    Args:
        usage: u, from 0 (free) to 1 (in use).
    Returns:
        a, the weights of the rows; they sum to 1 - Π_i u(i), which is zero when all are in use.
        Gradients are finite, also where a row is free.
    """
    ascending, order = usage.sort(dim=1)
    before = torch.cat([torch.ones_like(usage[:, :1]), ascending[:, :-1].cumprod(dim=1)], dim=1)
    return torch.zeros_like(usage).scatter(1, order, (1 - ascending) * before)


def dnc_links(
    links: Float[Tensor, "B N N"], precedence: Float[Tensor, "B N"], w_write: Float[Tensor, "B N"]
) -> tuple[Float[Tensor, "B N N"], Float[Tensor, "B N"]]:
    """Note which row is written after which.

    L_t(i, j) = (1 - w(i) - w(j)) L(i, j) + w(i) p(j)   for i ≠ j,   L_t(i, i) = 0
    p_t = (1 - Σ_i w(i)) p + w
    (Graves et al. 2016, Methods, "Temporal memory linkage")

    L(i, j) says how far row i was written right after row j, and p how far each row is the one
    written last. A write to a row cuts the links that the row had.

    Args:
        links: L_{t-1}; zero before the first write. It is not changed, nor is precedence.
        precedence: p_{t-1}; zero before the first write.
        w_write: w, the write head's weights; their sum is at most one.
    Returns:
        L_t and p_t.
    """
    into, out_of = w_write[:, :, None], w_write[:, None]
    links = (1 - into - out_of) * links + into * precedence[:, None]  # (B, N, N)
    others = 1 - torch.eye(w_write.shape[1]).to(links)
    return links * others, (1 - w_write.sum(dim=1, keepdim=True)) * precedence + w_write


def gaussian_filterbank(
    centre: Float[Tensor, "B"],
    stride: Float[Tensor, "B"],
    sigma: Float[Tensor, "B"],
    N: int,
    size: int,
) -> Float[Tensor, "B N size"]:
    """Make N Gaussian filters along one axis of an image, a stride apart around a centre.

    F(i, p) = exp(-(p - μ_i)² / 2σ²) / Z_i,   μ_i = centre + (i - (N - 1)/2) · stride
    for filters i and pixels p, both counted from 0      (Gregor et al. 2015, §3.2)

    Args:
        centre: the middle of the N filters, in pixels; it may lie outside the image.
        stride: pixels from one filter to the next.
        sigma: each filter's standard deviation, in pixels.
        N: how many filters: the side of the glimpse.
        size: how many pixels the axis has.
    Returns:
        F. Z_i makes every filter sum to one, even one that lies far outside the image.
    """
    mu = centre[:, None] + (torch.arange(N).to(centre) - (N - 1) / 2) * stride[:, None]  # (B, N)
    distance = torch.arange(size).to(centre) - mu[:, :, None]  # (B, N, size)
    # Softmax is exp and division by the sum, safe where every exp alone would be zero.
    return torch.softmax(-((distance / sigma[:, None, None]) ** 2) / 2, dim=2)


def sample_latent(
    mu: Float[Tensor, "B D_Z"], log_sigma: Float[Tensor, "B D_Z"], noise: Float[Tensor, "B D_Z"]
) -> tuple[Float[Tensor, "B D_Z"], Float[Tensor, "B"]]:
    """Draw a code from its Gaussian, so that mean and width get gradients; say what it costs.

    z = μ + σ ⊙ ε,   ε ~ N(0, 1)      (Kingma and Welling 2014, §2.4)
    KL = Σ_d KL(N(μ, σ²) ‖ N(0, 1)) = ½ Σ_d (μ² + σ² - log σ² - 1)      (appendix B)

    Args:
        mu: μ, the means of the D_Z numbers of each code.
        log_sigma: log σ, the logarithms of the standard deviations. KL and its gradients are
            finite even where σ itself is too small for a number in a computer: log σ = -1000.
        noise: ε, drawn from the standard Gaussian.
    Returns:
        z, a sample of N(μ, σ²), and KL, the divergence of each code from the prior, in nats.
    """
    z = mu + log_sigma.exp() * noise
    return z, (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1).sum(dim=1) / 2


class DRAW(nn.Module):
    """Draws pictures glimpse by glimpse: an autoencoder with two LSTMs and a canvas.

    With σ the logistic function, c the canvas in logits, of any size, and h the decoder's state,
    a glimpse t of a picture x is (Gregor et al. 2015, §2.1):

    error = x - σ(c_{t-1})
    r = `read`(x, error, h_{t-1})
    h_enc = encoder([r; h_{t-1}]);   μ, log σ = code(h_enc)
    z, KL_t = `sample_latent`(μ, log σ, ε_t)
    h_t = decoder(z)
    c_t = c_{t-1} + `write`(h_t)

    Args:
        A: the pictures' side, in pixels.
        N: the side of a glimpse and of a patch.
        D_Z: how many numbers a code has.
        H: hidden features of each LSTM.
    """

    def __init__(self, A: int, N: int, D_Z: int, H: int):
        super().__init__()
        self.A, self.N, self.H = A, N, H
        self.encoder = nn.LSTMCell(2 * N**2 + H, H)
        self.decoder = nn.LSTMCell(D_Z, H)
        self.code = nn.Linear(H, 2 * D_Z)
        self.read_aim, self.write_aim = nn.Linear(H, 5), nn.Linear(H, 5)
        self.patch = nn.Linear(H, N**2)
        self.blank = nn.Parameter(torch.zeros(()))

    def start(self, B: int) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Make a blank canvas, with the same logit everywhere, and both LSTMs' first states."""
        zeros = self.blank.new_zeros(B, self.H)
        return self.blank.expand(B, self.A, self.A), (zeros, zeros), (zeros, zeros)

    def aim(
        self, raw: Float[Tensor, "B 5"]
    ) -> tuple[Float[Tensor, "B N A"], Float[Tensor, "B N A"], Float[Tensor, "B"]]:
        """Turn five numbers into filters (§3.2, with pixels counted from 0).

        Args:
            raw: for each picture g̃_X, g̃_Y, log σ², log δ̃ and log γ. The centre is
                (A + 1) / 2 · (g̃ + 1) - 1, the stride (A - 1) / (N - 1) · δ̃.
        Returns:
            F_Y, F_X and γ.
        """
        ### BEGIN SOLUTION
        x, y, log_variance, log_stride, log_gamma = raw.unbind(dim=1)
        stride = (self.A - 1) / (self.N - 1) * log_stride.exp()
        sigma = (log_variance / 2).exp()
        F_Y, F_X = (
            gaussian_filterbank((self.A + 1) / 2 * (g + 1) - 1, stride, sigma, self.N, self.A)
            for g in (y, x)
        )
        return F_Y, F_X, log_gamma.exp()
        ### END SOLUTION

    def read(
        self, x: Float[Tensor, "B A A"], error: Float[Tensor, "B A A"], h: Float[Tensor, "B H"]
    ) -> Float[Tensor, "B 2*N*N"]:
        """Take the same glimpse, where `read_aim` says, of the picture and of the error.

        glimpse = γ F_Y seen F_Xᵀ      (§3.3)

        Returns:
            The pixels of both glimpses, those of the picture first.
        """
        ### BEGIN SOLUTION
        F_Y, F_X, gamma = self.aim(self.read_aim(h))
        glimpses = [gamma[:, None, None] * (F_Y @ seen @ F_X.mT) for seen in (x, error)]
        return torch.stack(glimpses, dim=1).flatten(1)
        ### END SOLUTION

    def write(self, h: Float[Tensor, "B H"]) -> Float[Tensor, "B A A"]:
        """Paint the patch of N × N numbers that `patch` gives, where `write_aim` says.

        painted = F_Yᵀ patch F_X / γ      (§3.3)
        """
        ### BEGIN SOLUTION
        F_Y, F_X, gamma = self.aim(self.write_aim(h))
        patch = self.patch(h).view(-1, self.N, self.N)
        return (F_Y.mT @ patch @ F_X) / gamma[:, None, None]
        ### END SOLUTION

    def forward(
        self, x: Float[Tensor, "B A A"], noise: Float[Tensor, "B T D_Z"]
    ) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """Draw pictures with T glimpses at them, and say what that costs (§2.2).

        Args:
            x: the pictures, each pixel 0 or 1.
            noise: ε, from the standard Gaussian, for each glimpse.
        Returns:
            The two parts of each picture's loss, in nats: its reconstruction, the cross-entropy
            of all pixels under σ(c_T), and the sum of KL_t over its T codes.
        """
        ### BEGIN SOLUTION
        canvas, encoder, decoder = self.start(len(x))
        kl = 0
        for epsilon in noise.unbind(dim=1):
            h = decoder[0]
            r = self.read(x, x - torch.sigmoid(canvas), h)
            encoder = self.encoder(torch.cat([r, h], dim=1), encoder)
            mu, log_sigma = self.code(encoder[0]).chunk(2, dim=1)
            z, nats = sample_latent(mu, log_sigma, epsilon)
            kl = kl + nats
            decoder = self.decoder(z, decoder)
            canvas = canvas + self.write(decoder[0])
        pixels = functional.binary_cross_entropy_with_logits(canvas, x, reduction="none")
        return pixels.sum(dim=(1, 2)), kl
        ### END SOLUTION

    def generate(self, z: Float[Tensor, "B T D_Z"]) -> Float[Tensor, "B T A A"]:
        """Draw new pictures from codes alone: no picture is read, and no encoder is used (§2.3).

        Args:
            z: the codes; new pictures come from standard Gaussian ones, the prior.
        Returns:
            σ(c_1) … σ(c_T), the pictures after each step.
        """
        ### BEGIN SOLUTION
        canvas, _, decoder = self.start(len(z))
        pictures = []
        for code in z.unbind(dim=1):
            decoder = self.decoder(code, decoder)
            canvas = canvas + self.write(decoder[0])
            pictures.append(torch.sigmoid(canvas))
        return torch.stack(pictures, dim=1)
        ### END SOLUTION


def sample_latent_fault() -> tuple[
    str, tuple[Float[Tensor, "B D_Z"], Float[Tensor, "B D_Z"], Float[Tensor, "B D_Z"]]
]:
    """Say what is wrong with the black box of `sample_latent`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `sample_latent`
        does.
    """
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    return "B", (zero, zero, one)  # z is 1, and log(1 + e⁰) = log 2 in the box
