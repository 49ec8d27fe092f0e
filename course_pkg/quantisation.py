"""Fewer bytes: caches and weights in few bits.

Shapes: B sequences, T tokens, G heads of keys and values, each of size D_h.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from course_pkg.paged_attention import PagedKVCache


def quantise(
    X: Float[Tensor, "..."],
    bits: int,
    dims: int | tuple[int, ...],
    group: int | None = None,
    symmetric: bool = False,
) -> tuple[Int[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Replace numbers by small integers, a scale and a zero point.

    with a zero point:   z = min X,   s = (max X - min X) / (2^bits - 1),   q = round((X - z) / s)
    symmetric:           z = 0,       s = max |X| / (2^(bits-1) - 1),        q = round(X / s)

    Minimum and maximum are taken over the numbers that share a scale. Where s would be 0, it is 1:
    all these numbers are z. (Liu et al. 2024 with a zero point)

    Args:
        X: the numbers, finite. If they are in half precision, s and z are rounded to it, and then
            q is computed from them in float32, and kept within its range.
        bits: of an integer, 2 to 8.
        dims: the axis or axes along which numbers share a scale and a zero point. Where X has a
            token in each row and a channel in each column, (0, 1) gives one scale for the whole
            tensor, 0 one for each channel, and 1 one for each token.
        group: how many neighbours along the axis share a scale; then dims names one axis. All of
            them when None.
        symmetric: whether the zero point is 0.
    Returns:
        q in X's shape: uint8 from 0 to 2^bits - 1, or, symmetric, int8 from -(2^(bits-1) - 1) to
        2^(bits-1) - 1. Then s and z in X's dtype; their axes are as long as X's, but those in dims
        have length 1, or as many as there are groups.
    Raises:
        ValueError: bits is not in 2 … 8; group comes with several axes, or does not divide the
            length of its axis.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"an integer must have 2 to 8 bits, got {bits}")
    shape, dims = X.shape, (dims,) if isinstance(dims, int) else tuple(dims)
    if group is not None:
        axis = dims[0] % X.dim()
        if len(dims) > 1 or shape[axis] % group:
            raise ValueError(f"axes {dims} of {tuple(shape)} cannot be cut into groups of {group}")
        X, dims = X.unflatten(axis, (shape[axis] // group, group)), (axis + 1,)
    precise = X.to(torch.promote_types(X.dtype, torch.float32))
    if symmetric:
        low, high = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1
        scale = precise.abs().amax(dims, keepdim=True) / high
        zero = torch.zeros_like(scale)
    else:
        low, high = 0, 2**bits - 1
        zero = precise.amin(dims, keepdim=True)
        scale = (precise.amax(dims, keepdim=True) - zero) / high
    scale, zero = scale.to(X.dtype), zero.to(X.dtype)
    scale = torch.where(scale == 0, 1, scale)
    # A scale that X's dtype has rounded down would give the largest number one integer too many.
    Q = torch.round((precise - zero) / scale).clamp(low, high)
    if group is not None:
        scale, zero = scale.squeeze(axis + 1), zero.squeeze(axis + 1)
    return Q.to(torch.int8 if symmetric else torch.uint8).reshape(shape), scale, zero


def dequantise(
    Q: Int[Tensor, "..."], scale: Float[Tensor, "..."], zero: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Turn the integers of `quantise` back into numbers.

    X̂ = q s + z: no further than s / 2 from X, apart from the rounding of floating-point numbers.

    Args:
        Q: the integers.
        scale, zero: s and z, with as many axes as Q. The length of an axis is that of Q's or 1, or
            it divides that of Q's: then each entry is for a group of neighbours.
    Returns:
        The numbers, in the dtype of s.
    Raises:
        ValueError: the scales cannot be shared equally, or have more or fewer axes than Q.
    """
    for axis, (size, parts) in enumerate(zip(Q.shape, scale.shape, strict=True)):
        if parts not in (1, size):
            if size % parts:
                raise ValueError(f"{size} integers cannot share {parts} scales equally")
            scale = scale.repeat_interleave(size // parts, dim=axis)
            zero = zero.repeat_interleave(size // parts, dim=axis)
    return Q.to(scale.dtype) * scale + zero


def pack_int4(Q: Int[Tensor, "... D"]) -> Int[Tensor, "... D/2"]:
    """Put two integers of four bits into each byte.

    byte_i = q_{2i} + 16 q_{2i+1}: of two neighbours, the first is in the low four bits.

    Args:
        Q: integers from 0 to 15, of any integer dtype.
    Returns:
        The bytes, uint8.
    Raises:
        ValueError: D is odd, or an integer does not lie in 0 … 15.
    """
    if Q.shape[-1] % 2:
        raise ValueError(f"{Q.shape[-1]} integers do not fill bytes of two")
    if ((Q < 0) | (Q > 15)).any():
        raise ValueError("an integer of four bits without a sign lies in 0 … 15")
    Q = Q.to(torch.uint8)
    return Q[..., 0::2] | Q[..., 1::2] << 4


def unpack_int4(packed: Int[Tensor, "... D/2"]) -> Int[Tensor, "... D"]:
    """Take the two integers out of each byte that `pack_int4` has put there.

    q_{2i} = byte_i mod 16,   q_{2i+1} = ⌊byte_i / 16⌋

    Args:
        packed: the bytes, uint8.
    Returns:
        The integers from 0 to 15, uint8.
    """
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


class QuantisedKVCache:
    """Keep the keys and values of one layer in few bits, in the place of a `KVCache`.

    Each value vector has a scale and a zero point. Keys have them for each channel, that is each
    feature of each head, and each group of positions. The keys of the last positions, which do not
    fill a group yet, are the residual: they are kept as they are. (KIVI, Liu et al. 2024, where the
    last values are kept as they are too)

    Args:
        B, G, capacity, D_h: as in `KVCache`.
        bits: of an integer: 8, or 4, two to a byte.
        group: how many positions share the scales of their keys.
        dtype: of scales, zero points and residual, and of what is read.
        device: where all is kept.
    Raises:
        ValueError: bits is neither 8 nor 4, or it is 4 and D_h is odd.

    Attributes:
        length: how many positions are kept.
        bytes: how many bytes there are for `capacity` positions in all tensors together. For each
            sequence and head these are D_h bits / 8 and two numbers of dtype for each value vector;
            D_h bits / 8 for each key vector that can come to lie in a full group, and 2 D_h numbers
            of dtype for each of these ⌊capacity / group⌋ groups; and `group` key vectors of dtype.
    """

    def __init__(
        self,
        B: int,
        G: int,
        capacity: int,
        D_h: int,
        bits: int = 8,
        group: int = 32,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cpu",
    ):
        ### BEGIN SOLUTION
        if bits not in (4, 8) or D_h * bits % 8:
            raise ValueError(f"a cache cannot keep {D_h} features in {bits} bits each")

        def room(positions: int, size: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(B, G, positions, size, dtype=dtype, device=device)

        groups, packed = capacity // group, D_h * bits // 8
        self.K, self.V = (room(n, packed, torch.uint8) for n in (groups * group, capacity))
        self.K_scale, self.K_zero = room(groups, D_h), room(groups, D_h)
        self.V_scale, self.V_zero = room(capacity, 1), room(capacity, 1)
        self.residual = room(group, D_h)
        self.bits, self.group, self.length = bits, group, 0
        ### END SOLUTION

    @property
    def bytes(self) -> int:
        ### BEGIN SOLUTION
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, Tensor))
        ### END SOLUTION

    def append(self, K: Float[Tensor, "B G T D_h"], V: Float[Tensor, "B G T D_h"]) -> None:
        """Add the keys and values of T positions, without their gradients.

        They are first rounded to the cache's dtype. It does not matter in how many calls they come.

        Args:
            K, V: what to add, of any dtype.
        Raises:
            ValueError: K or V does not have shape (B, G, T, D_h), or there is no room for T
                more positions; then nothing has changed.
        """
        ### BEGIN SOLUTION
        (B, G, group, D_h), T = self.residual.shape, K.shape[-2]
        if K.shape != (B, G, T, D_h) or V.shape != K.shape:
            problem = f"K and V should have shape ({B}, {G}, T, {D_h}), got"
            raise ValueError(f"{problem} {tuple(K.shape)} and {tuple(V.shape)}")
        start, end, capacity = self.length, self.length + T, self.V.shape[2]
        if end > capacity:
            raise ValueError(f"{end} positions do not fit into a cache for {capacity}")
        pack = pack_int4 if self.bits == 4 else (lambda Q: Q)
        Q, scale, zero = quantise(V.detach().to(self.residual), self.bits, dims=3)
        self.V[:, :, start:end] = pack(Q)
        self.V_scale[:, :, start:end], self.V_zero[:, :, start:end] = scale, zero
        done, full = start // group, end // group  # how many full groups, before and after
        waiting = self.residual[:, :, : start - done * group]
        keys = torch.cat([waiting, K.detach().to(waiting)], dim=2)
        new, rest = keys.tensor_split([(full - done) * group], dim=2)
        Q, scale, zero = quantise(new, self.bits, dims=2, group=group)
        self.K[:, :, done * group : full * group] = pack(Q)
        self.K_scale[:, :, done:full], self.K_zero[:, :, done:full] = scale, zero
        self.residual[:, :, : rest.shape[2]] = rest
        self.length = end
        ### END SOLUTION

    def read(self) -> tuple[Float[Tensor, "B G N D_h"], Float[Tensor, "B G N D_h"]]:
        """Give the keys and values of all N = length positions, in the cache's dtype.

        Returns:
            K, dequantised and followed by the residual, and V, dequantised: new tensors, which stay
            as they are whatever comes into the cache later.
        """
        ### BEGIN SOLUTION
        N, full = self.length, self.length // self.group
        unpack = unpack_int4 if self.bits == 4 else (lambda packed: packed)
        quantised = unpack(self.K[:, :, : full * self.group])
        K = dequantise(quantised, self.K_scale[:, :, :full], self.K_zero[:, :, :full])
        V = dequantise(unpack(self.V[:, :, :N]), self.V_scale[:, :, :N], self.V_zero[:, :, :N])
        return torch.cat([K, self.residual[:, :, : N - full * self.group]], dim=2), V
        ### END SOLUTION

    def truncate(self, length: int) -> None:
        """Forget all positions but the first ones; what is read of these stays the same.

        Where a full group is cut, its positions that are kept become the residual, as they were
        read: what they were before is lost.

        Args:
            length: how many to keep.
        Raises:
            ValueError: length is negative, or more than are kept.
        """
        ### BEGIN SOLUTION
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot keep {length} of {self.length} positions")
        start = length // self.group * self.group  # of the residual to come
        if start < self.length // self.group * self.group:
            self.residual[:, :, : length - start] = self.read()[0][:, :, start:length]
        self.length = length
        ### END SOLUTION


class QuantisedPagedCache(PagedKVCache):
    """Keep the keys and values of all sequences and layers in blocks of slots, in few bits.

    Keys and values both have a scale and a zero point for each token. So each slot is a record of
    its own: it does not change when its block is filled further, a block is copied byte by byte,
    and what a sequence finds in a shared block does not depend on who has written it.

    Attributes:
        K, V: the records (L, G, N, S, R), uint8, zeros at first. Each has R = D_h bits / 8 + 4
            bytes: the integers, two to a byte if they have 4 bits; s in float16; z in float16.

    Args:
        L, blocks, block_size, G, D_h: as in `PagedKVCache`.
        bits: of an integer: 8 or 4.
        dtype: of what is gathered; torch's default when None.
        device: of K and V; torch's default when None.
    Raises:
        ValueError: bits is neither 8 nor 4, or it is 4 and D_h is odd.
    """

    def __init__(
        self,
        L: int,
        blocks: int,
        block_size: int,
        G: int,
        D_h: int,
        bits: int = 8,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ):
        ### BEGIN SOLUTION
        if bits not in (4, 8) or D_h * bits % 8:
            raise ValueError(f"a cache cannot keep {D_h} features in {bits} bits each")
        super().__init__(L, blocks, block_size, G, D_h * bits // 8 + 4, torch.uint8, device)
        self.bits, self.dtype = bits, torch.get_default_dtype() if dtype is None else dtype
        ### END SOLUTION

    def encode(self, X: Float[Tensor, "... D_h"]) -> Int[Tensor, "... R"]:
        """Make the records of some vectors, which are first rounded to float16.

        Args:
            X: keys or values.
        Returns:
            The records, uint8.
        """
        ### BEGIN SOLUTION
        Q, scale, zero = quantise(X.half(), self.bits, dims=-1)
        integers = pack_int4(Q) if self.bits == 4 else Q
        return torch.cat([integers, torch.cat([scale, zero], dim=-1).view(torch.uint8)], dim=-1)
        ### END SOLUTION

    def decode(self, records: Int[Tensor, "... R"]) -> Float[Tensor, "... D_h"]:
        """Read the vectors that records hold; one of zeros holds zeros.

        Args:
            records: made by `encode`.
        Returns:
            The vectors, in the cache's dtype, in which they are computed, too: s and z are
            converted first.
        """
        ### BEGIN SOLUTION
        integers, numbers = records.split([records.shape[-1] - 4, 4], dim=-1)
        # A copy, because what is read as float16 must begin at an even byte.
        numbers = numbers.clone(memory_format=torch.contiguous_format).view(torch.float16)
        scale, zero = numbers.to(self.dtype).split(1, dim=-1)
        return dequantise(unpack_int4(integers) if self.bits == 4 else integers, scale, zero)
        ### END SOLUTION

    def write(
        self,
        layer: int,
        slots: Int[Tensor, "M"],
        K: Float[Tensor, "M G D_h"],
        V: Float[Tensor, "M G D_h"],
    ) -> None:
        """Store the keys and values of M positions in one layer, as `PagedKVCache` does."""
        ### BEGIN SOLUTION
        super().write(layer, slots, self.encode(K), self.encode(V))
        ### END SOLUTION

    def gather(
        self, layer: int, blocks: list[int], length: int
    ) -> tuple[Float[Tensor, "T G D_h"], Float[Tensor, "T G D_h"]]:
        """Read one sequence's keys and values out of the blocks, as `PagedKVCache` does."""
        ### BEGIN SOLUTION
        K, V = super().gather(layer, blocks, length)
        return self.decode(K), self.decode(V)
        ### END SOLUTION


class QuantisedLinear(nn.Module):
    """Multiply by a matrix that is kept in integers of 8 bits.

    Buffers: Q (D_in, D_out), int8, and scale (groups, D_out): each column, which makes one feature
    of the output, has a symmetric scale of its own, or one for each group of neighbours in it.
    Nothing is trained: the bias is a buffer too.

    Args:
        W: the matrix, for x W; of an `nn.Linear` it is weight.T.
        bias: what is added to the result; nothing when None.
        group: how many neighbours along D_in share a scale; all of them when None.
    Raises:
        ValueError: group does not divide D_in.
    """

    def __init__(
        self,
        W: Float[Tensor, "D_in D_out"],
        bias: Float[Tensor, "D_out"] | None = None,
        group: int | None = None,
    ):
        super().__init__()
        ### BEGIN SOLUTION
        Q, scale, _ = quantise(W.detach(), 8, dims=0, group=group, symmetric=True)
        self.register_buffer("Q", Q)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        ### END SOLUTION

    def forward(self, X: Float[Tensor, "... D_in"]) -> Float[Tensor, "... D_out"]:
        """Compute X Ŵ + bias, with Ŵ the dequantised matrix.

        |y_o - ŷ_o| ≤ Σ_i |x_i| s_io / 2: each entry of the matrix is at most half a step wrong.

        Args:
            X: the vectors.
        Returns:
            The new vectors, in X's dtype.
        """
        ### BEGIN SOLUTION
        W = dequantise(self.Q, self.scale, torch.zeros_like(self.scale)).to(X.dtype)
        return X @ W if self.bias is None else X @ W + self.bias.to(X.dtype)
        ### END SOLUTION


def gptq(
    W: Float[Tensor, "D_in D_out"],
    X: Float[Tensor, "N D_in"],
    bits: int = 4,
    damping: float = 0.01,
) -> tuple[Int[Tensor, "D_in D_out"], Float[Tensor, "1 D_out"]]:
    """Round a matrix row by row, and let the rows that are left make up for each error.

    P = Xᵀ X + λ I,   λ = damping · mean of the diagonal of Xᵀ X;   Uᵀ U = P⁻¹, U upper triangular

    For i = 0, 1, …:   q_io = round(W_io / s_o),   e_o = (W_io - q_io s_o) / U_ii,
    and for every j > i   W_jo ← W_jo - U_ij e_o

    After each step, the rows from i + 1 on are those with which ‖X Ŵ - X W‖² + λ ‖Ŵ - W‖² is
    least, given the rows up to i. (Frantar et al. 2022, Algorithm 1, with blocks of one; there
    the matrix is transposed, and 2 Xᵀ X is H)

    Args:
        W: the matrix, for x W; it is not changed.
        X: inputs of the layer, one in each row, not all 0.
        bits: of an integer, 2 to 8.
        damping: how large λ is; above 0 wherever P would have no inverse without it.
    Returns:
        The integers, int8, kept within their range, and the scales, one for each column, in W's
        dtype: those of `quantise`, symmetric. All else is computed in float64.
    Raises:
        ValueError: the vectors of X have not D_in features, or bits is not in 2 … 8.
    """
    if X.shape[1] != len(W):
        raise ValueError(f"inputs have {X.shape[1]} features, the matrix {len(W)} rows")
    W, X = W.detach(), X.double()
    scale = quantise(W, bits, 0, symmetric=True)[1]
    s, top = scale[0].double(), 2 ** (bits - 1) - 1
    P = X.T @ X
    P.diagonal().add_(damping * P.diagonal().mean())
    U = torch.linalg.cholesky(torch.linalg.inv(P), upper=True)
    rows = W.to(torch.float64, copy=True)
    Q = torch.empty_like(rows)
    for i in range(len(W)):
        Q[i] = torch.round(rows[i] / s).clamp(-top, top)
        error = (rows[i] - Q[i] * s) / U[i, i]
        rows[i + 1 :] -= torch.outer(U[i, i + 1 :], error)
    return Q.to(torch.int8), scale


def rotate(
    X: Float[Tensor, "... D"], start: Float[Tensor, "r r"] | None = None
) -> Float[Tensor, "... D"]:
    """Multiply vectors by a Hadamard matrix, divided by √D: it turns them, and spreads outliers.

    H_r = start,   H_{2n} = [[H_n, H_n], [H_n, -H_n]],   Y = X H_D / √D

    D = r 2^m. H_D consists of ±1, and H_D H_Dᵀ / D = I: products of rotated vectors are those of
    the vectors before. (Ashkboos et al. 2024, who rotate the keys and queries of each head after
    RoPE; a rotation before RoPE, which turns pairs of features, would change the scores)

    Args:
        X: the vectors.
        start: a Hadamard matrix of size r; (1), the smallest there is, when None.
    Returns:
        The rotated vectors, in X's dtype.
    Raises:
        ValueError: D is not r times a power of two.
    """
    D = X.shape[-1]
    H = X.new_ones(1, 1) if start is None else start.to(X)
    while len(H) < D:
        H = torch.cat([torch.cat([H, H], dim=1), torch.cat([H, -H], dim=1)])
    if len(H) != D:
        raise ValueError(f"no doubling leads to a Hadamard matrix of size {D}")
    return X @ H / math.sqrt(D)


def quantise_fault() -> tuple[str, tuple[Tensor, int, int]]:
    """Say what is wrong with the black box of `quantise`, and how that can be seen.

    Returns:
        The letter of its mistake, and arguments for which it does not return what `quantise` does.
    """
    X = torch.tensor([0.25, 3.25])  # s = 1: z is 0.25, or 0 in the box
    return "E", (X, 2, 0)
