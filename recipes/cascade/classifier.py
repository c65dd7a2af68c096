"""An embedding model as a small model: logistic regression on its vectors, trained on the large model's labels."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEPS = 300
PENALTY = 1e-3
"""Weight of the squared norm of the weights beside the mean loss: without it, separable labels have no best weights."""


class Classifier(NamedTuple):
    """Weights by dimension of a vector, with a last one for the constant, and by label."""

    mean: Floats  # shape (dimensions,), of the vectors
    scale: float  # typical distance of a vector from the mean
    weights: Floats  # shape (dimensions + 1, labels)

    @classmethod
    def trained(cls, vectors: Sequence[str], labels: Sequence[int], number: int) -> Classifier:
        """Return the classifier of at least one vector, see `packed`, and its label, one of `number`.

        Accelerated gradient descent (Nesterov 1983) on the loss of multinomial logistic regression.
        """
        unpacked = np.array([_unpacked(vector) for vector in vectors])
        mean = unpacked.mean(axis=0)
        scale = float(np.sqrt(((unpacked - mean) ** 2).sum(axis=1).mean())) or 1.0
        inputs = np.column_stack([(unpacked - mean) / scale, np.ones(len(unpacked))])
        wanted = np.eye(number)[list(labels)]
        step = 1 / (0.5 * np.linalg.norm(inputs, 2) ** 2 / len(inputs) + PENALTY)
        weights = ahead = np.zeros((inputs.shape[1], number))
        for count in range(STEPS):
            gradient = inputs.T @ (_softmax(inputs @ ahead) - wanted) / len(inputs) + PENALTY * ahead
            before, weights = weights, ahead - step * gradient
            ahead = weights + count / (count + 3) * (weights - before)
        return cls(mean, scale, weights)

    def probabilities(self, vector: str) -> list[float]:
        """Return the probability of each label, rounded so that equal vectors have equal ones anywhere."""
        value = np.append((_unpacked(vector) - self.mean) / self.scale, 1.0)
        return [round(float(each), 9) for each in _softmax(value @ self.weights)]


def packed(data: Sequence[Mapping[str, Any]]) -> str:
    """Return an embedding of a reply of /v1/embeddings as base64 of half-precision numbers, a row carries it."""
    vector = data[0]["embedding"]
    numbers = np.frombuffer(base64.b64decode(vector), "<f4") if isinstance(vector, str) else np.array(vector)
    return base64.b64encode((numbers / (np.linalg.norm(numbers) or 1)).astype("<f2").tobytes()).decode()


def _unpacked(vector: str) -> Floats:
    return np.frombuffer(base64.b64decode(vector), "<f2").astype(float)


def _softmax(values: Floats) -> Floats:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
