"""What a decoder is made of: one frozen value, and the presets that have names."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from isthmus.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder; two islands of one run hold the same value.

    A layer's feed-forward is the sum of a SwiGLU that sees every token (``shared_hidden`` units, 0 for none) and
    of ``num_experts`` SwiGLUs of ``expert_hidden`` units, of which each token sees ``top_k``. A dense model has
    no experts.

    Attributes:
        vocab_size: Number of tokens; 256 for bytes.
        d_model: Width of the residual stream.
        num_layers: Number of attention and feed-forward pairs.
        num_heads: Query heads of ``head_dim`` each.
        num_kv_heads: Key and value heads; divides ``num_heads``.
        head_dim: Width of a head; even, since rotary embeddings turn pairs.
        num_experts: Routed experts of a layer; 0 for a dense model.
        top_k: Experts that a token sees.
        expert_hidden: Hidden units of one expert.
        shared_hidden: Hidden units that every token sees.
        max_seq_len: Longest sequence, in tokens.
        tie_embeddings: Whether the output head is the embedding table.
        rope_theta: Base of the rotary frequencies.
        norm_eps: Added to the mean square in every RMSNorm.
        balance_rate: How far a router bias moves in one training step.
    """

    vocab_size: int = 256
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int = 32
    top_k: int = 1
    expert_hidden: int
    shared_hidden: int = 0
    max_seq_len: int
    tie_embeddings: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    balance_rate: float = 1e-3

    def __post_init__(self) -> None:
        """Check the shape as a whole.

        Raises:
            ConfigError: A count is not positive, or two of them do not fit each other.
        """
        self._check_counts()
        self._check_fit()

    @property
    def is_dense(self) -> bool:
        """Whether the model has no routed experts."""
        return self.num_experts == 0

    def dense_twin(self) -> ModelConfig:
        """The dense model whose every token meets as many parameters (router aside) as in this one."""
        hidden = self.shared_hidden + self.top_k * self.expert_hidden
        return dataclasses.replace(self, num_experts=0, top_k=0, expert_hidden=0, shared_hidden=hidden)

    def _check_counts(self) -> None:
        positive = ["vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "max_seq_len"]
        positive += ["shared_hidden"] if self.is_dense else ["num_experts", "top_k", "expert_hidden"]
        for name in positive:
            if getattr(self, name) < 1:
                raise ConfigError(f"model.{name} is too small", got=getattr(self, name), wanted="at least 1")
        if self.shared_hidden < 0:
            raise ConfigError("model.shared_hidden is negative", got=self.shared_hidden, wanted="0 or more")

    def _check_fit(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                "model.num_kv_heads does not divide model.num_heads",
                got=f"{self.num_kv_heads} and {self.num_heads}",
            )
        if self.head_dim % 2:
            raise ConfigError("model.head_dim is odd", got=self.head_dim, wanted="an even number")
        if self.top_k > self.num_experts:
            raise ConfigError("model.top_k exceeds model.num_experts", got=self.top_k, wanted=self.num_experts)
        if self.balance_rate < 0:
            raise ConfigError("model.balance_rate is negative", got=self.balance_rate, wanted="0 or more")
