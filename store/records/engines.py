"""What was measured of models and their engines."""

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from store.records.base import Base


class Hold(Base):
    """A model that cannot run (store.holds): its segments wait.

    `attempts` counts the failed starts since `since`; the next attempt is not before `retry_at` (Unix seconds).
    """

    __tablename__ = "holds"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    reason: Mapped[str]
    since: Mapped[int]
    attempts: Mapped[int]
    retry_at: Mapped[float]


class ModelChange(Base):
    """A change of the served models while they run, which replaces an entry of models.toml (store.model_changes).

    `entry` has the keys of models.toml. A removed model keeps its last one, with which its batches end. The row without
    a name has none: it says when models.toml was reloaded last.
    """

    __tablename__ = "model_changes"
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    entry: Mapped[dict[str, Any]]
    removed: Mapped[bool]
    changed_at: Mapped[float]


class EngineFailure(Base):
    """The last time that an engine of a model died, or failed to start.

    `requests` were in it, and `next` says what happened to them (batchyard.statuses.AfterDeath). `answered`: an engine
    of the model has answered since. `deaths` counts those since the last answer, and `engines` are the ids of the
    last ones.
    """

    __tablename__ = "engine_failures"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    reason: Mapped[str]
    at: Mapped[int]
    requests: Mapped[int]
    next: Mapped[str] = mapped_column(String(16))
    deaths: Mapped[int]
    engines: Mapped[list[str]]
    answered: Mapped[bool]


class Speed(Base):
    """Measured speed of a model in one configuration, by request class: sums that decay (store.speeds).

    `began_at`: since when the engine has had requests, while its speed cannot be measured yet; else 0.
    `in_flight_limit`: the most requests that the engines hold; 0 if not known.
    """

    __tablename__ = "speeds"
    model: Mapped[str] = mapped_column(String(256), primary_key=True)
    config_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    request_class: Mapped[str] = mapped_column(String(16), primary_key=True)
    seconds: Mapped[float] = mapped_column(default=0.0)
    requests: Mapped[float] = mapped_column(default=0.0)
    bytes: Mapped[float] = mapped_column(default=0.0)
    tokens: Mapped[float] = mapped_column(default=0.0)
    squares: Mapped[float] = mapped_column(default=0.0)
    measurements: Mapped[float] = mapped_column("parts", default=0.0)
    measured_at: Mapped[float] = mapped_column(default=0.0)
    request_seconds: Mapped[float] = mapped_column(server_default="0", default=0.0)
    request_squares: Mapped[float] = mapped_column(server_default="0", default=0.0)
    began_at: Mapped[float] = mapped_column(server_default="0", default=0.0)
    in_flight_limit: Mapped[float] = mapped_column(server_default="0", default=0.0)


class Duration(Base):
    """How long something takes that is no answering: sums over its times, which decay (store.speeds)."""

    __tablename__ = "durations"
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    variant: Mapped[str] = mapped_column(String(256), primary_key=True)
    number: Mapped[float]
    units: Mapped[float]
    seconds: Mapped[float]
    units_squared: Mapped[float]
    units_seconds: Mapped[float]
    seconds_squared: Mapped[float]
