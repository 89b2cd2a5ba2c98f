"""Tensors of other packages, which need not be installed, as arrays of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data import trees


def is_a(value: Any, package: str, *names: str) -> bool:
    """Whether a value is of a class of a package, which need not be installed.

    Example:
        >>> is_a(np.ones(3), "numpy", "ndarray"), is_a(1, "torch", "Tensor")
        (True, False)
    """
    return any(
        cls.__name__ in names and cls.__module__.partition(".")[0] == package
        for cls in type(value).__mro__
    )


def as_arrays(tree: trees.Tree) -> trees.Tree:
    """Moves tensors that NumPy cannot read into the host's memory; leaves the rest.

    Tensors of torch are copied from their device and their graph, sparse ones of SciPy,
    TensorFlow and JAX become dense, and bfloat16 of torch, which NumPy cannot read,
    becomes float32.

    Example:
        >>> as_arrays({"a": np.ones(1), "b": [2, None]})
        {'a': array([1.]), 'b': [2, None]}
    """
    return trees.map_leaves(_as_array, tree)


def host_array(tensor: Any) -> npt.NDArray[Any]:
    """Copies a tensor of torch from its device, without its graph.

    NumPy reads none that lies on a GPU, and has no bfloat16: that becomes float32.
    """
    found = tensor.detach()
    return (found.float() if "bfloat16" in str(found.dtype) else found).cpu().numpy()


def _as_array(value: Any) -> Any:
    if is_a(value, "torch", "Tensor"):
        return host_array(value)
    if is_a(value, "tensorflow", "SparseTensor"):
        array = np.zeros(tuple(value.dense_shape.numpy()), value.dtype.as_numpy_dtype)
        array[tuple(value.indices.numpy().T)] = value.values.numpy()
        return array
    if is_a(value, "jax", "BCOO", "BCSR"):
        return np.asarray(value.todense())
    if is_a(value, "scipy", "_data_matrix", "sparray", "spmatrix"):
        return value.toarray()
    return value
