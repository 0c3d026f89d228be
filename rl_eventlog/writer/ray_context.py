"""What Ray tells about this process, without importing Ray: it is asked only where it is loaded.

Nothing here raises: Ray has no public getter for some of it, and what an update takes away counts
as unknown.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RayContext:
    """This process inside Ray."""

    session: str
    job: str
    actor_id: str | None
    actor_class: str | None
    train_rank: int | None
    train_world_size: int | None


def ray_context() -> RayContext | None:
    """The context, or None where Ray is not loaded or not initialised."""
    ray = sys.modules.get("ray")
    if ray is None:
        return None
    try:
        if not ray.is_initialized():
            return None
        context = ray.get_runtime_context()
        job = str(context.get_job_id())
        actor_id = context.get_actor_id()
        session = _session(ray, context)
    except Exception:  # noqa: BLE001 -- any Ray version, any state: an unknown context is no context
        return None
    rank, world_size = _train_rank()
    return RayContext(session, job, actor_id, _actor_class(context) if actor_id else None, rank, world_size)


def _session(ray: Any, context: Any) -> str:
    try:
        return str(ray._private.worker._global_node.session_name)  # noqa: SLF001 -- Ray has no public getter
    except AttributeError:
        return str(context.gcs_address)


def _actor_class(context: Any) -> str | None:
    """The class in the name of the running task, `Class.method`."""
    try:
        name = str(context.get_task_name())
    except Exception:  # noqa: BLE001 -- newer than the oldest Ray supported
        return None
    cls, dot, _ = name.rpartition(".")
    return cls.rpartition(".")[2] if dot else None


def _train_rank() -> tuple[int | None, int | None]:
    train = sys.modules.get("ray.train")
    if train is None:
        return None, None
    try:
        context = train.get_context()
        return int(context.get_world_rank()), int(context.get_world_size())
    except Exception:  # noqa: BLE001 -- outside a training worker it raises, which kind depends on the version
        return None, None
