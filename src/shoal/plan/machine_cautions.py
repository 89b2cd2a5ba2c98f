"""Warnings about machines, given before the run. Pure."""

from __future__ import annotations

from shoal.facts import MachineFacts


def crowd_warnings(workers: int, machine: MachineFacts) -> list[str]:
    """Returns warnings about more workers than cores.

    Example:
        >>> crowd_warnings(5, MachineFacts(cores=2))[0].partition(";")[0]
        '5 workers share 2 cores'
    """
    if machine.gpus or workers <= machine.cores:
        return []
    return [
        f"{workers} workers share {machine.cores} cores; more than one a core only "
        "makes all of them slower."
    ]


def room_warnings(workers: int, threads: int, machine: MachineFacts) -> list[str]:
    """Returns warnings about a cluster with less room than workers need.

    Example:
        >>> from shoal.facts import NodeFacts
        >>> one = (NodeFacts(name="10.0.0.7", cores=4),)
        >>> room_warnings(3, 2, MachineFacts(cores=4, nodes=one))[0].partition(";")[0]
        'the cluster has room for 2 of 3 workers now'
    """
    room = machine.room_for(threads)
    if not machine.nodes or workers <= room:
        return []
    return [
        f"the cluster has room for {room} of {workers} workers now; fit waits for more "
        "for a while, and then goes on with what there is."
    ]


def slot_warnings(
    workers: int, machine: MachineFacts, has_callbacks: bool
) -> list[str]:
    """Returns warnings about workers that leave no slot to the user's own jobs.

    Example:
        >>> machine = MachineFacts(cores=2, slots=2, threads_each=1)
        >>> slot_warnings(2, machine, True)[0].partition(":")[0]
        'the workers take all 2 slots'
        >>> slot_warnings(1, machine, True)
        []
    """
    if machine.slots is None or not has_callbacks or workers < machine.slots:
        return []
    return [
        f"the workers take all {machine.slots} slots: a callback that starts a job "
        "there waits for a free slot, and the run for the callback. Pass "
        f"workers={max(1, machine.slots - 1)} if a callback starts one."
    ]


ENOUGH_MIB = 1024
"""Memory of a training process of a middling model, with chunks of data."""


def overhead_warnings(machine: MachineFacts) -> list[str]:
    """Returns warnings about containers that have little memory for workers.

    Example:
        >>> machine = MachineFacts(cores=1, slots=1, overhead_each_mib=384)
        >>> overhead_warnings(machine)[0].partition(":")[0]
        'each worker has 384 MiB of memory overhead'
        >>> overhead_warnings(MachineFacts(cores=1))
        []
    """
    each = machine.overhead_each_mib
    if not 0 < each < ENOUGH_MIB:
        return []
    return [
        f"each worker has {each:,} MiB of memory overhead: training takes 300 to 600 "
        "MiB, more with large models, and up to 512 MiB for chunks of data; a "
        "container above its limit is killed. Set spark.executor.memoryOverhead to "
        f"{ENOUGH_MIB:,} MiB for each core of an executor."
    ]


def idle_gpu_warnings(machine: MachineFacts) -> list[str]:
    """Returns warnings about GPUs that a cluster gives to no worker.

    Example:
        >>> idle_gpu_warnings(MachineFacts(cores=8, slots=8, idle_gpus=2))[0][:35]
        'workers compute on the CPU, and the'
        >>> idle_gpu_warnings(MachineFacts(cores=8))
        []
    """
    if not machine.idle_gpus:
        return []
    return [
        f"workers compute on the CPU, and the {machine.idle_gpus} GPUs of this machine "
        "are idle: Spark hands out none of them here. Pass cluster='local' to train "
        "on them."
    ]
