"""How the processes of one launch exchange tensors: one gloo world, no server.

- All calls block. If any process dies, the calls of its peers fail within moments.
- Connections stay on the loopback interface.
- The processes find each other through a file, so two launches never disturb one another.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from rl_eventlog_cli.demo.config import PROCESSES
from rl_eventlog_cli.demo.grpo import Batch
from rl_eventlog_cli.demo.job import Job, world_rank

_FIRST_TRAINER = world_rank("trainer", 0)
_CONTROLLER = world_rank("controller", 0)
# only a hang is left to this limit: a death is noticed at once
_TIMEOUT = timedelta(minutes=5)


class World:
    """The processes of one launch, seen from one of them."""

    def __init__(self, job: Job) -> None:
        """Meet the other processes; returns when all are there."""
        self._job = job
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
            if names:
                os.environ["GLOO_SOCKET_IFNAME"] = names[0]
        size = sum(PROCESSES.values())
        # the store itself: as the URL of an init_method, a path with `%40` or the like names another file
        store = dist.FileStore(str(job.rendezvous), size)  # type: ignore[attr-defined]  # public, missing from its hints
        dist.init_process_group("gloo", store=store, rank=job.world_rank(), world_size=size, timeout=_TIMEOUT)
        trainers = [world_rank("trainer", rank) for rank in range(PROCESSES["trainer"])]
        rollouts = [world_rank("rollout", rank) for rank in range(PROCESSES["rollout"])]
        self._trainers = dist.new_group(trainers)
        self._trainers_and_rollouts = dist.new_group(trainers + rollouts)

    def share(self, tensor: Tensor) -> None:
        """Give the first trainer's tensor to all trainers and rollout workers, in place."""
        dist.broadcast(tensor, _FIRST_TRAINER, group=self._trainers_and_rollouts)

    def share_among_trainers(self, tensor: Tensor) -> None:
        """Give the first trainer's tensor to all trainers, in place."""
        dist.broadcast(tensor, _FIRST_TRAINER, group=self._trainers)

    def add_up(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over the trainers."""
        dist.all_reduce(tensor, group=self._trainers)

    def gather_from_trainers(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all trainers, in the order of their ranks."""
        gathered = [torch.empty_like(tensor) for _ in range(PROCESSES["trainer"])]
        dist.all_gather(gathered, tensor, group=self._trainers)
        return gathered

    def send_batch(self, batch: Batch) -> None:
        """Send a generation batch from a rollout worker to the trainer of the same rank."""
        for part in batch.tensors():
            dist.send(part.contiguous(), world_rank("trainer", self._job.rank))

    def receive_batch(self) -> Batch:
        """Wait for the next generation batch of the rollout worker of this trainer's rank."""
        batch = Batch.empty(self._job.config)
        for part in batch.tensors():
            dist.recv(part, world_rank("rollout", self._job.rank))
        return batch

    def send_to_controller(self, tensor: Tensor) -> None:
        """Send a tensor from the first trainer to the controller."""
        dist.send(tensor, _CONTROLLER)

    def receive_from_trainer(self, tensor: Tensor) -> None:
        """Wait for the next tensor that the first trainer sends to the controller."""
        dist.recv(tensor, _FIRST_TRAINER)

    def wait_for_all(self) -> None:
        """Wait until all processes have come to this point."""
        dist.barrier()

    def leave(self) -> None:
        """End the connections once no process needs them any more."""
        self.wait_for_all()
        dist.destroy_process_group()
