"""What compiled graphs are called in metrics and artifacts."""

import os

_model_name = "model_default"


def set_model_name(name: str) -> None:
    """Names the graphs compiled from now on; the compile option ``model_name`` names those of one model."""
    global _model_name
    _model_name = str(name)


def get_model_name() -> str:
    """What :func:`set_model_name` set, ``model_default`` at first."""
    return _model_name


def get_rank() -> int:
    """The rank of this process in the process group, or what the launcher set in ``RANK``, or 0."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0"))
