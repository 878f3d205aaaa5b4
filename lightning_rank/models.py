"""Scorers: features of items in, one score per item out. Plain modules, for ``RankingModule`` or for a module of your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lightning_rank.conventions import check_choice, check_number

TRANSFORMS = ("standardize", "log1p", "none")
NORMALIZATIONS = ("none", "layer")
_ITEMS_AT_A_TIME = 1 << 14


class FeatureTransform(nn.Module):
    """Brings features to a common scale that is learnt from the training data and saved with the model.

    Args:
        kind: ``"standardize"`` subtracts the mean and divides by the standard deviation (a constant feature becomes 0);
            ``"log1p"`` takes sign(x) * log(1 + abs(x)) first, for counts and other long tails; ``"none"`` changes nothing.

    Example:
        >>> transform = FeatureTransform("standardize")
        >>> transform.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> transform(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, kind: str = "standardize") -> None:
        super().__init__()
        check_choice("transform", kind, TRANSFORMS)
        self.kind = kind
        # Neutral until they are learnt: numbers that fit any number of features.
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("scale", torch.ones(1))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Learn from ``[..., feature]``."""
        if self.kind == "none":
            return
        flat = features.flatten(0, -2)
        if not len(flat):
            raise ValueError("There is no item to learn the scale of the features from.")
        number = 0
        mean = squares = largest = flat.new_zeros(flat.shape[1], dtype=torch.float64)
        # Some items at a time, as they may lie in a file larger than memory; merged as Chan et al. (1979) do.
        for some in flat.split(_ITEMS_AT_A_TIME):
            values = self._squash(some.float() if some.dtype == torch.float16 else some).double()
            number += len(values)
            own_mean = values.mean(0)
            step = own_mean - mean
            mean = mean + step * (len(values) / number)
            squares = squares + (values - own_mean).square_().sum(0) + step**2 * (len(values) * (1 - len(values) / number))
            largest = torch.maximum(largest, values.abs().amax(0))
        deviation = (squares / number).sqrt()
        self.mean = mean.to(self.mean)
        # What is constant up to rounding has no scale.
        varies = deviation > 1e-6 * largest
        self.scale = torch.where(varies, 1 / deviation, 0.0).to(self.scale)

    def _squash(self, features: Tensor) -> Tensor:
        return features.sign() * features.abs().log1p() if self.kind == "log1p" else features

    def forward(self, features: Tensor) -> Tensor:
        """``[..., feature]`` -> the same shape."""
        return features if self.kind == "none" else (self._squash(features) - self.mean) * self.scale

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("mean", "scale"):
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)


class _Scorer(nn.Module):
    """A feature transform and a network over each item."""

    def __init__(self, transform: str, network: nn.Module, num_features: int | None) -> None:
        super().__init__()
        self.transform = FeatureTransform(transform)
        self.network = network
        if num_features is not None:
            self.network(torch.zeros(1, num_features))

    def fit_features(self, features: Tensor) -> None:
        """Learn the feature transform, and the number of features where it was not given, from ``[..., feature]``."""
        self.transform.fit(features)
        with torch.no_grad():
            self.network(self.transform(features.flatten(0, -2)[:1]))

    def forward(self, features: Tensor) -> Tensor:
        """``[query, item, feature]`` -> ``[query, item]`` (any leading axes)."""
        return self.network(self.transform(features)).squeeze(-1)


class LinearScorer(_Scorer):
    """A weight per feature.

    Args:
        num_features: number of features; None takes it from the first data.
        transform: how features are scaled, see ``FeatureTransform``.

    Example:
        >>> LinearScorer(num_features=5)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3])
    """

    def __init__(self, num_features: int | None = None, transform: str = "standardize") -> None:
        super().__init__(transform, nn.LazyLinear(1), num_features)


class MLPScorer(_Scorer):
    """A multi-layer perceptron over each item.

    Args:
        hidden: width of each hidden layer.
        num_features: number of features; None takes it from the first data.
        dropout: share of hidden units dropped in training.
        normalization: ``"layer"`` normalises each hidden layer, ``"none"`` does not. (Batch normalisation would let padding and
            the other queries of a batch reach a score.)
        transform: how features are scaled, see ``FeatureTransform``.

    Example:
        >>> MLPScorer([16, 8], num_features=5)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        hidden: Sequence[int] = (64, 32),
        num_features: int | None = None,
        dropout: float = 0.0,
        normalization: str = "none",
        transform: str = "standardize",
    ) -> None:
        check_choice("normalization", normalization, NORMALIZATIONS)
        check_number("dropout", dropout, above=-1e-12, below=1)
        layers: list[nn.Module] = []
        for width in hidden:
            layers.append(nn.LazyLinear(width))
            if normalization == "layer":
                layers.append(nn.LayerNorm(width))
            layers += [nn.ReLU(), nn.Dropout(dropout)]
        super().__init__(transform, nn.Sequential(*layers, nn.LazyLinear(1)), num_features)


