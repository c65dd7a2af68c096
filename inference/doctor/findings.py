"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check of a model. `remedy` is empty where nothing is to be done."""

    model: str
    check: str
    result: Literal["ok", "warning", "failed", "not checked"]
    detail: str = ""
    remedy: str = ""

    @property
    def wrong(self) -> bool:
        return self.result in ("warning", "failed")
