"""Fingerprints of models: equal if the same programs can train both.

Values of variables are left out, and so are names that Keras gave the layers: `dense_3`
of one model is `dense_7` of the next one, made by the same code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from shoal.models.archive import Archive
from shoal.models.pickling import CannotPickle, dumps, is_named_by_keras
from shoal.optimizers import optimizer_variables


def fingerprint(
    model: Any, archive: Archive, arguments: Any, anchors: Sequence[Any]
) -> str:
    """Returns a digest that differs for models with other structure.

    Args:
        model: A built model.
        archive: Archive of the model.
        arguments: Its compile arguments, None for none.
        anchors: Parts of the model that the arguments may refer to.

    Returns:
        A digest, or an empty string if it is unknown.
    """
    if archive.zipped is not None:
        return ""
    names = {
        layer.name: f"layer {number}"
        for number, layer in enumerate(model._flatten_layers())
        if is_named_by_keras(layer)
    }
    state = archive.state
    # The variables that a run sets in any case. Another variable, of a loss or a
    # schedule say, would keep its old value.
    begun = [*model.variables, *model.metrics_variables, *optimizer_variables(model)]
    try:
        made = dumps(
            (
                _renamed(archive.config, names),
                archive.custom_objects,
                [(tuple(value.shape), str(value.dtype)) for value in state.values],
                state.flags,
                state.layer_flags,
            ),
            variables=begun,
            has_values=False,
        )
        compiled = dumps(arguments, anchors=anchors, variables=begun, has_values=False)
    except CannotPickle:
        return ""
    return hashlib.sha256(made + compiled).hexdigest()


def _renamed(config: Any, names: Mapping[str, str]) -> Any:
    """Returns a config with other names of layers."""
    if isinstance(config, dict):
        entries = cast("dict[Any, Any]", config).items()
        return {key: _renamed(value, names) for key, value in entries}
    if isinstance(config, (list, tuple)):
        return [_renamed(value, names) for value in cast("Sequence[Any]", config)]
    return names.get(config, config) if isinstance(config, str) else config