class _AttentionBlock(nn.Module):
    """Every item of a query attends to all its items, then a perceptron by item; each adds to what it was given."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        # Normalised before each half, so that an item's own features reach its score past all attention.
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        projected = self.project(self.before_attention(x)).unflatten(-1, (3, self.heads, x.shape[-1] // self.heads))
        query, key, value = projected.transpose(-2, -4).unbind(-3)  # [query, head, item, width of a head]
        seen = scaled_dot_product_attention(
            query, key, value, attn_mask=keys, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.drop(self.join(seen.transpose(-2, -3).flatten(-2)))
        return x + self.drop(self.perceptron(self.before_perceptron(x)))


class _SetEncoder(nn.Module):
    """Attention over the items of each query, and one number per item: ``[query, item, feature]`` -> ``[query, item, 1]``."""

    def __init__(self, width: int, heads: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.LazyLinear(width)
        self.blocks = nn.ModuleList(_AttentionBlock(width, heads, dropout) for _ in range(blocks))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        keys = None
        if mask is not None:
            # In a row without items the slots attend to one another: attention to nothing is NaN in some kernels.
            keys = (mask | mask.any(-1, keepdim=True).logical_not()).unsqueeze(-2).unsqueeze(-2)
        x = self.embed(features)
        for block in self.blocks:
            x = block(x, keys)
        return self.head(x)


class SelfAttentionScorer(_Scorer):
    """Self-attention over the list: each item is scored in view of the other items of its query.

    The order of items means nothing (there are no positions), and padding reaches no score where ``mask`` tells of it, as
    ``RankingModule`` does; without ``mask``, every slot is an item.

    Args:
        num_features: number of features; None takes it from the first data.
        width: size of an item's representation; ``heads`` divides it.
        heads: attentions side by side in a block.
        blocks: blocks of self-attention and a two-layer perceptron, each with a residual connection.
        dropout: share of units dropped in training.
        transform: how features are scaled, see ``FeatureTransform``.

    Raises:
        ValueError: a number is out of its range.

    Source: Pobrotyn et al., "Context-Aware Learning to Rank with Self-Attention", 2020; blocks normalised first, as Xiong et
    al., "On Layer Normalization in the Transformer Architecture", 2020.

    Example:
        >>> scorer = SelfAttentionScorer(num_features=5, width=16)
        >>> scorer(torch.randn(2, 3, 5), mask=torch.tensor([[True, True, False], [True, True, True]])).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_features: int | None = None,
        width: int = 64,
        heads: int = 2,
        blocks: int = 2,
        dropout: float = 0.1,
        transform: str = "standardize",
    ) -> None:
        for name, number in (("width", width), ("heads", heads), ("blocks", blocks)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"`{name}` must be a whole number >= 1, got {number!r}.")
        if width % heads:
            raise ValueError(f"`width` must be a multiple of `heads`, got {width} and {heads}.")
        check_number("dropout", dropout, above=-1e-12, below=1)
        super().__init__(transform, _SetEncoder(width, heads, blocks, dropout), num_features)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[query, item, feature]``, ``mask`` ``[query, item]`` (False is padding) -> ``[query, item]`` (any leading axes)."""
        if mask is not None:
            # Weights of 0 do not stop NaN or infinity in the padding.
            features = torch.where(mask.unsqueeze(-1), features, 0.0)
        return self.network(self.transform(features), mask).squeeze(-1)
