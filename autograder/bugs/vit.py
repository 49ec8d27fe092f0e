"""Known wrong solutions of vit."""

import torch
from torch.nn import functional as F

from autograder.bugs import bug, equivalent
from course_pkg.vit import (
    PatchEmbedding,
    ViT,
    ViTLayer,
    attention_rollout,
    patchify,
    resize_positions,
    unpatchify,
    vit_parameters,
)

# patchify and unpatchify


def demand(images, P):
    """Refuse what the reference refuses."""
    if images.shape[2] % P or images.shape[3] % P:
        raise ValueError(f"{tuple(images.shape[2:])} and {P}")


def cut(images, P, axes):
    """Cut images into patches; axes are an arrangement of b c i p j q."""
    demand(images, P)
    B, C, S_h, S_w = images.shape
    grid = images.reshape(B, C, S_h // P, P, S_w // P, P)
    return torch.einsum(f"bcipjq->b{axes}", grid).reshape(B, -1, P * P * C)


@bug(
    patchify,
    "the channels come first in a patch: all red pixels, then all green ones",
    classic=True,
)
def channels_first(images, P):
    return cut(images, P, "ijcpq")


@bug(
    patchify,
    "the image is only reshaped: a patch holds pixels that follow one another in memory",
    classic=True,
)
def reshaped(images, P):
    demand(images, P)
    B, C = images.shape[:2]
    return images.reshape(B, -1, P * P * C)


@bug(patchify, "the channels are put last, but then the image is only reshaped", classic=True)
def reshaped_with_channels_last(images, P):
    demand(images, P)
    B, C = images.shape[:2]
    return images.permute(0, 2, 3, 1).reshape(B, -1, P * P * C)


@bug(patchify, "the patches are read column by column", classic=True)
def columns_of_patches(images, P):
    return cut(images, P, "jipqc")


@bug(patchify, "the pixels of a patch are read column by column", classic=True)
def columns_of_pixels(images, P):
    return cut(images, P, "ijqpc")


@bug(patchify, "height and width are exchanged, for patches and for pixels", classic=True)
def transposed(images, P):
    return cut(images, P, "jiqpc")


@bug(patchify, "pixels P apart are put together, not neighbours")
def strided(images, P):
    demand(images, P)
    B, C, S_h, S_w = images.shape
    grid = images.reshape(B, C, P, S_h // P, P, S_w // P)
    return torch.einsum("bcpiqj->bijpqc", grid).reshape(B, -1, P * P * C)


@bug(patchify, "one axis is left for rows of patches and one for columns: shape (B, h, w, P·P·C)")
def on_a_grid(images, P):
    B, _, S_h, S_w = images.shape
    return patchify(images, P).reshape(B, S_h // P, S_w // P, -1)


@bug(
    patchify,
    "pixels beyond the last whole patch are cut off",
    told_by="raise ValueError when P does not divide the height",
)
def rest_cut_off(images, P):
    S_h, S_w = (side // P * P for side in images.shape[2:])
    return patchify(images[:, :, :S_h, :S_w], P)


@bug(
    patchify,
    "sides that P does not divide are padded",
    told_by="raise ValueError when P does not divide the height",
)
def rest_padded(images, P):
    S_h, S_w = images.shape[2:]
    return patchify(F.pad(images, (0, -S_w % P, 0, -S_h % P)), P)


@bug(patchify, "sides that P does not divide raise RuntimeError", told_by="raised RuntimeError")
def rest_unchecked(images, P):
    B, C, S_h, S_w = images.shape
    grid = images.reshape(B, C, S_h // P, P, S_w // P, P).permute(0, 2, 4, 3, 5, 1)
    return grid.flatten(3).flatten(1, 2)


@bug(patchify, "no gradient comes back", told_by="No gradient goes back")
def cut_off(images, P):
    return patchify(images, P).detach()


def demand_fit(patches, P, size):
    """Refuse what the reference refuses."""
    unpatchify(patches, P, size)


def join(patches, P, size, axes, grid=None):
    """Put patches together that have these axes after b."""
    demand_fit(patches, P, size)
    sizes = {"i": size[0] // P, "j": size[1] // P, "p": P, "q": P}
    sizes["c"] = patches.shape[2] // (P * P)
    shaped = patches.reshape(len(patches), *(sizes[axis] for axis in axes))
    return torch.einsum(f"b{axes}->bcipjq", shaped).reshape(len(patches), -1, *size)


@bug(unpatchify, "the channels are taken to come first in a patch")
def channels_first(patches, P, size):
    return join(patches, P, size, "ijcpq")


@bug(unpatchify, "the patches are only reshaped")
def reshaped(patches, P, size):
    demand_fit(patches, P, size)
    return patches.reshape(len(patches), -1, *size)


@bug(unpatchify, "the patches are taken to come column by column")
def columns_of_patches(patches, P, size):
    return join(patches, P, size, "jipqc")


@bug(unpatchify, "the pixels of a patch are taken to come column by column")
def columns_of_pixels(patches, P, size):
    return join(patches, P, size, "ijqpc")


@bug(unpatchify, "height and width are exchanged, for patches and for pixels")
def transposed(patches, P, size):
    return join(patches, P, size, "jiqpc")


@bug(unpatchify, "the height of the grid is used as its width, and its width as its height")
def grid_turned(patches, P, size):
    demand_fit(patches, P, size)
    B = len(patches)
    grid = patches.reshape(B, size[1] // P, size[0] // P, P, P, -1)
    return torch.einsum("bijpqc->bcipjq", grid).reshape(B, -1, *size)


@bug(unpatchify, "neighbours within a patch are put P pixels apart")
def strided(patches, P, size):
    demand_fit(patches, P, size)
    B = len(patches)
    grid = patches.reshape(B, size[0] // P, size[1] // P, P, P, -1)
    return torch.einsum("bijpqc->bcpiqj", grid).reshape(B, -1, *size)


@bug(unpatchify, "the grid is taken to be square", told_by="raised RuntimeError")
def square(patches, P, size):
    demand_fit(patches, P, size)
    side = int(patches.shape[1] ** 0.5)
    grid = patches.reshape(len(patches), side, side, P, P, -1)
    return torch.einsum("bijpqc->bcipjq", grid).reshape(len(patches), -1, *size)


@bug(unpatchify, "the channels also come last in the images")
def channels_last(patches, P, size):
    return unpatchify(patches, P, size).permute(0, 2, 3, 1)


@bug(unpatchify, "nothing is refused", told_by="should raise ValueError when")
def unchecked(patches, P, size):
    B, h, w = len(patches), size[0] // P, size[1] // P
    grid = patches.reshape(B, h, w, P, P, -1).permute(0, 5, 1, 3, 2, 4)
    return grid.reshape(B, -1, h * P, w * P)


def joined(patches, P, size):
    """Put patches together without refusing any."""
    h, w = size[0] // P, size[1] // P
    grid = patches.reshape(len(patches), h, w, P, P, -1)
    return torch.einsum("bijpqc->bcipjq", grid).reshape(len(patches), -1, h * P, w * P)


@bug(
    unpatchify,
    "only the numbers are counted: they must be a multiple of the pixels",
    told_by="should raise ValueError when",
)
def multiples_fit(patches, P, size):
    if size[0] % P or size[1] % P or patches.shape[1] * patches.shape[2] % (size[0] * size[1]):
        raise ValueError(f"{tuple(patches.shape)}, {P} and {size}")
    return joined(patches, P, size)


@bug(
    unpatchify,
    "only the number of patches is compared",
    told_by="should raise ValueError when",
)
def patches_counted(patches, P, size):
    if patches.shape[1] * P * P != size[0] * size[1]:
        raise ValueError(f"{patches.shape[1]} patches of {P} and {size}")
    return joined(patches, P, size)


@bug(
    unpatchify,
    "what P leaves over at the sides is cut",
    told_by="should raise ValueError when",
)
def rest_cut(patches, P, size):
    whole = (size[0] // P * P, size[1] // P * P)
    return unpatchify(patches, P, whole)


@bug(unpatchify, "the axes are permuted as in patchify, not the inverse way", classic=True)
def same_way(patches, P, size):
    demand_fit(patches, P, size)
    grid = patches.reshape(len(patches), size[0] // P, size[1] // P, P, P, -1)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(len(patches), -1, *size)


# PatchEmbedding


class Varied(PatchEmbedding):
    """An embedding whose patches the bugs below vary."""

    def forward(self, images):
        return self.cut(images) @ self.W + self.b

    def cut(self, images):
        return patchify(images, self.P)

    def kernel_of(self, axes, order):
        P = self.P
        sizes = {"p": P, "q": P, "c": len(self.W) // (P * P)}
        return self.W.T.reshape(-1, *(sizes[axis] for axis in axes)).permute(order)


@bug(PatchEmbedding, "the bias is left out")
class NoBias(Varied):
    def forward(self, images):
        return self.cut(images) @ self.W


@bug(PatchEmbedding, "the channels come first in a patch, as in a convolution's kernel")
class ChannelsFirst(Varied):
    def cut(self, images):
        return F.unfold(images, self.P, stride=self.P).mT


@bug(PatchEmbedding, "the vectors are those of single pixels' channels, not of patches")
class Mixed(Varied):
    def cut(self, images):
        rows = images.permute(0, 2, 3, 1).reshape(len(images), -1, len(self.W))
        return rows


@bug(PatchEmbedding, "the patches are read column by column")
class Columns(Varied):
    def cut(self, images):
        return cut(images, self.P, "jipqc")


@bug(PatchEmbedding, "the pixels of a patch are read column by column")
class Turned(Varied):
    def cut(self, images):
        return cut(images, self.P, "ijqpc")


@bug(PatchEmbedding, "the vectors are left on their grid, with D first: shape (B, D, h, w)")
class OnAGrid(PatchEmbedding):
    def forward(self, images):
        return F.conv2d(images, self.kernel(), self.b, stride=self.P)


@bug(PatchEmbedding, "the patches overlap: the convolution has stride 1")
class Overlapping(PatchEmbedding):
    def forward(self, images):
        return F.conv2d(images, self.kernel(), self.b).flatten(2).mT


@bug(PatchEmbedding, "a non-linearity follows the linear map")
class Relu(PatchEmbedding):
    def forward(self, images):
        return F.relu(super().forward(images))


@bug(PatchEmbedding, "the kernel's channels are taken to come first in W")
class KernelChannelsFirst(Varied):
    def kernel(self):
        return self.kernel_of("cpq", (0, 1, 2, 3))


@bug(PatchEmbedding, "rows and columns of the kernel are exchanged")
class KernelTurned(Varied):
    def kernel(self):
        return self.kernel_of("pqc", (0, 3, 2, 1))


@bug(PatchEmbedding, "the kernel's channels are left at its end")
class KernelChannelsLast(Varied):
    def kernel(self):
        return self.kernel_of("pqc", (0, 1, 2, 3))


@bug(PatchEmbedding, "W is reshaped before it is transposed, so that D and the pixels are mixed")
class KernelNotTurned(Varied):
    def kernel(self):
        P = self.P
        return self.W.reshape(-1, P, P, len(self.W) // (P * P)).permute(0, 3, 1, 2)


@bug(PatchEmbedding, "the kernel is upside down, as for a true convolution")
class KernelFlipped(PatchEmbedding):
    def kernel(self):
        return super().kernel().flip(2, 3)


@bug(PatchEmbedding, "no gradient reaches W", told_by="No gradient goes back")
class Detached(PatchEmbedding):
    def forward(self, images):
        return super().forward(images).detach()


@bug(PatchEmbedding, "W is only reshaped, to (D, C, P, P), and no axis is moved", classic=True)
class KernelReshaped(Varied):
    def kernel(self):
        return self.W.reshape(self.W.shape[1], -1, self.P, self.P)


@bug(
    PatchEmbedding,
    "the kernel is cut off from W",
    told_by="No gradient goes back from the kernel",
)
class CutKernel(PatchEmbedding):
    def kernel(self):
        return super().kernel().detach()


# ViTLayer


class VariedLayer(ViTLayer):
    """A layer whose steps the bugs below vary."""

    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        X = X + Y
        return X + self.think(self.norm_2(X)), A

    def look(self, X):
        return self.attention(X, return_weights=True)

    def think(self, X):
        return self.contract(F.gelu(self.expand(X)))


@bug(ViTLayer, "the norms follow the sums, as in BERT", classic=True)
class PostNorm(VariedLayer):
    def forward(self, X):
        Y, A = self.look(X)
        X = self.norm_1(X + Y)
        return self.norm_2(X + self.think(X)), A


@bug(ViTLayer, "attention is added to the normalised tokens", classic=True)
class NormedResidual(VariedLayer):
    def forward(self, X):
        X = self.norm_1(X)
        Y, A = self.look(X)
        X = X + Y
        return X + self.think(self.norm_2(X)), A


@bug(ViTLayer, "the network is added to the normalised tokens", classic=True)
class NormedSecondResidual(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        X = self.norm_2(X + Y)
        return X + self.think(X), A


@bug(ViTLayer, "GELU has GPT-2's tanh form")
class TanhForm(VariedLayer):
    def think(self, X):
        return self.contract(F.gelu(self.expand(X), approximate="tanh"))


@bug(ViTLayer, "the network has ReLU in place of GELU")
class ReluLayer(VariedLayer):
    def think(self, X):
        return self.contract(F.relu(self.expand(X)))


@bug(ViTLayer, "a causal mask hides the patches that come later")
class Causal(VariedLayer):
    def look(self, X):
        mask = torch.ones(X.shape[1], X.shape[1]).tril().bool()
        return self.attention(X, mask=mask, return_weights=True)


@bug(ViTLayer, "attention is not added to what came in")
class NoResidual(VariedLayer):
    def forward(self, X):
        X, A = self.look(self.norm_1(X))
        return X + self.think(self.norm_2(X)), A


@bug(ViTLayer, "the network is not added to what came in")
class NoSecondResidual(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        return self.think(self.norm_2(X + Y)), A


@bug(ViTLayer, "the network's output is added to the layer's input, without what attention gave")
class OldResidual(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        return X + self.think(self.norm_2(X + Y)), A


@bug(ViTLayer, "norm_1 is used twice")
class SameNorm(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        X = X + Y
        return X + self.think(self.norm_1(X)), A


@bug(ViTLayer, "the first norm is left out")
class NoFirstNorm(VariedLayer):
    def forward(self, X):
        Y, A = self.look(X)
        X = X + Y
        return X + self.think(self.norm_2(X)), A


@bug(ViTLayer, "the second norm is left out")
class NoSecondNorm(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        X = X + Y
        return X + self.think(X), A


@bug(ViTLayer, "attention and network work side by side on the same input")
class Parallel(VariedLayer):
    def forward(self, X):
        Y, A = self.look(self.norm_1(X))
        return X + Y + self.think(self.norm_2(X)), A


@bug(ViTLayer, "the weights are averaged over the heads", told_by="A should have shape")
class MeanOfHeads(ViTLayer):
    def forward(self, X):
        Y, A = super().forward(X)
        return Y, A.mean(dim=1)


@bug(ViTLayer, "the weights are not returned", told_by="should return (X, A)")
class NoWeights(ViTLayer):
    def forward(self, X):
        return super().forward(X)[0]


# ViT


class VariedViT(ViT):
    """A ViT whose steps the bugs below vary."""

    def embed(self, images):
        if tuple(images.shape[2:]) != self.size:
            raise ValueError(f"{tuple(images.shape)} for {self.size}")
        X = self.patches(images)
        return self.place(self.with_cls(X) if self.pool == "cls" else X)

    def with_cls(self, X):
        return torch.cat([self.cls.expand(len(X), 1, -1), X], dim=1)

    def place(self, X):
        return X + self.positions

    def forward(self, images, return_weights=False):
        X, weights = self.embed(images), []
        for layer in self.order():
            X, A = layer(X)
            weights.append(A)
        logits = self.finish(X)
        return (logits, self.weights(weights)) if return_weights else logits

    def order(self):
        return self.layers

    def finish(self, X):
        X = self.norm(X)
        return self.head(self.pooled(X))

    def pooled(self, X):
        return X[:, 0] if self.pool == "cls" else X.mean(dim=1)

    def weights(self, weights):
        return torch.stack(weights)


@bug(ViT, "the positions are left out")
class NoPositions(VariedViT):
    def place(self, X):
        return X


@bug(ViT, "the class token comes after the patches", classic=True)
class ClassLast(VariedViT):
    def with_cls(self, X):
        return torch.cat([X, self.cls.expand(len(X), 1, -1)], dim=1)


@bug(
    ViT,
    "the class token gets no position, and each patch that of the patch before it",
    classic=True,
)
class ClassWithoutPosition(VariedViT):
    def with_cls(self, X):
        first = (self.cls - self.positions[0]).expand(len(X), 1, -1)
        shifted = X + self.positions[:-1] - self.positions[1:]
        return torch.cat([first, shifted], dim=1)


@bug(ViT, "the class token gets no position", classic=True)
class ClassUnplaced(VariedViT):
    def with_cls(self, X):
        return torch.cat([(self.cls - self.positions[0]).expand(len(X), 1, -1), X], dim=1)


@bug(ViT, "the class token is zero instead of the learned one")
class ZeroClass(VariedViT):
    def with_cls(self, X):
        return torch.cat([torch.zeros_like(X[:, :1]), X], dim=1)


@bug(ViT, "the positions multiply the tokens")
class Multiplied(VariedViT):
    def place(self, X):
        return X * self.positions


@bug(ViT, "the class is read off the last token")
class LastToken(VariedViT):
    def pooled(self, X):
        return X[:, -1] if self.pool == "cls" else X.mean(dim=1)


@bug(
    ViT,
    "the class is read off the mean, class token included, although the pool is cls",
    classic=True,
)
class AlwaysMean(VariedViT):
    def pooled(self, X):
        return X.mean(dim=1)


@bug(ViT, "the class is read off the first patch, although the pool is the mean")
class AlwaysFirst(VariedViT):
    def pooled(self, X):
        return X[:, 0]


@bug(ViT, "the two pools are exchanged")
class PoolsExchanged(VariedViT):
    def pooled(self, X):
        return X.mean(dim=1) if self.pool == "cls" else X[:, 0]


@bug(ViT, "the mean leaves the first patch out")
class FirstPatchMissing(VariedViT):
    def pooled(self, X):
        return X[:, 0] if self.pool == "cls" else X[:, 1:].mean(dim=1)


@bug(ViT, "the tokens are summed up, not averaged")
class SumOfPatches(VariedViT):
    def pooled(self, X):
        return X[:, 0] if self.pool == "cls" else X.sum(dim=1)


@bug(ViT, "the mean is taken over the features, not over the patches", told_by="raised RuntimeErr")
class MeanOfFeatures(VariedViT):
    def pooled(self, X):
        return X[:, 0] if self.pool == "cls" else X.mean(dim=2)


@bug(ViT, "the last norm is left out")
class NoLastNorm(VariedViT):
    def finish(self, X):
        return self.head(self.pooled(X))


@bug(ViT, "the mean is normalised, not the tokens")
class NormOfTheMean(VariedViT):
    def finish(self, X):
        return self.head(self.norm(self.pooled(X)))


@bug(ViT, "the layers are applied in reverse")
class Reversed(VariedViT):
    def order(self):
        return reversed(self.layers)


@bug(ViT, "the first layer is applied again and again")
class OneLayer(VariedViT):
    def order(self):
        return [self.layers[0]] * len(self.layers)


@bug(ViT, "the last layer is left out")
class LayerMissing(VariedViT):
    def order(self):
        return self.layers[:-1]


@bug(ViT, "the weights of the last layer come first")
class WeightsReversed(VariedViT):
    def weights(self, weights):
        return torch.stack(weights[::-1])


@bug(ViT, "the batch's axis comes before the layers'")
class WeightsBehind(VariedViT):
    def weights(self, weights):
        return torch.stack(weights, dim=1)


@bug(ViT, "a softmax follows the head")
class Probabilities(VariedViT):
    def finish(self, X):
        return super().finish(X).softmax(dim=-1)


@bug(
    ViT,
    "the size is not checked, only the number of patches",
    told_by="raise ValueError when height and width are exchanged",
)
class SizeUnchecked(VariedViT):
    def embed(self, images):
        X = self.patches(images)
        if X.shape[1] + (self.pool == "cls") != len(self.positions):
            raise ValueError("too many patches or too few")
        return self.place(self.with_cls(X) if self.pool == "cls" else X)


@bug(ViT, "only the height of the images is compared", told_by="raise ValueError when images are")
class HeightOnly(VariedViT):
    def embed(self, images):
        if images.shape[2] != self.size[0]:
            raise ValueError(f"{images.shape[2]} rows of pixels, not {self.size[0]}")
        X = self.patches(images)
        return self.place(self.with_cls(X) if self.pool == "cls" else X)


@bug(
    ViT,
    "positions are stretched for larger images",
    told_by="raise ValueError when images are twice",
)
class StretchesByItself(VariedViT):
    def embed(self, images):
        size, P = images.shape[2:], self.patches.P
        if size[0] <= self.size[0] or size[1] <= self.size[1]:
            return super().embed(images)
        X = self.patches(images)
        X = self.with_cls(X) if self.pool == "cls" else X
        old, new = ((side[0] // P, side[1] // P) for side in (self.size, size))
        return X + resize_positions(self.positions, old, new)


@bug(ViT, "a small image gets the first positions", told_by="raise ValueError when", classic=True)
class PositionsCut(VariedViT):
    def embed(self, images):
        X = self.patches(images)
        X = self.with_cls(X) if self.pool == "cls" else X
        return X + self.positions[: X.shape[1]]


@bug(ViT, "the class token learns nothing", told_by="No gradient reaches cls")
class FixedClass(VariedViT):
    def with_cls(self, X):
        return torch.cat([self.cls.detach().expand(len(X), 1, -1), X], dim=1)


# vit_parameters


def counts(size, P, C, D, L, classes, pool, **changed):
    return vit_parameters(size, P, C, D, L, classes, pool) | changed


def tokens(size, P):
    return (size[0] // P) * (size[1] // P)


@bug(vit_parameters, "the bias of the patch embedding is left out", classic=True)
def patches_without_bias(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, patches=P * P * C * D)


@bug(vit_parameters, "a patch is given P numbers for each channel instead of P²")
def thin_patches(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, patches=(P * C + 1) * D)


@bug(vit_parameters, "the channels are left out of the patches")
def grey_patches(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, patches=(P * P + 1) * D)


@bug(vit_parameters, "every place in the image has a patch embedding of its own")
def embedding_per_patch(size, P, C, D, L, classes, pool="cls"):
    every = tokens(size, P) * (P * P * C + 1) * D
    return counts(size, P, C, D, L, classes, pool, patches=every)


@bug(vit_parameters, "the class token's position is left out", classic=True)
def unplaced_cls(size, P, C, D, L, classes, pool="cls"):
    number = tokens(size, P) + (pool == "cls")
    return counts(size, P, C, D, L, classes, pool, positions=number * D)


@bug(vit_parameters, "a class token is counted although the pool is the mean")
def always_cls(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, positions=(tokens(size, P) + 2) * D)


@bug(vit_parameters, "neither the class token nor its position is counted")
def never_cls(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, positions=tokens(size, P) * D)


@bug(vit_parameters, "the image is taken to be as wide as it is high")
def square_image(size, P, C, D, L, classes, pool="cls"):
    return vit_parameters((size[0], size[0]), P, C, D, L, classes, pool)


@bug(vit_parameters, "every pixel has a position")
def pixel_positions(size, P, C, D, L, classes, pool="cls"):
    number = size[0] * size[1] + 2 * (pool == "cls")
    return counts(size, P, C, D, L, classes, pool, positions=number * D)


def layers_of(D, L, attention=None, network=None, norms=None):
    """Count L layers, with some of their parts counted otherwise."""
    attention = 4 * (D * D + D) if attention is None else attention
    network = 8 * D * D + 5 * D if network is None else network
    return L * (attention + network + (4 * D if norms is None else norms))


@bug(vit_parameters, "W_O is left out: three projections are counted instead of four")
def no_output_projection(size, P, C, D, L, classes, pool="cls"):
    layers = layers_of(D, L, attention=3 * (D + 1) * D)
    return counts(size, P, C, D, L, classes, pool, layers=layers)


@bug(
    vit_parameters,
    "the biases of the attentions, or the norms, are left out: either is 4 D",
    classic=True,
)
def attention_without_biases(size, P, C, D, L, classes, pool="cls"):
    layers = layers_of(D, L, attention=4 * D * D)
    return counts(size, P, C, D, L, classes, pool, layers=layers)


@bug(vit_parameters, "the biases of the networks are left out", classic=True)
def network_without_biases(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, layers=layers_of(D, L, network=8 * D * D))


@bug(vit_parameters, "a layer is given one norm instead of two")
def one_norm(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, layers=layers_of(D, L, norms=2 * D))


@bug(vit_parameters, "one layer is counted instead of L")
def one_layer(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, layers=layers_of(D, 1))


@bug(vit_parameters, "the last norm is given a weight, but no bias", classic=True)
def norm_without_bias(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, norm=D)


@bug(vit_parameters, "the bias of the head is left out", classic=True)
def head_without_bias(size, P, C, D, L, classes, pool="cls"):
    return counts(size, P, C, D, L, classes, pool, head=D * classes)


@bug(vit_parameters, "the sum is returned", told_by="The keys should be")
def total(size, P, C, D, L, classes, pool="cls"):
    return sum(vit_parameters(size, P, C, D, L, classes, pool).values())


# resize_positions


def stretch(positions, old, new, mode="bicubic", extra=None, **settings):
    """Interpolate as the reference does, or otherwise."""
    extra = len(positions) - old[0] * old[1] if extra is None else extra
    if extra < 0 or len(positions) < old[0] * old[1]:
        raise ValueError("too few")
    image = positions[extra:].T.reshape(1, -1, *old)
    settings = {"align_corners": False} | settings if mode != "nearest" else {}
    image = F.interpolate(image, size=tuple(new), mode=mode, **settings)
    return torch.cat([positions[:extra], image[0].flatten(1).T])


@bug(resize_positions, "the interpolation is bilinear")
def bilinear(positions, old, new):
    return stretch(positions, old, new, "bilinear")


@bug(resize_positions, "every new patch gets the position of the nearest old one")
def nearest(positions, old, new):
    return stretch(positions, old, new, "nearest")


@bug(resize_positions, "the centres of the corner patches lie on each other: align_corners=True")
def corners(positions, old, new):
    return stretch(positions, old, new, align_corners=True)


@bug(resize_positions, "the grid is smoothed before it is made smaller: antialias=True")
def smoothed(positions, old, new):
    return stretch(positions, old, new, antialias=True)


@bug(
    resize_positions,
    "the new grid is given as quotients of the sides, which rounding makes too small",
    told_by="positions from (13,",
)
def by_quotients(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError("too few")
    image = positions[extra:].T.reshape(1, -1, *old)
    factors = new[0] / old[0], new[1] / old[1]
    image = F.interpolate(image, scale_factor=factors, mode="bicubic")
    return torch.cat([positions[:extra], image[0].flatten(1).T])


@bug(resize_positions, "nothing changes when the new grid has as many patches as the old one")
def as_many_patches(positions, old, new):
    same = old[0] * old[1] == new[0] * new[1]
    return positions.clone() if same else stretch(positions, old, new)


@bug(resize_positions, "height and width of the old grid are exchanged", classic=True)
def old_turned(positions, old, new):
    return stretch(positions, old[::-1], new)


@bug(resize_positions, "height and width of the new grid are exchanged", classic=True)
def new_turned(positions, old, new):
    return stretch(positions, old, new[::-1])


@bug(
    resize_positions,
    "the features are not brought before the grid: positions are only reshaped",
    classic=True,
)
def reshaped(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError("too few")
    image = positions[extra:].reshape(1, -1, *old)
    image = F.interpolate(image, size=tuple(new), mode="bicubic")
    return torch.cat([positions[:extra], image[0].flatten(1).T])


@bug(
    resize_positions,
    "the result is reshaped without bringing the features last again",
    classic=True,
)
def not_turned_back(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    stretched = stretch(positions, old, new)
    return torch.cat([positions[:extra], stretched[extra:].T.reshape(-1, positions.shape[1])])


@bug(resize_positions, "the list of positions is stretched as a line, not as a grid")
def as_a_line(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError("too few")
    line = positions[extra:].T[None, :, None]
    line = F.interpolate(line, size=(1, new[0] * new[1]), mode="bicubic")
    return torch.cat([positions[:extra], line[0, :, 0].T])


@bug(resize_positions, "the class token's row is taken off the end, not off the beginning")
def cls_last(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError("too few")
    turned = torch.cat([positions[len(positions) - extra :], positions[: len(positions) - extra]])
    return stretch(turned, old, new)


@bug(resize_positions, "the class token's row is lost")
def cls_lost(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    return stretch(positions, old, new)[extra:]


@bug(resize_positions, "a class token is always expected", told_by="raised RuntimeError")
def always_one(positions, old, new):
    if len(positions) < old[0] * old[1]:
        raise ValueError("too few")
    return stretch(positions, old, new, extra=1)


@bug(resize_positions, "the positions are scaled by the ratio of the numbers of patches")
def scaled(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    stretched, ratio = stretch(positions, old, new), old[0] * old[1] / (new[0] * new[1])
    return torch.cat([stretched[:extra], stretched[extra:] * ratio])


@bug(
    resize_positions,
    "too few rows are not noticed",
    told_by="should raise ValueError when",
)
def unnoticed(positions, old, new):
    missing = max(0, old[0] * old[1] - len(positions))
    return resize_positions(F.pad(positions, (0, 0, 0, missing)), old, new)


@bug(resize_positions, "no gradient passes", told_by="No gradient goes back")
def detached(positions, old, new):
    return resize_positions(positions, old, new).detach()


@bug(resize_positions, "the class token's row is stretched along with the grid", classic=True)
def cls_stretched(positions, old, new):
    extra = len(positions) - old[0] * old[1]
    if extra < 0:
        raise ValueError("too few")
    line = positions.T[None, :, None]
    line = F.interpolate(line, size=(1, extra + new[0] * new[1]), mode="bicubic")
    return line[0, :, 0].T


equivalent(
    resize_positions,
    "image = functional.interpolate(image, size=new, mode='bicubic', align_corners=False) → "
    "image = functional.interpolate(image, size=new, mode='bicubic')",
    "align_corners=False is what torch does unless told otherwise",
)


# attention_rollout


def rolled(mixed):
    R = mixed[0]
    for layer in mixed[1:]:
        R = layer @ R
    return R


def eye(A):
    return torch.eye(A.shape[-1]).to(A)


@bug(attention_rollout, "the residual connection is left out")
def no_residual(A):
    return rolled(A.mean(dim=2))


@bug(
    attention_rollout,
    "the identity is added, but the rows are not scaled to sum to one again",
    classic=True,
)
def not_normalised(A):
    return rolled(A.mean(dim=2) + eye(A))


@bug(attention_rollout, "the rows are scaled to sum to one only at the end")
def normalised_late(A):
    R = rolled(A.mean(dim=2) + 2 * eye(A))
    return R / R.sum(dim=-1, keepdim=True)


@bug(
    attention_rollout,
    "the layers are multiplied in reverse: the first one stands on the left",
    classic=True,
)
def reverse(A):
    return attention_rollout(A.flip(0))


@bug(attention_rollout, "the layers are multiplied entry by entry, not as matrices", classic=True)
def entry_by_entry(A):
    return ((A.mean(dim=2) + eye(A)) / 2).prod(dim=0)


@bug(attention_rollout, "the layers are averaged, not multiplied")
def averaged(A):
    return ((A.mean(dim=2) + eye(A)) / 2).mean(dim=0)


@bug(attention_rollout, "the layers are averaged, and the residual connection is left out")
def raw_average(A):
    return A.mean(dim=(0, 2))


@bug(attention_rollout, "only the last layer's weights are returned")
def last_layer(A):
    return A[-1].mean(dim=1)


@bug(attention_rollout, "only the last layer is looked at")
def last_layer_mixed(A):
    return (A[-1].mean(dim=1) + eye(A)) / 2


@bug(attention_rollout, "the first layer is left out")
def first_missing(A):
    return attention_rollout(A[1:]) if len(A) > 1 else eye(A).expand(A[0, :, 0].shape)


@bug(attention_rollout, "the strongest head is taken, not the mean of all")
def strongest(A):
    return rolled((A.amax(dim=2) + eye(A)) / 2)


@bug(attention_rollout, "the heads are summed up, not averaged")
def summed(A):
    return rolled((A.sum(dim=2) + eye(A)) / 2)


@bug(attention_rollout, "the first head only is followed")
def one_head(A):
    return rolled((A[:, :, 0] + eye(A)) / 2)


@bug(attention_rollout, "the matrices are transposed: columns, not rows, are followed")
def columns(A):
    return attention_rollout(A).mT


@bug(attention_rollout, "the mean is over the images, not over the heads")
def mean_of_images(A):
    return rolled((A.mean(dim=1) + eye(A)) / 2)


equivalent(
    attention_rollout,
    "T = A.shape[-1] → T = A.shape[-2]",
    "there are as many queries as keys",
)
