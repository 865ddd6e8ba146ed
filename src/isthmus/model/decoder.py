"""The decoder: tokens in, logits out."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from isthmus.errors import ShapeError
from isthmus.model.config import ModelConfig
from isthmus.model.experts import SparseFeedForward
from isthmus.model.layers import Attention, RMSNorm, SwiGLU, rotary_turns


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on a normed copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward: nn.Module
        if config.is_dense:
            self.feed_forward = SwiGLU(config.d_model, config.shared_hidden)
        else:
            self.feed_forward = SparseFeedForward(config)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Apply to the residual stream ``x`` (batch, seq_len, d_model)."""
        x = x + self.attention(self.attention_norm(x), turns)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Decoder(nn.Module):
    """A causal language model; its parameters are unset until ``build_model`` or a state dict sets them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each of ``tokens``.

        Args:
            tokens: (batch, seq_len) int64, ``seq_len`` at most ``config.max_seq_len``.

        Returns:
            (batch, seq_len, vocab_size) logits.

        Raises:
            ShapeError: The sequences are longer than the model's.
        """
        seq_len = tokens.shape[-1]
        if seq_len > self.config.max_seq_len:
            raise ShapeError("a sequence is too long", got=seq_len, wanted=f"at most {self.config.max_seq_len}")
        turns = rotary_turns(seq_len, self.config.head_dim, self.config.rope_theta, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, turns)
        logits: Tensor = self.head(self.norm(x))
        return logits


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per token, in fp32.

    Args:
        logits: (batch, seq_len, vocab_size).
        targets: (batch, seq_len) int64, the token after each position.
    """
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross-entropy in nats of ``batch[:, 1:]`` given ``batch[:, :-1]``; a batch is (batch, seq_len + 1)."""
    return next_token_loss(model(batch[:, :-1]), batch[:, 1:])
