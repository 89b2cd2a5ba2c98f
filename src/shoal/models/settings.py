"""Keras' global settings, under which a model was made and which layers read later."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from shoal.models.no_tensorflow import no_tensorflow


@final
@dataclass(frozen=True, kw_only=True)
class KerasSettings:
    """The values of `keras.config`, which are sent with a model.

    Example:
        >>> KerasSettings.read().floatx
        'float32'
    """

    floatx: str
    epsilon: float
    image_data_format: str
    dtype_policy: Any

    @classmethod
    def read(cls) -> KerasSettings:
        """Reads the settings of this process."""
        keras = import_module("keras")
        with no_tensorflow():
            policy = keras.dtype_policies.serialize(keras.config.dtype_policy())
        return cls(
            floatx=keras.config.floatx(),
            epsilon=float(keras.config.epsilon()),
            image_data_format=keras.config.image_data_format(),
            dtype_policy=policy,
        )

    def apply(self) -> None:
        """Applies these settings to this process."""
        if self == KerasSettings.read():
            return
        keras = import_module("keras")
        keras.config.set_floatx(self.floatx)
        keras.config.set_epsilon(self.epsilon)
        keras.config.set_image_data_format(self.image_data_format)
        policy = keras.dtype_policies.deserialize(self.dtype_policy)
        keras.config.set_dtype_policy(policy)
