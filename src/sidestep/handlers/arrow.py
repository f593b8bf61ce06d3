"""What maps hold as Arrow tables (the extra `arrow`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sidestep import errors
from sidestep.errors import ProbeError


def table(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A pyarrow.Table with these columns. Raises ProbeError NO_ARROW."""
    try:
        import pyarrow
    except ImportError:
        raise ProbeError("to_arrow", errors.NO_ARROW) from None
    return pyarrow.table(dict(columns))
